# SPDX-License-Identifier: Apache-2.0
"""``lake.plan_store.PlanStore`` in memory, and the scheduler's and operator's calls of ``service.control.store``.

Each method is one transaction: time passes and faults occur before and after it, never inside. It must behave as
``tests/store`` tests the real store, so a change there is needed here too.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING

from lake.errors import LeaseLost
from lake.model import Concurrency, TableRef
from lake.plan import (
    LIVE_STATES,
    TRANSITIONS,
    Claim,
    Commit,
    LockOwner,
    PartitionFigures,
    Plan,
    PlanState,
    RewriteProgress,
    SkippedGroup,
    Step,
    SupersededVersion,
)
from lake.plan_store import SupersededRecord
from service.control.store.errors import PartitionsLocked, WrongState
from simulation.journal import JournalParts
from simulation.port import START
from simulation.records import Row, Settings, SupersededRow, TableRow, transaction

if TYPE_CHECKING:
    from simulation.world import World

ENDED_WITHOUT_COMMIT = (PlanState.CANCELLED, PlanState.FAILED)
INFLIGHT, REQUESTED = PlanState.INFLIGHT, PlanState.REQUESTED


class ModelStore(JournalParts):
    """One database. Its clock is the true time."""

    def __init__(self, world: "World", settings: Settings) -> None:
        self.world, self.settings = world, settings
        self.plans: dict[str, Row] = {}
        self.tables: dict[str, TableRow] = {}
        self.keepers: dict[tuple[str, str], tuple[LockOwner, float]] = {}
        self.live_partitions: dict[tuple[str, str], str] = {}
        self.rows: list[SupersededRow] = []

    def now(self) -> float:
        """The database's clock."""
        return self.world.scheduler.now

    # Calls of executors.

    @transaction
    def claim(self, executor: str) -> Claim | None:
        """See the port."""
        row = next(self._waiting(), None)
        if row is None:
            return None
        self._move(row, INFLIGHT)
        row.epoch, row.attempts, row.executor, row.grace = row.epoch + 1, row.attempts + 1, executor, 0.0
        row.lease_until = self.now() + self.settings.lease
        return self._claim_of(row)

    @transaction
    def take_over_expired(self, executor: str) -> Claim | None:
        """See the port."""
        silent = self.silent(executor)
        if not silent:
            return None
        row = min(silent, key=lambda row: row.lease_until)
        self.world.watch.taken_over(row)
        row.epoch, row.executor, row.grace = row.epoch + 1, executor, 0.0
        row.lease_until = self.now() + self.settings.lease
        return self._claim_of(row)

    def lease_is_over(self, row: Row) -> bool:
        """Return True if the lease was not renewed in time."""
        return row.lease_until <= self.now()

    def halt_reason(self, plan_id: str) -> str | None:
        """See the port."""
        return self.tables[self.plans[plan_id].plan.table.name].halted

    @transaction
    def heartbeat(
        self, claim: Claim, progress: RewriteProgress | None = None, *, at_least: timedelta = timedelta()
    ) -> bool:
        """See the port."""
        row = self.hold(claim)
        lasts = self.lasts(at_least)
        row.lease_until = max(row.lease_until, self.now() + max(self.settings.lease, lasts))
        row.grace = max(row.grace, lasts)
        return row.cancel_asked

    def lasts(self, at_least: timedelta) -> float:
        """Return how long no other executor may take the plan over, since its commit is about to begin."""
        return at_least.total_seconds()

    @transaction
    def record_step(
        self,
        claim: Claim,
        step: Step,
        *,
        milliseconds: int = 0,
        cpu_milliseconds: int | None = None,
        succeeded: bool = True,
    ) -> None:
        """See the port."""
        self.hold(claim)

    @transaction
    def add_note(self, claim: Claim, text: str) -> None:
        """See the port."""
        self.hold(claim)

    @transaction
    def record_inflight_error(self, claim: Claim, error: str) -> None:
        """See the port."""
        self.hold(claim)

    @transaction
    def record_skipped_groups(self, claim: Claim, skipped: Sequence[SkippedGroup]) -> None:
        """See the port."""
        row = self.hold(claim)
        unreadable = {path for item in skipped for path in item.quarantine}
        self.tables[row.plan.table.name].quarantined |= unreadable

    @transaction
    def complete(
        self, claim: Claim, commit: Commit, figures: Sequence[PartitionFigures], milliseconds: Mapping[str, int]
    ) -> None:
        """See the port."""
        known = self.plans.get(claim.plan.plan_id)
        ours = known is not None and (known.epoch, known.executor) == (claim.epoch, claim.executor)
        if known is not None and ours and known.state is PlanState.COMPLETED and known.instant == commit.instant:
            return
        self._complete(self.hold(claim), commit)

    @transaction
    def ended_without_commit(self, table: TableRef, *, claimed: bool) -> Collection[str]:
        """See the port."""
        return frozenset(self.ended_plans_without_commit(table, claimed=claimed))

    @transaction
    def complete_unrecorded(self, commit: Commit, figures: Callable[[Plan], Sequence[PartitionFigures]]) -> bool:
        """See the port."""
        row = self.plans.get(commit.plan_id)
        if row is None or row.state not in ENDED_WITHOUT_COMMIT:
            return False
        self._complete(row, commit)
        return True

    def _complete(self, row: Row, commit: Commit) -> None:
        row.instant, row.cancel_asked = commit.instant, False
        self._move(row, PlanState.COMPLETED)
        if commit.epoch is not None and commit.epoch > row.epoch:
            table = self.tables[row.plan.table.name]
            table.halted = table.halted or f"attempt {commit.epoch} of {row.epoch} committed {commit.instant}"
        self.clear_committed(row, commit)
        replaced = self.replaced(commit)
        self.close_replaced_again(row.plan.table.name, {version.path for version in replaced})
        for version in replaced:
            number = len(self.rows)
            self.rows.append(
                SupersededRow(
                    row_id=number, plan_id=row.plan.plan_id, table=row.plan.table.name, version=version, at=self.now()
                )
            )

    def close_replaced_again(self, table: str, paths: Collection[str]) -> None:
        """Restart the retention of files that a restore made live and a later commit replaced again."""
        for known in self.rows:
            if known.table == table and known.version.path in paths:
                known.deleted = True

    def replaced(self, commit: Commit) -> Sequence[SupersededVersion]:
        """Return the replaced versions of a completed plan, which the cleaner will delete."""
        return commit.superseded

    @transaction
    def requeue(self, claim: Claim, error: str, *, counts_as_attempt: bool = True) -> bool:
        """See the port."""
        row = self.hold(claim)
        if row.cancel_asked:
            self._move(row, PlanState.CANCELLED)
            return False
        if counts_as_attempt and row.attempts >= self.settings.max_attempts:
            self._move(row, PlanState.FAILED)
            return False
        row.attempts -= not counts_as_attempt
        wait = min(self.settings.backoff * 2 ** max(row.attempts - 1, 0), self.settings.backoff_max)
        row.not_before = self.now() + wait
        self._move(row, REQUESTED)
        return True

    @transaction
    def fail(
        self, claim: Claim, error: str, *, halt: bool = False, partitions: Mapping[str, str] | None = None
    ) -> None:
        """See the port."""
        row = self.hold(claim)
        self._move(row, PlanState.FAILED)
        if halt:
            self.tables[row.plan.table.name].halted = self.tables[row.plan.table.name].halted or error

    @transaction
    def cancel(self, claim: Claim, reason: str, *, actor: str, is_refused: bool = False) -> None:
        """See the port."""
        row = self.hold(claim)
        self.world.watch.cancelled(row)
        self._move(row, PlanState.CANCELLED)

    @transaction
    def plan_state(self, plan_id: str) -> PlanState | None:
        """See the port."""
        row = self.plans.get(plan_id)
        return None if row is None else row.state

    @transaction
    def due_for_deletion(
        self, table: TableRef, retention: timedelta, limit: int = 10_000
    ) -> Sequence[SupersededRecord]:
        """See the port."""
        return [self._due(row) for row in self.kept(table) if self.is_due(row, retention)][:limit]

    def retention_now(self) -> float:
        """Return the clock by which retention is measured."""
        return self.now()

    @transaction
    def awaiting_deletion(self, table: TableRef) -> Sequence[SupersededRecord]:
        """See the port."""
        return [self._due(row) for row in self.kept(table)]

    @transaction
    def begin_deletion(self, rows: Collection[int]) -> Collection[int]:
        """See the port."""
        return {number for number in rows if not self.rows[number].deleted}

    @transaction
    def mark_deleted(self, rows: Sequence[int]) -> None:
        """See the port."""
        for number in rows:
            self.rows[number].deleted = True

    @transaction
    def close_superseded(self, rows: Mapping[int, str]) -> None:
        """See the port."""
        for number in rows:
            self.rows[number].deleted = True

    # Calls of schedulers and operators.

    @transaction
    def add_plan(self, plan: Plan) -> None:
        """Store a plan and take its partitions. Raises PartitionsTaken."""
        self._take(plan)
        self.plans[plan.plan_id] = Row(plan=plan, not_before=self.now(), rank=Random(plan.plan_id).random())
        self.world.watch.planned(self, plan)

    @transaction
    def locked_partitions(self, name: str) -> dict[str, str]:
        """Partition → live plan that holds it."""
        return self.held(name)

    @transaction
    def request_cancel(self, plan_id: str) -> None:
        """Record an operator's request to cancel."""
        row = self.plans[plan_id]
        if row.state is REQUESTED:
            self._move(row, PlanState.CANCELLED)
        elif row.state is INFLIGHT:
            row.cancel_asked = True

    @transaction
    def retry(self, plan_id: str) -> None:
        """Request a failed plan again. Raises WrongState, PartitionsTaken."""
        row = self.plans[plan_id]
        if row.state is not PlanState.FAILED:
            raise WrongState(plan_id)
        self._take(row.plan)
        row.attempts, row.not_before, row.cancel_asked = 0, self.now(), False
        self._move(row, REQUESTED)
        self.world.watch.planned(self, row.plan)

    def live(self) -> list[Row]:
        """Plans that have not ended."""
        return [row for row in self.plans.values() if row.state in LIVE_STATES]

    # Checks of loops before they begin: these are not calls, and no time passes.

    def idle(self, executor: str) -> bool:
        """True if an executor would find no plan to claim or to take over."""
        return next(self._waiting(), None) is None and not self.silent(executor)

    def silent(self, executor: str) -> list[Row]:
        """Return the plans with an expired lease that ``executor`` may take over."""
        return [
            row
            for row in self.plans.values()
            if row.state is INFLIGHT
            and self.lease_is_over(row)
            and (row.lease_until + row.grace <= self.now() or _is_gone(row.executor, executor))
        ]

    def held(self, name: str) -> dict[str, str]:
        """Partition → live plan that holds it."""
        return {part: plan_id for (table, part), plan_id in self.live_partitions.items() if table == name}

    def kept(self, table: TableRef) -> list[SupersededRow]:
        """Return the superseded versions that await deletion, oldest first."""
        mine = [row for row in self.rows if row.table == table.name and not row.deleted]
        return sorted(mine, key=lambda row: (row.at, row.row_id))

    def is_due(self, row: SupersededRow, retention: timedelta) -> bool:
        """Return True if a version was superseded at least this long ago."""
        return row.at <= self.retention_now() - retention.total_seconds()

    def ended_plans_without_commit(self, table: TableRef, *, claimed: bool = False) -> list[str]:
        """Return the plans that ended without a commit; with ``claimed``, only those that began."""
        return [
            plan_id
            for plan_id, row in self.plans.items()
            if row.state in ENDED_WITHOUT_COMMIT and row.epoch >= claimed and row.plan.table.name == table.name
        ]

    # Internal state.

    def hold(self, claim: Claim) -> Row:
        """Return the row of a claim that its executor still owns. Raises LeaseLost."""
        row = self.plans.get(claim.plan.plan_id)
        if row is None or (row.epoch, row.executor, row.state) != (claim.epoch, claim.executor, INFLIGHT):
            raise LeaseLost(f"plan {claim.plan.plan_id} is no longer {claim.executor}'s (epoch {claim.epoch})")
        return row

    def concurrency_of(self, row: Row) -> Concurrency:
        """Return the concurrency mode of a plan that is claimed now, by the present registration of its table."""
        return self.tables[row.plan.table.name].concurrency

    def _claim_of(self, row: Row) -> Claim:
        plan, concurrency = row.plan, self.concurrency_of(row)
        if plan.table.concurrency is not concurrency:
            plan = replace(plan, table=replace(plan.table, concurrency=concurrency))
        return Claim(
            plan=plan,
            epoch=row.epoch,
            attempt=row.attempts,
            executor=row.executor,
            lease_until=START + timedelta(seconds=row.lease_until),
            staged=tuple(one.staged for one in row.staged),
        )

    def _waiting(self) -> Iterator[Row]:
        """Return the plans that may be claimed now, in order."""
        for row in sorted(self.plans.values(), key=lambda row: row.rank):
            if row.state is REQUESTED and row.not_before <= self.now():
                name = row.plan.table.name
                if not self.tables[name].paused and self.tables[name].halted is None:
                    inflight = [r for r in self.plans.values() if r.state is INFLIGHT and r.plan.table.name == name]
                    if len(inflight) < self.settings.max_inflight_per_table:
                        yield row

    def _take(self, plan: Plan) -> None:
        holders = self.taken(plan.table.name, plan.partitions)
        if holders:
            raise PartitionsLocked(holders)
        for part in plan.partitions:
            self.live_partitions[plan.table.name, part] = plan.plan_id

    def taken(self, table: str, partitions: Collection[str]) -> dict[str, str]:
        """Return those of ``partitions`` that a live plan, the cleaner or the sweep holds."""
        holders = {part: held for part in partitions if (held := self.live_partitions.get((table, part)))}
        kept = {part: self.kept_by(table, part) for part in partitions} if self.keepers else {}
        return holders | {part: str(keeper) for part, keeper in kept.items() if keeper is not None}

    def _move(self, row: Row, to: PlanState) -> None:
        if to not in TRANSITIONS[row.state]:
            self.world.violated("transition", f"plan {row.plan.plan_id}: {row.state} → {to}")
        row.state = to
        if to in ENDED_WITHOUT_COMMIT:
            self.world.watch.ended(row)
        if to not in LIVE_STATES:
            held = [key for key, plan_id in self.live_partitions.items() if plan_id == row.plan.plan_id]
            for key in held:
                del self.live_partitions[key]
        self.world.tell(f"plan {row.plan.plan_id} is {to} (epoch {row.epoch})")

    @staticmethod
    def _due(row: SupersededRow) -> SupersededRecord:
        if row.due is None:
            row.due = SupersededRecord(
                row_id=row.row_id,
                plan_id=row.plan_id,
                version=row.version,
                superseded_at=START + timedelta(seconds=row.at),
            )
        return row.due


def _is_gone(executor: str, asking: str) -> bool:
    """Return True if one executor can know that another one is dead: a host name runs one process at a time."""
    return executor.partition("/")[0] == asking.partition("/")[0]
