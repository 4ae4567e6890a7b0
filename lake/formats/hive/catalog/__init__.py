# SPDX-License-Identifier: Apache-2.0
"""Tables and partitions as the metastore has them now, and the tables that are refused."""
