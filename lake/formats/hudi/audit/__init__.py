# SPDX-License-Identifier: Apache-2.0
"""Whether a table is what its commits say, in files, sizes and rows."""
