# SPDX-License-Identifier: Apache-2.0
"""A Hive metastore, spoken to over Thrift without a JVM: which tables and partitions there are, and where."""

from lake.metastore.client import BATCH, TIMEOUT, Metastore, as_written
from lake.metastore.objects import Partition, Storage, Table, values_of
from lake.metastore.pool import connected

__all__ = [
    "BATCH",
    "TIMEOUT",
    "Metastore",
    "Partition",
    "Storage",
    "Table",
    "as_written",
    "connected",
    "values_of",
]
