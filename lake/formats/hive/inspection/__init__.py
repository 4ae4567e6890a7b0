# SPDX-License-Identifier: Apache-2.0
"""The history that a table's files show, and the signs of the tools that write the table."""
