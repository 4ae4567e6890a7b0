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
from lake.formats.hudi.jvm.java_thread import JavaThread
from lake.formats.hudi.jvm.outcomes import got_no_answer
from lake.model import TableRef
from lake.units import format_duration

log = logging.getLogger(__name__)
FILE = ".hoodie/.lakefold/exclusive"
#: how long the section of another thread, process or host is waited for
PATIENCE = timedelta(seconds=60)
_POLL_SECONDS = 0.2
#: how often the end of a Java thread that did not answer is looked for
_END_POLL_SECONDS = 1.0


class _Turn:
    """A lock of this process, before the one that processes share: that one does not tell threads apart."""

    __slots__ = ("__weakref__", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()


_turns: WeakValueDictionary[Hashable, _Turn] = WeakValueDictionary()
_registry = threading.Lock()


class Exclusion(ABC):
    """The lock of one table, which the Java process behind ``jvm`` holds, since that one commits. For one thread.

    Subclasses say how one try goes; ``_place`` is what tells the lock from every other one.
    """

    def __init__(self, table: TableRef, jvm: Any) -> None:
        self._table = table
        self._jvm = jvm
        self._turn: _Turn | None = None
        #: the Java thread that works under the lock; None before the first time
        self._worker: JavaThread | None = None
        #: what waits for the end of a Java thread that did not answer; None where there is no such thread
        self._waiting: list[Callable[[], None]] | None = None
        self._handing_over = threading.Lock()

    @property
    def is_taken(self) -> bool:
        """Whether it is ours."""
        return self._turn is not None

    def take(self, doing: str) -> None:
        """Take the lock, waiting for up to ``PATIENCE``.

        Raises Transient saying who has it, Rejected where there is no such lock to be had.
        """
        deadline = time.monotonic() + PATIENCE.total_seconds()
        while not self._try(doing):
            if time.monotonic() >= deadline:
                raise Transient(
                    f"{self._table.name}: {self._holder()}; it was waited for {format_duration(PATIENCE)} while {doing}"
                )
            time.sleep(_POLL_SECONDS)

    def confirm(self, doing: str) -> None:
        """Raise Transient where the lock is not ours any more: the last look before something irrevocable."""
        reason = self._loss()
        if reason is not None:
            raise Transient(f"{self._table.name}: lakefold's own lock on the table was lost while {doing} ({reason})")

    def when_idle(self, act: Callable[[], None]) -> None:
        """Call ``act`` when no call of the JVM that was made under the lock still runs.

        That is at once, or from another thread once the Java thread that did not answer is proved to have ended, before
        the lock is given back. What ``act`` raises is logged then.
        """
        with self._handing_over:
            if self._waiting is not None:
                self._waiting.append(act)
                return
            if self.is_taken and self._worker is not None and not self._worker.is_free():
                self._waiting = [act]
                return
        act()

    def give_back(self) -> None:
        """Give the lock back, once no call of the JVM that was made under it still runs."""
        turn, self._turn = self._turn, None
        assert turn is not None
        worker = self._worker
        if self._waiting is None and (worker is None or worker.is_free()):
            self._give_back(turn)
            return
        assert worker is not None
        with self._handing_over:
            self._waiting = self._waiting or []
        log.warning(
            "%s: %s did not answer and may still work on the table: lakefold's own lock is kept until it has ended",
            self._table.name,
            worker,
        )
        self._is_kept(worker)
        name = f"lock of {self._table.name} until {worker} has ended"
        threading.Thread(target=self._give_back_later, args=(turn, worker), name=name, daemon=True).start()

    def _give_back(self, turn: _Turn) -> None:
        try:
            self._unlock()
        finally:
            turn.lock.release()

    def _give_back_later(self, turn: _Turn, worker: JavaThread) -> None:
        while not worker.has_ended():
            time.sleep(_END_POLL_SECONDS)
        while True:
            with self._handing_over:
                if not self._waiting:
                    self._waiting = None
                    break
                act = self._waiting.pop(0)
            try:
                act()
            except Exception as error:
                if not got_no_answer(error):  # the process has ended, and all that it held with it
                    log.warning("%s: after %s had ended: %s", self._table.name, worker, error)
        try:
            self._give_back(turn)
        except Exception as error:
            log.warning("%s: could not give lakefold's own lock back: %s", self._table.name, error)
        log.warning("%s: %s has ended, and lakefold's own lock is given back", self._table.name, worker)

    def _try(self, doing: str) -> bool:
        with _registry:
            turn = _turns.setdefault(self._place(), _Turn())
        if not turn.lock.acquire(timeout=_POLL_SECONDS):
            return False
        self._turn = turn
        self._worker = None
        try:
            self._worker = JavaThread(self._jvm)
            if self._lock(self._claim(doing, self._worker)):
                return True
        except BaseException:
            with suppress(Exception):
                self.give_back()
            raise
        self.give_back()
        return False

    def _claim(self, doing: str, worker: JavaThread) -> dict[str, object]:
        """What the holder says of itself."""
        return {
            "host": socket.gethostname(),
            "pid": worker.pid,
            "doing": doing,
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
        }

    def _holder(self) -> str:
        """Who has the lock, as a sentence."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            known = json.loads(self._read())
            since = f"{datetime.fromisoformat(known['since']):%H:%M:%S} UTC"
            return (
                f"process {known['pid']} of host {known['host']}, a lakefold, has been {known['doing']} since {since}"
            )
        return "another lakefold is changing the table"

    @abstractmethod
    def _place(self) -> Hashable: ...

    @abstractmethod
    def _lock(self, claim: dict[str, object]) -> bool:
        """One try without waiting; whether it is ours now."""

    @abstractmethod
    def _loss(self) -> str | None:
        """How the lock was lost; None while it is ours."""

    @abstractmethod
    def _unlock(self) -> None:
        """Undo ``_lock``, however far that came."""

    @abstractmethod
    def _is_kept(self, worker: JavaThread) -> None:
        """Take note that the lock is kept until ``worker``, which did not answer, has ended."""

    @abstractmethod
    def _read(self) -> bytes:
        """What the holder says of itself, as it wrote it."""
