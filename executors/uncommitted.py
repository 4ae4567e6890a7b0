# SPDX-License-Identifier: Apache-2.0
"""What a run of a plan, and the runs before it, have pending on the table, and its withdrawal."""

import logging
from collections.abc import Sequence

from lake.capabilities import AbortsAdopted, FindsStaged, pending_actions, pending_instants
from lake.errors import TableGone, one_line
from lake.plan import Claim, StagedWork
from lake.ports import TableFormat, TableWriter

log = logging.getLogger(__name__)


class UncommittedWork:
    """What is pending of one claimed plan. ``writer`` is the run's, while it is open."""

    #: whether groups may be left out and the others executed
    can_skip_groups = True

    def __init__(self, claim: Claim, format_: TableFormat) -> None:
        self._claim, self._format = claim, format_
        self._plan_id, self._table = claim.plan.plan_id, claim.plan.table
        self.writer: TableWriter | None = None
        #: what this very run published, or began
        self.instant: str | None = None
        #: what this very run staged, or was about to
        self._own_staged: list[StagedWork] = []
        #: the claim's executor is not the one that ran the plan
        self.is_taken_over = False

    def mark_started(self) -> None:
        """Note that this run may make something of the plan's from now on."""

    def add_staged(self, staged: StagedWork) -> None:
        """Note what this run is about to stage."""
        self._own_staged.append(staged)
        self.instant = staged.token

    def withdraw_earlier(self, writer: TableWriter) -> None:
        """Discard what earlier attempts left, before this run makes something itself."""
        withdrawn = self.withdraw(writer, None) if self._claim.epoch > 1 else 0
        if withdrawn:
            log.info("plan %s: withdrew %d instants of earlier attempts", self._plan_id, withdrawn)

    def withdraw_own(self) -> None:
        """Discard the instant of this very run: nobody else may know it."""
        if self.instant is not None:
            self._try_withdraw((self.instant,))

    def withdraw_all(self) -> bool:
        """Discard all that is pending of the plan; False where it may be that something stays."""
        return self._try_withdraw(None) or self._claim.epoch == 1

    def can_be_pending(self) -> bool:
        """Whether something of the plan is uncommitted on its table, as far as can be told: no answer means yes."""
        try:
            return self._is_pending()
        except TableGone:
            return False
        except Exception as error:
            log.warning("plan %s: %s can't be read: %s", self._plan_id, self._table.name, one_line(error))
            return True

    def withdraw(self, writer: TableWriter, instants: tuple[str, ...] | None) -> int:
        """Discard ``instants``, None for all of the plan's; how many were withdrawn."""
        staged = [one for one in self._all_staged if instants is None or one.token in instants]
        return writer.withdraw(self._plan_id, instants, staged=staged, epoch=self._claim.epoch)

    def _is_pending(self) -> bool:
        """The table says so where it has a timeline; else what is known to have been staged is looked for."""
        if isinstance(self._format, FindsStaged):
            return bool(self._all_staged and self._format.remaining_staged(self._table, self._all_staged))
        return self._plan_id in pending_instants(self._format, self._table).values()

    @property
    def _all_staged(self) -> Sequence[StagedWork]:
        return (*self._claim.staged, *self._own_staged)

    def _try_withdraw(self, instants: tuple[str, ...] | None) -> bool:
        """``discard``, and whether that went well. The sweep finds what it did not."""
        if self.writer is None:
            return False
        try:
            self.withdraw(self.writer, instants)
        except Exception as error:
            log.warning("plan %s: its files stay for now: %s", self._plan_id, one_line(error))
            return False
        return True


class AdoptedWork(UncommittedWork):
    """What is pending of a plan that another process scheduled: one instant for all attempts, and its owner's.

    It is executed whole or not at all, and what was begun of it is taken back, but the instant stays.
    """

    can_skip_groups = False

    def __init__(self, claim: Claim, format_: TableFormat, adopted: str) -> None:
        super().__init__(claim, format_)
        self._adopted_instant = adopted

    def mark_started(self) -> None:
        """What is there of the instant from now on is ours to take back, even where ``prepare`` fails half-way."""
        self.instant = self._adopted_instant

    def add_staged(self, staged: StagedWork) -> None:
        """Nothing to note: all attempts have the one instant, which this run may not have begun yet."""

    def withdraw_earlier(self, writer: TableWriter) -> None:
        """Nothing to discard: this run goes on with the same instant."""

    def withdraw_own(self) -> None:
        """Nothing to discard: the instant is its owner's, and a successor's work may be under it by now."""

    def withdraw_all(self) -> bool:
        """Take back what this run, or the silent executor that it took over from, has begun; nobody else's work."""
        return self._try_withdraw(None) if self.instant is not None or self.is_taken_over else True

    def withdraw(self, writer: TableWriter, instants: tuple[str, ...] | None) -> int:
        """Take back what was begun; 1 where that was something."""
        if not isinstance(writer, AbortsAdopted):
            return 0
        return int(writer.abort_adopted(self._adopted_instant, self._plan_id, epoch=self._claim.epoch))

    def _is_pending(self) -> bool:
        return any(
            entry.instant == self._adopted_instant and entry.is_begun
            for entry in pending_actions(self._format, self._table)
        )


def uncommitted_work_of(claim: Claim, format_: TableFormat) -> UncommittedWork:
    """What is pending of the plan of ``claim``."""
    adopted = claim.plan.adopted_instant
    return UncommittedWork(claim, format_) if adopted is None else AdoptedWork(claim, format_, adopted)
