# SPDX-License-Identifier: Apache-2.0
"""The loop of an executor: claim, run, repeat; take over plans of silent executors; drain or abort."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from executors.context import RunContext
from executors.outcome import RunOutcome, RunResult
from executors.run import run_plan
from executors.spark import drop_dead_session
from executors.take_over import leave_to_other_executor, take_over_one
from lake.errors import Rejected, one_line
from lake.logfields import claim_log_fields
from lake.plan import Claim
from lake.process_identity import executor_name

log = logging.getLogger(__name__)

_BACKOFF_SECONDS = 1.0
_BACKOFF_MAX_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """The pace of a worker. ``slots`` plans run at once; ``poll_interval`` passes between checks of an empty queue.

    ``run_once`` waits for at most ``drain_timeout`` for a plan that is not due yet. If the plan's backoff, or the lease
    of its silent executor, ends later, other workers will run the plan.
    """

    slots: int = 1
    poll_interval: timedelta = timedelta(seconds=5)
    drain_timeout: timedelta = timedelta(seconds=120)


class Worker:
    """Runs plans from ``store`` until ``drain`` or ``abort`` is called, which any thread may do."""

    def __init__(
        self,
        context: RunContext,
        *,
        executor: str | None = None,
        settings: WorkerSettings | None = None,
        drop_session: Callable[[], object] = drop_dead_session,
        is_usable: Callable[[], bool] = lambda: True,
    ) -> None:
        """``is_usable`` checks whether Spark is available, and may start it: without Spark no plan is claimed."""
        self.executor = executor or executor_name()
        self._context, self._store = context, context.store
        self._settings = settings or WorkerSettings()
        self._drop_session, self._is_usable = drop_session, is_usable
        self._draining = threading.Event()
        self._aborting = threading.Event()
        self._tally: Counter[RunResult] = Counter()
        self._tally_lock = threading.Lock()
        #: only one slot at a time searches for work, since several would compete for the same plan
        self._claim_lock = threading.Lock()

    def run(self) -> Counter[RunResult]:
        """Work until ``drain`` or ``abort``. Returns the number of plans by result."""
        return self._run_slots(once=False)

    def run_once(self) -> Counter[RunResult]:
        """Work until no plan of a served table is live, or none becomes due within ``drain_timeout``."""
        return self._run_slots(once=True)

    def drain(self) -> None:
        """Stop claiming plans; ``run`` returns when the current plans have ended."""
        self._draining.set()

    def abort(self) -> None:
        """Stop the current plans before their commits, withdraw their work, requeue them, and return."""
        self._draining.set()
        self._aborting.set()

    def _run_slots(self, *, once: bool) -> Counter[RunResult]:
        self._tally.clear()
        slots = [
            threading.Thread(target=self._slot_loop, args=(once,), name=f"slot {number}")
            for number in range(1, self._settings.slots)
        ]
        for slot in slots:
            slot.start()
        try:
            self._slot_loop(once)  # the first slot is this thread: signals reach it, and one slot needs no other thread
        except BaseException:
            self.abort()
            raise
        finally:
            for slot in slots:
                slot.join()
        return Counter(self._tally)

    def _slot_loop(self, once: bool) -> None:
        busy_until = time.monotonic()
        failures = 0
        while not self._draining.is_set():
            try:
                outcome = self._run_next()
                failures = 0
                if outcome is not None:
                    if outcome.result is not RunResult.INFLIGHT:  # a plan with an unknown result is not progress
                        busy_until = time.monotonic()
                    continue
                wait = self._settings.poll_interval.total_seconds()
                if once:
                    due = self._store.time_until_due()
                    idle = time.monotonic() - busy_until
                    if due is None or idle + due.total_seconds() > self._settings.drain_timeout.total_seconds():
                        return
                    wait = min(wait, max(due.total_seconds(), 0.1))
            except Exception as error:
                failures += 1
                wait = min(_BACKOFF_MAX_SECONDS, _BACKOFF_SECONDS * 2 ** (failures - 1))
                log.warning("no work for %.0f s: %s", wait, one_line(error))
                if once and time.monotonic() - busy_until > self._settings.drain_timeout.total_seconds():
                    raise
            self._draining.wait(wait)

    def _run_next(self) -> RunOutcome | None:
        """Take over or run one plan. Returns its outcome, None if no plan is due."""
        with self._claim_lock:
            if not self._is_usable():
                return None
            rescued = take_over_one(self.executor, self._context)
            if rescued is not None:
                return self._count_outcome(rescued)
            claim = None if self._draining.is_set() else self._store.claim(self.executor)
        if claim is None:
            return None
        with claim_log_fields(claim):
            return self._count_outcome(self._run_claim(claim))

    def _run_claim(self, claim: Claim) -> RunOutcome:
        log.info("plan %s of %s claimed, attempt %d", claim.plan.plan_id, claim.plan.table.name, claim.attempt)
        try:
            format_ = self._context.formats(claim.plan.table.format)
        except Rejected as error:
            if claim.epoch > 1:
                return leave_to_other_executor(claim, error)
            self._store.fail(claim, one_line(error))
            outcome = RunOutcome(result=RunResult.FAILED, reason="Rejected", error=one_line(error))
            self._context.observer.plan_finished(claim, outcome)
            return outcome
        return run_plan(claim, self._context, format=format_, abort=self._aborting)

    def _count_outcome(self, outcome: RunOutcome) -> RunOutcome:
        with self._tally_lock:
            self._tally[outcome.result] += 1
        if outcome.result is not RunResult.COMPLETED:
            self._drop_session()
        return outcome
