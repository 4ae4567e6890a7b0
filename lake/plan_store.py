# SPDX-License-Identifier: Apache-2.0
"""The part of the database that executors use, as a protocol: they know no database."""

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
from lake.relocation.model import FoundRelocations, RelocatedPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class SupersededRecord:
    """A superseded version the cleaner may look at, with its row id in the store."""

    row_id: int
    plan_id: str
    version: SupersededVersion
    superseded_at: datetime
    #: of the table that its plan was made for; None where nobody knew
    table_identity: str | None = None
    #: when a deletion of the file was begun; whether that came to pass is not known
    deletion_begun_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanedStaging:
    """What an attempt staged on which no executor works any more, and the partitions of its plan.

    ``is_old``: nobody is to write to it by now.
    """

    plan_id: str
    partitions: Collection[str]
    staged: StagedWork
    is_expired: bool


class PlanStore(Protocol):
    """What executors read and write. Times compare with the database's clock."""

    def claim(self, executor: str) -> Claim | None:
        """Take the first due requested plan by compare-and-set; None when there is none.

        Skips paused and halted tables and tables at ``max_inflight_per_table``. Increments epoch and attempt.
        """

    def heartbeat(
        self, claim: Claim, progress: RewriteProgress | None = None, *, at_least: timedelta = timedelta()
    ) -> bool:
        """Extend the lease, ``at_least`` for so long; True when a cancel was requested. Raises LeaseLost.

        A lease never becomes shorter. With ``at_least`` nobody takes the plan over, either, until that time has passed
        once more after its end, unless its executor is known to be gone.
        """

    def record_staged(self, claim: Claim, staged: StagedWork) -> None:
        """Record what this attempt is about to stage. Raises LeaseLost."""

    def orphaned_stagings(self, table: TableRef) -> Sequence[OrphanedStaging]:
        """What attempts at plans of the table staged and neither committed nor is known to have left nothing.

        Without what an executor that holds its plan works on.
        """

    def clear_stagings(self, stagings: Collection[OrphanedStaging]) -> None:
        """Record that nothing is left of these, and nothing will come."""

    def record_step(
        self,
        claim: Claim,
        step: Step,
        *,
        milliseconds: int = 0,
        cpu_milliseconds: int | None = None,
        succeeded: bool = True,
    ) -> None:
        """Record that ``step`` took so long; unless ``ended``, it did so in vain. Raises LeaseLost.

        ``attempt_cpu_ms`` is what was counted of all rewrites of the attempt; None where nobody counted it.
        """

    def add_note(self, claim: Claim, text: str) -> None:
        """Add a line to the plan's history. Raises LeaseLost."""

    def record_inflight_error(self, claim: Claim, error: str) -> None:
        """Record why a plan stays inflight; the first cause of an attempt is kept. Raises LeaseLost."""

    def record_skipped_groups(self, claim: Claim, skipped: Sequence[SkippedGroup]) -> None:
        """Record groups that are not part of the commit, and quarantined paths. Raises LeaseLost."""

    def complete(
        self, claim: Claim, commit: Commit, figures: Sequence[PartitionFigures], milliseconds: Mapping[str, int]
    ) -> None:
        """One transaction: completed, figures, superseded versions, partitions freed. Raises LeaseLost.

        Halts the table where the commit's epoch is one that the plan has not come to here. Idempotent: a second call of
        the same claim with the same commit, as after a lost answer, changes nothing.
        """

    def ended_without_commit(self, table: TableRef) -> Collection[str]:
        """Plans of the table that somebody claimed once and that ended cancelled or failed."""

    def complete_unrecorded(self, commit: Commit, figures: Callable[[Plan], Sequence[PartitionFigures]]) -> bool:
        """Complete a plan that ended cancelled or failed although its table holds ``commit``; False for any other.

        Halts the table as ``complete`` does.
        """

    def add_relocations(self, table: TableRef, commit: Commit) -> bool:
        """Record the moves of a commit of a plan that completed as another one; False for any other, or a known one."""

    def requeue(self, claim: Claim, error: str, *, counts_as_attempt: bool = True) -> bool:
        """Transient: back to requested with a backoff, or failed after ``max_attempts`` (then False).

        An attempt that does not count (``counts``) is given back: the plan has as many left as before it.
        """

    def fail(self, claim: Claim, error: str, *, halt: bool = False, partitions: Collection[str] = ()) -> None:
        """Rejected or Integrity: failed, partitions freed.

        With ``halt`` the table is halted, or only ``partitions`` where these are what is the matter.
        """

    def cancel(self, claim: Claim, reason: str, *, actor: str) -> None:
        """Conflict or an operator's wish: cancelled, partitions freed. Raises LeaseLost."""

    def take_over_expired(self, executor: str) -> Claim | None:
        """Take over one inflight plan whose lease has run out (epoch + 1, new lease); None when there is none.

        For a while after its end, its grace, a plan is taken over only from an executor that is known to be gone:
        once a commit was to begin, and with an adopted plan for long, since a successor has to use the same instant.
        """

    def time_until_due(self) -> timedelta | None:
        """How long until a requested plan is due or an inflight lease runs out; zero when that is now.

        None when no plan is live but those of paused and halted tables.
        """

    def plan_state(self, plan_id: str) -> PlanState | None:
        """The state of a plan, None when this database does not know it."""

    def lock_partitions(
        self, table: TableRef, partitions: Collection[str], owner: LockOwner, *, alongside_plans: bool = False
    ) -> Collection[str]:
        """Hold ``partitions`` for ``keeper`` for some minutes; those that nobody else holds.

        While a keeper holds a partition no plan is made there, and while a plan lives no keeper holds its partitions;
        with ``beside_plans`` one does, the cleaner only where nobody runs the plan, and then keeps it from its commit.
        """

    def renew_partitions(self, table: TableRef, partitions: Collection[str], owner: LockOwner) -> Collection[str]:
        """Go on holding ``partitions`` for some minutes; those that ``keeper`` has held without a break until now.

        That nobody holds one now is not enough: somebody may have, and have ended, while ``keeper`` was stopped.
        """

    def clock(self) -> float:
        """The database's clock, in seconds: it goes on while this machine is suspended or paused."""

    def release_partitions(self, owner: LockOwner) -> None:
        """Give up all that ``keeper`` holds."""

    def begin_commit(self, claim: Claim) -> Collection[str]:
        """Have nobody but the plan change its partitions; those that a keeper is in, and then none is had.

        Raises LeaseLost.
        """

    def halt_table(self, table: TableRef, reason: str) -> bool:
        """Halt a table until a person resumes it; False where it is halted already, whose first reason stays.

        No plan of it is made or claimed then, and nothing that its commits replaced is deleted. Partitions that were
        moved are swept on.
        """

    def halt_partition(self, table: TableRef, partition: str, reason: str) -> bool:
        """Do the same to one partition; False where it is halted already, whose first reason stays.

        The table is halted instead where it has no partitions, and where too many of them are halted.
        """

    def halted_partitions(self, table: TableRef) -> Mapping[str, str]:
        """The table's partitions that are halted by themselves, each with the reason. Cheap."""

    def known_relocation_tokens(self, table: TableRef) -> Collection[str]:
        """The tokens of all moves of the table that are known under its name."""

    def add_discovered_relocations(self, table: TableRef, found: Sequence[FoundRelocations]) -> int:
        """Record moves that the table tells of and that are not known under its name, oldest first; how many were.

        What is known of them under another name of the table comes along. Those of a live plan are left to it.
        """

    def relocated_partitions(
        self, table: TableRef, partitions: Collection[str] | None = None
    ) -> Sequence[RelocatedPartition]:
        """The table's moved partitions: those of these names, or all."""

    def due_for_deletion(
        self, table: TableRef, retention: timedelta, limit: int = 10_000
    ) -> Sequence[SupersededRecord]:
        """Superseded versions older than ``retention``, in the order in which they were superseded."""

    def awaiting_deletion(self, table: TableRef) -> Sequence[SupersededRecord]:
        """All superseded versions of the table that are not deleted yet, in the order in which they were superseded."""

    def begin_deletion(self, rows: Collection[int]) -> Collection[int]:
        """Mark that these rows' files are about to be deleted; those of them that still wait for it."""

    def mark_deleted(self, rows: Sequence[int]) -> None:
        """Set ``deleted_at`` now for these rows."""

    def close_superseded(self, rows: Mapping[int, str]) -> None:
        """End the wait of these rows, each for its reason: their files are not lakefold's to delete any more."""
