# SPDX-License-Identifier: Apache-2.0
"""The ports over tables with a timeline, which tells what was begun and what completed."""

from collections.abc import Collection, Mapping, Sequence

from lake.errors import Conflict, Transient
from lake.model import Concurrency, FileSlice, TableRef
from lake.optional import Unfinished
from lake.plan import Commit, OutputFile, Plan, Staged, SupersededVersion
from lake.ports import Capability, Deletion, Prepared, Report, Rewrite
from simulation.port import START, ModelFormat, ModelWriter, port
from simulation.shapes.timeline.cleans import run_clean, run_pending_cleans
from simulation.shapes.timeline.table import Instant, TableLock, TimelineTable


class TimelineFormat(ModelFormat):
    """Observes such tables; adds ``lake.optional.HasTimeline`` and ``FindsLateFiles``."""

    name = "timeline"
    capabilities = frozenset({Capability.ROLL_BACK, Capability.TABLE_LOCK})

    def newest(self, table: TimelineTable) -> str:
        """See ``ModelFormat``."""
        return max((i.time for i in table.timeline.values() if i.completed), default="")

    def busy(self, table: TimelineTable) -> Mapping[str, str]:
        """See ``ModelFormat``."""
        return {group: f"pending {i.action} {i.time}" for group, i in table.pending_groups().items()}

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

    def reasons_to_keep(self, table: TimelineTable, versions: Sequence[SupersededVersion]) -> Mapping[str, str | None]:
        """See ``ModelFormat``."""
        live, saved = table.live_paths(), self.saved(table)
        read = {path for instant in table.pending() for base, logs in instant.inputs for path in (base, *logs)}

        def reason(version: SupersededVersion) -> str | None:
            if version.instant not in table.done:
                return "what replaced it was restored away"
            if version.path in live:
                return "live again"
            if version.path in saved:
                return "kept by a savepoint"
            return "input of a pending rewrite" if version.path in read else None

        return {version.path: reason(version) for version in versions}

    def writer(self, ref: TableRef, spark: object, engines: Sequence[object] = ()) -> "TimelineWriter":
        """See the port."""
        return TimelineWriter(self, ref)


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


def earliest_to_retain(table: TimelineTable, victims: Collection[str]) -> str:
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


class TimelineWriter(ModelWriter):
    """Changes one such table; adds ``RemovesLateFiles`` and ``RollsBack``."""

    table: TimelineTable

    def own_lock(self) -> TableLock:
        """The lock that keeps lakefold's own processes apart on the table."""
        return self.table.ours

    def locks(self) -> tuple[TableLock, ...]:
        """What keeps this section apart from all others: our own lock, and the writers' where there are any."""
        ours = self.own_lock()
        return (ours, self.table.writers) if self.ref.concurrency is Concurrency.OCC else (ours,)

    @port("prepare")
    def prepare(self, plan: Plan, epoch: int) -> Prepared:
        """See the port."""
        table = self.table
        with table.locked(*self.locks()):
            if any(i.plan_id == plan.plan_id for i in table.pending()):
                raise Transient(f"an earlier instant of plan {plan.plan_id} is still pending")
            kept, left_out = self.still_there(plan, held=self.pending_groups())
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
        return Prepared(plan=plan, epoch=epoch, instant=instant.time, groups=kept, left_out=left_out)

    def pending_groups(self) -> Mapping[str, Instant]:
        """Groups that a pending rewrite of anybody names."""
        return self.table.pending_groups()

    def stale(self, item: FileSlice, held: Mapping[str, Instant]) -> str | None:  # type: ignore[override]
        """See ``ModelWriter``; ``held`` are groups that others rewrite."""
        if item.file_id in held:
            return f"group {item.file_id} is in pending {held[item.file_id].time}"
        return super().stale(item)

    def rewrite_group(self, prepared: Prepared, number: int, index: int, report: Report) -> OutputFile:
        """See ``ModelWriter``; the table's own client writes, no engine."""
        group, instant = prepared.plan.groups[index], prepared.instant
        rows = self.world.worked_on(self.read(group, index))
        file = self.table.write(group.partition, f"g{instant}-{number}", instant, rows)
        return OutputFile(partition=file.partition, path=file.path, bytes=file.bytes, rows=len(rows))

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
            outputs = self.written(rewrite)
            self.look_again(prepared)
            self.fence()
            kept = [item for number in prepared.groups for item in prepared.plan.groups[number].slices]
            instant.outputs = outputs
            instant.replaces = tuple((item.partition, item.file_id) for item in kept)
            instant.inputs = tuple((str(item.path), item.log_files) for item in kept)
            table.complete(instant, index)
            commit = commit_of(instant)
            self.world.watch.landed(table, commit, [item.file_id for item in kept], looked_at)
            return commit

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
            run_pending_cleans(self.world, table)
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
            return Deletion(bytes_freed=run_clean(self.world, table, clean))

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
