# SPDX-License-Identifier: Apache-2.0
"""The database's record of relocated partitions."""
