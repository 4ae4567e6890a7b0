# SPDX-License-Identifier: Apache-2.0
"""The ports ``TableFormat`` and ``TableWriter`` for tables in memory: the common part of all shapes.

The rest is in ``simulation.shapes``: the contract of docs/adapters.md, no more. Every call passes ``World.before`` and
``World.after``, where time passes and faults occur: a call that fails before has done nothing, and a call that fails
after has done its work.
"""

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lake.errors import Conflict, Integrity, Rejected, Transient
from lake.model import SLICES_SCHEMA, FileSlice, Snapshot, TableRef
from lake.plan import ClusteringGroup, OutputFile, Plan, RewriteProgress, SkippedGroup, SupersededVersion
from lake.ports import Capability, PreparedPlan, ProgressCallback, Rewrite, SessionRequirements, StagingJournal
from simulation.table import File, Slice, Table, sum_of

if TYPE_CHECKING:
    from simulation.world import World

START = datetime(2026, 1, 1, tzinfo=UTC)


def port(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A call from a process to the lake, with the faults of the run."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            self.world.before(name, lake=True)
            result = function(self, *args, **kwargs)
            self.world.after(name, lake=True)
            return result

        call.site = name  # type: ignore[attr-defined]
        return call

    return decorate


class ModelFormat:
    """Observes the tables of one shape; implements the part of ``lake.ports.TableFormat`` that executors call."""

    name: str
    capabilities: frozenset[Capability] = frozenset()
    services: tuple[str, ...] = ()
    session_requirements = SessionRequirements()

    def __init__(self, world: "World") -> None:
        self.world = world

    def table(self, ref: TableRef) -> Table:
        """The table of a reference, as it was planned or as it is registered."""
        found = self.world.tables.get(ref.name)
        if found is None:
            raise Rejected(f"there is no table {ref.name}")
        return found

    def newest(self, table: Any) -> str:
        """The last commit of a table."""
        raise NotImplementedError

    def busy(self, table: Any) -> Mapping[str, str]:
        """Return group → why it may not be planned, apart from damage."""
        return {}

    def damaged(self, table: Table, group: str) -> bool:
        """Return True if ``group`` differs from the state that its commits wrote."""
        return table.holds_damage(group)

    @port("snapshot")
    def snapshot(self, ref: TableRef, partitions: Collection[str] | None = None) -> Snapshot:
        """See the port."""
        table = self.table(ref)
        slices = self._list(table)
        return Snapshot(table=table.ref, instant=self.newest(table), taken_at=self.world.wall_clock(), slices=slices)

    def _list(self, table: Table) -> pa.Table:
        busy = self.busy(table)
        rows = [
            {
                "partition": piece.base.partition,
                "file_id": group,
                "path": piece.base.path,
                "bytes": piece.base.bytes,
                "rows": piece.base.bytes,
                "log_files": [log.path for log in piece.logs],
                "log_bytes": sum(log.bytes for log in piece.logs),
                "oldest_log_at": START + timedelta(seconds=piece.logs[0].at) if piece.logs else None,
                "modified_at": START + timedelta(seconds=max(file.at for file in (piece.base, *piece.logs))),
                "busy_reason": self._why_not(table, group, busy),
            }
            for group, piece in sorted(table.live().items())
        ]
        return pa.Table.from_pylist(rows, SLICES_SCHEMA)

    @port("snapshot")
    def small_files(self, ref: TableRef, limit: int) -> Sequence[FileSlice]:
        """The slices of a snapshot that may be planned and whose base file is below ``limit`` bytes."""
        table = self.table(ref)
        busy = self.busy(table)
        return [
            FileSlice(
                partition=piece.base.partition,
                file_id=group,
                path=piece.base.path,
                bytes=piece.base.bytes,
                log_files=tuple(log.path for log in piece.logs),
            )
            for group, piece in sorted(table.live().items())
            if piece.base.bytes < limit and self._why_not(table, group, busy) is None
        ]

    def _why_not(self, table: Table, group: str, busy: Mapping[str, str]) -> str | None:
        if group in busy:
            return busy[group]
        return "damaged" if self.damaged(table, group) else None

    @port("check")
    def check(self, ref: TableRef) -> None:
        """See the port."""

    @port("deletion_blockers")
    def deletion_blockers(
        self, ref: TableRef, versions: Sequence[SupersededVersion], retention: timedelta = timedelta()
    ) -> Mapping[str, str | None]:
        """See the port."""
        return self.reasons_to_keep(self.table(ref), versions)

    def reasons_to_keep(self, table: Any, versions: Sequence[SupersededVersion]) -> Mapping[str, str | None]:
        """Return path → why the file must stay; None if nothing needs it."""
        raise NotImplementedError

    def saved(self, table: Table) -> set[str]:
        """The paths that savepoints keep."""
        return table.saved_paths()

    @port("obsolete_deletions")
    def obsolete_deletions(self, ref: TableRef, versions: Sequence[SupersededVersion]) -> Mapping[int, str]:
        """See the port."""
        table = self.table(ref)
        undone = {index for index, version in enumerate(versions) if table.is_undone(version)}
        return dict.fromkeys(undone, "what replaced it was restored away")


class ModelWriter(AbstractContextManager["ModelWriter"]):
    """Changes one table; implements the common part of ``lake.ports.TableWriter`` for all shapes."""

    max_commit_duration = timedelta()

    def __init__(self, format_: ModelFormat, ref: TableRef) -> None:
        self.format, self.ref, self.world = format_, ref, format_.world
        self.table: Any = format_.table(ref)
        self.cancelled = False
        #: see ``lake.capabilities.Fenced``
        self.fence: Callable[[], None] = lambda: None
        #: see ``lake.ports.TableWriter``
        self.journal: StagingJournal = lambda staged: None

    @port("open")
    def __enter__(self) -> "ModelWriter":
        return self

    @port("close")
    def __exit__(self, *_: object) -> None:
        """See the port."""

    def start(self) -> None:
        """Nothing: sessions are not simulated."""

    def still_there(self, plan: Plan, **seen: Any) -> tuple[tuple[int, ...], tuple[SkippedGroup, ...]]:
        """Return the unchanged groups of a plan, and the others. Raises Conflict if all have changed."""
        left_out = []
        for index, group in enumerate(plan.groups):
            reason = next((r for item in group.slices if (r := self.stale(item, **seen)) is not None), None)
            if reason is not None:
                left_out.append(SkippedGroup(group=index, reason=reason))
        gone = {item.group for item in left_out}
        kept = tuple(index for index in range(len(plan.groups)) if index not in gone)
        if not kept:
            raise Conflict(f"no group is left: {left_out[0].reason}", tuple(left_out))
        return kept, tuple(left_out)

    def stale(self, item: FileSlice) -> str | None:
        """Return why a planned slice can't be rewritten; None if the table has it as its commits wrote it."""
        piece = self.table.live().get(item.file_id)
        if piece is None or piece.names != (item.path, item.log_files):
            return f"group {item.file_id} changed since the plan was made"
        damaged = self.format.damaged(self.table, item.file_id)
        return f"group {item.file_id} is not what its commits say" if damaged else None

    @port("rewrite")
    def rewrite(self, prepared: PreparedPlan, report: ProgressCallback) -> Rewrite:
        """See the port."""
        outputs: list[OutputFile] = []
        for number, index in enumerate(prepared.live_groups):
            self.world.before("rewrite group", lake=True)
            if self.cancelled:
                raise Transient("the job was cancelled")
            outputs.append(self.rewrite_group(prepared, number, index, report))
            report(RewriteProgress(bytes_done=number + 1, bytes_total=len(prepared.live_groups)))
        return Rewrite(prepared=prepared, outputs=tuple(outputs))

    def rewrite_group(self, prepared: PreparedPlan, number: int, index: int, report: ProgressCallback) -> OutputFile:
        """Write the new file of the group ``index``, which is rewritten as the ``number``-th group."""
        raise NotImplementedError

    def read(self, group: ClusteringGroup, index: int) -> dict[int, int]:
        """Return the rows of a group's slices. Raises Conflict with the group if a file is missing or cut."""
        rows: dict[int, int] = {}
        for item in group.slices:
            files = [self.table.files.get(path) for path in (str(item.path), *item.log_files)]
            found = [file for file in files if file is not None]
            # A Parquet file that was cut has no footer; of a log a reader takes what there is.
            if len(found) < len(files) or found[0].bytes != found[0].written:
                reason = f"{item.path} can't be read"
                raise Conflict(reason, (SkippedGroup(group=index, reason=reason),))
            rows |= Slice(found[0], tuple(found[1:])).rows()
        return rows

    def written(self, rewrite: Rewrite) -> tuple[File, ...]:
        """Return the new files of a rewrite. Raises Conflict if one is missing, since the attempt was withdrawn."""
        found = [self.table.files.get(output.path) for output in rewrite.outputs]
        if None in found:
            raise Conflict(f"what was written of {rewrite.prepared.instant} was taken back")
        return tuple(file for file in found if file is not None)

    def cancel(self) -> None:
        """See the port."""
        self.cancelled = True


def prove(rewrite: Rewrite, *, writer: ModelWriter, check: Callable[[], None], run: object) -> None:
    """Verification over tables in memory; ``executors.verification.verify_rewrite`` reads Parquet files."""
    check()
    writer.world.before("prove", lake=True)
    expected: dict[int, int] = {}
    for index in rewrite.prepared.live_groups:
        expected |= writer.read(rewrite.prepared.plan.groups[index], index)
    found = 0
    for output in rewrite.outputs:
        file = writer.table.files.get(output.path)
        if file is None:
            raise Transient(f"the new file {output.path} is gone before its commit")
        found += sum_of(file.rows)
    if sum_of(expected) != found:
        raise Integrity(f"{writer.ref.name}: other rows were written than were read")
