# SPDX-License-Identifier: Apache-2.0
"""A table as its readers see it, and as people are told of it."""
