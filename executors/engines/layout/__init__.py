# SPDX-License-Identifier: Apache-2.0
"""Layouts: the order of the rows of a group by ``sort_columns``, linear or along a space-filling curve."""
