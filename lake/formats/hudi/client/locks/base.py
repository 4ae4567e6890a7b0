# SPDX-License-Identifier: Apache-2.0
"""lakefold's own lock on a table: only one lakefold process changes the table at a time, regardless of Hudi's lock.

Hudi's lock belongs to the table's writers; a table with a single writer has none. lakefold runs as several processes
(executors, cleaner, sweep and commands) on several hosts, by mistake even with two databases. lakefold's lock excludes
these processes from each other. It is in the table, at ``.hoodie/.lakefold/exclusive``, and is taken in every
concurrency mode, before Hudi's lock.

Its implementation depends on the storage of the table: see ``file``, ``object_store`` and ``hdfs``.

A call of the JVM that got no answer may still run, and may still commit. Before the lock is released, the call's Java
thread must therefore answer. If that thread does not answer, the lock is held until the thread, or its process, is
verified to have ended.
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
#: how long ``acquire`` waits for the lock section of another thread, process or host
ACQUIRE_TIMEOUT = timedelta(seconds=60)
_POLL_SECONDS = 0.2
#: the interval between checks whether a Java thread that did not answer has ended
_END_POLL_SECONDS = 1.0


class _ProcessLock:
    """A lock between threads of this process, taken first: the lock between processes does not distinguish threads."""

    __slots__ = ("__weakref__", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()


_process_locks: WeakValueDictionary[Hashable, _ProcessLock] = WeakValueDictionary()
_registry_lock = threading.Lock()


class LakefoldLock(ABC):
    """The lock of one table, held by the Java process behind ``jvm``, since that process commits. Used by one thread.

    Subclasses implement one attempt to take the lock; ``_lock_key`` identifies the lock.
    """

    def __init__(self, table: TableRef, jvm: Any) -> None:
        self._table = table
        self._jvm = jvm
        self._process_lock: _ProcessLock | None = None
        #: the Java thread that works under the lock; None before the first acquisition
        self._java_thread: JavaThread | None = None
        #: callbacks that wait for the end of a Java thread that did not answer; None if there is no such thread
        self._idle_callbacks: list[Callable[[], None]] | None = None
        self._callbacks_lock = threading.Lock()

    @property
    def is_held(self) -> bool:
        """True if this object holds the lock."""
        return self._process_lock is not None

    def acquire(self, doing: str) -> None:
        """Take the lock, waiting for up to ``ACQUIRE_TIMEOUT``.

        Raises Transient naming the holder, Rejected if the storage offers no such lock.
        """
        deadline = time.monotonic() + ACQUIRE_TIMEOUT.total_seconds()
        while not self._try_acquire(doing):
            if time.monotonic() >= deadline:
                raise Transient(
                    f"{self._table.name}: {self._describe_holder()}; lakefold waited "
                    f"{format_duration(ACQUIRE_TIMEOUT)} for it while {doing}"
                )
            time.sleep(_POLL_SECONDS)

    def assert_held(self, doing: str) -> None:
        """Raise Transient if the lock was lost: the last check before an irrevocable step."""
        reason = self._loss_reason()
        if reason is not None:
            raise Transient(f"{self._table.name}: lakefold's own lock on the table was lost while {doing} ({reason})")

    def run_when_idle(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when every call of the JVM made under the lock has ended.

        ``callback`` runs at once if the Java thread answers. Otherwise another thread runs it after the Java thread is
        verified to have ended, before the lock is released; its exceptions are then logged.
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
        """Release the lock when every call of the JVM made under it has ended."""
        process_lock, self._process_lock = self._process_lock, None
        assert process_lock is not None
        java_thread = self._java_thread
        if self._idle_callbacks is None and (java_thread is None or java_thread.is_idle()):
            self._release(process_lock)
            return
        assert java_thread is not None
        with self._callbacks_lock:
            self._idle_callbacks = self._idle_callbacks or []
        log.warning(
            "%s: %s did not answer and may still change the table: lakefold's own lock is held until it has ended",
            self._table.name,
            java_thread,
        )
        self._on_thread_unanswered(java_thread)
        arguments = (process_lock, java_thread)
        name = f"lock of {self._table.name} until {java_thread} has ended"
        threading.Thread(target=self._release_after_thread_end, args=arguments, name=name, daemon=True).start()

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
                callback = self._idle_callbacks.pop(0)
            try:
                callback()
            except Exception as error:
                if not is_unanswered(error):  # else the process has ended, and its resources are freed
                    log.warning("%s: after %s had ended: %s", self._table.name, java_thread, error)
        try:
            self._release(process_lock)
        except Exception as error:
            log.warning("%s: could not release lakefold's own lock: %s", self._table.name, error)
        log.warning("%s: %s has ended, and lakefold's own lock is released", self._table.name, java_thread)

    def _try_acquire(self, doing: str) -> bool:
        with _registry_lock:
            process_lock = _process_locks.setdefault(self._lock_key(), _ProcessLock())
        if not process_lock.lock.acquire(timeout=_POLL_SECONDS):
            return False
        self._process_lock = process_lock
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
        """Return the holder's description of itself."""
        return {
            "host": socket.gethostname(),
            "pid": java_thread.pid,
            "doing": doing,
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
        }

    def _describe_holder(self) -> str:
        """Describe the holder of the lock in a sentence."""
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
        """Try once, without waiting. Returns whether this object holds the lock now."""

    @abstractmethod
    def _loss_reason(self) -> str | None:
        """Return how the lock was lost; None while it is held."""

    @abstractmethod
    def _unlock(self) -> None:
        """Undo ``_try_lock``, even if it failed halfway."""

    @abstractmethod
    def _on_thread_unanswered(self, java_thread: JavaThread) -> None:
        """Prepare for holding the lock until ``java_thread``, which did not answer, has ended."""

    @abstractmethod
    def _read_owner_record(self) -> bytes:
        """Return the holder's description of itself, as the holder wrote it."""
