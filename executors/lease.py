# SPDX-License-Identifier: Apache-2.0
"""The lease of one claim: a thread renews it, and receives the requests to stop that its executor must obey."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Self

from lake.errors import CancelRequested, LeaseLost, Transient
from lake.logfields import claim_log_fields
from lake.plan import Claim, RewriteProgress
from lake.plan_store import PlanStore
from lake.ports import TableWriter

log = logging.getLogger(__name__)

#: the reason of a plan that was cancelled on request
CANCEL_REASON = "cancelled before its commit, as requested"
_POLL_SECONDS = 0.2
_CANCEL_RETRY_SECONDS = 1.0
_JOIN_SECONDS = 10.0


class Aborted(Transient):
    """This process was requested to stop at once; the plan becomes requested again."""


class Lease:
    """Renews ``claim`` every ``interval`` inside the ``with`` block.

    ``check`` raises LeaseLost or CancelRequested after a heartbeat with this result, or Aborted once ``abort`` is set.
    The store is called from a second thread, so it must be thread-safe.
    """

    def __init__(self, claim: Claim, store: PlanStore, *, interval: timedelta, abort: threading.Event | None = None):
        self._claim, self._store, self._interval_seconds = claim, store, interval.total_seconds()
        self._abort = abort or threading.Event()
        self._ended = threading.Event()
        self._heartbeat_lock = threading.Lock()
        self._progress: RewriteProgress | None = None
        self._renewed_at = time.monotonic()
        self._lost: LeaseLost | None = None
        self._cancel_requested = False
        self._writer: TableWriter | None = None
        self._thread = threading.Thread(
            target=self._run_in_background, name=f"heartbeat {claim.plan.plan_id}", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(_JOIN_SECONDS)  # a heartbeat that hangs in a dead connection must not hold up the executor

    def report_progress(self, progress: RewriteProgress) -> None:
        """Set the progress of the rewrite; the next heartbeat stores it."""
        self._progress = progress

    def check(self) -> None:
        """Raise LeaseLost, CancelRequested or Aborted if the run has to stop."""
        if self._lost is not None:
            raise LeaseLost(*self._lost.args)
        if self._cancel_requested:
            raise CancelRequested(CANCEL_REASON)
        if self._abort.is_set():
            raise Aborted("the executor was stopped before the plan ended")

    def renew(self, *, at_least: timedelta = timedelta()) -> None:
        """Renew now, for ``at_least`` this long, then ``check``.

        Errors of the store pass through: without an answer it is unknown who owns the plan.
        """
        self._send_heartbeat(at_least)
        self.check()

    def assert_owned(self) -> None:
        """Renew now and raise LeaseLost if another executor owns the plan; a cancel request does not raise here."""
        self._send_heartbeat()
        if self._lost is not None:
            raise LeaseLost(*self._lost.args)

    @property
    def is_cancel_requested(self) -> bool:
        """True if a heartbeat returned a request to cancel the plan."""
        return self._cancel_requested

    def renew_if_stale(self, *, at_least: timedelta = timedelta()) -> None:
        """``renew`` if the last renewal is older than one interval, since the process may have been suspended.

        Always renews with ``at_least``, the duration of work that no lock of the table protects.
        """
        if at_least or time.monotonic() - self._renewed_at >= self._interval_seconds:
            self.renew(at_least=at_least)
        self.check()

    @contextmanager
    def cancelling(self, writer: TableWriter) -> Iterator[None]:
        """Inside the block, call ``writer.cancel`` as soon as ``check`` would raise; ``check`` at the end as well."""
        self.check()
        self._writer = writer
        try:
            yield
        except Exception:
            self.check()
            raise
        finally:
            self._writer = None
        self.check()

    def _send_heartbeat(self, at_least: timedelta = timedelta()) -> None:
        with self._heartbeat_lock:
            begun = time.monotonic()
            try:
                self._cancel_requested |= self._store.heartbeat(self._claim, self._progress, at_least=at_least)
            except LeaseLost as error:
                self._lost = error
            else:
                self._renewed_at = begun

    def _run_in_background(self) -> None:
        with claim_log_fields(self._claim):
            self._heartbeat_loop()

    def _heartbeat_loop(self) -> None:
        next_beat = time.monotonic() + self._interval_seconds
        next_cancel = 0.0
        while not self._ended.wait(min(_POLL_SECONDS, self._interval_seconds)):
            now = time.monotonic()
            if now >= next_beat and self._lost is None:
                next_beat = now + self._interval_seconds
                try:
                    self._send_heartbeat()
                except Exception as error:
                    # The plan continues: it renews again before its commit, and does not commit without an answer.
                    log.warning("plan %s: heartbeat failed: %s", self._claim.plan.plan_id, error)
            writer = self._writer
            if writer is not None and now >= next_cancel and self._must_stop():
                next_cancel = now + _CANCEL_RETRY_SECONDS  # again, since the job may have started only after the call
                try:
                    writer.cancel()
                except Exception as error:
                    log.warning("plan %s: its job can't be cancelled: %s", self._claim.plan.plan_id, error)

    def _must_stop(self) -> bool:
        return self._lost is not None or self._cancel_requested or self._abort.is_set()
