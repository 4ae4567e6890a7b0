# SPDX-License-Identifier: Apache-2.0
"""The store with every call watched: failures counted, claims of this process known, an outage told once."""

import functools
import logging
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

from lake.errors import LeaseLost
from service.observability.metrics import Metrics
from service.problems import one_line
from service.store import DatabaseUnreachable, SchemaBehind, Store, StoreError

logger = logging.getLogger(__name__)

_TAKES = ("claim", "expired")
_ENDS = ("complete", "requeue", "fail", "cancel")


class ObservedStore:
    """Passes everything on to a ``Store``. Thread-safe as the store is."""

    def __init__(self, store: Store, metrics: Metrics, *, slots: int, lease: timedelta) -> None:
        self._store, self._metrics, self._slots, self._lease = store, metrics, slots, lease.total_seconds()
        self._lock = threading.Lock()
        self._down = False
        #: plans whose lease this process extends, and when it last did
        self._running: dict[str, float] = {}
        self.show_slots()

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._store, name)
        if not callable(attribute):
            return attribute

        @functools.wraps(attribute)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                result = attribute(*args, **kwargs)
            except LeaseLost:
                self._answered()
                self._ended(args)
                raise
            except StoreError as error:
                self._failed(error)
                raise
            self._answered()
            if self._slots:
                self._follow(name, args, result)
            return result

        return call

    def show_slots(self) -> None:
        """Bring the gauge of slots up to now; a plan whose lease ran out unnoticed is not ours any more."""
        with self._lock:
            oldest = time.monotonic() - self._lease
            self._running = {plan: beat for plan, beat in self._running.items() if beat >= oldest}
            busy = len(self._running)
        self._metrics.slots(busy=busy, free=max(0, self._slots - busy))

    def _follow(self, name: str, args: tuple[Any, ...], result: Any) -> None:
        if name in _TAKES or name == "heartbeat":
            self._metrics.executor_alive()
            claim = args[0] if name == "heartbeat" else result
            if claim is not None:
                with self._lock:
                    self._running[claim.plan.plan_id] = time.monotonic()
                self.show_slots()
        elif name in _ENDS:
            self._ended(args)

    def _ended(self, args: tuple[Any, ...]) -> None:
        with self._lock:
            self._running.pop(args[0].plan.plan_id, None)
        self.show_slots()

    def _failed(self, error: StoreError) -> None:
        lost = isinstance(error, (DatabaseUnreachable, SchemaBehind))
        if lost or type(error) is StoreError:  # its other kinds are answers, such as that a partition is taken
            self._metrics.database_error()
        if not lost:
            return
        with self._lock:
            told, self._down = self._down, True
        if not told:
            logger.error("%s; going on and trying again", one_line(error))

    def _answered(self) -> None:
        if not self._down:
            return
        with self._lock:
            told, self._down = not self._down, False
        if not told:
            logger.info("database %s answers again", self._store.url)


def observed(store: Store, metrics: Metrics, *, slots: int, lease: timedelta) -> tuple[Store, Callable[[], None]]:
    """``store`` watched, and a function that brings the gauge of slots up to now. ``slots`` is 0 without executor."""
    watched = ObservedStore(store, metrics, slots=slots, lease=lease)
    return cast(Store, watched), watched.show_slots
