# SPDX-License-Identifier: Apache-2.0
"""Plans, templates and readings for the tests of the Hudi writer."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from hudi_tables import FS_LOCK, METADATA, SMALL_BLOOM, STATISTICS, copy, rows, small_files, table_rows, write
from kept_tables import kept

from executors.engines.stitch.raw_file import RawParquetFile
from executors.verification import verify_rewrite
from lake.engines import RewriteEngine
from lake.formats.hudi.files.names import parse_file_name
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.format import HudiFormat
from lake.formats.hudi.read.hudi_rs import open_table
from lake.formats.hudi.timeline.timeline import Timeline
from lake.formats.hudi.writer import HudiWriter
from lake.model import Concurrency, FileSlice, OnConflict, TableRef
from lake.plan import (
    ClusteringGroup,
    Commit,
    Plan,
    PlanKind,
    RewriteOptions,
    RewriteProgress,
    SupersededVersion,
    VerificationLevel,
)

FORMAT = HudiFormat()
INDEXES = STATISTICS | {
    "hoodie.metadata.index.bloom.filter.enable": "true",
    "hoodie.metadata.record.index.enable": "true",
    "hoodie.metadata.global.record.level.index.enable": "true",
    # Hudi makes ten file groups for any record index and two for others, and every write goes through all of them.
    "hoodie.metadata.index.column.stats.file.group.count": "1",
    "hoodie.metadata.record.index.min.filegroup.count": "1",
    "hoodie.metadata.global.record.level.index.min.filegroup.count": "1",
    "hoodie.metadata.index.bloom.filter.file.group.count": "1",
}
#: options of a writer whose table has version 6
SIX = {"hoodie.write.table.version": "6", "hoodie.write.auto.upgrade": "false"}
LOCK = FS_LOCK | {"hoodie.client.heartbeat.interval_in_ms": "60000"}
"""A writer counts as alive for as long as a test takes."""
QUICK_LOCK = LOCK | {"hoodie.write.lock.client.num_retries": "3", "hoodie.write.lock.num_retries": "3"}
NO_CLEANER = {"hoodie.clean.automatic": "false"}
"""What ``hudi_tables.write`` says where a test does not say otherwise."""
Build = Callable[[Any, Path], None]


def _copy_on_write(spark: Any, base: Path) -> None:
    small_files(spark, base, commits=3, rows_each=60)


def _metadata(spark: Any, base: Path) -> None:
    small_files(spark, base, commits=3, rows_each=60, options=METADATA)


def _indexed(spark: Any, base: Path) -> None:
    small_files(spark, base, commits=2, rows_each=60, options=INDEXES)


def _merge_on_read(spark: Any, base: Path) -> None:
    for commit in range(2):
        frame = rows(spark, commit * 60, (commit + 1) * 60).coalesce(1)
        write(frame, base, merge_on_read=True)
    write(rows(spark, 0, 120, version=1).where("id % 5 = 1"), base, "upsert", merge_on_read=True)
    write(rows(spark, 0, 120, version=2).where("id % 7 = 0"), base, "delete", merge_on_read=True)


def _logs_only(spark: Any, base: Path) -> None:
    """In each of two partitions a slice with a base file and two of logs only, with updates and deletes."""
    # The only index of Spark's that lets a writer begin a file group with a log. It remembers keys, whatever table they
    # are in, for as long as the JVM lives: so no other table of the tests may have these.
    in_memory = {"hoodie.index.type": "INMEMORY"}
    for low, version in ((70_000, 0), (70_100, 0), (70_050, 1)):
        frame = rows(spark, low, low + 100, version=version).where("ts = 0 or id % 3 = 0")
        write(frame.coalesce(1), base, "upsert", merge_on_read=True, options=in_memory)
    gone = rows(spark, 70_000, 70_200, version=2).where("id % 7 = 0").coalesce(1)
    write(gone, base, "delete", merge_on_read=True, options=in_memory)
    write(rows(spark, 70_200, 70_260).coalesce(1), base, merge_on_read=True)


_BUILDERS: Mapping[str, Build] = {
    "cow": _copy_on_write,
    "metadata": _metadata,
    "indexed": _indexed,
    "mor": _merge_on_read,
    "logs_only": _logs_only,
}


class Table:
    """A private copy of a template table, with what a test asks of it."""

    on_conflict: OnConflict | None = None
    #: the engines that the writer gets
    engines: Sequence[RewriteEngine] = ()

    def __init__(self, spark: Any, base: Path | str, options: Mapping[str, str] | None = None) -> None:
        self.spark = spark
        self.base = base
        self.options = dict(options or {})

    @property
    def ref(self) -> TableRef:
        occ = "hoodie.write.lock.provider" in self.options
        return TableRef(
            name="trips",
            format="hudi",
            location=str(self.base),
            concurrency=Concurrency.OCC if occ else Concurrency.SINGLE_WRITER,
            on_conflict=self.on_conflict,
            write_options=SMALL_BLOOM | NO_CLEANER | self.options,
        )

    def writer(self) -> HudiWriter:
        return HudiWriter(self.ref, lambda: self.spark, self.engines)

    def plan(
        self,
        plan_id: str = "0198-plan",
        *,
        partitions: Sequence[str] | None = None,
        outputs: int = 1,
        receipt: VerificationLevel = VerificationLevel.FOOTER,
        **options: Any,
    ) -> Plan:
        """All slices of each partition as one group."""
        snapshot = FORMAT.snapshot(self.ref, partitions)
        by_partition: dict[str, list[FileSlice]] = {}
        for row in snapshot.slices.to_pylist():
            by_partition.setdefault(row["partition"], []).append(
                FileSlice(
                    partition=row["partition"],
                    file_id=row["file_id"],
                    path=row["path"],
                    bytes=row["bytes"],
                    log_files=tuple(row["log_files"]),
                    log_bytes=row["log_bytes"],
                )
            )
        return Plan(
            plan_id=plan_id,
            table=self.ref,
            kind=PlanKind.CLUSTERING,
            groups=tuple(
                ClusteringGroup(partition=name, slices=tuple(slices), output_files=outputs)
                for name, slices in sorted(by_partition.items())
            ),
            options=RewriteOptions(target_file_max_bytes=1 << 30, verification=receipt, **options),
            snapshot_instant=snapshot.instant,
        )

    def compaction(
        self, plan_id: str = "0198-compaction", *, partitions: Sequence[str] | None = None, most: int | None = None
    ) -> Plan:
        """Every slice with logs (the first ``most`` of them) as a group of its own."""
        clustering = self.plan(plan_id, partitions=partitions)
        slices = [s for group in clustering.groups for s in group.slices if s.log_files][:most]
        return replace(
            clustering,
            kind=PlanKind.COMPACTION,
            groups=tuple(ClusteringGroup(partition=s.partition, slices=(s,), output_files=1) for s in slices),
        )

    def run(self, plan: Plan, epoch: int = 1) -> Commit:
        """Prepare, rewrite and commit ``plan``."""
        with self.writer() as writer:
            return writer.commit(writer.rewrite(writer.prepare(plan, epoch), ignore))

    def proved(self, plan: Plan) -> Commit:
        """``run`` with a receipt."""
        with self.writer() as writer:
            rewrite = writer.rewrite(writer.prepare(plan, 1), ignore)
            verify_rewrite(rewrite, writer=writer)
            return writer.commit(rewrite)

    def rows(self) -> list[tuple[object, ...]]:
        """What Spark reads."""
        return table_rows(self.spark, self.base)

    def other_rows(self) -> tuple[pa.Schema, Counter[str]]:
        """What hudi-rs reads, as a multiset, and its types."""
        batches = open_table(TableStorage(str(self.base))).read()
        table = pa.Table.from_batches([pa.record_batch(batch) for batch in batches])
        table = table.drop_columns(["_hoodie_file_name"])
        return table.schema.remove_metadata(), Counter(repr(row) for row in table.to_pylist())

    def upsert(self, low: int, high: int, version: int, condition: str = "true", **options: str) -> None:
        mor = self.timeline().properties.get("hoodie.table.type") == "MERGE_ON_READ"
        frame = rows(self.spark, low, high, version=version).where(condition).coalesce(1)
        write(frame, self.base, "upsert", merge_on_read=mor, options=self.options | options)

    def timeline(self) -> Timeline:
        return Timeline(TableStorage(str(self.base)))

    def data_files(self) -> dict[str, int]:
        return dict(TableStorage(str(self.base)).data_file_sizes())

    def files_of(self, instant: str) -> set[str]:
        """Data files on disk that carry ``instant`` in their name."""
        return {path for path in self.data_files() if (file := parse_file_name(path)) and file.instant == instant}

    def temporary(self) -> list[str]:
        """What is left in the marker directory."""
        return sorted(str(path) for path in (Path(self.base) / ".hoodie/.temp").rglob("*"))


def plan_of(table: Table, engine: str, plan_id: str = "0198-plan", **options: Any) -> Plan:
    """A plan of which ``hybrid`` copies the last and largest file of each group, and merges smaller ones before it."""
    plan = table.plan(plan_id, engine=engine, **options)
    groups = [replace(one, slices=tuple(sorted(one.slices, key=lambda item: item.bytes))) for one in plan.groups]
    largest = [RawParquetFile.read(f"{table.base}/{one.slices[-1].path}").row_groups[0].bytes for one in groups]
    return replace(plan, groups=tuple(groups), options=replace(plan.options, min_row_group_bytes=min(largest)))


NewTable = Callable[..., Table]
"""Makes a table of a kind that ``make_table`` knows, with options as keywords."""
COMPACTED = {"hoodie.metadata.compact.max.delta.commits": "1"}
"""The archiver never passes the newest compaction of the metadata table."""
ARCHIVING = COMPACTED | {
    "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3",
    "hoodie.clean.commits.retained": "1",
}
"""A writer that archives as soon as it may and cleans nothing."""


def insert(trips: Table, commits: int, *, start: int = 1000, **options: str) -> None:
    """So many commits of two rows each into new files."""
    for low in range(start, start + 2 * commits, 2):
        write(rows(trips.spark, low, low + 2).coalesce(1), trips.base, "insert", options=trips.options | options)


def delete(trips: Table, commit: Commit) -> None:
    """Delete what ``commit`` replaced, as the cleaner does."""
    with trips.writer() as cleaner:
        cleaner.delete(commit.superseded)


def ignore(progress: RewriteProgress) -> None:
    """A progress report that is ignored."""


def make_table(spark: Any, tmp_path: Path, kind: str = "cow", options: Mapping[str, str] | None = None) -> Table:
    """A copy of the template ``kind``."""
    template = kept(kind, "trips", partial(_BUILDERS[kind], spark), __file__)
    return Table(spark, copy(template, tmp_path / "trips"), options)


def superseded(plan: Plan, instant: str) -> tuple[SupersededVersion, ...]:
    """What a commit of ``plan`` must name as superseded, log files without their sizes."""
    return tuple(
        SupersededVersion(partition=s.partition, path=s.path or "", bytes=s.bytes, instant=instant)
        for group in plan.groups
        for s in group.slices
    )
