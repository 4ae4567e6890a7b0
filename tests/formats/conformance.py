# SPDX-License-Identifier: Apache-2.0
"""Tables of every version that the session's bundle writes, and what both readers and Hudi itself say of them.

A bundle belongs to a JVM, so one run covers one bundle: ``LAKEFOLD_TEST_BUNDLE`` chooses it.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hudi_tables import COMPACT_NOW, rows, run_service, write
from hudi_writing import INDEXES, Table, plan_of
from kept_tables import kept
from support import BUNDLE, SOAK

from executors.engines.arrow import ArrowEngine
from executors.engines.backends import InProcessBackend
from executors.engines.stitch.engine import HybridEngine
from lake.engines import RewriteEngine
from lake.formats.hudi.jvm.bundle import RELEASE_LINES
from lake.plan import Plan

TABLE_VERSIONS: Mapping[str, tuple[int, ...]] = {line.release: line.table_versions for line in RELEASE_LINES}
"""Bundles in their newest releases, each with the table versions that it writes."""
ROWS = 120


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of table."""

    merge_on_read: bool
    version: int

    def __str__(self) -> str:
        return f"{'mor' if self.merge_on_read else 'cow'}-v{self.version}"

    @property
    def options(self) -> dict[str, str]:
        """What every writer of such a table sets."""
        indexes = {key: value for key, value in INDEXES.items() if self.version > 6 or "partition.stats" not in key}
        return {
            "hoodie.table.name": "trips",
            "hoodie.write.table.version": str(self.version),
            "hoodie.write.auto.upgrade": "false",
            **indexes,
        }

    @property
    def indexes(self) -> frozenset[str]:
        """Partitions of its metadata table; table version 6 has no partition statistics."""
        every = {"files", "column_stats", "bloom_filters", "record_index"}
        return frozenset(every | {"partition_stats"} if self.version > 6 else every)

    def template(self, spark: Any) -> Path:
        """The table."""
        return kept(f"conformance-{self}", "trips", partial(self._build, spark), __file__)

    def _build(self, spark: Any, base: Path) -> None:
        """Two inserts; merge-on-read an upsert and a delete in all file groups too, so that every slice has logs."""
        for commit in range(2):
            frame = rows(spark, commit * ROWS // 2, (commit + 1) * ROWS // 2, version=commit).coalesce(1)
            write(frame, base, merge_on_read=self.merge_on_read, options=self.options)
        if self.merge_on_read:
            changed = rows(spark, 0, ROWS, version=2).where("id % 5 = 1").coalesce(1)
            write(changed, base, "upsert", merge_on_read=True, options=self.options)
            gone = rows(spark, 0, ROWS, version=3).where("id % 7 = 0").coalesce(1)
            write(gone, base, "delete", merge_on_read=True, options=self.options)


_LINE = next(line for line in RELEASE_LINES if line.release == BUNDLE)
_ALL = [Case(mor, version) for version in TABLE_VERSIONS[BUNDLE] for mor in (False, True)]
_LONG = SOAK or RELEASE_LINES[0].release != BUNDLE
CASES = _ALL if _LONG else [Case(True, 6), Case(False, 8)]
"""The kinds of tables of this run: all in the long one and on bundles other than the newest.

The short one leaves table version 9 to the other modules, all of which work on it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a table looks like at a moment. Rows are multisets with Hudi's meta columns except the file name.

    ``misplaced`` counts rows whose ``_hoodie_file_name`` is not the file that they are in, which only base files can
    tell; ``invalid`` is what Hudi's own procedure finds wrong with the metadata table.
    """

    spark_schema: str
    spark_rows: Counter[str]
    hudi_rs_schema: pa.Schema
    hudi_rs_rows: Counter[str]
    misplaced: int
    invalid: list[Any]
    indexes: frozenset[str]
    version: str


def look(table: Table) -> Seen:
    """The table as Spark, hudi-rs and Hudi's validation see it now."""
    spark = table.spark
    spark.catalog.clearCache()
    frame = spark.read.format("hudi").load(str(table.base))
    names = {name for name in frame.columns if name != "_hoodie_file_name"}
    counted = Counter(repr(sorted((name, row[name]) for name in names)) for row in frame.collect())
    other_schema, other_rows = table.other_rows()
    properties = table.timeline().properties
    return Seen(
        spark_schema=frame.schema.json(),
        spark_rows=counted,
        hudi_rs_schema=other_schema,
        hudi_rs_rows=other_rows,
        misplaced=_misplaced(table),
        invalid=_invalid_metadata(table),
        indexes=frozenset(properties["hoodie.table.metadata.partitions"].split(",")),
        version=f"{properties['hoodie.table.version']}, layout {properties['hoodie.timeline.layout.version']}",
    )


def _misplaced(table: Table) -> int:
    wrong = 0
    for path in table.data_files():
        if path.endswith(".parquet"):
            column = pq.read_table(table.base / path, columns=["_hoodie_file_name"])[0].to_pylist()
            wrong += sum(name != path.rpartition("/")[2] for name in column)
    return wrong


def _invalid_metadata(table: Table) -> list[Any]:
    spark = table.spark
    spark.sql(f"CREATE TABLE validated USING hudi LOCATION '{table.base}'")
    try:
        return [tuple(row) for row in spark.sql("CALL validate_metadata_table_files(table => 'validated')").collect()]
    finally:
        spark.sql("DROP TABLE validated")


def _cluster_by_hudi(table: Table, case: Case) -> None:
    run_service(table.spark, "run_clustering", table.base, "scheduleAndExecute", **case.options)


def _compact_by_hudi(table: Table, case: Case) -> None:
    run_service(table.spark, "run_compaction", table.base, "scheduleAndExecute", **case.options, **COMPACT_NOW)


@dataclass(frozen=True, slots=True)
class Service:
    """A way to rewrite a table: our plan for it, and Hudi's own service which the result is compared with."""

    name: str
    plan: Callable[[Table], Plan]
    by_hudi: Callable[[Table, Case], None]
    for_merge_on_read: tuple[bool, ...] = (False, True)


def _plan_by(engine: RewriteEngine, table: Table) -> Plan:
    table.engines = (engine,)
    return plan_of(table, engine.name)


CLUSTERING = Service("clustering", Table.plan, _cluster_by_hudi)
COMPACTION = Service("compaction", Table.compaction, _compact_by_hudi, for_merge_on_read=(True,))
#: every slice of a merge-on-read table of this module has logs
BY_ENGINES = tuple(
    Service(engine.name, partial(_plan_by, engine), _cluster_by_hudi, for_merge_on_read=(False,))
    for engine in (ArrowEngine(InProcessBackend()), HybridEngine(InProcessBackend()))
)
_OF_BUNDLE = (CLUSTERING, COMPACTION, *(BY_ENGINES if _LINE.can_begin_without_writing else ()))
SERVICES = _OF_BUNDLE if _LONG else (CLUSTERING,)
"""What every kind of table goes through; a service added here has the whole suite."""
RUNS = [(case, s) for case in CASES for s in SERVICES if case.merge_on_read in s.for_merge_on_read]
ARCHIVED = [run for run in RUNS if run[1] is CLUSTERING][: None if _LONG else 1]
"""Those whose commits a writer archives afterwards; ``test_hudi_observe_commits`` has another table of layout 2."""
