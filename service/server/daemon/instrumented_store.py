# SPDX-License-Identifier: Apache-2.0
"""The daemon's store: it counts this process's plans as busy slots, counts errors, and logs an outage once."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta

from lake.errors import LeaseLost, one_line
from lake.plan import Claim, Commit, PartitionFigures, RewriteProgress
from service.control.store import (
    DatabaseObserver,
    DatabaseReplaced,
    DatabaseUnreachable,
    SchemaMismatch,
    Store,
    StoreError,
    StoreSettings,
)
from service.server.observability.metrics import Metrics

logger = logging.getLogger(__name__)


class OutageLog(DatabaseObserver):
    """The observer that counts database errors and logs the start and the end of an outage.

    ``on_replaced`` is called once, if the file of the database was replaced; it ends the process.
    """

    def __init__(self, metrics: Metrics, shown_url: str, on_replaced: Callable[[], None] = lambda: None) -> None:
        self._metrics, self._shown_url, self._on_replaced = metrics, shown_url, on_replaced
        self._is_replaced = False
        self._lock = threading.Lock()
        #: monotonic time of the last failed call; None while the database answers
        self._lost_at: float | None = None

    def call_succeeded(self, began: float) -> None:
        if self._lost_at is None:
            return
        with self._lock:
            # A call that began before the outage may still succeed, which does not mean that the outage is over.
            outage_ended = self._lost_at is not None and began > self._lost_at
            if outage_ended:
                self._lost_at = None
        if outage_ended:
            logger.info("database %s answers again", self._shown_url)

    def call_failed(self, error: StoreError) -> None:
        lost = isinstance(error, (DatabaseUnreachable, SchemaMismatch))
        if lost or type(error) is StoreError:  # a subclass is an answer of a working database, such as PartitionsLocked
            self._metrics.record_database_error()
        if not lost:
            return
        replaced = isinstance(error, DatabaseReplaced)
        with self._lock:
            was_lost, self._lost_at = self._lost_at is not None, time.monotonic()
            is_news, self._is_replaced = replaced and not self._is_replaced, replaced or self._is_replaced
        if is_news:
            logger.error("%s; stopping", one_line(error))
            self._on_replaced()
        elif not was_lost and not replaced:
            logger.error("%s; lakefold continues and tries again", one_line(error))


class ExecutorSlots:
    """The gauge of busy and free slots, from the plans whose lease this process extends. Thread-safe."""

    def __init__(self, metrics: Metrics, slots: int, lease: timedelta) -> None:
        self._metrics, self._slots, self._lease = metrics, slots, lease.total_seconds()
        self._lock = threading.Lock()
        #: plan → monotonic time of the last extension of its lease
        self._running: dict[str, float] = {}
        self.publish()

    def publish(self) -> None:
        """Update the gauge; a plan whose lease has expired does not count."""
        with self._lock:
            oldest = time.monotonic() - self._lease
            self._running = {plan: beat for plan, beat in self._running.items() if beat >= oldest}
            busy = len(self._running)
        self._metrics.set_slots(busy=busy, free=max(0, self._slots - busy))

    @property
    def is_busy(self) -> bool:
        """True if this process runs a plan."""
        self.publish()
        return bool(self._running)

    def record_claim(self, claim: Claim | None) -> Claim | None:
        """Record and return a claim of this process; None means that there was no plan to claim."""
        self._metrics.record_executor_heartbeat()
        if claim is not None:
            with self._lock:
                self._running[claim.plan.plan_id] = time.monotonic()
            self.publish()
        return claim

    def record_end(self, claim: Claim) -> None:
        """Record that this process no longer has the claim."""
        with self._lock:
            self._running.pop(claim.plan.plan_id, None)
        self.publish()

    @contextmanager
    def end_on_lease_loss(self, claim: Claim) -> Iterator[None]:
        """Record the end of ``claim`` if the call inside this context raises LeaseLost."""
        try:
            yield
        except LeaseLost:
            self.record_end(claim)
            raise


class InstrumentedStore(Store):
    """The store that records the plans of this process in ``slots``."""

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
            is_requeued = super().requeue(claim, error, counts_as_attempt=counts_as_attempt)
        self._slots.record_end(claim)
        return is_requeued

    def fail(
        self, claim: Claim, error: str, *, halt: bool = False, partitions: Mapping[str, str] | None = None
    ) -> None:
        with self._slots.end_on_lease_loss(claim):
            super().fail(claim, error, halt=halt, partitions=partitions)
        self._slots.record_end(claim)

    def cancel(self, claim: Claim, reason: str, *, actor: str, is_refused: bool = False) -> None:
        with self._slots.end_on_lease_loss(claim):
            super().cancel(claim, reason, actor=actor, is_refused=is_refused)
        self._slots.record_end(claim)
