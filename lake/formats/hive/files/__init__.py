# SPDX-License-Identifier: Apache-2.0
"""The data files in partitions' directories: listings, incomplete files, row counts."""
