# SPDX-License-Identifier: Apache-2.0
"""Comparisons of a table with its commits: files, sizes and rows."""
