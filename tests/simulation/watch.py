# SPDX-License-Identifier: Apache-2.0
"""The invariants after every step, and at the end of a run after all processes have recovered."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from lake.plan import LIVE_STATES, Commit, Plan, PlanState, SupersededVersion
from simulation.table import Attempt, Table, sum_of

if TYPE_CHECKING:
    from simulation.records import Row, SupersededRow
    from simulation.shapes.timeline.table import Instant, TimelineTable
    from simulation.store import ModelStore
    from simulation.world import World

_MASK = (1 << 64) - 1


class Watch:
    """Checks the invariants. Tables and stores report their changes; a violation calls ``violated`` of the world."""

    def __init__(self, world: "World") -> None:
        self.world = world
        #: plan → the instant of its commit
        self.commits: dict[str, str] = {}
        #: path → the time of the commit that replaced it
        self.superseded_at: dict[str, float] = {}
        #: plan → the paths that its commit replaced
        self.superseded: dict[str, set[str]] = {}
        #: table → groups that a completed rewrite replaced
        self.replaced: dict[str, set[str]] = {}
        #: table and plan of each expired commit
        self._forgotten: set[tuple[str, str | None]] = set()

    # After every step.

    def changed(self, table: Table) -> None:
        """Readers see the rows of the writers' completed commits."""
        if table.owed:
            return  # until lakefold has corrected a location that a writer has changed
        back = self.replaced.get(table.first_name, set()) & table.live().keys()
        if back:
            self.violated("resurrected", f"{table.name}: replaced {sorted(back)[0]} is live again")
        if table.visible_sum() != table.ledger_sum & _MASK:
            self.violated("rows", f"{table.name}: {self._difference(table)}")

    def _difference(self, table: Table) -> str:
        seen, said = table.rows(), table.ledger
        lost = sorted(said.keys() - seen.keys())
        back = sorted(seen.keys() - said.keys())
        twice = sorted(key for key, values in seen.items() if len(values) > 1)
        other = [key for key in said if key in seen and seen[key] != [said[key]] and key not in twice]
        named = {"lost": lost, "come back": back, "doubled": twice, "changed": other}
        return "; ".join(f"{len(keys)} rows {what}, key {keys[0]} first" for what, keys in named.items() if keys)

    def published(self, table: "TimelineTable", instant: "Instant") -> None:
        """No two pending rewrites name one file group."""
        for other in table.pending():
            if other is not instant and set(other.replaces) & set(instant.replaces):
                self.violated("two pending", f"{table.name}: {other.time} and {instant.time} name one file group")
        self.world.tell(f"{instant.action} {instant.time} of plan {instant.plan_id} is pending on {table.name}")

    def cancelled(self, row: "Row") -> None:
        """No plan ends in a conflict with its own earlier attempt, whose process has died."""
        table = self.world.tables.get(row.plan.table.name)
        if table is None or row.cancel_asked or row.epoch == 1:
            return  # if the first attempt can't withdraw its own work, the sweep does so later
        for own in table.pending():
            if own.plan_id == row.plan.plan_id and own.owner is not None and own.owner.dead:
                self.violated("own instant", f"plan {own.plan_id} is cancelled while its own {own.time} is pending")

    def landed(self, table: Table, commit: Commit, groups: Collection[str], looked_at: float) -> None:
        """A plan has at most one commit, without damaged groups. ``groups`` are the rewritten groups."""
        plan_id, name = commit.plan_id, commit.instant
        if plan_id in self.commits:
            self.violated("two commits", f"plan {plan_id} committed as {self.commits[plan_id]} as well")
        self.commits[plan_id] = name
        self.superseded[plan_id] = {version.path for version in commit.superseded}
        for store in self.world.stores:
            row = store.plans.get(plan_id)
            if row is not None and row.state in (PlanState.FAILED, PlanState.CANCELLED) and not self.world.set_back:
                self.violated("committed after its end", f"plan {plan_id} is {row.state} and commits")
        self.replaced.setdefault(table.first_name, set()).update(groups)
        for group in groups:
            if table.damaged.get(group, looked_at + 1) <= looked_at:
                self.violated("damage rewritten", f"{table.name}: {group} was damaged and {name} rewrote it")
        for version in commit.superseded:
            self.superseded_at[table.first_name + version.path] = self.world.scheduler.now
        self.world.tell(f"{name} of plan {plan_id} is committed to {table.name}")

    def ended(self, row: "Row") -> None:
        """No plan ends without a commit while its commit is in the table; a restored database corrects this later."""
        is_known = row.plan.table.name in self.world.tables
        if row.plan.plan_id in self.commits and is_known and not self.world.set_back:
            text = f"plan {row.plan.plan_id} is {row.state}, {self.commits[row.plan.plan_id]} is its commit"
            self.violated("ended though committed", text)

    def undone(
        self, table: Table, attempts: Collection[Attempt], groups: Collection[str], paths: Collection[str] = ()
    ) -> None:
        """A restore has undone these instants, also pending ones: the groups that they replaced are live again.

        The files at ``paths`` are no longer superseded by a plan: if a writer replaces them, its own policy applies.
        """
        self.replaced.get(table.first_name, set()).difference_update(groups)
        for path in paths:
            self.superseded_at.pop(table.first_name + path, None)
        for attempt in attempts:
            if attempt.plan_id is not None:
                self.commits.pop(attempt.plan_id, None)

    def forgotten(self, table: Table, plan_ids: Collection[str]) -> None:
        """These commits have expired: such a plan ends without a commit, or commits again after a restore."""
        for plan_id in plan_ids:
            self._forgotten.add((table.name, plan_id))
            self.world.tell(f"{table.name} forgets the commit of plan {plan_id}")
            rows = [store.plans[plan_id] for store in self.world.stores if plan_id in store.plans]
            if not any(row.state is PlanState.COMPLETED for row in rows):
                self.commits.pop(plan_id, None)

    def withdrawn(self, table: Table, instant: Attempt, *, is_listed: bool = True) -> None:
        """No process undoes a commit, or the work of an executor that owns its plan.

        Without ``is_listed``, no state of the table lists the files of an expired commit: they belong to no plan.
        """
        if instant.completed and (is_listed or (table.name, instant.plan_id) not in self._forgotten):
            self.violated("commit withdrawn", f"{table.name}: completed {instant.time} is taken back")
        here = self.world.scheduler.current
        for store in self.world.stores:
            row = store.plans.get(instant.plan_id or "")
            if row is not None and here is not None and row.state is PlanState.INFLIGHT:
                owner = instant.owner
                works = owner is not None and owner is not here.process and not owner.dead
                if works and row.epoch == instant.epoch and row.lease_until > self.world.scheduler.now:
                    text = f"{table.name}: {here.process.name} withdraws {instant.time}, which {owner} is working on"
                    self.violated("work withdrawn", text)
        self.world.tell(f"{instant.time} of plan {instant.plan_id} is withdrawn from {table.name}")

    def removing(self, table: Table, path: str) -> None:
        """No live file is deleted."""
        file = table.files.get(path)
        piece = table.live().get(file.group) if file is not None else None
        if file is None or file.group in table.damaged:
            return
        if path in table.saved_paths():
            self.violated("saved file deleted", f"{table.name}: {path}")
        if path in table.of_other_tables():
            self.violated("another table's file deleted", f"{table.name}: {path}")
        if piece is not None and (piece.base is file or file in piece.logs):
            self.violated("live file deleted", f"{table.name}: {path}")

    def deleting(self, table: Table, versions: Sequence[SupersededVersion]) -> None:
        """Files that lakefold deletes were superseded for at least the retention in force when the round began."""
        here = self.world.scheduler.current
        retention = here.process.retention if here is not None else 0.0
        for version in versions:
            age = self.world.scheduler.now - self.superseded_at.get(
                table.first_name + version.path, self.world.scheduler.now
            )
            if age < retention:
                self.violated("deleted early", f"{table.name}: {version.path} after {age:.1f} s")

    def serviced(self, table: "TimelineTable", victims: Collection[str]) -> None:
        """Files that the table's services delete were superseded by no plan, or at least the retention in force ago."""
        here = self.world.scheduler.current
        retention = here.process.services_retention if here is not None else 0.0
        for path in victims:
            age = self.world.scheduler.now - self.superseded_at.get(table.first_name + path, -math.inf)
            if age < retention:
                self.violated("deleted early", f"{table.name}: {path} by a service, after {age:.1f} s")

    def saved(self, table: "TimelineTable", paths: Collection[str]) -> None:
        """Files that a savepoint keeps since its announcement exist when it completes."""
        missing = sorted(set(paths) - table.files.keys())
        if missing:
            self.violated("saved file deleted", f"{table.name}: {missing[0]}, of a savepoint that was pending")

    def cleaned(self, table: "TimelineTable") -> None:
        """A reader of an older state that the table still promises reads the ledger's rows of that time."""
        if table.unreadable:
            return
        promised = max(table.retained_from, min(table.timeline, default=""))
        points = [i.time for i, _ in table.history if i.time >= promised and i.action != "clean"]
        for time in sorted(points)[:2]:
            found = sum(sum_of(piece.rows()) for piece in table.view_at(time).values()) & _MASK
            if found != sum_of(table.ledger_at(time)) & _MASK:
                self.violated("older state", f"{table.name} as of {time}: {table.retained_from} is promised")

    def put_right(self, table: Table, before: Mapping[str, float]) -> None:
        """A sweep that did not fail has corrected everything that needed a correction when it began."""
        left = [name for name, since in before.items() if table.owed.get(name) == since]
        if left:
            self.violated("not put back", f"{table.name}: {left[0]} is where a writer has pointed it")

    def indexing(self, table: "TimelineTable", *, has_index: bool) -> None:
        """No index is written that the table's owner has switched off."""
        if has_index and not table.indexed:
            self.violated("index made", f"{table.name}: its owner has switched the index off")

    def planned(self, store: "ModelStore", plan: Plan) -> None:
        """No partition is held by two live plans of one database."""
        for row in store.live():
            both = set(row.plan.partitions) & set(plan.partitions)
            if row.plan.plan_id != plan.plan_id and row.plan.table.name == plan.table.name and both:
                text = f"{plan.table.name}: plans {row.plan.plan_id} and {plan.plan_id} hold {sorted(both)[0]!r}"
                self.violated("held twice", text)

    def taken_over(self, row: "Row") -> None:
        """A lease is over only when the database's clock says so."""
        if row.lease_until > self.world.scheduler.now:
            text = f"plan {row.plan.plan_id} was taken over {row.lease_until - self.world.scheduler.now:.1f} s early"
            self.violated("taken over early", text)

    def violated(self, what: str, text: str) -> None:
        """An invariant is violated."""
        self.world.violated(what, text)

    # At the end.

    def quiet(self) -> bool:
        """Return True if there is no work left."""
        world = self.world
        return (
            all(
                row.state not in LIVE_STATES or row.plan.table.name not in world.tables
                for store in world.stores
                for row in store.plans.values()
            )
            and all(row.deleted or self._live_again(row) for store in world.stores for row in store.rows)
            and not any(i.plan_id is not None for table in world.tables.values() for i in table.pending())
            and not any(table.files_of_nobody() for table in world.tables.values())
        )

    def _live_again(self, row: "SupersededRow") -> bool:
        """Return True if a restore made a superseded file live, or if its table was renamed since."""
        table = self.world.tables.get(row.table)
        return table is None or table.is_live_again(row.version.path)

    def end(self) -> None:
        """Check the invariants at the end, after all processes have recovered and finished their work."""
        for store in self.world.stores:
            for row in store.plans.values():
                plan_id = row.plan.plan_id
                if row.plan.table.name not in self.world.tables:
                    continue  # it was renamed: plans of the old name know nothing of it
                if row.state in LIVE_STATES:
                    self.violated("plan stuck", f"plan {plan_id} is still {row.state}")
                if row.state in (PlanState.FAILED, PlanState.CANCELLED) and plan_id in self.commits:
                    self.violated(
                        "ended though committed", f"plan {plan_id} is {row.state}, its commit is in the table"
                    )
            known = {row.version.path for row in store.rows}
            for plan_id in store.plans.keys() & self.commits.keys():
                if store.plans[plan_id].plan.table.name in self.world.tables:
                    self._superseded(plan_id, known)
            for kept in store.rows:
                if not (kept.deleted or self._live_again(kept)):
                    self.violated("not deleted", f"{kept.version.path} is superseded and still there")
        for table in self.world.tables.values():
            self._table(table)

    def _superseded(self, plan_id: str, known: set[str]) -> None:
        for path in sorted(self.superseded[plan_id] - known):
            self.violated("not recorded", f"{path} was replaced by plan {plan_id}, which does not say so")

    def _table(self, table: Table) -> None:
        for attempt in table.pending():
            if attempt.plan_id is not None:
                self.violated("left pending", f"{table.name}: {attempt.time} of plan {attempt.plan_id}")
        for file in table.left_behind():
            self.violated("left behind", f"{table.name}: {file.path} belongs to no commit")
