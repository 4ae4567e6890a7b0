# SPDX-License-Identifier: Apache-2.0
"""The ports ``TableFormat`` and ``TableWriter`` over tables in memory: the contract of docs/formats.md, no more.

Every call goes through ``World.before`` and ``World.after``, where time passes and faults strike: a call that fails
before has done nothing, one that fails after has done its work.
"""

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lake.errors import Conflict, Integrity, Transient
from lake.model import SLICES_SCHEMA, Concurrency, FileSlice, Snapshot, TableRef
from lake.optional import Unfinished
from lake.plan import ClusteringGroup, Commit, LeftOut, OutputFile, Plan, Progress, Staged, SupersededVersion
from lake.ports import Capability, Deletion, Journal, Prepared, Report, Rewrite, SessionNeeds
from simulation.table import Instant, Slice, Table, TableLock, holds_damage, live_paths, sum_of

if TYPE_CHECKING:
    from simulation.world import World

START = datetime(2026, 1, 1, tzinfo=UTC)


def port(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A call from a process to the lake, disturbed as the world says."""

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
    """Observes the tables of a world; implements ``lake.ports.TableFormat`` as far as executors ask."""

    name = "model"
    volatile_columns: frozenset[str] = frozenset()
    capabilities = frozenset({Capability.ROLL_BACK, Capability.TABLE_LOCK})
    services: tuple[str, ...] = ()
    session = SessionNeeds()

    def __init__(self, world: "World") -> None:
        self.world = world

    def table(self, ref: TableRef) -> Table:
        """The table of a reference, as it was planned or as it is registered."""
        return self.world.tables[ref.name]

    @port("snapshot")
    def snapshot(self, ref: TableRef, partitions: Collection[str] | None = None) -> Snapshot:
        """See the port."""
        table = self.table(ref)
        slices = self._list(table)
        newest = max((i.time for i in table.timeline.values() if i.completed), default="")
        return Snapshot(table=table.ref, instant=newest, taken_at=self.world.wall_clock(), slices=slices)

    def _list(self, table: Table) -> pa.Table:
        busy = table.pending_groups()
        rows = [
            {
                "partition": piece.base.partition, "file_id": group, "path": piece.base.path,
                "bytes": piece.base.bytes, "rows": piece.base.bytes, "log_files": [log.path for log in piece.logs],
                "log_bytes": sum(log.bytes for log in piece.logs),
                "oldest_log_at": START + timedelta(seconds=piece.logs[0].at) if piece.logs else None,
                "modified_at": START + timedelta(seconds=piece.base.at),
                "busy_reason": self._busy(table, group, busy),
            }
            for group, piece in sorted(table.live().items())
        ]  # fmt: skip
        return pa.Table.from_pylist(rows, SLICES_SCHEMA)

    @port("snapshot")
    def small_files(self, ref: TableRef, limit: int) -> Sequence[FileSlice]:
        """The slices of a snapshot that may be planned and whose base file is below ``limit`` bytes."""
        table = self.table(ref)
        busy = table.pending_groups()
        return [
            FileSlice(
                partition=piece.base.partition, file_id=group, path=piece.base.path, bytes=piece.base.bytes,
                log_files=tuple(log.path for log in piece.logs),
            )
            for group, piece in sorted(table.live().items())
            if piece.base.bytes < limit and self._busy(table, group, busy) is None
        ]  # fmt: skip

    def _busy(self, table: Table, group: str, pending: Mapping[str, Instant]) -> str | None:
        if group in pending:
            return f"pending {pending[group].action} {pending[group].time}"
        return "damaged" if self.damaged(table, group) else None

    def damaged(self, table: Table, group: str) -> bool:
        """Whether ``group`` is not what the commits say."""
        return holds_damage(table, group)

    @port("committed")
    def committed(self, ref: TableRef, plan_id: str) -> Commit | None:
        """See the port."""
        table = self.table(ref)
        for instant in (*table.timeline.values(), *table.archived.values()):
            if instant.plan_id == plan_id and instant.completed:
                return commit_of(instant)
        return None

    @port("landed")
    def landed(self, ref: TableRef, plan_ids: Collection[str]) -> Mapping[str, Commit]:
        """See the port."""
        done = [i for i in self.table(ref).timeline.values() if i.completed and i.plan_id in plan_ids]
        return {commit.plan_id: commit for commit in map(commit_of, done)}

    @port("check")
    def check(self, ref: TableRef) -> None:
        """See the port."""

    @port("pending")
    def pending(self, ref: TableRef) -> Mapping[str, str]:
        """See the port."""
        return {i.time: i.plan_id for i in self.table(ref).pending() if i.plan_id is not None}

    @port("unfinished")
    def unfinished(self, ref: TableRef) -> Sequence[Unfinished]:
        """See the port."""
        return [
            Unfinished(
                instant=i.time, action=i.action, begun=True, since=START, last_sign=START,
                alive=i.owner is not None and not i.owner.dead, plan_id=i.plan_id,
            )
            for i in self.table(ref).pending()
        ]  # fmt: skip

    @port("late files")
    def late_files(self, ref: TableRef) -> Collection[str]:
        """See ``FindsLateFiles``."""
        return {file.instant for file in self.table(ref).files_of_nobody()}

    @port("superseded_deletable")
    def superseded_deletable(self, ref: TableRef, versions: Sequence[SupersededVersion]) -> Mapping[str, str | None]:
        """See the port."""
        return self.reasons_to_keep(self.table(ref), versions)

    @port("superseded_closed")
    def superseded_closed(self, ref: TableRef, versions: Sequence[SupersededVersion]) -> Mapping[int, str]:
        """See the port."""
        table = self.table(ref)
        undone = {index for index, version in enumerate(versions) if table.find(version.instant) is None}
        return dict.fromkeys(undone, "what replaced it was restored away")

    def reasons_to_keep(self, table: Table, versions: Sequence[SupersededVersion]) -> Mapping[str, str | None]:
        """Path → why it must stay; None where nothing needs it."""
        live = live_paths(table)
        read = {path for instant in table.pending() for base, logs in instant.inputs for path in (base, *logs)}

        saved = self.saved(table)

        def reason(version: SupersededVersion) -> str | None:
            if version.instant not in table.done:
                return "what replaced it was restored away"
            if version.path in live:
                return "live again"
            if version.path in saved:
                return "kept by a savepoint"
            return "input of a pending rewrite" if version.path in read else None

        return {version.path: reason(version) for version in versions}

    def saved(self, table: Table) -> set[str]:
        """The paths that savepoints keep."""
        return table.saved_paths()

    def writer(self, ref: TableRef, spark: object, engines: Sequence[object] = ()) -> "ModelWriter":
        """See the port."""
        return ModelWriter(self, ref)


def commit_of(instant: Instant) -> Commit:
    """What the table records of a completed rewrite."""
    superseded = tuple(
        SupersededVersion(partition=partition, path=path, bytes=1, instant=instant.time)
        for (partition, _), (base, logs) in zip(instant.replaces, instant.inputs, strict=True)
        for path in (base, *logs)
    )
    outputs = tuple(
        OutputFile(partition=f.partition, path=f.path, bytes=f.bytes, rows=len(f.rows)) for f in instant.outputs
    )
    return Commit(
        plan_id=instant.plan_id or "", instant=instant.time, outputs=outputs, superseded=superseded, epoch=instant.epoch
    )


def earliest_to_retain(table: Table, victims: Collection[str]) -> str:
    """The oldest replacement, completed or pending, whose replaced files may be on disk after ``victims`` are gone.

    Which those of a pending ``insert_overwrite`` are is known at its commit only.
    """
    groups = {file.group for path, file in table.files.items() if path not in victims}
    kept = [
        instant.time
        for instant in table.timeline.values()
        if (not instant.completed and (instant.replaces or instant.action == "replace"))
        or any(group in groups for _, group in instant.replaces)
    ]
    return min(kept, default="")


class ModelWriter(AbstractContextManager["ModelWriter"]):
    """Changes one table; implements ``lake.ports.TableWriter``."""

    commit_takes = timedelta()

    def __init__(self, format_: ModelFormat, ref: TableRef) -> None:
        self.format, self.ref, self.world = format_, ref, format_.world
        self.table = format_.table(ref)
        self._cancelled = False
        #: see ``lake.optional.Fenced``
        self.fence: Callable[[], None] = lambda: None
        #: see ``lake.ports.TableWriter``
        self.journal: Journal = lambda staged: None

    @port("open")
    def __enter__(self) -> "ModelWriter":
        return self

    @port("close")
    def __exit__(self, *_: object) -> None:
        """See the port."""

    def locks(self) -> tuple[TableLock, ...]:
        """What keeps this section apart from all others: our own lock, and the writers' where there are any."""
        ours = self.world.own_lock(self.table)
        return (ours, self.table.writers) if self.ref.concurrency is Concurrency.OCC else (ours,)

    @port("prepare")
    def prepare(self, plan: Plan, epoch: int) -> Prepared:
        """See the port."""
        table = self.table
        with table.locked(*self.locks()):
            if any(i.plan_id == plan.plan_id for i in table.pending()):
                raise Transient(f"an earlier instant of plan {plan.plan_id} is still pending")
            held = self.pending_groups()
            left_out = []
            for index, group in enumerate(plan.groups):
                reason = next((r for item in group.slices if (r := self.stale(item, held)) is not None), None)
                if reason is not None:
                    left_out.append(LeftOut(group=index, reason=reason))
            gone = {item.group for item in left_out}
            kept = tuple(index for index in range(len(plan.groups)) if index not in gone)
            if not kept:
                raise Conflict(f"no group is left: {left_out[0].reason}", tuple(left_out))
            self.fence()
            slices = [item for index in kept for item in plan.groups[index].slices]
            assert self.world.scheduler.current is not None
            instant = table.new_instant(
                "clustering", self.world.scheduler.current.process, plan_id=plan.plan_id, epoch=epoch,
                replaces=tuple((item.partition, item.file_id) for item in slices),
                inputs=tuple((str(item.path), item.log_files) for item in slices),
            )  # fmt: skip
            table.noted.add(instant.time)
            self.world.watch.published(table, instant)
            self.journal(Staged(token=instant.time))
        return Prepared(plan=plan, epoch=epoch, instant=instant.time, groups=kept, left_out=tuple(left_out))

    def pending_groups(self) -> Mapping[str, Instant]:
        """Groups that a pending rewrite of anybody names."""
        return self.table.pending_groups()

    def stale(self, item: FileSlice, held: Mapping[str, Instant]) -> str | None:
        """Why a planned slice can't be rewritten; None where it is what the table has, and what its commits say."""
        if item.file_id in held:
            return f"group {item.file_id} is in pending {held[item.file_id].time}"
        piece = self.table.live().get(item.file_id)
        if piece is None or piece.names != (item.path, item.log_files):
            return f"group {item.file_id} changed since the plan was made"
        damaged = self.format.damaged(self.table, item.file_id)
        return f"group {item.file_id} is not what its commits say" if damaged else None

    @port("rewrite")
    def rewrite(self, prepared: Prepared, report: Report) -> Rewrite:
        """See the port."""
        outputs, table = [], self.table
        for number, index in enumerate(prepared.groups):
            self.world.before("rewrite group", lake=True)
            if self._cancelled:
                raise Transient("the job was cancelled")
            group = prepared.plan.groups[index]
            rows = self.read(group, index)
            self.world.work(5.0)
            if self.world.spoils():
                rows = dict(list(rows.items())[1:])
            name = f"g{prepared.instant}-{number}"
            file = table.write(group.partition, name, prepared.instant, rows)
            outputs.append(OutputFile(partition=file.partition, path=file.path, bytes=file.bytes, rows=len(rows)))
            report(Progress(bytes_done=number + 1, bytes_total=len(prepared.groups)))
        return Rewrite(prepared=prepared, outputs=tuple(outputs))

    def read(self, group: ClusteringGroup, index: int) -> dict[int, int]:
        """The rows of a group's slices. Raises Conflict with the group where a file is gone or cut."""
        rows: dict[int, int] = {}
        for item in group.slices:
            files = [self.table.files.get(path) for path in (str(item.path), *item.log_files)]
            found = [file for file in files if file is not None]
            # A Parquet file that was cut has no footer; of a log a reader takes what there is.
            if len(found) < len(files) or found[0].bytes != found[0].written:
                reason = f"{item.path} can't be read"
                raise Conflict(reason, (LeftOut(group=index, reason=reason),))
            rows |= Slice(found[0], tuple(found[1:])).rows()
        return rows

    @port("commit")
    def commit(self, rewrite: Rewrite) -> Commit:
        """See the port."""
        table, prepared = self.table, rewrite.prepared
        with table.locked(*self.locks()):
            instant = table.timeline.get(prepared.instant)
            if instant is None or instant.completed or instant.plan_id != prepared.plan.plan_id:
                raise Conflict(f"instant {prepared.instant} was withdrawn")
            index = table.read_index()
            looked_at = self.world.scheduler.now
            outputs = [table.files.get(output.path) for output in rewrite.outputs]
            if None in outputs:
                raise Conflict(f"what was written of {prepared.instant} was taken back")
            self.look_again(prepared)
            self.fence()
            kept = [item for number in prepared.groups for item in prepared.plan.groups[number].slices]
            instant.outputs = tuple(file for file in outputs if file is not None)
            instant.replaces = tuple((item.partition, item.file_id) for item in kept)
            instant.inputs = tuple((str(item.path), item.log_files) for item in kept)
            table.complete(instant, index)
            self.world.watch.landed(table, instant, looked_at)
            return commit_of(instant)

    def look_again(self, prepared: Prepared) -> None:
        """Raise Conflict where an input is not any more what was rewritten."""
        for number in prepared.groups:
            for item in prepared.plan.groups[number].slices:
                reason = self.stale(item, {})
                if reason is not None:
                    raise Conflict(f"{reason}, before the commit")

    @port("discard")
    def discard(
        self,
        plan_id: str,
        instants: Collection[str] | None,
        *,
        staged: Collection[Staged] = (),
        epoch: int | None = None,
    ) -> int:
        """See the port."""
        table, withdrawn = self.table, 0
        with table.locked(*self.locks()):
            for instant in self.withdrawable(plan_id, instants):
                if epoch is not None and instant.epoch > epoch and instant.owner and not instant.owner.dead:
                    continue  # it is of an executor that took the plan over
                self.world.before("withdraw", lake=True)
                self.world.watch.withdrawn(table, instant)
                table.drop_instant(instant.time)
                withdrawn += 1
            for time in instants or ():
                if table.find(time) is None:  # what an executor wrote on after its instant was withdrawn
                    table.drop_instant(time)
        return withdrawn

    def withdrawable(self, plan_id: str, instants: Collection[str] | None) -> list[Instant]:
        """Pending instants that name the plan, of those named."""
        mine = [i for i in self.table.pending() if i.plan_id == plan_id]
        return [i for i in mine if instants is None or i.time in instants]

    @port("remove late files")
    def remove_late_files(self, instants: Collection[str]) -> Sequence[str]:
        """See ``RemovesLateFiles``."""
        table = self.table
        with table.locked(*self.locks()):
            late = [file.path for file in table.files_of_nobody() if file.instant in instants]
            for path in late:
                self.world.before("delete file", lake=True)
                self.world.watch.removing(table, path)
                table.remove(path)
        return late

    @port("delete")
    def delete(self, versions: Sequence[SupersededVersion]) -> Deletion:
        """See the port."""
        table = self.table
        with table.locked(*self.locks()):
            self.world.run_pending_cleans(table)
            there = [v for v in versions if v.path in table.files]
            for version, reason in self.format.reasons_to_keep(table, there).items():
                if reason is not None:
                    raise Conflict(f"{version}: {reason}")
            if not there:
                return Deletion()
            self.fence()
            victims = tuple(v.path for v in there)
            clean = table.new_instant("clean", None, victims=victims, earliest=self.earliest(victims))
            self.world.watch.deleting(table, there)
            return Deletion(bytes_freed=self.world.run_clean(table, clean))

    def earliest(self, victims: Collection[str]) -> str:
        """What a clean tells the archiver."""
        return earliest_to_retain(self.table, victims)

    def roll_back(self, instant: str) -> str:
        """See the port."""
        with self.table.locked(*self.locks()):
            found = self.table.timeline.get(instant)
            if found is None or found.completed:
                raise Conflict(f"{instant} is not pending")
            if not self.may_roll_back(found):
                raise Conflict(f"{instant} belongs to plan {found.plan_id}, or its owner is alive")
            self.table.drop_instant(instant)
        return f"{instant} is rolled back"

    def may_roll_back(self, instant: Instant) -> bool:
        """Whether an operator may take this back: its owner is dead."""
        return instant.owner is None or instant.owner.dead

    def cancel(self) -> None:
        """See the port."""
        self._cancelled = True


def prove(rewrite: Rewrite, *, writer: ModelWriter, volatile: object = (), check: Callable[[], None]) -> None:
    """The receipt over tables in memory, in the place of ``executors.receipt.prove``, which reads Parquet files."""
    check()
    writer.world.before("prove", lake=True)
    expected: dict[int, int] = {}
    for index in rewrite.prepared.groups:
        expected |= writer.read(rewrite.prepared.plan.groups[index], index)
    found = 0
    for output in rewrite.outputs:
        file = writer.table.files.get(output.path)
        if file is None:
            raise Transient(f"the new file {output.path} is gone before its commit")
        found += sum_of(file.rows)
    if sum_of(expected) != found:
        raise Integrity(f"{writer.ref.name}: other rows were written than were read")
