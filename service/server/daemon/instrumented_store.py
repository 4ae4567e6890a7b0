# SPDX-License-Identifier: Apache-2.0
"""The daemon's store: plans of this process counted as busy slots, errors counted, an outage told once."""

import logging
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta

from lake.errors import LeaseLost, one_line
from lake.plan import Claim, Commit, PartitionFigures, RewriteProgress
from service.control.store import (
    DatabaseObserver,
    DatabaseUnreachable,
    SchemaMismatch,
    Store,
    StoreError,
    StoreSettings,
)
from service.server.observability.metrics import Metrics

logger = logging.getLogger(__name__)


class OutageLog(DatabaseObserver):
    """Counts the errors of a database; tells in the log when an outage begins and when it is over."""

    def __init__(self, metrics: Metrics, shown_url: str) -> None:
        self._metrics, self._shown_url = metrics, shown_url
        self._lock = threading.Lock()
        #: when the last call was lost, monotonic; None while the database answers
        self._lost_at: float | None = None

    def call_succeeded(self, began: float) -> None:
        if self._lost_at is None:
            return
        with self._lock:
            # A call under way since before the outage may still end well, and says nothing about the next one.
            over = self._lost_at is not None and began > self._lost_at
            if over:
                self._lost_at = None
        if over:
            logger.info("database %s answers again", self._shown_url)

    def call_failed(self, error: StoreError) -> None:
        lost = isinstance(error, (DatabaseUnreachable, SchemaMismatch))
        if lost or type(error) is StoreError:  # its other kinds are answers, such as that a partition is taken
            self._metrics.record_database_error()
        if not lost:
            return
        with self._lock:
            told, self._lost_at = self._lost_at is not None, time.monotonic()
        if not told:
            logger.error("%s; going on and trying again", one_line(error))


class ExecutorSlots:
    """The plans whose lease this process extends, as a gauge of busy and free slots. Thread-safe."""

    def __init__(self, metrics: Metrics, slots: int, lease: timedelta) -> None:
        self._metrics, self._slots, self._lease = metrics, slots, lease.total_seconds()
        self._lock = threading.Lock()
        #: plan → when its lease was last extended
        self._running: dict[str, float] = {}
        self.publish()

    def publish(self) -> None:
        """Bring the gauge up to now; a plan whose lease ran out unnoticed is not ours any more."""
        with self._lock:
            oldest = time.monotonic() - self._lease
            self._running = {plan: beat for plan, beat in self._running.items() if beat >= oldest}
            busy = len(self._running)
        self._metrics.set_slots(busy=busy, free=max(0, self._slots - busy))

    @property
    def is_busy(self) -> bool:
        """Whether this process has a plan."""
        self.publish()
        return bool(self._running)

    def record_claim(self, claim: Claim | None) -> Claim | None:
        """``claim``, which this process has now; None where it looked for a plan and there was none."""
        self._metrics.record_executor_heartbeat()
        if claim is not None:
            with self._lock:
                self._running[claim.plan.plan_id] = time.monotonic()
            self.publish()
        return claim

    def record_end(self, claim: Claim) -> None:
        """The claim is no longer this process's."""
        with self._lock:
            self._running.pop(claim.plan.plan_id, None)
        self.publish()

    @contextmanager
    def end_on_lease_loss(self, claim: Claim) -> Iterator[None]:
        """A call for ``claim``, which has ended where the lease is lost."""
        try:
            yield
        except LeaseLost:
            self.record_end(claim)
            raise


class InstrumentedStore(Store):
    """A store that knows which plans this process has."""

    def __init__(self, url: str, settings: StoreSettings, slots: ExecutorSlots) -> None:
        super().__init__(url, settings)
        self._slots = slots

    def claim(self, executor: str) -> Claim | None:
        return self._slots.record_claim(super().claim(executor))

    def take_over_expired(self, executor: str) -> Claim | None:
        return self._slots.record_claim(super().take_over_expired(executor))

    def heartbeat(
        self, claim: Claim, progress: RewriteProgress | None = None, *, at_least: timedelta = timedelta()
    ) -> bool:
        with self._slots.end_on_lease_loss(claim):
            cancel_requested = super().heartbeat(claim, progress, at_least=at_least)
        self._slots.record_claim(claim)
        return cancel_requested

    def complete(
        self, claim: Claim, commit: Commit, figures: Sequence[PartitionFigures], milliseconds: Mapping[str, int]
    ) -> None:
        with self._slots.end_on_lease_loss(claim):
            super().complete(claim, commit, figures, milliseconds)
        self._slots.record_end(claim)

    def requeue(self, claim: Claim, error: str, *, counts_as_attempt: bool = True) -> bool:
        with self._slots.end_on_lease_loss(claim):
            again = super().requeue(claim, error, counts_as_attempt=counts_as_attempt)
        self._slots.record_end(claim)
        return again

    def fail(self, claim: Claim, error: str, *, halt: bool = False, partitions: Collection[str] = ()) -> None:
        with self._slots.end_on_lease_loss(claim):
            super().fail(claim, error, halt=halt, partitions=partitions)
        self._slots.record_end(claim)

    def cancel(self, claim: Claim, reason: str, *, actor: str) -> None:
        with self._slots.end_on_lease_loss(claim):
            super().cancel(claim, reason, actor=actor)
        self._slots.record_end(claim)
