# SPDX-License-Identifier: Apache-2.0
"""Iceberg tables that PyIceberg writes, without a JVM: a JDBC catalog on SQLite, and settings as Spark has them."""

from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import make_url

from lake.formats.iceberg.format import IcebergFormat
from lake.model import TableRef

CATALOG = "prod"
SPARK_CATALOG = "org.apache.iceberg.spark.SparkCatalog"


def jdbc_settings(home: Path, name: str = CATALOG) -> dict[str, str]:
    """A JDBC catalog on SQLite, as its owner pastes it."""
    key = f"spark.sql.catalog.{name}"
    return {
        key: SPARK_CATALOG,
        f"{key}.type": "jdbc",
        f"{key}.uri": f"jdbc:sqlite:{home}/catalog.db",
        f"{key}.warehouse": f"{home}/warehouse",
        f"{key}.jdbc.schema-version": "V1",
        f"{key}.cache-enabled": "false",
    }


def hadoop_settings(warehouse: Path, name: str = CATALOG) -> dict[str, str]:
    """A Hadoop catalog, as its owner pastes it."""
    key = f"spark.sql.catalog.{name}"
    return {
        key: SPARK_CATALOG,
        f"{key}.type": "hadoop",
        f"{key}.warehouse": f"file:{warehouse}",
        f"{key}.cache-enabled": "false",
    }


def hive_settings(uri: str, warehouse: Path, name: str = CATALOG) -> dict[str, str]:
    """A catalog of a Hive metastore, as its owner pastes it."""
    key = f"spark.sql.catalog.{name}"
    return {
        key: SPARK_CATALOG,
        f"{key}.type": "hive",
        f"{key}.uri": uri,
        f"{key}.warehouse": f"file:{warehouse}",
        f"{key}.cache-enabled": "false",
    }


def postgresql_settings(url: str, warehouse: Path, name: str = CATALOG) -> dict[str, str]:
    """A JDBC catalog on PostgreSQL, as its owner pastes it; ``url`` is SQLAlchemy's."""
    key, parts = f"spark.sql.catalog.{name}", make_url(url)
    return {
        key: SPARK_CATALOG,
        f"{key}.type": "jdbc",
        # The driver's own statements would be sent as numbers once they have been repeated, which a proxy can't tell.
        f"{key}.uri": f"jdbc:postgresql://{parts.host}:{parts.port}/{parts.database}?prepareThreshold=0",
        f"{key}.jdbc.user": str(parts.username),
        f"{key}.jdbc.password": str(parts.password),
        f"{key}.jdbc.schema-version": "V1",
        f"{key}.warehouse": f"{warehouse}",
        f"{key}.cache-enabled": "false",
    }


def rest_settings(uri: str, name: str = CATALOG) -> dict[str, str]:
    """A REST catalog, as its owner pastes it."""
    key = f"spark.sql.catalog.{name}"
    return {
        key: SPARK_CATALOG,
        f"{key}.type": "rest",
        f"{key}.uri": uri,
        f"{key}.cache-enabled": "false",
    }


def owner_catalog(home: Path, name: str = CATALOG) -> SqlCatalog:
    """The owner's own client of the JDBC catalog."""
    (home / "warehouse").mkdir(parents=True, exist_ok=True)
    return SqlCatalog(name, uri=f"sqlite:///{home}/catalog.db", warehouse=f"file://{home}/warehouse")


def rows(low: int, high: int, dt: int = 0) -> pa.Table:
    """Rows with the ids ``low`` ≤ id < ``high``."""
    ids = list(range(low, high))
    return pa.table({"id": ids, "value": [10 * one for one in ids], "dt": [str(dt)] * len(ids)})


def observing(settings: dict[str, str]) -> IcebergFormat:
    """An adapter of its own with these settings."""
    format_ = IcebergFormat()
    format_.configure(settings)
    return format_


def only_table(format_: IcebergFormat, catalog: str = CATALOG) -> TableRef:
    """The one table of a catalog."""
    (found,) = format_.discover_in_catalog(catalog, "*", "*")
    assert isinstance(found, TableRef), found
    return found


def append(table: Any, *parts: pa.Table) -> None:
    """One commit a part."""
    for part in parts:
        table.append(part)
