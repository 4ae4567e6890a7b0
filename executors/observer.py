# SPDX-License-Identifier: Apache-2.0
"""Events of executors; ``service.server.observability.metrics`` counts them, tests record them."""

import logging
from collections.abc import Callable

from executors.outcome import RunOutcome
from lake.errors import one_line
from lake.model import TableRef
from lake.plan import Claim, Step

log = logging.getLogger(__name__)


class Observer:
    """The base class of observers, which ignores all events. Every method returns at once and never raises."""

    def run_started(self, claim: Claim) -> None:
        """An executor begins to work on a plan that it has claimed or taken over."""

    def run_ended(self, claim: Claim, outcome: RunOutcome) -> None:
        """The executor has ended its work on the plan; only ``plan_finished`` means that the plan left inflight."""

    def step_finished(self, claim: Claim, step: Step, seconds: float) -> None:
        """One step of a plan ended without an error."""

    def step_failed(self, claim: Claim, step: Step, seconds: float, error: str) -> None:
        """One step of a plan ended in an error (one line)."""

    def plan_finished(self, claim: Claim, outcome: RunOutcome) -> None:
        """A plan left inflight: completed, failed, cancelled or requeued."""

    def lease_expired(self, claim: Claim) -> None:
        """A plan of a silent executor was taken over."""

    def files_deleted(self, table: TableRef, files: int, bytes_: int) -> None:
        """The cleaner removed superseded versions."""

    def clean_failed(self, table: TableRef, reason: str) -> None:
        """The cleaner could not remove a table's superseded versions (``reason``: the error's class name)."""

    def clean_succeeded(self) -> None:
        """One round of the cleaner over all tables ended."""


def run_observed(observer: Observer, claim: Claim, run: Callable[[], RunOutcome]) -> RunOutcome:
    """Call ``run``, one executor's work on ``claim``, between two events. Returns its outcome."""
    observer.run_started(claim)
    outcome = run()
    observer.run_ended(claim, outcome)
    return outcome


class Observers(Observer):
    """Several observers as one. An observer's first error is logged; the plan and other observers continue."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers
        self._failed: set[Observer] = set()

    def _notify_each(self, call: Callable[[Observer], None]) -> None:
        for observer in self._observers:
            try:
                call(observer)
            except Exception as error:
                if observer not in self._failed:
                    self._failed.add(observer)
                    log.warning("%s: %s; plans continue", type(observer).__name__, one_line(error), exc_info=error)

    def run_started(self, claim: Claim) -> None:
        self._notify_each(lambda observer: observer.run_started(claim))

    def run_ended(self, claim: Claim, outcome: RunOutcome) -> None:
        self._notify_each(lambda observer: observer.run_ended(claim, outcome))

    def step_finished(self, claim: Claim, step: Step, seconds: float) -> None:
        self._notify_each(lambda observer: observer.step_finished(claim, step, seconds))

    def step_failed(self, claim: Claim, step: Step, seconds: float, error: str) -> None:
        self._notify_each(lambda observer: observer.step_failed(claim, step, seconds, error))

    def plan_finished(self, claim: Claim, outcome: RunOutcome) -> None:
        self._notify_each(lambda observer: observer.plan_finished(claim, outcome))

    def lease_expired(self, claim: Claim) -> None:
        self._notify_each(lambda observer: observer.lease_expired(claim))

    def files_deleted(self, table: TableRef, files: int, bytes_: int) -> None:
        self._notify_each(lambda observer: observer.files_deleted(table, files, bytes_))

    def clean_failed(self, table: TableRef, reason: str) -> None:
        self._notify_each(lambda observer: observer.clean_failed(table, reason))

    def clean_succeeded(self) -> None:
        self._notify_each(lambda observer: observer.clean_succeeded())
