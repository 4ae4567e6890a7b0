# SPDX-License-Identifier: Apache-2.0
"""The ports for tables with a timeline, which records begun and completed actions."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

from lake.capabilities import PendingAction
from lake.errors import CommitUnknown, Conflict, Transient
from lake.model import Concurrency, FileSlice, TableRef
from lake.plan import Commit, OutputFile, Plan, StagedWork, SupersededVersion
from lake.ports import Capability, DeletionResult, PreparedPlan, ProgressCallback, Rewrite
from simulation.clock import Process
from simulation.port import START, ModelFormat, ModelWriter, port
from simulation.shapes.timeline.cleans import is_of_today, policy_victims, run_clean, run_pending_cleans
from simulation.shapes.timeline.table import SKEW_SECONDS, Instant, TableLock, TimelineTable
from simulation.table import File

_UNDOES = ("restore", "rollback")
_LOOKS = 5
Made = TypeVar("Made")


class TimelineFormat(ModelFormat):
    """Observes such tables; adds ``lake.capabilities.HasTimeline`` and ``FindsStragglers``."""

    name = "timeline"
    capabilities = frozenset({Capability.ROLL_BACK, Capability.TABLE_LOCK})

    def newest(self, table: TimelineTable) -> str:
        """See ``ModelFormat``."""
        return max((i.time for i in table.timeline.values() if i.completed), default="")

    def busy(self, table: TimelineTable) -> Mapping[str, str]:
        """See ``ModelFormat``."""
        return {group: f"pending {i.action} {i.time}" for group, i in table.pending_groups().items()}

    @port("committed")
    def find_commit(self, ref: TableRef, plan_id: str) -> Commit | None:
        """See the port."""
        table = self.table(ref)
        for instant in (*table.timeline.values(), *table.archived.values()):
            if instant.plan_id == plan_id and instant.completed:
                return commit_of(instant)
        return None

    @port("landed")
    def recent_commits(self, ref: TableRef, plan_ids: Collection[str]) -> Mapping[str, Commit]:
        """See the port."""
        done = [i for i in self.table(ref).timeline.values() if i.completed and i.plan_id in plan_ids]
        return {commit.plan_id: commit for commit in map(commit_of, done)}

    @port("pending")
    def pending_instants(self, ref: TableRef) -> Mapping[str, str]:
        """See the port."""
        return {i.time: i.plan_id for i in self.table(ref).pending() if i.plan_id is not None}

    @port("unfinished")
    def pending_actions(self, ref: TableRef) -> Sequence[PendingAction]:
        """See the port."""
        return [
            PendingAction(
                instant=i.time,
                action=i.action,
                is_begun=True,
                since=START,
                last_activity=START,
                is_alive=i.owner is not None and not i.owner.dead,
                plan_id=i.plan_id,
            )
            for i in self.table(ref).pending()
        ]

    @port("late files")
    def instants_with_stragglers(self, ref: TableRef) -> Collection[str]:
        """See ``FindsStragglers``."""
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
    """Return the table's record of a completed rewrite."""
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
    """Return the oldest replacement, completed or pending, with replaced files on disk after ``victims`` are deleted.

    The replaced files of a pending ``insert_overwrite`` are known only at its commit.
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
    """Changes one such table; adds ``RemovesStragglers``, ``RollsBack`` and ``RunsTableServices``."""

    table: TimelineTable
    #: True if readers list by an index, as this writer read it
    has_index = False

    def __enter__(self) -> "TimelineWriter":
        super().__enter__()
        self.has_index = self.table.indexed
        return self

    # The last check of each section under the lock before it changes the table.

    def last_look(self, *announced: str, ready: Callable[[], Made]) -> Made:
        """Check the table, call ``ready``, check the plan's owner and the table again; returns the result of ``ready``.

        The process may be suspended before the change, and its locks may expire; they are confirmed last. An owner who
        begins an action in between without a lock could not be noticed; the model's owners do not do so.
        """
        for _ in range(_LOOKS):
            self.look_at_table(*announced)
            seen = self.table.timeline_now()
            made = ready()
            self.fence()
            if not self.has_moved(seen):
                with self.table.about_to_change():
                    self.world.before("last call", lake=True)
                self.confirm()
                self.world.watch.indexing(self.table, has_index=self.has_index)
                return made
        raise Transient(f"the timeline of {self.table.name} moved {_LOOKS} times")

    def has_moved(self, seen: object) -> bool:
        """Return True if the timeline differs from ``seen``."""
        return self.table.timeline_now() != seen

    def look_at_table(self, *announced: str) -> None:
        """Return the present properties of the table. Raises Transient if the clock or the owner forbids to continue.

        ``announced`` are the actions of owners that exclude the intended change.
        """
        self.look_at_clock()
        self.look_at_properties()
        self.look_at_owner(*announced)

    def look_at_clock(self) -> None:
        """Wait until this host's clock is later than the table's instants. Raises Transient if it is too far off."""
        table = self.table
        if self.is_ahead(table.clock()):
            raise Transient(f"this host's clock is ahead of the storage of {table.name}")
        if self.is_behind(table.clock()):
            raise Transient(f"this host's clock is behind the storage of {table.name}")
        if table.clock() <= table.newest_time() < table.clock() + SKEW_SECONDS * 100:
            self.world.scheduler.sleep((table.newest_time() - table.clock() + 1) / 100)

    def is_ahead(self, clock: int) -> bool:
        """Return True if a clock is ahead of the storage's by more than clocks may differ."""
        return clock > self.table.clock_of_storage(SKEW_SECONDS)

    def is_behind(self, clock: int) -> bool:
        """Return True if a clock is behind the storage's, or the last instant, by more than clocks may differ."""
        return clock + SKEW_SECONDS * 100 < max(self.table.clock_of_storage(), self.table.newest_time())

    def look_at_properties(self) -> None:
        """Return True if there is an index now: its owner may have switched it since this writer was opened."""
        self.has_index = self.table.indexed

    def look_at_owner(self, *announced: str) -> None:
        """Raise Transient if the owner's restore, rollback or savepoint is pending."""
        for instant in self.table.announced(*announced):
            raise Transient(f"{instant.action} {instant.time} of the owner is pending")

    def read_index(self) -> frozenset[str] | None:
        """Return the index; None if this writer knows of none."""
        return self.table.read_index() if self.has_index else None

    def confirm(self) -> None:
        """Raise Transient if the table's lock expired since this section began; nothing may happen in between."""
        self.table.confirm(*self.locks())

    # Changes under the lock.

    def own_lock(self) -> TableLock:
        """Return the lock that excludes lakefold's processes from each other on the table."""
        return self.table.ours

    def locks(self) -> tuple[TableLock, ...]:
        """Return the locks of this section: lakefold's own lock and, if there are writers, theirs."""
        ours = self.own_lock()
        return (ours, self.table.writers) if self.ref.concurrency is Concurrency.OCC else (ours,)

    @port("prepare")
    def prepare(self, plan: Plan, epoch: int) -> PreparedPlan:
        """See the port."""
        table = self.table
        with table.locked(*self.locks()):
            if self.is_pending(plan):
                raise Transient(f"an earlier instant of plan {plan.plan_id} is still pending")
            time, (kept, left_out) = self.last_look(
                *_UNDOES, ready=lambda: (table.new_time(), self.still_there(plan, held=self.pending_groups()))
            )
            slices = [item for index in kept for item in plan.groups[index].slices]
            assert self.world.scheduler.current is not None
            instant = table.new_instant(
                "clustering",
                self.world.scheduler.current.process,
                time,
                plan_id=plan.plan_id,
                epoch=epoch,
                replaces=tuple((item.partition, item.file_id) for item in slices),
                inputs=tuple((str(item.path), item.log_files) for item in slices),
            )
            table.noted.add(instant.time)
            self.world.watch.published(table, instant)
            self.journal(StagedWork(token=instant.time))
        return PreparedPlan(plan=plan, epoch=epoch, instant=instant.time, live_groups=kept, skipped=left_out)

    def is_pending(self, plan: Plan) -> bool:
        """Return True if an earlier attempt of this plan is pending; rewrites of other plans are ignored."""
        return any(instant.plan_id == plan.plan_id for instant in self.table.pending())

    def pending_groups(self) -> Mapping[str, Instant]:
        """Return the groups of all pending rewrites."""
        return self.table.pending_groups()

    def stale(self, item: FileSlice, held: Mapping[str, Instant]) -> str | None:  # type: ignore[override]
        """See ``ModelWriter``; ``held`` are groups that others rewrite."""
        if item.file_id in held:
            return f"group {item.file_id} is in pending {held[item.file_id].time}"
        return super().stale(item)

    def rewrite_group(self, prepared: PreparedPlan, number: int, index: int, report: ProgressCallback) -> OutputFile:
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

            def ready() -> tuple[frozenset[str] | None, float, tuple[File, ...]]:
                made = self.read_index(), self.world.scheduler.now, self.written(rewrite)
                self.look_again(prepared)
                return made

            index, looked_at, outputs = self.last_look(*_UNDOES, ready=ready)
            kept = [item for number in prepared.live_groups for item in prepared.plan.groups[number].slices]

            def land() -> Commit:
                instant.outputs = outputs
                instant.replaces = tuple((item.partition, item.file_id) for item in kept)
                instant.inputs = tuple((str(item.path), item.log_files) for item in kept)
                table.book_what_is_whole_again(instant)
                table.complete(instant, index)
                commit = commit_of(instant)
                self.world.watch.landed(table, commit, [item.file_id for item in kept], looked_at)
                return commit

            goes_on_for = self.world.unanswered()
            if goes_on_for is None:
                return land()
            self._goes_on(goes_on_for, lambda: land() if table.timeline.get(instant.time) is instant else None)
            raise CommitUnknown("the table's client did not answer")

    def _goes_on(self, seconds: float, call: Callable[[], object]) -> None:
        """Let the process of the table's client end a call without an answer after ``seconds``.

        The process holds the locks, which are released once the call has verifiably ended.
        """
        locks, kept = self.locks(), self.keeps_locks()
        client = Process(f"client of {self.owner().name}")

        def run() -> None:
            call()
            for lock in locks:
                lock.release(task)

        task = self.world.scheduler.spawn(client, run, after=seconds)
        self.world.clients.append(client)
        for lock in locks if kept else ():
            lock.holder, lock.taken_by = client, task

    def keeps_locks(self) -> bool:
        """Return True if locks are kept while a call may still run."""
        return True

    def look_again(self, prepared: PreparedPlan) -> None:
        """Raise Conflict if an input has changed since it was rewritten."""
        for number in prepared.live_groups:
            for item in prepared.plan.groups[number].slices:
                reason = self.stale(item, {})
                if reason is not None:
                    raise Conflict(f"{reason}, before the commit")

    @port("discard")
    def withdraw(
        self,
        plan_id: str,
        instants: Collection[str] | None,
        *,
        staged: Collection[StagedWork] = (),
        epoch: int | None = None,
    ) -> int:
        """See the port."""
        table, withdrawn = self.table, 0
        with table.locked(*self.locks()):
            for instant in self.withdrawable(plan_id, instants):
                if epoch is not None and instant.epoch > epoch and instant.owner and not instant.owner.dead:
                    continue  # it belongs to an executor that took the plan over
                self.world.before("withdraw", lake=True)
                self.confirm()
                self.world.watch.withdrawn(table, instant)
                table.drop_instant(instant.time)
                withdrawn += 1
            for time in instants or ():
                if table.find(time) is None:  # files that an executor wrote after the withdrawal of its instant
                    table.drop_instant(time)
        return withdrawn

    def withdrawable(self, plan_id: str, instants: Collection[str] | None) -> list[Instant]:
        """Return those of the given instants that are pending and name the plan."""
        mine = [i for i in self.table.pending() if i.plan_id == plan_id]
        return [i for i in mine if instants is None or i.time in instants]

    @port("remove late files")
    def remove_straggler_files(self, instants: Collection[str]) -> Sequence[str]:
        """See ``RemovesStragglers``."""
        table = self.table
        with table.locked(*self.locks()):
            late = [file.path for file in table.files_of_nobody() if file.instant in instants]
            for path in late:
                self.world.before("delete file", lake=True)
                self.confirm()
                self.world.watch.removing(table, path)
                table.remove(path)
        return late

    @port("delete")
    def delete(self, versions: Sequence[SupersededVersion]) -> DeletionResult:
        """See the port."""
        table = self.table
        with table.locked(*self.locks()):
            self.look_at_table(*_UNDOES, "savepoint")
            run_pending_cleans(self.world, table, self.is_of_use, *self.locks())
            if not any(version.path in table.files for version in versions):
                return DeletionResult()

            def ready() -> tuple[list[SupersededVersion], str, frozenset[str] | None]:
                there = [v for v in versions if v.path in table.files]
                for version, reason in self.format.reasons_to_keep(table, there).items():
                    if reason is not None:
                        raise Conflict(f"{version}: {reason}")
                return there, table.new_time(), self.read_index()

            there, time, index = self.last_look(*_UNDOES, "savepoint", ready=ready)
            victims = tuple(v.path for v in there)
            self.world.watch.deleting(table, there)
            return DeletionResult(bytes_freed=self._clean(time, index, victims, self.retained_from(there)))

    def _clean(self, time: str, index: frozenset[str] | None, victims: tuple[str, ...], retained_from: str) -> int:
        clean = self.table.new_instant(
            "clean",
            self.owner(),
            time,
            victims=victims,
            earliest=self.earliest(victims),
            retained_from=retained_from,
            is_lakefolds=True,
        )
        self.world.clean_begins()
        freed = run_clean(self.world, self.table, clean, index, *self.locks())
        self.world.watch.cleaned(self.table)
        return freed

    def owner(self) -> Process:
        """Return the present process."""
        assert self.world.scheduler.current is not None
        return self.world.scheduler.current.process

    def is_of_use(self, clean: Instant) -> bool:
        """Return True if the clean of a killed process may be executed; otherwise it is withdrawn."""
        if is_of_today(self.table, clean) and self._inputs_of_pending().isdisjoint(clean.victims):
            return True
        self.table.drop_instant(clean.time)
        return False

    def _inputs_of_pending(self) -> set[str]:
        return {path for i in self.table.pending() for base, logs in i.inputs for path in (base, *logs)}

    def retained_from(self, versions: Sequence[SupersededVersion]) -> str:
        """Return since when every state of the table is readable once these are deleted: the last replacement."""
        return max(version.instant for version in versions)

    @port("maintain")
    def maintain(self, wanted: Collection[str], retained: Sequence[SupersededVersion]) -> Sequence[str]:
        """See ``RunsTableServices``: the writers' cleaning policy, without what lakefold keeps for its retention."""
        table = self.table
        with table.locked(*self.locks()):
            self.look_at_table(*_UNDOES, "savepoint")
            run_pending_cleans(self.world, table, self.is_of_use, *self.locks())
            if not self._unneeded(retained)[0]:
                return ()
            (victims, earliest), time, index = self.last_look(
                *_UNDOES, "savepoint", ready=lambda: (self._unneeded(retained), table.new_time(), self.read_index())
            )
            self.world.watch.serviced(table, victims)
            self._clean(time, index, victims, earliest)
        return ("clean",)

    def _unneeded(self, retained: Sequence[SupersededVersion]) -> tuple[tuple[str, ...], str]:
        """Return the files that the writers' policy deletes and lakefold does not need, and the oldest kept time."""
        victims, earliest = policy_victims(self.table, self.world.setup.clean_commits)
        kept = {version.path for version in retained} | self.kept_by_timeline() | self._inputs_of_pending()
        return tuple(path for path in victims if path not in kept), earliest

    def kept_by_timeline(self) -> set[str]:
        """Return recently replaced files by the timeline's plan commits; a database may not have recorded them yet."""
        since = self.world.scheduler.now - self.owner().services_retention
        return {
            path
            for instant in self.table.timeline.values()
            if instant.plan_id is not None and instant.completed and instant.completed_at > since
            for base, logs in instant.inputs
            for path in (base, *logs)
        }

    def earliest(self, victims: Collection[str]) -> str:
        """Return the record of a clean for the archiver."""
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
        """Return True if an operator may roll this back, because its owner is dead."""
        return instant.owner is None or instant.owner.dead
