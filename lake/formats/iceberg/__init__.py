# SPDX-License-Identifier: Apache-2.0
"""Apache Iceberg: tables of Hadoop, Hive, JDBC and REST catalogs, format versions 1 to 3."""

from lake.formats.iceberg.format import FORMAT, IcebergFormat

__all__ = ["FORMAT", "IcebergFormat"]
