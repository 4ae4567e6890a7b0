# SPDX-License-Identifier: Apache-2.0
"""A table's files, read and written by path, and the parts of their names."""
