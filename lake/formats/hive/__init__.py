# SPDX-License-Identifier: Apache-2.0
"""Tables of a Hive metastore: directories of Parquet or ORC files, one per partition."""

from lake.formats.hive.format import HiveFormat

FORMAT = HiveFormat()

__all__ = ["FORMAT", "HiveFormat"]
