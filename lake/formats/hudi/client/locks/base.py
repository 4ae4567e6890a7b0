# SPDX-License-Identifier: Apache-2.0
"""lakefold's own lock on a table: while one process changes the table no other one does, whatever Hudi's lock is.

Hudi's lock is the table's writers' lock, and where there is a single writer there is none. lakefold is several
processes: executors, cleaner, sweep and commands, on several hosts, by mistake even with two databases. So what keeps
them apart is in the table, at ``.hoodie/.lakefold/exclusive``, and is taken in every concurrency mode, before Hudi's.

What it is depends on where the table is: see ``exclusive_file``, ``exclusive_object`` and ``exclusive_hdfs``.

A call of the JVM that got no answer may still run, and may still commit. So whatever takes the lock asks the Java
thread that works for it before the lock is given back, and where that thread does not answer the lock is kept until the
thread, or its process, is proved to have ended.
"""

import json
import logging
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from weakref import WeakValueDictionary

from lake.errors import Transient
from lake.formats.hudi.jvm.errors import is_unanswered
from lake.formats.hudi.jvm.java_thread import JavaThread
from lake.model import TableRef
from lake.units import format_duration

log = logging.getLogger(__name__)
LOCK_FILE = ".hoodie/.lakefold/exclusive"
#: how long the section of another thread, process or host is waited for
ACQUIRE_TIMEOUT = timedelta(seconds=60)
_POLL_SECONDS = 0.2
#: how often the end of a Java thread that did not answer is looked for
_END_POLL_SECONDS = 1.0


class _ProcessLock:
    """A lock of this process, before the one that processes share: that one does not tell threads apart."""

    __slots__ = ("__weakref__", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()


_process_locks: WeakValueDictionary[Hashable, _ProcessLock] = WeakValueDictionary()
_registry_lock = threading.Lock()


class LakefoldLock(ABC):
    """The lock of one table, which the Java process behind ``jvm`` holds, since that one commits. For one thread.

    Subclasses say how one try goes; ``_place`` is what tells the lock from every other one.
    """

    def __init__(self, table: TableRef, jvm: Any) -> None:
        self._table = table
        self._jvm = jvm
        self._process_lock: _ProcessLock | None = None
        #: the Java thread that works under the lock; None before the first time
        self._java_thread: JavaThread | None = None
        #: what waits for the end of a Java thread that did not answer; None where there is no such thread
        self._idle_callbacks: list[Callable[[], None]] | None = None
        self._callbacks_lock = threading.Lock()

    @property
    def is_held(self) -> bool:
        """Whether it is ours."""
        return self._process_lock is not None

    def acquire(self, doing: str) -> None:
        """Take the lock, waiting for up to ``ACQUIRE_TIMEOUT``.

        Raises Transient saying who has it, Rejected where there is no such lock to be had.
        """
        deadline = time.monotonic() + ACQUIRE_TIMEOUT.total_seconds()
        while not self._try_acquire(doing):
            if time.monotonic() >= deadline:
                raise Transient(
                    f"{self._table.name}: {self._describe_holder()}; it was waited for {format_duration(ACQUIRE_TIMEOUT)} while {doing}"
                )
            time.sleep(_POLL_SECONDS)

    def assert_held(self, doing: str) -> None:
        """Raise Transient where the lock is not ours any more: the last look before something irrevocable."""
        reason = self._loss_reason()
        if reason is not None:
            raise Transient(f"{self._table.name}: lakefold's own lock on the table was lost while {doing} ({reason})")

    def run_when_idle(self, callback: Callable[[], None]) -> None:
        """Call ``act`` when no call of the JVM that was made under the lock still runs.

        That is at once, or from another thread once the Java thread that did not answer is proved to have ended, before
        the lock is given back. What ``act`` raises is logged then.
        """
        with self._callbacks_lock:
            if self._idle_callbacks is not None:
                self._idle_callbacks.append(callback)
                return
            if self.is_held and self._java_thread is not None and not self._java_thread.is_idle():
                self._idle_callbacks = [callback]
                return
        callback()

    def release(self) -> None:
        """Give the lock back, once no call of the JVM that was made under it still runs."""
        turn, self._process_lock = self._process_lock, None
        assert turn is not None
        worker = self._java_thread
        if self._idle_callbacks is None and (worker is None or worker.is_idle()):
            self._release(turn)
            return
        assert worker is not None
        with self._callbacks_lock:
            self._idle_callbacks = self._idle_callbacks or []
        log.warning(
            "%s: %s did not answer and may still work on the table: lakefold's own lock is kept until it has ended",
            self._table.name,
            worker,
        )
        self._on_thread_unanswered(worker)
        name = f"lock of {self._table.name} until {worker} has ended"
        threading.Thread(target=self._release_after_thread_end, args=(turn, worker), name=name, daemon=True).start()

    def _release(self, process_lock: _ProcessLock) -> None:
        try:
            self._unlock()
        finally:
            process_lock.lock.release()

    def _release_after_thread_end(self, process_lock: _ProcessLock, java_thread: JavaThread) -> None:
        while not java_thread.has_ended():
            time.sleep(_END_POLL_SECONDS)
        while True:
            with self._callbacks_lock:
                if not self._idle_callbacks:
                    self._idle_callbacks = None
                    break
                act = self._idle_callbacks.pop(0)
            try:
                act()
            except Exception as error:
                if not is_unanswered(error):  # the process has ended, and all that it held with it
                    log.warning("%s: after %s had ended: %s", self._table.name, java_thread, error)
        try:
            self._release(process_lock)
        except Exception as error:
            log.warning("%s: could not give lakefold's own lock back: %s", self._table.name, error)
        log.warning("%s: %s has ended, and lakefold's own lock is given back", self._table.name, java_thread)

    def _try_acquire(self, doing: str) -> bool:
        with _registry_lock:
            turn = _process_locks.setdefault(self._lock_key(), _ProcessLock())
        if not turn.lock.acquire(timeout=_POLL_SECONDS):
            return False
        self._process_lock = turn
        self._java_thread = None
        try:
            self._java_thread = JavaThread(self._jvm)
            if self._try_lock(self._new_owner_record(doing, self._java_thread)):
                return True
        except BaseException:
            with suppress(Exception):
                self.release()
            raise
        self.release()
        return False

    def _new_owner_record(self, doing: str, java_thread: JavaThread) -> dict[str, object]:
        """What the holder says of itself."""
        return {
            "host": socket.gethostname(),
            "pid": java_thread.pid,
            "doing": doing,
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
        }

    def _describe_holder(self) -> str:
        """Who has the lock, as a sentence."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            known = json.loads(self._read_owner_record())
            since = f"{datetime.fromisoformat(known['since']):%H:%M:%S} UTC"
            return (
                f"process {known['pid']} of host {known['host']}, a lakefold, has been {known['doing']} since {since}"
            )
        return "another lakefold is changing the table"

    @abstractmethod
    def _lock_key(self) -> Hashable: ...

    @abstractmethod
    def _try_lock(self, owner_record: dict[str, object]) -> bool:
        """One try without waiting; whether it is ours now."""

    @abstractmethod
    def _loss_reason(self) -> str | None:
        """How the lock was lost; None while it is ours."""

    @abstractmethod
    def _unlock(self) -> None:
        """Undo ``_lock``, however far that came."""

    @abstractmethod
    def _on_thread_unanswered(self, java_thread: JavaThread) -> None:
        """Take note that the lock is kept until ``worker``, which did not answer, has ended."""

    @abstractmethod
    def _read_owner_record(self) -> bytes:
        """What the holder says of itself, as it wrote it."""
