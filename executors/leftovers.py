# SPDX-License-Identifier: Apache-2.0
"""What a run of a plan, and the runs before it, have pending on the table, and its withdrawal."""

import logging

from executors.outcome import one_line
from lake.errors import TableGone
from lake.optional import pending, unfinished
from lake.plan import Claim, Staged
from lake.ports import TableFormat, TableWriter

log = logging.getLogger(__name__)


class Leftovers:
    """What is pending of one claimed plan. ``writer`` is the run's, while it is open."""

    def __init__(self, claim: Claim, format_: TableFormat) -> None:
        self._claim, self._format = claim, format_
        self._plan_id, self._table = claim.plan.plan_id, claim.plan.table
        self.writer: TableWriter | None = None
        #: what this very run published, or began of an adopted plan
        self.instant: str | None = None
        #: what this very run staged, or was about to
        self.own: list[Staged] = []
        #: the claim's executor is not the one that ran the plan
        self.taken_over = False

    def withdraw_own(self) -> None:
        """Discard the instant of this very run: nobody else may know it. An adopted one is its owner's."""
        if self.instant is not None and self._claim.plan.adopted is None:
            self._withdraw((self.instant,))

    def withdraw_all(self) -> bool:
        """Discard all that is pending of the plan; False where it may be that something stays.

        An adopted instant that this run did not begin is somebody else's work, but for the one of a silent executor.
        """
        if self._claim.plan.adopted is not None:
            return self._withdraw(None) if self.instant is not None or self.taken_over else True
        return self._withdraw(None) or self._claim.epoch == 1

    def pending(self) -> bool:
        """Whether something of the plan is pending on its table, as far as can be told: no answer means yes."""
        adopted = self._claim.plan.adopted
        try:
            if adopted is not None:
                return any(entry.instant == adopted and entry.begun for entry in unfinished(self._format, self._table))
            return self._plan_id in pending(self._format, self._table).values()
        except TableGone:
            return False
        except Exception as error:
            log.warning("plan %s: %s can't be read: %s", self._plan_id, self._table.name, one_line(error))
            return True

    def discard(self, writer: TableWriter, instants: tuple[str, ...] | None) -> int:
        """Discard ``instants``, None for all of the plan's; how many were withdrawn."""
        staged = [one for one in (*self._claim.staged, *self.own) if instants is None or one.token in instants]
        return writer.discard(
            self._plan_id, instants, staged=staged, adopted=self._claim.plan.adopted, epoch=self._claim.epoch
        )

    def _withdraw(self, instants: tuple[str, ...] | None) -> bool:
        """``discard``, and whether that went well. The sweep finds what it did not."""
        if self.writer is None:
            return False
        try:
            self.discard(self.writer, instants)
        except Exception as error:
            log.warning("plan %s: its files stay for now: %s", self._plan_id, one_line(error))
            return False
        return True
