# SPDX-License-Identifier: Apache-2.0
"""lakefold's own lock on a table: while one process changes the table no other one does, whatever Hudi's lock is.

Hudi's lock is the table's writers' lock, and where there is a single writer there is none. lakefold is several
processes: executors, cleaner, sweep and commands, on several hosts, by mistake even with two databases. So what keeps
them apart is in the table, at ``.hoodie/.lakefold/exclusive``, and is taken in every concurrency mode, before Hudi's.

What it is depends on where the table is: see ``exclusive_file``, ``exclusive_object`` and ``exclusive_hdfs``.
"""

import json
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Hashable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from weakref import WeakValueDictionary

from lake.errors import Transient
from lake.model import TableRef
from lake.units import format_duration

FILE = ".hoodie/.lakefold/exclusive"
#: how long the section of another thread, process or host is waited for
PATIENCE = timedelta(seconds=60)
_POLL_SECONDS = 0.2


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

    def give_back(self) -> None:
        """Give the lock back."""
        turn, self._turn = self._turn, None
        assert turn is not None
        try:
            self._unlock()
        finally:
            turn.lock.release()

    def _try(self, doing: str) -> bool:
        with _registry:
            turn = _turns.setdefault(self._place(), _Turn())
        if not turn.lock.acquire(timeout=_POLL_SECONDS):
            return False
        self._turn = turn
        try:
            if self._lock(self._claim(doing)):
                return True
        except BaseException:
            with suppress(Exception):
                self.give_back()
            raise
        self.give_back()
        return False

    def _claim(self, doing: str) -> dict[str, object]:
        """What the holder says of itself."""
        return {
            "host": socket.gethostname(),
            "pid": self._jvm.java.lang.ProcessHandle.current().pid(),
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
    def _read(self) -> bytes:
        """What the holder says of itself, as it wrote it."""
