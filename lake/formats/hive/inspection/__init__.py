# SPDX-License-Identifier: Apache-2.0
"""What a table shows of its past and of the tools that write it."""
