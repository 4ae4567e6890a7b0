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

from lake.formats.hudi.client.locks.base import LakefoldLock
from lake.formats.hudi.jvm.java_thread import JavaThread
from lake.identity import Process
from lake.model import TableRef
from lake.units import format_duration

log = logging.getLogger(__name__)
RENEWAL_INTERVAL = timedelta(seconds=10)
#: how long the note must not have changed before it is taken from a holder of whom nothing is known
TAKEOVER_TIMEOUT = timedelta(minutes=10)

#: notes as they were last found held, with when that was seen first; by place
_observed_versions: dict[Hashable, tuple[str, float]] = {}
#: what this process could not give back
_unreleased_tokens: set[str] = set()


class RenewedLock(LakefoldLock):
    """The lock of a table that the process itself holds and renews."""

    def __init__(self, table: TableRef, jvm: Any) -> None:
        super().__init__(table, jvm)
        self._owner_record: dict[str, object] = {}
        #: the version of the note that is ours; None while it is not
        self._version: str | None = None
        self._write_lock = threading.Lock()
        self._stopped = threading.Event()
        self._renewal_thread: threading.Thread | None = None

    @abstractmethod
    def _display_path(self) -> str:
        """Where the note is, as a person finds it."""

    @abstractmethod
    def _compare_and_set(self, record: dict[str, object], version: str | None) -> str | None:
        """The new version of the note, where it was the version ``tag`` (None: not there at all); else None."""

    @abstractmethod
    def _read_version(self) -> tuple[str, bytes] | None:
        """Version and content of the note; None where there is none."""

    def _verify_conditional_writes(self) -> None:
        """Raise Rejected where the store is seen to write although the condition does not hold."""

    def _try_lock(self, owner_record: dict[str, object]) -> bool:
        process = Process.of(int(str(owner_record["pid"])))
        self._owner_record = owner_record | {"token": uuid.uuid4().hex, "process": process and asdict(process)}
        found = self._read_version()
        if found is not None and not self._is_free(*found):
            return False
        self._version = self._compare_and_set(self._owner_record, found and found[0])
        if self._version is None:
            return False
        self._verify_conditional_writes()
        self._stopped.clear()
        self._renewal_thread = threading.Thread(
            target=self._renew_until_stopped, name=f"lock of {self._table.name}", daemon=True
        )
        self._renewal_thread.start()
        return True

    def _is_free(self, version: str, body: bytes) -> bool:
        """Whether the note may be taken: given back, abandoned by us, its holder dead, or silent for long."""
        try:
            holder = json.loads(body)
            if holder.get("free") or holder["token"] in _unreleased_tokens:
                return True
            process = holder["process"] and Process(**holder["process"])
        except (ValueError, KeyError, TypeError):
            process = None  # written by somebody else's hand
        if process and process.is_dead:
            log.warning("%s: taking over the lock of %s, which died", self._table.name, process)
            return True
        watched, since = _observed_versions.get(self._lock_key(), ("", 0.0))
        now = time.monotonic()
        if watched != version:
            _observed_versions[self._lock_key()] = version, now
            return False
        if now - since < TAKEOVER_TIMEOUT.total_seconds():
            return False
        silence = format_duration(TAKEOVER_TIMEOUT)
        log.warning(
            "%s: taking over a lock that was not renewed for %s: %s", self._table.name, silence, self._describe_holder()
        )
        return True

    def _renew_until_stopped(self) -> None:
        while not self._stopped.wait(RENEWAL_INTERVAL.total_seconds()):
            # Whoever is about to commit asks again, and hears what is wrong.
            with suppress(Exception):
                if self._loss_reason() is not None:
                    return

    def _loss_reason(self) -> str | None:
        """Renew, which only the holder can."""
        with self._write_lock:
            if self._version is not None:
                self._version = self._compare_and_set(self._owner_record | {"renewal": uuid.uuid4().hex}, self._version)
            return None if self._version is not None else f"{self._display_path()} was taken over or replaced"

    def _on_thread_unanswered(self, java_thread: JavaThread) -> None:
        # Renewed until the Java process has ended, whatever becomes of its connection; where that can't be seen the
        # note expires.
        if java_thread.process is None:
            self._stopped.set()

    def _unlock(self) -> None:
        self._stopped.set()
        renewing, self._renewal_thread = self._renewal_thread, None
        if renewing is not None:
            renewing.join()
        tag, self._version = self._version, None
        if tag is None:
            return
        try:
            if self._compare_and_set({"free": True, "token": uuid.uuid4().hex}, tag) is None:
                log.error("%s: lakefold's own lock was taken over while it was held", self._table.name)
        except Exception as error:
            _unreleased_tokens.add(str(self._owner_record["token"]))
            log.warning("%s: could not give lakefold's own lock back: %s", self._table.name, error)

    def _read_owner_record(self) -> bytes:
        found = self._read_version()
        return found[1] if found else b""
