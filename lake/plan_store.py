# SPDX-License-Identifier: Apache-2.0
"""The part of the database that executors use, as a protocol: executors are independent of the database."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from lake.model import TableRef
from lake.plan import (
    Claim,
    Commit,
    LockOwner,
    PartitionFigures,
    Plan,
    PlanState,
    RewriteProgress,
    SkippedGroup,
    StagedWork,
    Step,
    SupersededVersion,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SupersededRecord:
    """A superseded version that the cleaner may examine, with its row id in the store."""

    row_id: int
    plan_id: str
    version: SupersededVersion
    superseded_at: datetime
    #: the identity of the table that its plan was made for; None if it was not known
    table_identity: str | None = None
    #: when a deletion of the file was begun; it is not known whether the deletion succeeded
    deletion_begun_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanedStaging:
    """The staged files of an attempt on which no executor works, and the partitions of its plan.

    ``is_expired``: no process can be expected to write to them now. ``table_identity`` is the identity of the table at
    the time of planning, see ``TableRef``.
    """

    plan_id: str
    partitions: Collection[str]
    staged: StagedWork
    is_expired: bool
    table_identity: str | None = None


class PlanStore(Protocol):
    """The executors' reads and writes. Times compare with the database's clock.

    Relocations of partitions are in ``lake.relocation_store``: only a format whose commits relocate needs them.
    """

    def claim(self, executor: str) -> Claim | None:
        """Claim the first due requested plan by compare-and-set. Returns None if there is none.

        Skips plans that wait for approval, paused and halted tables, tables at ``max_inflight_per_table``, and plans
        that a budget or the hours of their table hold back. Increments epoch and attempt.
        """

    def heartbeat(
        self, claim: Claim, progress: RewriteProgress | None = None, *, at_least: timedelta = timedelta()
    ) -> bool:
        """Renew the lease, for ``at_least`` this long. True if a cancel was requested. Raises LeaseLost.

        A lease never becomes shorter. With ``at_least``, a grace of the same length follows the lease: until its end
        the plan is taken over only if its executor is known to have ended.
        """

    def record_staged(self, claim: Claim, staged: StagedWork) -> None:
        """Record the work that this attempt is about to stage. Raises LeaseLost."""

    def orphaned_stagings(self, table: TableRef) -> Sequence[OrphanedStaging]:
        """Return the staged files of the table's attempts that neither committed nor are known to be cleared.

        Stagings whose plan is leased to an executor that works on it are left out.
        """

    def clear_stagings(self, stagings: Collection[OrphanedStaging]) -> None:
        """Record that none of these files exist, and that none will appear."""

    def record_step(
        self,
        claim: Claim,
        step: Step,
        *,
        milliseconds: int = 0,
        cpu_milliseconds: int | None = None,
        succeeded: bool = True,
    ) -> None:
        """Record the duration of ``step``, and whether it ``succeeded``. Raises LeaseLost.

        ``cpu_milliseconds`` is the CPU time of all rewrites of the attempt; None if it was not counted.
        """

    def add_note(self, claim: Claim, text: str) -> None:
        """Add a line to the plan's history. Raises LeaseLost."""

    def record_inflight_error(self, claim: Claim, error: str) -> None:
        """Record why a plan stays inflight; the first cause of an attempt is retained. Raises LeaseLost."""

    def record_skipped_groups(self, claim: Claim, skipped: Sequence[SkippedGroup]) -> None:
        """Record groups that are not part of the commit, and quarantined paths. Raises LeaseLost."""

    def complete(
        self, claim: Claim, commit: Commit, figures: Sequence[PartitionFigures], milliseconds: Mapping[str, int]
    ) -> None:
        """Complete the plan in one transaction: figures, superseded versions, partitions freed. Raises LeaseLost.

        Halts the table if this database has not reached the commit's epoch for the plan. Idempotent: a second call of
        the same claim with the same commit, as after a lost answer, changes nothing.
        """

    def ended_without_commit(self, table: TableRef, *, claimed: bool) -> Collection[str]:
        """Return the plans of the table that ended cancelled or failed; with ``claimed``, only those that were claimed.

        A database that was restored from a backup may show a plan as never claimed although it was claimed.
        """

    def complete_unrecorded(self, commit: Commit, figures: Callable[[Plan], Sequence[PartitionFigures]]) -> bool:
        """Complete a plan that ended cancelled or failed although its table holds ``commit``; else return False.

        Halts the table as ``complete`` does.
        """

    def requeue(self, claim: Claim, error: str, *, counts_as_attempt: bool = True) -> bool:
        """After Transient, request the plan again with a backoff. False if it ended instead.

        It fails after ``max_attempts``, and is cancelled if an operator requested that. With
        ``counts_as_attempt=False`` the attempt does not count: the number of remaining attempts does not change.
        """

    def fail(
        self, claim: Claim, error: str, *, halt: bool = False, partitions: Mapping[str, str] | None = None
    ) -> None:
        """After Rejected or Integrity, set the plan to failed and free its partitions.

        With ``halt`` the table is halted, or only ``partitions``, each with its own reason, if the error concerns only
        these.
        """

    def cancel(self, claim: Claim, reason: str, *, actor: str, is_refused: bool = False) -> None:
        """After Conflict or an operator's request, cancel the plan and free its partitions. Raises LeaseLost.

        ``is_refused`` is True after TableRefused: no writer was faster.
        """

    def take_over_expired(self, executor: str) -> Claim | None:
        """Take over one inflight plan whose lease has run out (epoch + 1, new lease). Returns None if there is none.

        For a grace period after the lease's end, a plan is taken over only if its executor is known to have ended. Such
        a period exists if a commit was about to begin; for an adopted plan it is long, since a successor has to use the
        same instant.
        """

    def time_until_due(self) -> timedelta | None:
        """Return the time until a requested plan is due or an inflight lease runs out; zero if that is now.

        None if all live plans wait for a person, such as those of paused and halted tables.
        """

    def plan_state(self, plan_id: str) -> PlanState | None:
        """Return the state of a plan, None if this database does not have it."""

    def lock_partitions(
        self, table: TableRef, partitions: Collection[str], owner: LockOwner, *, alongside_plans: bool = False
    ) -> Collection[str]:
        """Lock ``partitions`` for ``owner`` for some minutes. Returns the partitions that no other owner has locked.

        While a partition is locked no plan is made there, and while a plan is live its partitions can't be locked.
        With ``alongside_plans`` partitions of live plans can be locked, by the cleaner only while no executor runs the
        plan. Such a lock blocks the plan's commit.
        """

    def renew_partitions(self, table: TableRef, partitions: Collection[str], owner: LockOwner) -> Collection[str]:
        """Renew the locks of ``partitions`` for some minutes. Returns the partitions that ``owner`` held without a gap.

        A partition is left out even if no other owner has it now: another owner may have locked and released it while
        ``owner`` was suspended.
        """

    def clock(self) -> float:
        """Return the time of the database's clock, in seconds. It continues while this machine is suspended."""

    def release_partitions(self, owner: LockOwner) -> None:
        """Release all locks of ``owner``."""

    def halt_table(self, table: TableRef, reason: str) -> bool:
        """Halt a table until a person resumes it. False if it is halted already; then the first reason stays.

        A halted table gets no plans and no claims, and files that its commits replaced are not deleted. Relocated
        partitions are still swept.
        """

    def halt_for_plan(self, plan_id: str, reason: str, partitions: Mapping[str, str] | None = None) -> None:
        """Halt the table of a plan, or only ``partitions`` of it, each with its own reason.

        The table may have been renamed while the plan ran.

        See ``halt_table`` and ``halt_partition``.
        """

    def halt_reason(self, plan_id: str) -> str | None:
        """Return why the table of a plan is halted, None if it is not; even if it was renamed while the plan ran."""

    def halt_partition(self, table: TableRef, partition: str, reason: str) -> bool:
        """Halt one partition like a table. False if it is halted already; then the first reason stays.

        The table is halted instead if it has no partitions, or if too many of them are halted.
        """

    def due_for_deletion(
        self, table: TableRef, retention: timedelta, limit: int = 10_000
    ) -> Sequence[SupersededRecord]:
        """Return superseded versions older than ``retention``, in the order in which they were superseded."""

    def awaiting_deletion(self, table: TableRef) -> Sequence[SupersededRecord]:
        """Return all superseded versions that are not deleted yet, in the order in which they were superseded."""

    def begin_deletion(self, rows: Collection[int]) -> Collection[int]:
        """Mark that these rows' files are about to be deleted. Returns the rows that still await their deletion."""

    def mark_deleted(self, rows: Sequence[int]) -> None:
        """Set ``deleted_at`` now for these rows."""

    def close_superseded(self, rows: Mapping[int, str]) -> None:
        """Stop tracking these rows, each with its reason: lakefold may no longer delete their files."""
