# SPDX-License-Identifier: Apache-2.0
"""What follows where a step of a run failed: what is pending is withdrawn, then the database is told how it ended.

In that order: while something is pending that could not be withdrawn a sleeping executor could still commit it, so
that the plan stays inflight; and only when nothing is pending a table's denial of the commit is the last word.
"""

import logging
from collections.abc import Sequence
from contextlib import suppress

from executors.landing import Landing
from executors.lease import CANCELLED, Lease
from executors.leftovers import Leftovers
from executors.observer import Observer
from executors.outcome import Outcome, Result
from executors.patience import patiently
from lake.errors import (
    CancelRequested,
    CommitLost,
    CommitUnknown,
    Conflict,
    Integrity,
    LakefoldError,
    LeaseLost,
    Rejected,
    SessionSpoiled,
    TableGone,
    one_line,
)
from lake.failpoints import failpoint
from lake.plan import Claim, PlanState
from lake.plan_store import PlanStore

log = logging.getLogger(__name__)
#: plans of which this process did not count an attempt; it does so once, or one that spoils each session runs for ever
_spared: set[str] = set()


class Recovery:
    """The ends of a run that are no completion. ``milliseconds`` is the run's own count of what its steps took."""

    def __init__(
        self,
        claim: Claim,
        store: PlanStore,
        observer: Observer,
        lease: Lease,
        left: Leftovers,
        landing: Landing,
        ask_again: Sequence[float],
        milliseconds: dict[str, int],
    ) -> None:
        self._claim, self._store, self._observer, self._lease = claim, store, observer, lease
        self._left, self._landing, self._ask_again, self._milliseconds = left, landing, ask_again, milliseconds
        self._plan_id, self._table = claim.plan.plan_id, claim.plan.table

    def give_up(self, error: Exception) -> Outcome | None:
        """End a run that ended in ``error``; None where its commit turns out to have landed and is to be recorded."""
        if isinstance(error, LeaseLost):
            return self.lost(error)
        if self._landing.commit is not None or isinstance(error, CommitUnknown):
            return self.stay(error)
        if not isinstance(error, LakefoldError):
            log.error("plan %s of %s: unexpected error", self._plan_id, self._table.name, exc_info=error)
        try:
            patiently(self._plan_id, "held", self._lease.hold, waits=self._ask_again)
        except LeaseLost as lost:
            return self.lost(lost)
        except Exception as silent:
            # Without an answer somebody else may own the plan and its other instants by now.
            self._left.withdraw_own()
            return self.stay(silent)
        # It is our plan, so whatever of it is pending goes. What stays could be committed by a sleeping executor.
        if not self._left.withdraw_all() and self._left.pending():
            return self.stay(error)
        failpoint("withdrawn")
        if self._landing.is_possible:
            # Only now is a denial the last word: what was pending when the table was asked may have landed since.
            try:
                self._landing.commit = self._landing.ask()
            except CommitUnknown as unknown:
                return self.stay(unknown)
            except (TableGone, CommitLost) as gone:
                error = gone
            if self._landing.commit is not None:
                log.warning("plan %s: its commit landed, although: %s", self._plan_id, one_line(error))
                return None
        return self._end(self._as_asked(error))

    def stay(self, error: Exception) -> Outcome:
        """Nobody can tell, or nothing may be told: the plan stays inflight, and the rescuer asks again."""
        log.error("plan %s of %s stays inflight: %s", self._plan_id, self._table.name, one_line(error))
        with suppress(Exception):  # without the database it is in the log only
            self._store.stay(self._claim, one_line(error))
        return self._ended(Result.INFLIGHT, error)

    def lost(self, error: LeaseLost) -> Outcome:
        """Nothing is told to the store; only the instant of this very epoch is withdrawn: nobody else may know it."""
        self._left.withdraw_own()
        log.info("plan %s of %s: %s", self._plan_id, self._table.name, one_line(error))
        return self._ended(Result.LOST, error)

    def _as_asked(self, error: Exception) -> Exception:
        """``error``, or the wish to cancel the plan where somebody has one and the error does not weigh more."""
        if not self._lease.cancel_requested:
            return error
        if isinstance(error, TableGone):
            # Should the table come back with the commit of the plan, the sweep records it.
            return CancelRequested(f"cancelled as requested, the table is gone: {one_line(error)}")
        if isinstance(error, (Conflict, Rejected, Integrity)):
            return error
        return CancelRequested(CANCELLED)

    def _end(self, error: Exception) -> Outcome:
        result = Result.INFLIGHT

        def tell() -> None:
            nonlocal result
            result = self._tell(error)

        try:
            patiently(self._plan_id, f"told how it ended ({one_line(error)})", tell, waits=self._ask_again)
        except LeaseLost as lost:
            return self.lost(lost)
        except Exception as silent:
            return self.stay(silent)
        # That a writer or a person was faster is routine.
        level = {Result.FAILED: logging.ERROR, Result.CANCELLED: logging.INFO}.get(result, logging.WARNING)
        log.log(level, "plan %s of %s %s: %s", self._plan_id, self._table.name, result, one_line(error))
        outcome = self._ended(result, error)
        self._observer.plan_finished(self._claim, outcome)
        return outcome

    def _tell(self, error: Exception) -> Result:
        """The one consequence that each outcome has in the database."""
        text = one_line(error)
        if isinstance(error, (Conflict, CancelRequested)):
            self._store.cancel(self._claim, text, actor=self._claim.executor)
            return Result.CANCELLED
        if isinstance(error, (Rejected, Integrity)):
            lost = error.partitions if isinstance(error, CommitLost) else ()
            self._store.fail(self._claim, text, halt=isinstance(error, Integrity), partitions=lost)
            return Result.FAILED
        spared = isinstance(error, SessionSpoiled) and self._plan_id not in _spared
        if self._store.requeue(self._claim, text, counts=not spared):
            if spared:
                _spared.add(self._plan_id)
            return Result.REQUEUED
        cancelled = self._store.plan_state(self._plan_id) is PlanState.CANCELLED
        return Result.CANCELLED if cancelled else Result.FAILED

    def _ended(self, result: Result, error: Exception) -> Outcome:
        return Outcome(
            result=result,
            reason=type(error).__name__,
            error=one_line(error),
            commit=self._landing.commit,
            milliseconds=self._milliseconds,
        )
