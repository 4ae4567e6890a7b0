# SPDX-License-Identifier: Apache-2.0
"""The daemon's store: plans of this process counted as busy slots, errors counted, an outage told once."""

import logging
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta

from lake.errors import LeaseLost, one_line
from lake.plan import Claim, Commit, PartitionFigures, Progress
from service.observability.metrics import Metrics
from service.store import DatabaseUnreachable, SchemaBehind, Store, StoreError, StoreSettings, Watcher

logger = logging.getLogger(__name__)


class Outages(Watcher):
    """Counts the errors of a database; tells in the log when an outage begins and when it is over."""

    def __init__(self, metrics: Metrics, shown_url: str) -> None:
        self._metrics, self._shown_url = metrics, shown_url
        self._lock = threading.Lock()
        #: when the last call was lost, monotonic; None while the database answers
        self._lost: float | None = None

    def answered(self, began: float) -> None:
        if self._lost is None:
            return
        with self._lock:
            # A call under way since before the outage may still end well, and says nothing about the next one.
            over = self._lost is not None and began > self._lost
            if over:
                self._lost = None
        if over:
            logger.info("database %s answers again", self._shown_url)

    def failed(self, error: StoreError) -> None:
        lost = isinstance(error, (DatabaseUnreachable, SchemaBehind))
        if lost or type(error) is StoreError:  # its other kinds are answers, such as that a partition is taken
            self._metrics.database_error()
        if not lost:
            return
        with self._lock:
            told, self._lost = self._lost is not None, time.monotonic()
        if not told:
            logger.error("%s; going on and trying again", one_line(error))


class Slots:
    """The plans whose lease this process extends, as a gauge of busy and free slots. Thread-safe."""

    def __init__(self, metrics: Metrics, slots: int, lease: timedelta) -> None:
        self._metrics, self._slots, self._lease = metrics, slots, lease.total_seconds()
        self._lock = threading.Lock()
        #: plan → when its lease was last extended
        self._running: dict[str, float] = {}
        self.show()

    def show(self) -> None:
        """Bring the gauge up to now; a plan whose lease ran out unnoticed is not ours any more."""
        with self._lock:
            oldest = time.monotonic() - self._lease
            self._running = {plan: beat for plan, beat in self._running.items() if beat >= oldest}
            busy = len(self._running)
        self._metrics.slots(busy=busy, free=max(0, self._slots - busy))

    @property
    def busy(self) -> bool:
        """Whether this process has a plan."""
        self.show()
        return bool(self._running)

    def looked(self, claim: Claim | None) -> Claim | None:
        """``claim``, which this process has now; None where it looked for a plan and there was none."""
        self._metrics.executor_alive()
        if claim is not None:
            with self._lock:
                self._running[claim.plan.plan_id] = time.monotonic()
            self.show()
        return claim

    def ended(self, claim: Claim) -> None:
        """The claim is no longer this process's."""
        with self._lock:
            self._running.pop(claim.plan.plan_id, None)
        self.show()

    @contextmanager
    def until_lost(self, claim: Claim) -> Iterator[None]:
        """A call for ``claim``, which has ended where the lease is lost."""
        try:
            yield
        except LeaseLost:
            self.ended(claim)
            raise


class WatchedStore(Store):
    """A store that knows which plans this process has."""

    def __init__(self, url: str, settings: StoreSettings, slots: Slots) -> None:
        super().__init__(url, settings)
        self._slots = slots

    def claim(self, executor: str) -> Claim | None:
        return self._slots.looked(super().claim(executor))

    def expired(self, executor: str) -> Claim | None:
        return self._slots.looked(super().expired(executor))

    def heartbeat(self, claim: Claim, progress: Progress | None = None, *, at_least: timedelta = timedelta()) -> bool:
        with self._slots.until_lost(claim):
            cancel_requested = super().heartbeat(claim, progress, at_least=at_least)
        self._slots.looked(claim)
        return cancel_requested

    def complete(
        self, claim: Claim, commit: Commit, figures: Sequence[PartitionFigures], milliseconds: Mapping[str, int]
    ) -> None:
        with self._slots.until_lost(claim):
            super().complete(claim, commit, figures, milliseconds)
        self._slots.ended(claim)

    def requeue(self, claim: Claim, error: str, *, counts: bool = True) -> bool:
        with self._slots.until_lost(claim):
            again = super().requeue(claim, error, counts=counts)
        self._slots.ended(claim)
        return again

    def fail(self, claim: Claim, error: str, *, halt: bool = False, partitions: Collection[str] = ()) -> None:
        with self._slots.until_lost(claim):
            super().fail(claim, error, halt=halt, partitions=partitions)
        self._slots.ended(claim)

    def cancel(self, claim: Claim, reason: str, *, actor: str) -> None:
        with self._slots.until_lost(claim):
            super().cancel(claim, reason, actor=actor)
        self._slots.ended(claim)
