# SPDX-License-Identifier: Apache-2.0
"""Ends a run after an error: first withdraws pending work, then records the result in the database.

The order matters. If pending work can't be withdrawn, a suspended executor could still commit it; so the plan stays
inflight. A check that finds no commit is final only if nothing is pending.
"""

import logging
from contextlib import suppress

from executors.commit_status import CommitStatus
from executors.context import RunContext
from executors.lease import CANCEL_REASON, Lease
from executors.outcome import RunOutcome, RunResult
from executors.retries import retry_store_call
from executors.uncommitted_work import UncommittedWork
from lake.errors import (
    CancelRequested,
    CommitLost,
    CommitUnknown,
    Conflict,
    EarlierAttemptPending,
    Integrity,
    LakefoldError,
    LeaseLost,
    Rejected,
    SessionSpoiled,
    TableGone,
    TableHalted,
    TableRefused,
    one_line,
)
from lake.failpoints import failpoint
from lake.plan import Claim, PlanState

log = logging.getLogger(__name__)
#: plans with one attempt that this process did not count; their next attempt counts, else a plan might never end
_plans_with_uncounted_attempt: set[str] = set()


class RunFailure:
    """Ends runs that did not complete. ``milliseconds`` is the run's own record of the duration of its steps."""

    def __init__(
        self,
        claim: Claim,
        context: RunContext,
        lease: Lease,
        uncommitted: UncommittedWork,
        commit_status: CommitStatus,
        milliseconds: dict[str, int],
    ) -> None:
        self._claim, self._lease, self._uncommitted, self._commit_status = claim, lease, uncommitted, commit_status
        self._store, self._observer, self._retry_delays = context.store, context.observer, context.retry_delays
        self._milliseconds = milliseconds
        self._plan_id, self._table = claim.plan.plan_id, claim.plan.table

    def end_run(self, error: Exception) -> RunOutcome | None:
        """End a run that ended in ``error``. Returns None if its commit turns out to exist and has to be recorded."""
        if isinstance(error, LeaseLost):
            return self.end_lost(error)
        if self._commit_status.commit is not None or isinstance(error, CommitUnknown):
            return self.end_inflight(error)
        if not isinstance(error, LakefoldError):
            log.error("plan %s of %s: unexpected error", self._plan_id, self._table.name, exc_info=error)
        try:
            retry_store_call(
                self._plan_id, "confirmed as this executor's", self._lease.assert_owned, delays=self._retry_delays
            )
        except LeaseLost as lost:
            return self.end_lost(lost)
        except Exception as silent:
            # If the database does not answer, another executor may own the plan and its other instants.
            self._withdraw_own()
            return self.end_inflight(silent)
        # This executor owns the plan, so it withdraws all pending work; a suspended executor could commit the rest.
        if not self._uncommitted.withdraw_all() and self._uncommitted.can_be_pending():
            return self.end_inflight(error)
        failpoint("withdrawn")
        if self._commit_status.is_commit_possible:
            # The answer "no commit" is final only now: work that was pending at an earlier check may be committed.
            try:
                self._commit_status.commit = self._commit_status.find_commit()
            except CommitUnknown as unknown:
                return self.end_inflight(unknown)
            except (TableGone, CommitLost) as gone:
                error = gone
            if self._commit_status.commit is not None:
                log.warning("plan %s: its commit exists, despite the error: %s", self._plan_id, one_line(error))
                return None
        return self._record_end_with_retries(self._error_or_cancellation(error))

    def end_inflight(self, error: Exception) -> RunOutcome:
        """Leave the plan inflight: the result is unknown or can't be recorded. A take-over checks the table again."""
        log.error("plan %s of %s stays inflight: %s", self._plan_id, self._table.name, one_line(error))
        with suppress(Exception):  # without the database the error is in the log only
            self._store.record_inflight_error(self._claim, one_line(error))
        return self._outcome(RunResult.INFLIGHT, error)

    def end_lost(self, error: LeaseLost) -> RunOutcome:
        """Record nothing, and withdraw only the instant of this epoch, of which other executors may have no record."""
        self._withdraw_own()
        log.info("plan %s of %s: %s", self._plan_id, self._table.name, one_line(error))
        return self._outcome(RunResult.LEASE_LOST, error)

    def _withdraw_own(self) -> None:
        """Withdraw the instant of this run. If it may be committed, the new owner or the sweep ends the plan."""
        if self._commit_status.can_withdraw_unowned:
            self._uncommitted.withdraw_own()

    def _error_or_cancellation(self, error: Exception) -> Exception:
        """Return CancelRequested if a cancel was requested and is more important than ``error``; else ``error``."""
        if not self._lease.is_cancel_requested:
            return error
        if isinstance(error, TableGone):
            # If the table reappears with the commit of the plan, the sweep records it.
            return CancelRequested(f"cancelled as requested, the table is gone: {one_line(error)}")
        if isinstance(error, (Conflict, Rejected, Integrity)):
            return error
        return CancelRequested(CANCEL_REASON)

    def _record_end_with_retries(self, error: Exception) -> RunOutcome:
        result = RunResult.INFLIGHT

        def record() -> None:
            nonlocal result
            result = self._record_end(error)

        try:
            retry_store_call(self._plan_id, f"recorded as ended ({one_line(error)})", record, delays=self._retry_delays)
        except LeaseLost as lost:
            return self.end_lost(lost)
        except Exception as silent:
            return self.end_inflight(silent)
        # A conflict with a writer and a person's request are routine.
        level = {RunResult.FAILED: logging.ERROR, RunResult.CANCELLED: logging.INFO}.get(result, logging.WARNING)
        log.log(level, "plan %s of %s %s: %s", self._plan_id, self._table.name, result, one_line(error))
        outcome = self._outcome(result, error)
        self._observer.plan_finished(self._claim, outcome)
        return outcome

    def _record_end(self, error: Exception) -> RunResult:
        """Record the error's consequence in the database."""
        text = one_line(error)
        # Scans would leave the files of a failed plan alone, and an instant that it adopted, although the refusal may
        # end while both stay as they are.
        is_refused = isinstance(error, TableRefused)
        if is_refused or isinstance(error, (Conflict, CancelRequested)):
            self._store.cancel(self._claim, text, actor=self._claim.executor, is_refused=is_refused)
            return RunResult.CANCELLED
        if isinstance(error, (Rejected, Integrity)):
            partitions = error.partitions if isinstance(error, Integrity) else None
            self._store.fail(self._claim, text, halt=isinstance(error, Integrity), partitions=partitions)
            return RunResult.FAILED
        spoiled = isinstance(error, SessionSpoiled) and self._plan_id not in _plans_with_uncounted_attempt
        counts = not spoiled and not isinstance(error, (EarlierAttemptPending, TableHalted))
        if self._store.requeue(self._claim, text, counts_as_attempt=counts):
            if spoiled:
                _plans_with_uncounted_attempt.add(self._plan_id)
            return RunResult.REQUEUED
        cancelled = self._store.plan_state(self._plan_id) is PlanState.CANCELLED
        return RunResult.CANCELLED if cancelled else RunResult.FAILED

    def _outcome(self, result: RunResult, error: Exception) -> RunOutcome:
        return RunOutcome(
            result=result,
            reason=type(error).__name__,
            error=one_line(error),
            commit=self._commit_status.commit,
            milliseconds=self._milliseconds,
        )
