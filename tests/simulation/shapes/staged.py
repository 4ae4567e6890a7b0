# SPDX-License-Identifier: Apache-2.0
"""The common part of tables without a timeline: they have no record of staged work, and no lock.

So an attempt is a token, which the database records before the attempt's first file exists. Engines rewrite the files.
"""

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from lake.engine_choice import choose_engines, engine_notes
from lake.engines import RewriteEngine, RewriteTask, build_task
from lake.errors import Conflict
from lake.model import TableRef
from lake.plan import Commit, OutputFile, Plan, StagedWork, SupersededVersion
from lake.ports import DeletionResult, PreparedPlan, ProgressCallback
from simulation.port import START, ModelFormat, ModelWriter, port
from simulation.table import Attempt, File, Rows, Table


@dataclass(slots=True, eq=False)
class StagedTable(Table):
    """One such table. ``tokens`` are the stagings of lakefold's attempts that their databases still record."""

    tokens: dict[str, Attempt] = field(default_factory=dict)
    #: the number of tokens and writers' commits so far: each name is used once
    names: int = 0

    def new_name(self, kind: str) -> str:
        """Return a new name."""
        self.names += 1
        return f"{kind}{self.names}"

    def write(self, path: str, partition: str, by: str, rows: Rows) -> File:
        """Write a new file, which is its own group. ``by`` is the token or the writer's commit that writes it."""
        size = len(rows)
        return self.put(File(path, partition, f"{path}@{by}", by, dict(rows), False, self.scheduler.now, size, size))

    def create(self, path: str, rows: Rows) -> None:
        """Create the file that an engine writes at a given path."""
        raise NotImplementedError

    def under(self, staged: StagedWork) -> list[str]:
        """Return the staged files that are in storage."""
        raise NotImplementedError

    def needed(self) -> set[str]:
        """Return the files that readers see, also in older states that the table keeps."""
        return self.live_paths() | self.saved_paths()

    def forget(self, plan_ids: Collection[str]) -> None:
        """Note that the database was restored without its journal: no process will find these plans' staged files."""
        self.tokens = {token: one for token, one in self.tokens.items() if one.plan_id not in plan_ids}

    def files_of_nobody(self) -> list[File]:
        """See ``Table``."""
        if not self.tokens:
            return []
        tokens = self.tokens
        return [f for f in self.files.values() if (one := tokens.get(f.instant)) is not None and not one.completed]


class StagedFormat(ModelFormat):
    """Observes such tables; adds ``lake.capabilities.FindsStaged``."""

    def commits(self, table: StagedTable) -> Collection[Commit]:
        """Return the commits of plans that the table still records."""
        raise NotImplementedError

    def done(self, table: StagedTable) -> Collection[str]:
        """Return the tokens of these commits."""
        raise NotImplementedError

    @port("committed")
    def find_commit(self, ref: TableRef, plan_id: str) -> Commit | None:
        """See the port."""
        return self.found(ref, (plan_id,)).get(plan_id)

    @port("landed")
    def recent_commits(self, ref: TableRef, plan_ids: Collection[str]) -> Mapping[str, Commit]:
        """See the port."""
        return self.found(ref, plan_ids)

    def found(self, ref: TableRef, plan_ids: Collection[str]) -> Mapping[str, Commit]:
        """Return plan → commit, for the plans with a commit."""
        return {one.plan_id: one for one in self.commits(self.table(ref)) if one.plan_id in plan_ids}

    @port("left of")
    def remaining_staged(self, ref: TableRef, staged: Collection[StagedWork]) -> Collection[str]:
        """See ``FindsStaged``."""
        return self.left(self.table(ref), staged)

    def left(self, table: StagedTable, staged: Collection[StagedWork]) -> Collection[str]:
        """Return the tokens with files in storage that no commit, recorded or expired, has added to the table."""
        done, needed = self.done(table), table.needed()
        there = {one.token: table.under(one) for one in staged if one.token not in done}
        return {token for token, paths in there.items() if paths and needed.isdisjoint(paths)}

    def reasons_to_keep(self, table: StagedTable, versions: Sequence[SupersededVersion]) -> Mapping[str, str | None]:
        """See ``ModelFormat``."""
        live, saved = table.live_paths(), self.saved(table)

        def reason(version: SupersededVersion) -> str | None:
            if version.path in live or table.is_undone(version):
                return "live again"
            return "kept by a savepoint" if version.path in saved else None

        return {version.path: reason(version) for version in versions}


class StagedWriter(ModelWriter):
    """Changes one such table with the engines that it is given."""

    table: StagedTable

    def __init__(self, format_: StagedFormat, ref: TableRef, engines: Sequence[RewriteEngine]) -> None:
        super().__init__(format_, ref)
        self.engines = engines

    def evidence(self, plan: Plan) -> object:
        """Return the state with which a plan is compared again at its commit."""
        raise NotImplementedError

    def path_of(self, partition: str, token: str, number: int) -> str:
        """Return the path of a new file."""
        raise NotImplementedError

    def staged(self, token: str, plan: Plan, groups: Sequence[int]) -> StagedWork:
        """Return the record of a staging for the database."""
        raise NotImplementedError

    @port("prepare")
    def prepare(self, plan: Plan, epoch: int) -> PreparedPlan:
        """See the port."""
        self.format.table(self.ref)  # raises if the table has another name now
        evidence = self.evidence(plan)
        groups, left_out = self.still_there(plan)
        assert self.world.scheduler.current is not None
        token = self.table.new_name("t")
        chosen = choose_engines(self._tasks(plan, groups, token), self.engines, plan.options, self.ref.name)
        self.table.tokens[token] = Attempt(
            time=token, owner=self.world.scheduler.current.process, plan_id=plan.plan_id, epoch=epoch
        )
        self.tell(self.staged(token, plan, groups))
        return PreparedPlan(
            plan=plan,
            epoch=epoch,
            instant=token,
            live_groups=groups,
            skipped=left_out,
            notes=engine_notes(chosen),
            preconditions=evidence,
        )

    def tell(self, staged: StagedWork) -> None:
        """Record a staging in the database before its first file exists."""
        self.journal(staged)

    def _tasks(self, plan: Plan, groups: Sequence[int], token: str) -> list[RewriteTask]:
        home = f"/{self.ref.name}/"
        return [
            build_task(self.ref, index, group, [home + self.path_of(group.partition, token, index)])
            for index in groups
            for group in [plan.groups[index]]
        ]

    def rewrite_group(self, prepared: PreparedPlan, number: int, index: int, report: ProgressCallback) -> OutputFile:
        """See ``ModelWriter``."""
        plan, token = prepared.plan, prepared.instant
        (task,) = self._tasks(plan, (index,), token)
        engine = choose_engines([task], self.engines, plan.options, self.ref.name)[index].engine
        home = len(f"/{self.ref.name}/")
        try:
            (written,) = engine.rewrite([task], plan.options, report, threading.Event())
        except Conflict as error:
            unreadable = [
                replace(one, quarantine=tuple(path[home:] for path in one.quarantine)) for one in error.args[1]
            ]
            raise Conflict(error.args[0], tuple(unreadable)) from error
        partition = plan.groups[index].partition
        return OutputFile(partition=partition, path=written.path[home:], bytes=written.bytes, rows=written.rows)

    def superseded(self, files: Sequence[File], instant: str) -> tuple[SupersededVersion, ...]:
        """Return the record in the commit ``instant`` of the files that it replaces."""
        return tuple(
            SupersededVersion(
                partition=file.partition,
                path=file.path,
                bytes=file.bytes,
                instant=instant,
                modified_at=START + timedelta(seconds=file.at),
            )
            for file in files
        )

    def wanted(self, staged: Collection[StagedWork], instants: Collection[str] | None) -> list[StagedWork]:
        """Return the recorded stagings that are to be withdrawn and have files left."""
        mine = [one for one in staged if instants is None or one.token in instants]
        left = self.format.left(self.table, mine)
        return [one for one in mine if one.token in left]

    def take_back(self, one: StagedWork) -> None:
        """Remove all staged files."""
        for path in self.table.under(one):
            self.world.before("withdraw", lake=True)
            if one.token in self.table.tokens:
                is_listed = path in self.table.needed()
                self.world.watch.withdrawn(self.table, self.table.tokens[one.token], is_listed=is_listed)
            self.table.remove(path)

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
        wanted = self.wanted(staged, instants)
        done = self.withdraw_tokens(wanted) if wanted else ()
        gone = [one for one in wanted if one.token not in done]
        for one in gone:
            self.take_back(one)
        return len(gone)

    def withdraw_tokens(self, wanted: Collection[StagedWork]) -> Collection[str]:
        """Let the table refuse these tokens from now on, if it can. Returns the tokens that are already committed."""
        return ()

    @port("delete")
    def delete(self, versions: Sequence[SupersededVersion]) -> DeletionResult:
        """See the port. No lock is there to keep others away, so each file is looked at right before it goes."""
        table = self.table
        self.fence()
        self._refuse_needed(versions)
        self.world.watch.deleting(table, [v for v in versions if v.path in table.files])
        freed, left = 0, {}
        for index, version in enumerate(versions):
            self.world.before("delete file", lake=True)
            self._refuse_needed((version,))
            file = table.files.get(version.path)
            if file is None:
                continue
            other = version.difference(file.bytes, START + timedelta(seconds=file.at))
            if other is not None:
                left[index] = other
                continue
            self.world.watch.removing(table, version.path)
            freed += table.remove(version.path)
        return DeletionResult(bytes_freed=freed, retained=left)

    def _refuse_needed(self, versions: Sequence[SupersededVersion]) -> None:
        for path, reason in self.format.reasons_to_keep(self.table, versions).items():
            if reason is not None:
                raise Conflict(f"{path}: {reason}")
