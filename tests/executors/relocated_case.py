# SPDX-License-Identifier: Apache-2.0
"""One relocated partition: real files, a real database and the real handling of late files in Hive tables.

Only the catalog is simulated. Hooks stop a sweep at a moment that the test chooses, and run the actions of other
processes there.
"""

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

from databases import store_at
from store_plans import figures_of, sql

from executors.cleaner import CleanJob, CleanReport, clean_table
from executors.context import RunContext
from executors.relocation.partition_sweep import SweepReport
from executors.relocation.sweep import restore_original_locations, sweep_partitions
from lake.errors import Conflict
from lake.formats.hive import deletion
from lake.formats.hive.commit import commit_record, version_names
from lake.formats.hive.files.listing import to_located_file
from lake.formats.hive.relocation import late_files
from lake.formats.hive.relocation.location_listing import list_locations
from lake.model import FileSlice, TableRef
from lake.plan import (
    ClusteringGroup,
    Commit,
    LocatedFile,
    Plan,
    PlanKind,
    Relocation,
    RewriteOptions,
    StagedWork,
    SupersededVersion,
)
from lake.ports import DeletionResult
from lake.relocation.model import NamedRelocation, PartitionState, RelocatedPartition

PARTITION = "dt=0"
VERSION = "plan-e1-1"
NEW_LOCATION = f".lakefold/{VERSION}/{PARTITION}"

Hooks = dict[str, Callable[[], None]]


class RelocatedTable:
    """A table whose partition a plan has relocated from ``PARTITION`` to ``NEW_LOCATION``; also its own format."""

    name = "hive"
    capabilities: frozenset[Any] = frozenset()

    def __init__(self, home: Path, inputs: Sequence[str] = ("in-a", "in-b")) -> None:
        self.root = home / "table"
        self.ref = TableRef(name="d.t", format="hive", location=str(self.root), identity="1 t")
        for place in (PARTITION, NEW_LOCATION):
            (self.root / place).mkdir(parents=True)
        replaced = [self.put(f"{PARTITION}/{name}") for name in inputs]
        made = self.put(f"{NEW_LOCATION}/part-{VERSION}-0-0.parquet")
        self.put(f".lakefold/{VERSION}/commit.json")
        self.store, self.url = store_at(home), f"sqlite:///{home}/lakefold.db"
        slices = tuple(FileSlice(partition=PARTITION, file_id=f.path, path=f.path, bytes=f.bytes) for f in replaced)
        plan = Plan(
            plan_id="plan",
            table=self.ref,
            kind=PlanKind.CLUSTERING,
            snapshot_instant="",
            options=RewriteOptions(target_file_max_bytes=1),
            groups=(ClusteringGroup(partition=PARTITION, output_files=1, slices=slices),),
        )
        self.store.add_plan(plan, request_id=None, actor="scheduler", estimate={})
        claim = self.store.claim("executor")
        assert claim is not None
        superseded = tuple(
            SupersededVersion(
                partition=PARTITION,
                path=f.path,
                bytes=f.bytes,
                instant=VERSION,
                modified_at=datetime.fromtimestamp(f.modified_ms / 1000, UTC),
            )
            for f in replaced
        )
        move = Relocation(
            partition=PARTITION,
            token=VERSION,
            previous_location=PARTITION,
            location=NEW_LOCATION,
            partition_created_at=5,
            files=(made,),
        )
        commit = Commit(
            plan_id="plan", instant=VERSION, epoch=1, outputs=(), superseded=superseded, relocations=(move,)
        )
        self.store.complete(claim, commit, figures_of(plan), {})
        self.hooks: Hooks = {}
        self.at: Any = self.place(NEW_LOCATION, {version_names.VERSION_KEY: VERSION}, created_at=5)

    # What others do.

    def put(self, path: str, rows: str = "rows") -> LocatedFile:
        """A whole file."""
        (self.root / path).write_text(f"{rows}PAR1")
        status = os.stat(self.root / path)
        return to_located_file(self.ref.location, f"{self.ref.location}/{path}", status.st_size, status.st_mtime_ns)

    def begin(self, path: str) -> None:
        """A file that a writer has not finished."""
        (self.root / path).write_text("ro")

    def place(self, path: str, parameters: Mapping[str, str], *, created_at: int) -> Any:
        return SimpleNamespace(
            name=PARTITION,
            location=f"{self.ref.location}/{path}",
            parameters=parameters,
            created_at=created_at,
            has_creation_time=True,
        )

    def hours_pass(self) -> None:
        """All holds of processes that are stopped have run out."""
        sql(self.url, "UPDATE live_partition SET expires_at_ms = 1")

    def held(self) -> bool:
        return bool(sql(self.url, "SELECT 1 FROM live_partition WHERE keeper IS NOT NULL"))

    # Lakefold.

    def swept(self) -> SweepReport:
        return sweep_partitions(self.ref, RunContext(store=self.store, spark=cast(Any, None)), format=cast(Any, self))

    def brought_home(self) -> SweepReport:
        """A move home, when what was replaced there has been deleted."""
        return restore_original_locations(
            self.ref,
            RunContext(store=self.store, spark=cast(Any, None)),
            format=cast(Any, self),
            older_than=timedelta(-1),
        )

    def cleaned(self) -> None:
        for due in self.store.awaiting_deletion(self.ref):
            (self.root / due.version.path).unlink()
            self.store.begin_deletion([due.row_id])
            self.store.mark_deleted([due.row_id])

    def read(self) -> dict[str, str]:
        """What readers see of the partition: files by name, each with its rows."""
        if self.at is None:
            return {}
        found = [path for path in Path(self.at.location).iterdir() if not path.name.startswith((".", "_"))]
        return {path.name: path.read_text().removesuffix("PAR1") for path in found}

    def rows(self) -> list[str]:
        return sorted(self.read().values())

    def halted(self) -> str | None:
        """Why the table is halted, or its partition."""
        state = self.store.table_state(self.ref.name)
        return state.halted_reason or next((halt.reason for halt in state.halted_partitions.values()), None)

    def hook(self, name: str) -> None:
        if (called := self.hooks.pop(name, None)) is not None:
            called()

    def clean(self) -> CleanReport:
        """A round of the cleaner, for which the retention is over."""
        with ExitStack() as patched:
            for name, answer in (
                ("open_metastore", lambda ref: nullcontext()),
                ("load_table", lambda *_: None),
                ("check_identity", lambda *_: None),
                ("check_no_foreign_readers", lambda *_: None),
                ("list_partitions", lambda *_: [self.at]),
            ):
                patched.enter_context(mock.patch.object(deletion, name, answer))
            return clean_table(
                CleanJob(table=self.ref, retention=timedelta()),
                RunContext(store=self.store, spark=cast(Any, None)),
                format=cast(Any, self),
            )

    # As a format.

    def deletion_blockers(
        self, table: TableRef, versions: Sequence[SupersededVersion], retention: timedelta = timedelta()
    ) -> Mapping[str, str | None]:
        return {version.path: None for version in versions}

    def obsolete_deletions(self, table: TableRef, versions: Sequence[SupersededVersion]) -> Mapping[int, str]:
        return {}

    def inspect_locations(
        self, table: TableRef, relocated: Sequence[RelocatedPartition]
    ) -> Mapping[str, PartitionState]:
        return list_locations(table, relocated, [self.at] if self.at else [], lambda _, **__: {}, time.time())

    def named_relocations(self, table: TableRef, partitions: Collection[str]) -> Mapping[str, NamedRelocation]:
        token = None if self.at is None else version_names.relocation_token(self.at.parameters)
        if token is None or self.at.name not in partitions:
            return {}
        location = os.path.relpath(self.at.location, self.root)
        return {self.at.name: NamedRelocation(token=token, location=location, partition_created_at=self.at.created_at)}

    def other_readers(
        self, table: TableRef, locations: Mapping[str, str], *, max_age: timedelta | None = None
    ) -> Mapping[str, str]:
        return {}

    def applied_commits(self, table: TableRef, staged: Collection[StagedWork]) -> Sequence[Commit]:
        return ()

    def identity(self, table: TableRef) -> str:
        return "1 t"

    def writer(self, table: TableRef, spark: Any, engines: Sequence[Any] = ()) -> "Mover":
        return Mover(table=self)


@dataclass
class Mover:
    """The writer: Hive's own handling of files, and one call of the catalog that compares what is in it."""

    table: RelocatedTable
    fence: Callable[[], None] = field(default=lambda: None)
    clock: Callable[[], float] = time.monotonic

    def __enter__(self) -> "Mover":
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def fenced(self, before: str, after: str) -> Callable[[], None]:
        """The fence, between two moments at which a process may stop."""

        def fence() -> None:
            self.table.hook(before)
            self.fence()
            self.table.hook(after)

        return fence

    def target_path(self, source: LocatedFile, location: str, nonce: str) -> str:
        return late_files.target_path(source, location, nonce)

    def copy_hidden(self, pairs: Sequence[tuple[LocatedFile, str]]) -> Collection[LocatedFile]:
        gone = late_files.copy_hidden(self.table.ref, pairs)
        self.table.hook("copied")
        return gone

    def create_location(self, location: str, like: str) -> None:
        late_files.create_location(self.table.ref, location, like)

    def publish_copies(self, pairs: Sequence[tuple[LocatedFile, str]]) -> None:
        late_files.publish_copies(self.table.ref, pairs, self.fenced("before_show", "show"))
        self.table.hook("shown")

    def replace_copy(self, source: LocatedFile, copy_path: str, previous: LocatedFile) -> LocatedFile:
        return late_files.replace_copy(
            self.table.ref, source, copy_path, previous, self.fenced("before_replace", "replace")
        )

    def remove_hidden_copies(
        self, paths: Collection[str], recorded: Collection[LocatedFile], present: Collection[LocatedFile]
    ) -> None:
        fence = self.fenced("before_tidy", "tidy")
        late_files.remove_hidden_copies(self.table.ref, paths, recorded, present, fence)

    def remove_copies(self, targets: Collection[str], published: Collection[str]) -> None:
        late_files.remove_copies(self.table.ref, targets, published, self.fenced("before_take_back", "take_back"))

    def archive_files(self, files: Sequence[LocatedFile]) -> Mapping[LocatedFile, str]:
        return late_files.archive_files(self.table.ref, files, self.fenced("before_move_aside", "move_aside"))

    def record_emptied(self, latest: Relocation, emptied_ms: int) -> None:
        self.fence()
        commit_record.mark_emptied(self.table.ref, latest.token, latest.partition, emptied_ms)

    def discard_relocation(self, relocation: Relocation) -> None:
        self.fence()

    def delete(self, versions: Sequence[SupersededVersion]) -> DeletionResult:
        return deletion.delete(self.table.ref, versions, timedelta(), self.fence, self.clock)

    def update_catalog(
        self,
        latest: Relocation,
        relocation: Relocation | None = None,
        *,
        reverted_to: tuple[str, str | None] | None = None,
        name: str | None = None,
    ) -> None:
        self.fence()
        self.table.hook("tell")
        at = self.table.at
        now = (
            None
            if at is None
            else (os.path.relpath(at.location, self.table.root), version_names.relocation_token(at.parameters))
        )
        if now != (reverted_to or (latest.location, latest.token)):
            raise Conflict("the partition is not where its last move left it")
        to = relocation or latest
        self.table.at = self.table.place(
            to.location, version_names.token_parameters(to.token), created_at=at.created_at
        )
