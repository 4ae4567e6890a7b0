# SPDX-License-Identifier: Apache-2.0
"""A Hive metastore, spoken to over Thrift without a JVM: which tables and partitions there are, and where."""

from lake.metastore.client import BATCH_SIZE, TIMEOUT, MetastoreClient, normalized_uri
from lake.metastore.objects import MetastorePartition, MetastoreTable, StorageDescriptor, partition_values
from lake.metastore.pool import pooled_connection

__all__ = [
    "BATCH_SIZE",
    "TIMEOUT",
    "MetastoreClient",
    "MetastorePartition",
    "MetastoreTable",
    "StorageDescriptor",
    "normalized_uri",
    "partition_values",
    "pooled_connection",
]
