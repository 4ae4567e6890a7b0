# SPDX-License-Identifier: Apache-2.0
"""Iceberg tables that PyIceberg writes, without a JVM: a JDBC catalog on SQLite, and settings as Spark has them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import make_url

from lake.formats.iceberg.format import IcebergFormat
from lake.model import TableRef

CATALOG = "prod"
SPARK_CATALOG = "org.apache.iceberg.spark.SparkCatalog"


def _settings(name: str, kind: str, settings: Mapping[str, str]) -> dict[str, str]:
    """A catalog of one kind, as its owner pastes it, with further ``settings``."""
    key = f"spark.sql.catalog.{name}"
    own = {"type": kind, "cache-enabled": "false", **settings}
    return {key: SPARK_CATALOG} | {f"{key}.{setting}": value for setting, value in own.items()}


def jdbc_settings(home: Path, name: str = CATALOG) -> dict[str, str]:
    """A JDBC catalog on SQLite."""
    uri, warehouse = f"jdbc:sqlite:{home}/catalog.db", f"{home}/warehouse"
    return _settings(name, "jdbc", {"uri": uri, "warehouse": warehouse, "jdbc.schema-version": "V1"})


def hadoop_settings(warehouse: Path, name: str = CATALOG) -> dict[str, str]:
    """A Hadoop catalog."""
    return _settings(name, "hadoop", {"warehouse": f"file:{warehouse}"})


def hive_settings(uri: str, warehouse: Path, name: str = CATALOG) -> dict[str, str]:
    """A catalog of a Hive metastore."""
    return _settings(name, "hive", {"uri": uri, "warehouse": f"file:{warehouse}"})


def postgresql_settings(url: str, warehouse: Path, name: str = CATALOG) -> dict[str, str]:
    """A JDBC catalog on PostgreSQL; ``url`` is SQLAlchemy's."""
    parts = make_url(url)
    settings = {
        # The driver's own statements would be sent as numbers once they have been repeated, which a proxy can't tell.
        "uri": f"jdbc:postgresql://{parts.host}:{parts.port}/{parts.database}?prepareThreshold=0",
        "jdbc.user": str(parts.username),
        "jdbc.password": str(parts.password),
        "jdbc.schema-version": "V1",
        "warehouse": f"{warehouse}",
    }
    return _settings(name, "jdbc", settings)


def rest_settings(uri: str, name: str = CATALOG) -> dict[str, str]:
    """A REST catalog."""
    return _settings(name, "rest", {"uri": uri})


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


def only_table(format_: IcebergFormat, catalog: str = CATALOG, namespace: str = "*") -> TableRef:
    """The one table of a catalog, or of a namespace of it."""
    (found,) = format_.discover_in_catalog(catalog, namespace, "*")
    assert isinstance(found, TableRef), found
    return found


def append(table: Any, *parts: pa.Table) -> None:
    """One commit a part."""
    for part in parts:
        table.append(part)
