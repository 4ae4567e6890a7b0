# SPDX-License-Identifier: Apache-2.0
"""A Hive metastore over Thrift without a JVM: its tables and partitions, and their locations."""

from lake.metastore.client import BATCH_SIZE, TIMEOUT, MetastoreClient, normalized_uri
from lake.metastore.objects import MetastorePartition, MetastoreTable, StorageDescriptor, partition_values
from lake.metastore.pool import pooled_connection
