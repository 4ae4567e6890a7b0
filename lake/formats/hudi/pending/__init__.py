# SPDX-License-Identifier: Apache-2.0
"""What is pending on a timeline: whose it is, who works on it, what was left of it."""
