# SPDX-License-Identifier: Apache-2.0
"""The lease of one claim: a thread renews it, and learns from the answers whether the executor has to stop."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context
from datetime import timedelta
from functools import partial
from typing import Self

from lake.errors import CancelRequested, LeaseLost, Transient
from lake.plan import Claim, RewriteProgress
from lake.plan_store import PlanStore
from lake.ports import TableWriter
from lake.renewal import Renewer

log = logging.getLogger(__name__)

#: the reason of a plan that was cancelled on request
CANCEL_REASON = "cancelled before its commit, as requested"
_POLL_SECONDS = 0.2
_CANCEL_RETRY_SECONDS = 1.0
#: a heartbeat that hangs in a dead connection must not hold up the executor
_JOIN_TIMEOUT = timedelta(seconds=10)


class Aborted(Transient):
    """This process has to stop at once; the plan returns to the state requested."""


class Lease:
    """Renews ``claim`` every ``interval`` inside the ``with`` block, see ``lake.renewal``.

    ``check`` raises LeaseLost or CancelRequested if the answer to a heartbeat said so, or Aborted if ``abort`` is set.
    The store is called from a second thread, so it must be thread-safe.
    """

    def __init__(self, claim: Claim, store: PlanStore, *, interval: timedelta, abort: threading.Event | None = None):
        self._claim, self._store = claim, store
        self._abort = abort or threading.Event()
        self._progress: RewriteProgress | None = None
        self._cancel_requested = False
        # The database grants more than one interval. A late heartbeat does not extend the lease of an ended plan.
        self._renewer = Renewer(
            f"the lease of plan {claim.plan.plan_id}",
            self._send_heartbeat,
            interval=interval,
            validity=interval,
            join_timeout=_JOIN_TIMEOUT,
        )

    def __enter__(self) -> Self:
        self._renewer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._renewer.close()

    def report_progress(self, progress: RewriteProgress) -> None:
        """Set the progress of the rewrite; the next heartbeat stores it."""
        self._progress = progress

    def check(self) -> None:
        """Raise LeaseLost, CancelRequested or Aborted if the run has to stop."""
        self._check_lost()
        if self._cancel_requested:
            raise CancelRequested(CANCEL_REASON)
        if self._abort.is_set():
            raise Aborted("the executor was stopped before the plan ended")

    def renew(self, *, at_least: timedelta = timedelta()) -> None:
        """Renew now, for ``at_least`` this long, then ``check``.

        Errors of the store pass through: without an answer it is unknown who owns the plan.
        """
        self._renewer.renew_now(partial(self._send_heartbeat, at_least))
        self.check()

    def assert_owned(self) -> None:
        """Renew now and raise LeaseLost if another executor owns the plan; a cancel request does not raise here."""
        self._renewer.renew_now()
        self._check_lost()

    @property
    def is_cancel_requested(self) -> bool:
        """True if a heartbeat returned a request to cancel the plan."""
        return self._cancel_requested

    def renew_if_stale(self, *, at_least: timedelta = timedelta()) -> None:
        """Call ``renew`` if the last renewal is older than one interval, since the process may have been suspended.

        With ``at_least``, the duration of work that no lock of the table protects, always renews.
        """
        if at_least or not self._renewer.is_certain:
            self.renew(at_least=at_least)
        self.check()

    @contextmanager
    def cancelling(self, writer: TableWriter) -> Iterator[None]:
        """Inside the block, call ``writer.cancel`` as soon as ``check`` would raise; ``check`` at the end as well."""
        self.check()
        ended = threading.Event()
        thread = threading.Thread(
            target=copy_context().run,
            args=(self._cancel_when_stopped, writer, ended),
            name=f"cancel {self._claim.plan.plan_id}",
            daemon=True,
        )
        thread.start()
        try:
            yield
        except Exception:
            self.check()
            raise
        finally:
            ended.set()
            thread.join(_JOIN_TIMEOUT.total_seconds())
        self.check()

    def _check_lost(self) -> None:
        if (lost := self._renewer.loss_reason) is not None:
            raise LeaseLost(lost)

    def _send_heartbeat(self, at_least: timedelta = timedelta()) -> str | None:
        try:
            self._cancel_requested |= self._store.heartbeat(self._claim, self._progress, at_least=at_least)
        except LeaseLost as lost:
            return str(lost)
        return None

    def _cancel_when_stopped(self, writer: TableWriter, ended: threading.Event) -> None:
        wait_seconds = _POLL_SECONDS
        while not ended.wait(wait_seconds):
            if not self._must_stop():
                continue
            wait_seconds = _CANCEL_RETRY_SECONDS  # cancel repeatedly: the job may start after the first call
            try:
                writer.cancel()
            except Exception as error:
                log.warning("plan %s: its job can't be cancelled: %s", self._claim.plan.plan_id, error)

    def _must_stop(self) -> bool:
        return self._renewer.loss_reason is not None or self._cancel_requested or self._abort.is_set()
