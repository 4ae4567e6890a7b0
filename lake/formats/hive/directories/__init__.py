# SPDX-License-Identifier: Apache-2.0
"""Which tables and partitions are read from which directories."""
