# SPDX-License-Identifier: Apache-2.0
"""Iceberg tables as a case of the contract's suite: made, written to and read by Spark, past the adapter."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

from iceberg_tables import hadoop_settings, hive_settings, jdbc_settings, postgresql_settings, rest_settings
from toys.cases import FILES, PARTITIONS, PARTS, ROWS_EACH

import lake.formats
from executors.engines.arrow import ArrowEngine
from executors.engines.backends import InProcessBackend
from lake.engines import RewriteEngine
from lake.formats.iceberg import FORMAT, IcebergFormat
from lake.formats.iceberg.catalog import settings as catalog_settings
from lake.model import CatalogRef, TableRef
from lake.ports import Capability

COLUMNS = "id bigint, value bigint, tip string, stop struct<lat: double, names: array<string>>, dt string"
VALUES = (
    "id",
    "id * 7 % 1000 AS value",
    "IF(id % 5 = 0, NULL, concat('tip ', id)) AS tip",
    "named_struct('lat', id / 8.0D, 'names', array(concat('n', id), NULL)) AS stop",
)
_settings: dict[str, str] = {}
_unsafe_reason = catalog_settings._unsafe_reason


def _reason_outside_of_one_jvm(settings: Mapping[str, str], key: str) -> str | None:
    """All writers of a case are in one JVM, whose lock keeps their commits to a Hadoop catalog apart."""
    return None if key.startswith(f"{catalog_settings.PREFIX}hadoop_") else _unsafe_reason(settings, key)


catalog_settings._unsafe_reason = _reason_outside_of_one_jvm


#: Iceberg's own rewrite, which some files of version 3 need, splits files at row groups only
SMALL_ROW_GROUPS = {
    "write.parquet.row-group-size-bytes": "8192",
    "write.parquet.row-group-check-min-record-count": "500",
    "write.parquet.row-group-check-max-record-count": "500",
}


@dataclass(kw_only=True)
class IcebergCase:
    """Writers append, update and delete by copy-on-write or ``merge_on_read``. See ``contract.case.Case``.

    ``kind`` is that of the catalog: ``hadoop``, ``jdbc`` (on SQLite), ``postgresql``, ``hive`` or ``rest``. ``server``
    is the address of the last three.
    """

    session: Any
    kind: str = "hadoop"
    server: str = ""
    version: int = 2
    merge_on_read: bool = False
    format: IcebergFormat = FORMAT
    engines: Sequence[RewriteEngine] = field(default_factory=lambda: (ArrowEngine(InProcessBackend()),))
    lacks: Mapping[Capability, str] = field(default_factory=dict)
    parts: Sequence[str] = PARTS
    properties: Mapping[str, str] = field(default_factory=dict)
    #: the jar of Iceberg for processes of their own; '' for the one of the session
    runtime: str = ""

    def spark(self) -> Any:
        return self.session

    @staticmethod
    def takes_at_most(span: timedelta) -> None:
        """A commit is never applied after its check."""

    def create(self, location: Path, *, name: str) -> TableRef:
        warehouse = location.parents[1]
        of_warehouse = sha256(str(warehouse).encode()).hexdigest()[:12]
        warehouse.mkdir(parents=True, exist_ok=True)
        namespace, settings = location.parent.name, {}
        if self.server:
            # All tests share the server's catalog, and by it the connections of one client.
            catalog, namespace = f"{self.kind}_{sha256(self.server.encode()).hexdigest()[:12]}", f"n{of_warehouse}"
            if f"spark.sql.catalog.{catalog}" not in _settings:
                settings = self.catalog_settings(warehouse, catalog)
        else:
            catalog = f"{self.kind}_{of_warehouse}"
            settings = self.catalog_settings(warehouse, catalog)
        _settings.update(settings)
        lake.formats.configure(_settings)
        self.format.configure(_settings)
        for key, value in settings.items():
            self.session.conf.set(key, value)
        ref = TableRef(
            name=name,
            format="iceberg",
            location=str(location),
            catalog=CatalogRef(kind="iceberg", name=catalog, table=f"{namespace}.{location.name.replace(' ', '_')}"),
        )
        self.sql(f"CREATE NAMESPACE IF NOT EXISTS {catalog}.{namespace}")
        self._forget_in_catalog(ref)
        properties = {
            "format-version": str(self.version),
            "write.distribution-mode": "none",
            "history.expire.max-snapshot-age-ms": "1",
            **({f"write.{one}.mode": "merge-on-read" for one in ("update", "delete")} if self.merge_on_read else {}),
            **(SMALL_ROW_GROUPS if self.version == 3 else {}),
            **self.properties,
        }
        listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
        by = "PARTITIONED BY (dt)" if len(self.parts) > 1 else ""
        where = f"LOCATION 'file:{location}'" if self.kind != "hadoop" else ""
        self.sql(f"CREATE TABLE {self.name(ref)} ({COLUMNS}) USING iceberg {by} {where} TBLPROPERTIES ({listed})")
        for number in range(PARTITIONS * FILES):
            part = self.parts[number * len(self.parts) // (PARTITIONS * FILES)]
            self.append(ref, part, number * ROWS_EACH, (number + 1) * ROWS_EACH)
        return ref

    def catalog_settings(self, warehouse: Path, catalog: str) -> dict[str, str]:
        """The settings of the catalog for Spark."""
        if self.kind == "hadoop":
            return hadoop_settings(warehouse, catalog)
        if self.kind == "jdbc":
            return jdbc_settings(warehouse, catalog)
        if self.kind == "postgresql":
            return postgresql_settings(self.server, warehouse, catalog)
        if self.kind == "hive":
            return hive_settings(self.server, warehouse, catalog)
        assert self.kind == "rest", self.kind
        return rest_settings(self.server, catalog)

    def _forget_in_catalog(self, table: TableRef) -> None:
        """Remove the entry of a table whose directory was removed, as an owner has to."""
        if self.kind != "hadoop" and not Path(table.location).exists():
            assert table.catalog is not None
            iceberg = self.session._jvm.org.apache.iceberg
            catalog = iceberg.spark.Spark3Util.loadIcebergCatalog(self.session._jsparkSession, table.catalog.name)
            catalog.dropTable(iceberg.catalog.TableIdentifier.parse(table.catalog.table), False)

    def name(self, table: TableRef) -> str:
        """What Spark calls it."""
        assert table.catalog is not None
        return f"{table.catalog.name}.{table.catalog.table}"

    def sql(self, text: str) -> Any:
        return self.session.sql(text)

    def append(self, table: TableRef, partition: str, low: int, high: int) -> bool:
        dt = partition.removeprefix("dt=") or "0"
        rows = self.session.range(low, high, 1, 1).selectExpr(*VALUES, f"'{dt}' AS dt")
        rows.writeTo(self.name(table)).append()
        return True

    def update(self, table: TableRef, partition: str) -> bool:
        self.sql(f"UPDATE {self.name(table)} SET value = value + 1 WHERE {self._where(partition)}")
        return True

    def delete(self, table: TableRef, partition: str) -> bool:
        first = self.session.table(self.name(table)).where(self._where(partition)).groupBy("_file").agg({"id": "min"})
        ids = ", ".join(str(row["min(id)"]) for row in first.collect())
        self.sql(f"DELETE FROM {self.name(table)} WHERE {self._where(partition)} AND id IN ({ids})")
        return True

    @staticmethod
    def _where(partition: str) -> str:
        return f"dt = '{partition.removeprefix('dt=')}'" if partition else "dt IS NOT NULL"

    def settings_file(self, home: Path) -> Path:
        """The settings of all catalogs so far in a file in ``home``, for a process of its own."""
        file = home / "spark.json"
        jars = self.session.conf.get("spark.jars").split(",")
        if self.runtime:
            jars = [*(one for one in jars if "iceberg-spark-runtime" not in one), self.runtime]
        file.write_text(json.dumps(_settings | {"spark.jars": ",".join(jars)}))
        return file

    def java_table(self, table: TableRef) -> Any:
        """Iceberg's own ``Table``, loaded by Spark's name."""
        util = self.session._jvm.org.apache.iceberg.spark.Spark3Util
        return util.loadIcebergTable(self.session._jsparkSession, self.name(table))

    def forget(self, table: TableRef) -> bool:
        expiry = self.java_table(table).expireSnapshots().expireOlderThan(time.time_ns() // 1_000_000 + 60_000)
        expiry.retainLast(1).cleanExpiredFiles(True).commit()
        return True

    def rows(self, table: TableRef) -> Sequence[str]:
        return sorted(repr(row.asDict(recursive=True)) for row in self.session.table(self.name(table)).collect())

    def stored(self, table: TableRef) -> Mapping[str, int]:
        return {str(path): path.stat().st_size for path in Path(table.location).rglob("*.parquet")}

    def commits(self, table: TableRef) -> Sequence[tuple[str, int | None]]:
        summaries = [row["summary"] for row in self.sql(f"SELECT summary FROM {self.name(table)}.snapshots").collect()]
        named = [one for one in summaries if "lakefold.plan-id" in one]
        return sorted((one["lakefold.plan-id"], int(one["lakefold.epoch"])) for one in named)


NewCase = Callable[..., IcebergCase]
"""Makes a case of a kind of catalog, whose server it starts if none is running yet."""
