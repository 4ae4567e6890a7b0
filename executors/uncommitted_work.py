# SPDX-License-Identifier: Apache-2.0
"""The uncommitted work of a plan's run, and of earlier runs, on the table, and its withdrawal."""

import logging
from collections.abc import Sequence

from lake.capabilities import AbortsAdopted, FindsStaged, pending_actions, pending_instants
from lake.errors import TableGone, one_line
from lake.plan import Claim, StagedWork
from lake.ports import TableFormat, TableWriter

log = logging.getLogger(__name__)


class UncommittedWork:
    """The uncommitted work of one claimed plan. ``writer`` is the run's open writer, or None."""

    #: True if groups may be skipped and the others executed
    can_skip_groups = True

    def __init__(self, claim: Claim, format_: TableFormat) -> None:
        self._claim, self._format = claim, format_
        self._plan_id, self._table = claim.plan.plan_id, claim.plan.table
        self.writer: TableWriter | None = None
        #: the instant that this run published, or began
        self.instant: str | None = None
        #: work that this run staged, or was about to stage
        self._own_staged: list[StagedWork] = []
        #: True if the claim took the plan over from another executor
        self.is_taken_over = False

    def mark_started(self) -> None:
        """Note that this run may create work of the plan from now on."""

    def add_staged(self, staged: StagedWork) -> None:
        """Note the work that this run is about to stage."""
        self._own_staged.append(staged)
        self.instant = staged.token

    def withdraw_earlier(self, writer: TableWriter) -> None:
        """Withdraw the uncommitted work of earlier attempts, before this run creates any."""
        withdrawn = self.withdraw(writer, None) if self._claim.epoch > 1 else 0
        if withdrawn:
            log.info("plan %s: withdrew %d instants of earlier attempts", self._plan_id, withdrawn)

    def withdraw_own(self) -> None:
        """Withdraw the instant of this run, since it is possible that no other executor has a record of it."""
        if self.instant is not None:
            self._try_withdraw((self.instant,))

    def withdraw_all(self) -> bool:
        """Withdraw all uncommitted work of the plan. False if work of an earlier attempt may remain.

        No other executor can commit work that remains of the first attempt; the sweep withdraws it.
        """
        return self._try_withdraw(None) or self._claim.epoch == 1

    def can_be_pending(self) -> bool:
        """False if the table shows that it has no uncommitted work of the plan; True if it has, or does not answer."""
        try:
            return self._is_pending()
        except TableGone:
            return False
        except Exception as error:
            log.warning("plan %s: %s can't be read: %s", self._plan_id, self._table.name, one_line(error))
            return True

    def withdraw(self, writer: TableWriter, instants: tuple[str, ...] | None) -> int:
        """Withdraw ``instants``, None for all instants of the plan. Returns the number of withdrawn instants."""
        staged = [one for one in self._all_staged if instants is None or one.token in instants]
        return writer.withdraw(self._plan_id, instants, staged=staged, epoch=self._claim.epoch)

    def _is_pending(self) -> bool:
        """Check the table's timeline, or without a timeline the files of recorded stagings."""
        if isinstance(self._format, FindsStaged):
            return bool(self._all_staged and self._format.remaining_staged(self._table, self._all_staged))
        return self._plan_id in pending_instants(self._format, self._table).values()

    @property
    def _all_staged(self) -> Sequence[StagedWork]:
        return (*self._claim.staged, *self._own_staged)

    def _try_withdraw(self, instants: tuple[str, ...] | None) -> bool:
        """Call ``withdraw``. Returns True if it succeeded; the sweep finds work that remains."""
        if self.writer is None:
            return False
        try:
            self.withdraw(self.writer, instants)
        except Exception as error:
            log.warning("plan %s: its files stay for now: %s", self._plan_id, one_line(error))
            return False
        return True


class AdoptedWork(UncommittedWork):
    """The uncommitted work of a plan that another process scheduled: one instant for all attempts.

    The other process owns the instant. The plan is executed whole or not at all. Begun work is rolled back, but the
    instant stays.
    """

    can_skip_groups = False

    def __init__(self, claim: Claim, format_: TableFormat, adopted: str) -> None:
        super().__init__(claim, format_)
        self._adopted_instant = adopted

    def mark_started(self) -> None:
        """From now on this run rolls back work under the instant, even if ``prepare`` fails half-way."""
        self.instant = self._adopted_instant

    def add_staged(self, staged: StagedWork) -> None:
        """Nothing to note: all attempts have the one instant, which this run may not have begun yet."""

    def withdraw_earlier(self, writer: TableWriter) -> None:
        """Nothing to withdraw: this run continues under the same instant."""

    def withdraw_own(self) -> None:
        """Nothing to withdraw: the instant belongs to its owner, and a successor's work may be under it."""

    def withdraw_all(self) -> bool:
        """Roll back only the begun work of this run, or of the silent executor that it took over from."""
        return self._try_withdraw(None) if self.instant is not None or self.is_taken_over else True

    def withdraw(self, writer: TableWriter, instants: tuple[str, ...] | None) -> int:
        """Roll back begun work; returns 1 if there was any, else 0."""
        if not isinstance(writer, AbortsAdopted):
            return 0
        return int(writer.abort_adopted(self._adopted_instant, self._plan_id, epoch=self._claim.epoch))

    def _is_pending(self) -> bool:
        return any(
            entry.instant == self._adopted_instant and entry.is_begun
            for entry in pending_actions(self._format, self._table)
        )


def uncommitted_work_of(claim: Claim, format_: TableFormat) -> UncommittedWork:
    """Return the uncommitted work of the plan of ``claim``."""
    adopted = claim.plan.adopted_instant
    return UncommittedWork(claim, format_) if adopted is None else AdoptedWork(claim, format_, adopted)
