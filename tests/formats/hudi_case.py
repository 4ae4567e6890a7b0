# SPDX-License-Identifier: Apache-2.0
"""Hudi as a case of the contract's suite: a merge-on-read table that Hudi's own writer fills and Spark reads."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hudi_tables import SMALL_BLOOM, copy, rows, table_rows, write
from hudi_writing import QUICK_LOCK, Table
from toys.cases import PARTS

from executors.engines.arrow import ArrowEngine
from executors.engines.backends import InProcessBackend
from lake.engines import RewriteEngine
from lake.formats.hudi.format import HudiFormat
from lake.formats.hudi.jvm.bundle import bundle_of
from lake.formats.hudi.timeline.timeline import COMMIT_ACTIONS, EPOCH_KEY, PLAN_KEY, extra_metadata
from lake.model import TableRef
from lake.ports import Capability

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME = {"hoodie.table.name": "t"}
SCHEDULES = {"hoodie.clustering.schedule.inline": "true", "hoodie.clustering.async.max.commits": "1"}
EACH = 50
FILES = 3
DEAD = "20260101000000000"
OLDER = r"needs Hudi bundle 1\.1 or newer, this session has 1\.0"


class HudiCase:
    """See ``contract.case.Case``; ``templates`` is a directory, empty at first, that all cases of a session share."""

    engines: Sequence[RewriteEngine] = (ArrowEngine(InProcessBackend()),)
    parts = PARTS

    def __init__(self, spark: "SparkSession", templates: Path) -> None:
        self.format: Any = HudiFormat()
        self._spark, self._templates = spark, templates
        self._made = self._version = 0
        able = bundle_of(spark).can_run_foreign_plans
        self.lacks = {} if able else {Capability.ADOPTION: OLDER, Capability.TABLE_SERVICES: OLDER}

    def spark(self) -> Any:
        return self._spark

    def create(self, location: Path, *, name: str) -> TableRef:
        """A copy of a template, the next time of another one: Hudi's writers use no name twice."""
        template = self._templates / str(self._made)
        self._made += 1
        if not template.exists():
            self.build(template)
        location.parent.mkdir(parents=True, exist_ok=True)
        return replace(Table(self._spark, copy(template, location), QUICK_LOCK).ref, name=name)

    def build(self, base: Path) -> None:
        """Three small files in each of two partitions, by one commit."""
        files = [
            self._rows(f"dt={number // FILES}", number * EACH, (number + 1) * EACH).coalesce(1)
            for number in range(2 * FILES)
        ]
        both = reduce(lambda one, other: one.union(other), files)
        write(both, base, merge_on_read=True, files=len(files), options=NAME | QUICK_LOCK)

    def append(self, table: TableRef, partition: str, low: int, high: int) -> bool:
        return self._write(table, self._rows(partition, low, high), "insert")

    def update(self, table: TableRef, partition: str) -> bool:
        self._version += 1
        return self._write(table, self._one_of_each_file(partition, 1), "upsert")

    def delete(self, table: TableRef, partition: str) -> bool:
        self._version += 1
        return self._write(table, self._one_of_each_file(partition, 2), "delete")

    def forget(self, table: TableRef) -> bool:
        """Never: what leaves the active timeline is in the archived one for ever, and looked up there."""
        return False

    def rows(self, table: TableRef) -> Sequence[str]:
        return [repr(row) for row in table_rows(self._spark, table.location)]

    def stored(self, table: TableRef) -> Mapping[str, int]:
        return Table(self._spark, table.location).data_files()

    def commits(self, table: TableRef) -> Sequence[tuple[str, int | None]]:
        timeline = Table(self._spark, table.location).timeline()
        changes = [instant for instant in timeline.completed if instant.action in COMMIT_ACTIONS]
        extra = [extra_metadata(timeline.metadata(instant)) for instant in changes]
        return [(one[PLAN_KEY], int(one[EPOCH_KEY])) for one in extra if PLAN_KEY in one]

    def schedule(self, table: TableRef) -> str:
        """An insert that schedules a clustering of all that is there."""
        self._write(table, self._rows("dt=0", 20_000, 20_010), "insert", **SCHEDULES)
        (pending,) = Table(self._spark, table.location).timeline().pending
        return pending.time

    def abandon(self, table: TableRef) -> str:
        for name in (f"{DEAD}.commit.requested", f"{DEAD}.inflight"):
            path = Path(table.location) / ".hoodie/timeline" / name
            path.write_bytes(b"")
            os.utime(path, (1e9, 1e9))
        return DEAD

    def save(self, table: TableRef) -> None:
        time = Table(self._spark, table.location).timeline().completed[-1].time
        self._call(table, f"create_savepoint(table => 'saved', commit_time => '{time}')")

    def release(self, table: TableRef) -> None:
        (time,) = Table(self._spark, table.location).timeline().savepoints()
        self._call(table, f"delete_savepoint(table => 'saved', instant_time => '{time}')")

    def _call(self, table: TableRef, procedure: str) -> None:
        self._spark.sql(f"CREATE TABLE saved USING hudi LOCATION '{table.location}'")
        try:
            self._spark.sql(f"CALL {procedure}").collect()
        finally:
            self._spark.sql("DROP TABLE saved")

    def _rows(self, partition: str, low: int, high: int) -> "DataFrame":
        from pyspark.sql import functions as f

        frame = rows(self._spark, low, high, version=self._version)
        return frame.withColumn("dt", f.lit(partition.removeprefix("dt=")))

    def _one_of_each_file(self, partition: str, which: int) -> "DataFrame":
        first = FILES * EACH * int(partition.removeprefix("dt="))
        return self._rows(partition, first, first + FILES * EACH).where(f"id % {EACH} = {which}")

    def _write(self, table: TableRef, frame: "DataFrame", operation: str, **options: str) -> bool:
        """One commit; False where Hudi refuses it because of a pending clustering."""
        settings = NAME | SMALL_BLOOM | QUICK_LOCK | options
        try:
            write(frame.coalesce(1), table.location, operation, merge_on_read=True, options=settings)
        except Exception as error:
            if "HoodieClusteringUpdateException" in str(error):
                return False
            raise
        return True
