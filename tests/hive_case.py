# SPDX-License-Identifier: Apache-2.0
"""Hive tables as a case of the contract's suite: made, written to and read as others do, past the adapter."""

import json
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
from hdfs_paths import AnyPath, HdfsPath, place
from pyarrow import orc
from toys.cases import FILES, PARTITIONS, PARTS, ROWS_EACH, no_spark, with_other_values, without_first_row
from toys.engine import CopyRows
from toys.files import rows, told

from executors.engines.arrow import ArrowEngine
from lake.engines import RewriteEngine
from lake.formats.hive import FORMAT, HiveFormat
from lake.formats.hive.writer import HiveWriter
from lake.metastore import MetastoreClient, MetastorePartition, MetastoreTable, pooled_connection
from lake.metastore.thrift import BOOL, I32, LIST, STRING, STRUCT, Struct, ThriftList, string_list, string_map
from lake.model import CatalogRef, TableRef
from lake.ports import Capability

DATABASE = "contract"
_HIVE = "org.apache.hadoop.hive.ql.io"
#: by kind of file: what reads it, what writes it, and what makes rows of it
_CLASSES = {
    "parquet": (
        "parquet.MapredParquetInputFormat",
        "parquet.MapredParquetOutputFormat",
        "parquet.serde.ParquetHiveSerDe",
    ),
    "orc": ("orc.OrcInputFormat", "orc.OrcOutputFormat", "orc.OrcSerde"),
}


class CopyOrcRows(CopyRows):
    """The same of ORC files."""

    write = staticmethod(orc.write_table)

    @staticmethod
    def read(source: Any) -> pa.Table:
        return orc.ORCFile(source).read()


class Owner(MetastoreClient):
    """A client that makes, changes and drops, as the owner of tables does."""

    kind = "parquet"

    def make_table(
        self, name: str, location: AnyPath, *, partitioned: bool = True, managed: bool = False, noted: str | None = None
    ) -> None:
        """A table of this ``kind``, partitioned by ``dt`` or not, made in another second than an earlier one.

        It is external unless ``managed``; ``noted`` is where Spark says that it is, where it is one of Spark's.
        """
        if DATABASE not in self.databases():
            self._call("create_database", {1: (STRUCT, {1: (STRING, DATABASE)})})
        before = self.table(DATABASE, name)
        if before is not None:
            self.drop_table(name)
            while int(time.time()) <= before.created_at:
                time.sleep(0.05)
        raw: Struct = {
            1: (STRING, name),
            2: (STRING, DATABASE),
            7: (STRUCT, _storage(location, self.kind, noted)),
            8: (LIST, ThriftList(STRUCT, [_column("dt", "string")] * partitioned)),
            9: string_map(
                ({} if managed else {"EXTERNAL": "TRUE"}) | ({"spark.sql.sources.provider": self.kind} if noted else {})
            ),
            12: (STRING, "MANAGED_TABLE" if managed else "EXTERNAL_TABLE"),
        }
        self._call("create_table", {1: (STRUCT, raw)})

    def drop_table(self, name: str, database: str = DATABASE) -> None:
        """Drop a table; of an external one its files stay."""
        self._call("drop_table", {1: (STRING, database), 2: (STRING, name), 3: (BOOL, False)})

    def add(self, name: str, value: str, location: AnyPath) -> None:
        """Add a partition at a directory."""
        raw: Struct = {
            1: string_list([value]),
            2: (STRING, DATABASE),
            3: (STRING, name),
            6: (STRUCT, _storage(location, self.kind)),
            7: string_map({}),
        }
        self._call("add_partition", {1: (STRUCT, raw)})

    def drop(self, name: str, value: str) -> None:
        """Drop a partition; of an external table its files stay."""
        self._call(
            "drop_partition",
            {1: (STRING, DATABASE), 2: (STRING, name), 3: string_list([value]), 4: (BOOL, False)},
        )

    def rename(self, name: str, value: str, to: str) -> None:
        """``ALTER TABLE name PARTITION (dt = value) RENAME TO PARTITION (dt = to)``."""
        ((_, before),) = self.partitions(DATABASE, name, [f"dt={value}"])
        self._call(
            "rename_partition",
            {
                1: (STRING, DATABASE),
                2: (STRING, name),
                3: string_list([value]),
                4: (STRUCT, before.raw | {1: string_list([to])}),
            },
        )

    def exchange(self, name: str, value: str, into: str) -> None:
        """``ALTER TABLE into EXCHANGE PARTITION (dt = value) WITH TABLE name``."""
        self._call(
            "exchange_partition",
            {
                1: string_map({"dt": value}),
                2: (STRING, DATABASE),
                3: (STRING, name),
                4: (STRING, DATABASE),
                5: (STRING, into),
            },
        )


@dataclass(kw_only=True)
class HiveCase:
    """Writers add files to a partition's directory, or overwrite what is in it. See ``contract.case.Case``."""

    uri: str
    kind: str = "parquet"
    #: what the places of its tables begin with: nothing on this machine, or an HDFS
    root: str = ""
    format: HiveFormat = FORMAT
    engines: Sequence[RewriteEngine] = ()
    lacks: Mapping[Capability, str] = field(default_factory=dict)
    parts: Sequence[str] = PARTS
    spark = staticmethod(no_spark)

    def __post_init__(self) -> None:
        self.copies = CopyOrcRows() if self.kind == "orc" else CopyRows()
        self.engines = self.engines or (self.copies,)
        if not any(isinstance(one, ArrowEngine) for one in self.engines):
            self.lacks = {**self.lacks, Capability.SORTING: "no engine can sort group 0 by id"}

    @staticmethod
    def takes_at_most(span: timedelta) -> None:
        """Say that commits take no longer."""
        HiveWriter.max_commit_duration = min(HiveWriter.max_commit_duration, span)

    def create(self, location: AnyPath, *, name: str) -> TableRef:
        location = place(str(location) if isinstance(location, HdfsPath) else f"{self.root}{location}")
        table = f"t{sha256(str(location).encode()).hexdigest()[:12]}"
        with Owner(self.uri) as owner:
            owner.kind = self.kind
            self._make(owner, table, location)
        ref = TableRef(
            name=name,
            format="hive",
            location=str(location),
            catalog=CatalogRef(kind="metastore", name=self.uri, table=f"{DATABASE}.{table}"),
        )
        directories = self.places(ref)

        def put_one(number: int) -> None:
            part = self.parts[number * len(self.parts) // (PARTITIONS * FILES)]
            self._put(directories[part], rows(number * ROWS_EACH, (number + 1) * ROWS_EACH))

        # A file on HDFS is closed 0.4 seconds after it was asked for: once its data nodes have told of it.
        with ThreadPoolExecutor() as pool:
            list(pool.map(put_one, range(PARTITIONS * FILES)))
        return ref

    def _make(self, owner: Owner, table: str, location: AnyPath) -> None:
        owner.make_table(table, location)
        for number in range(PARTITIONS):
            (location / f"dt={number}").mkdir(parents=True)
            owner.add(table, str(number), location / f"dt={number}")

    def partitions(self, table: TableRef) -> Mapping[str, MetastorePartition | MetastoreTable]:
        """What the metastore says of the partitions."""
        with pooled_connection(self.uri) as metastore:
            name = table_name(table)
            return dict(metastore.partitions(DATABASE, name, metastore.partition_names(DATABASE, name)))

    def places(self, table: TableRef) -> dict[str, Any]:
        """Where the partitions are."""
        return {name: place(one.storage.location) for name, one in self.partitions(table).items()}

    def append(self, table: TableRef, partition: str, low: int, high: int) -> bool:
        self._put(self.places(table)[partition], rows(low, high))
        return True

    def _put(self, directory: AnyPath, content: pa.Table) -> None:
        self.copies.put(content, directory / f"part-{uuid.uuid4().hex}.{self.kind}")

    def update(self, table: TableRef, partition: str) -> bool:
        return self._overwrite(table, partition, with_other_values)

    def delete(self, table: TableRef, partition: str) -> bool:
        return self._overwrite(table, partition, without_first_row)

    def forget(self, table: TableRef) -> bool:
        """Never by its own means: each commit has a document beside the files, whatever the metastore forgets."""
        return False

    def _overwrite(self, table: TableRef, partition: str, change: Callable[[pa.Table], pa.Table]) -> bool:
        there = self.places(table)[partition]
        for path in list(there.glob(f"*.{self.kind}")):
            self._put(there, change(self.copies.rows_of(path)))
            path.unlink()
        return True

    def rows(self, table: TableRef) -> Sequence[str]:
        files = [path for there in self.places(table).values() for path in there.glob(f"*.{self.kind}")]
        return sorted(row for path in files for row in told(self.copies.rows_of(path)))

    def stored(self, table: TableRef) -> Mapping[str, int]:
        base = place(table.location)
        return {str(path.relative_to(base)): path.stat().st_size for path in base.rglob(f"*.{self.kind}")}

    def commits(self, table: TableRef) -> Sequence[tuple[str, int | None]]:
        named = [one.parameters for one in self.partitions(table).values()]
        found = {(one["lakefold.plan"], int(one["lakefold.epoch"])) for one in named if "lakefold.plan" in one}
        filed = [json.loads(path.read_text()) for path in place(table.location).glob(".lakefold/_commits/*.json")]
        return sorted(found | {(one["plan"], one["epoch"]) for one in filed})


@dataclass(kw_only=True)
class WholeCase(HiveCase):
    """The same with tables that have no partitions; ``by_spark`` are those made with ``USING``."""

    parts: Sequence[str] = ("",)
    by_spark: bool = False

    def create(self, location: AnyPath, *, name: str) -> TableRef:
        return replace(HiveCase.create(self, location, name=name), sessions_refresh=self.by_spark)

    def _make(self, owner: Owner, table: str, location: AnyPath) -> None:
        location.mkdir(parents=True)
        owner.make_table(table, location, partitioned=False, noted=uri(location) if self.by_spark else None)

    def partitions(self, table: TableRef) -> Mapping[str, MetastorePartition | MetastoreTable]:
        with Owner(self.uri) as owner:
            found = owner.table(DATABASE, table_name(table))
        assert found is not None
        assert found.storage.spark_path in (None, found.storage.location)
        return {"": found}


def drop_tables(uri: str, database: str = DATABASE) -> None:
    """Drop all tables of a database; of external ones their files stay."""
    with Owner(uri) as owner:
        for name in owner.table_names(database) if database in owner.databases() else ():
            owner.drop_table(name, database)


def drop_tables_but_those_of(databases: Collection[str], uri: str) -> None:
    """Drop all tables of the other databases."""
    with Owner(uri) as owner:
        for database in set(owner.databases()) - {*databases}:
            for name in owner.table_names(database):
                owner.drop_table(name, database)


def table_name(table: TableRef) -> str:
    """What the metastore calls it."""
    assert table.catalog is not None
    return table.catalog.table.partition(".")[2]


def _column(name: str, kind: str) -> Struct:
    return {1: (STRING, name), 2: (STRING, kind)}


def uri(location: AnyPath) -> str:
    """A place as the metastore has it."""
    return f"file:{location}" if isinstance(location, Path) else str(location)


def _storage(location: AnyPath, kind: str, noted: str | None = None) -> Struct:
    reads, writes, makes_rows = (f"{_HIVE}.{name}" for name in _CLASSES[kind])
    return {
        1: (LIST, ThriftList(STRUCT, [_column("id", "bigint"), _column("value", "bigint")])),
        2: (STRING, uri(location)),
        3: (STRING, reads),
        4: (STRING, writes),
        5: (BOOL, False),
        6: (I32, -1),
        7: (STRUCT, {2: (STRING, makes_rows), 3: string_map({"path": noted} if noted else {})}),
        8: string_list([]),
        9: (LIST, ThriftList(STRUCT, [])),
        10: string_map({}),
    }
