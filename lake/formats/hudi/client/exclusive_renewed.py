# SPDX-License-Identifier: Apache-2.0
"""lakefold's own lock where no kernel keeps one: a note that is only ever replaced by whoever knows what is in it.

It is taken, renewed and given back by writes under that condition, so that of several processes that try at once one
gets through. What stores the note is a subclass's: see ``exclusive_object`` and ``exclusive_hdfs``.

Nothing frees it where its holder dies. Another process takes it over where the holder is proved dead, which its own
host, boot and process namespace can do, or where it has watched the note for ``SILENCE`` without a renewal, by its
own clock. A holder whose renewals fail does not begin to commit. What remains is a process that is stopped as a whole,
or cut off from the store, inside its commit for longer than ``SILENCE``, and then goes on.
"""

import json
import logging
import threading
import time
import uuid
from abc import abstractmethod
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from lake.formats.hudi.client.exclusion import Exclusion
from lake.formats.hudi.jvm.java_thread import JavaThread
from lake.identity import Process
from lake.model import TableRef
from lake.units import format_duration

log = logging.getLogger(__name__)
RENEWAL = timedelta(seconds=10)
#: how long the note must not have changed before it is taken from a holder of whom nothing is known
SILENCE = timedelta(minutes=10)

#: notes as they were last found held, with when that was seen first; by place
_watched: dict[Hashable, tuple[str, float]] = {}
#: what this process could not give back
_abandoned: set[str] = set()


class RenewedExclusion(Exclusion):
    """The lock of a table that the process itself holds and renews."""

    def __init__(self, table: TableRef, jvm: Any) -> None:
        super().__init__(table, jvm)
        self._claimed: dict[str, object] = {}
        #: the version of the note that is ours; None while it is not
        self._tag: str | None = None
        self._writing = threading.Lock()
        self._stopped = threading.Event()
        self._renewing: threading.Thread | None = None

    @abstractmethod
    def _shown(self) -> str:
        """Where the note is, as a person finds it."""

    @abstractmethod
    def _put(self, body: dict[str, object], tag: str | None) -> str | None:
        """The new version of the note, where it was the version ``tag`` (None: not there at all); else None."""

    @abstractmethod
    def _find(self) -> tuple[str, bytes] | None:
        """Version and content of the note; None where there is none."""

    def _prove(self) -> None:
        """Raise Rejected where the store is seen to write although the condition does not hold."""

    def _lock(self, claim: dict[str, object]) -> bool:
        process = Process.of(int(str(claim["pid"])))
        self._claimed = claim | {"token": uuid.uuid4().hex, "process": process and asdict(process)}
        found = self._find()
        if found is not None and not self._is_free(*found):
            return False
        self._tag = self._put(self._claimed, found and found[0])
        if self._tag is None:
            return False
        self._prove()
        self._stopped.clear()
        self._renewing = threading.Thread(target=self._renew, name=f"lock of {self._table.name}", daemon=True)
        self._renewing.start()
        return True

    def _is_free(self, tag: str, body: bytes) -> bool:
        """Whether the note may be taken: given back, abandoned by us, its holder dead, or silent for long."""
        try:
            holder = json.loads(body)
            if holder.get("free") or holder["token"] in _abandoned:
                return True
            process = holder["process"] and Process(**holder["process"])
        except (ValueError, KeyError, TypeError):
            process = None  # written by somebody else's hand
        if process and process.is_dead:
            log.warning("%s: taking over the lock of %s, which died", self._table.name, process)
            return True
        watched, since = _watched.get(self._place(), ("", 0.0))
        now = time.monotonic()
        if watched != tag:
            _watched[self._place()] = tag, now
            return False
        if now - since < SILENCE.total_seconds():
            return False
        silence = format_duration(SILENCE)
        log.warning("%s: taking over a lock that was not renewed for %s: %s", self._table.name, silence, self._holder())
        return True

    def _renew(self) -> None:
        while not self._stopped.wait(RENEWAL.total_seconds()):
            # Whoever is about to commit asks again, and hears what is wrong.
            with suppress(Exception):
                if self._loss() is not None:
                    return

    def _loss(self) -> str | None:
        """Renew, which only the holder can."""
        with self._writing:
            if self._tag is not None:
                self._tag = self._put(self._claimed | {"renewal": uuid.uuid4().hex}, self._tag)
            return None if self._tag is not None else f"{self._shown()} was taken over or replaced"

    def _is_kept(self, worker: JavaThread) -> None:
        # Renewed until the Java process has ended, whatever becomes of its connection; where that can't be seen the
        # note expires.
        if worker.process is None:
            self._stopped.set()

    def _unlock(self) -> None:
        self._stopped.set()
        renewing, self._renewing = self._renewing, None
        if renewing is not None:
            renewing.join()
        tag, self._tag = self._tag, None
        if tag is None:
            return
        try:
            if self._put({"free": True, "token": uuid.uuid4().hex}, tag) is None:
                log.error("%s: lakefold's own lock was taken over while it was held", self._table.name)
        except Exception as error:
            _abandoned.add(str(self._claimed["token"]))
            log.warning("%s: could not give lakefold's own lock back: %s", self._table.name, error)

    def _read(self) -> bytes:
        found = self._find()
        return found[1] if found else b""
