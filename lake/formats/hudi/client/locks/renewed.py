# SPDX-License-Identifier: Apache-2.0
"""lakefold's own lock without a kernel lock: a record that is replaced only if it still has the version that was read.

These conditional writes take, renew and release the lock, so that only one of several concurrent processes succeeds.
Subclasses store the record: see ``object_store`` and ``hdfs``.

No store releases the lock when its holder dies. Another process takes the lock over in two cases: if it verifies that
the holder is dead, which is possible on the holder's own host, boot and process namespace; or if it has watched the
record for ``TAKEOVER_TIMEOUT``, by its own clock, without a renewal. A holder whose renewals fail does not begin to
commit. One risk remains: a process that is stopped as a whole, or cut off from the store, inside its commit for longer
than ``TAKEOVER_TIMEOUT``, and then continues.
"""

import json
import logging
import time
import uuid
from abc import abstractmethod
from collections.abc import Hashable
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from lake.formats.hudi.client.locks.base import LakefoldLock
from lake.formats.hudi.jvm.java_thread import JavaThread
from lake.model import TableRef
from lake.process_identity import Process
from lake.renewal import Renewer
from lake.units import format_duration

log = logging.getLogger(__name__)
RENEWAL_INTERVAL = timedelta(seconds=10)
#: how long the record must be unchanged before the lock is taken over from a holder whose state is unknown
TAKEOVER_TIMEOUT = timedelta(minutes=10)

#: version of each held record as last seen, and when this version was first seen; by location
_observed_versions: dict[Hashable, tuple[str, float]] = {}
#: tokens of locks that this process could not release
_unreleased_tokens: set[str] = set()


class RenewedLock(LakefoldLock):
    """A lock of one table that the process itself holds and renews."""

    def __init__(self, table: TableRef, jvm: Any) -> None:
        super().__init__(table, jvm)
        self._owner_record: dict[str, object] = {}
        #: this process's version of the record; None while the lock is not held
        self._version: str | None = None
        self._renewer = self._new_renewer()

    @abstractmethod
    def _display_path(self) -> str:
        """Return the location of the record, for messages."""

    @abstractmethod
    def _compare_and_set(self, record: dict[str, object], version: str | None) -> str | None:
        """Replace the record if its version is ``version`` (None: there is no record).

        Returns the new version; None if the record has another version.
        """

    @abstractmethod
    def _read_version(self) -> tuple[str, bytes] | None:
        """Return version and content of the record; None if there is none."""

    def _verify_conditional_writes(self) -> None:
        """Raise Rejected if the store writes although the condition does not hold."""

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
        self._renewer = self._new_renewer()
        self._renewer.start()
        return True

    def _is_free(self, version: str, body: bytes) -> bool:
        """True if the lock may be taken.

        It is free, this process failed to release it, its holder is dead, or its renewal is long overdue.
        """
        try:
            holder = json.loads(body)
            if holder.get("free") or holder["token"] in _unreleased_tokens:
                return True
            process = holder["process"] and Process(**holder["process"])
        except (ValueError, KeyError, TypeError):
            process = None  # not written by lakefold
        if process and process.is_dead:
            log.warning("%s: taking over the lock of %s, which died", self._table.name, process)
            return True
        seen_version, since = _observed_versions.get(self._lock_key(), ("", 0.0))
        now = time.monotonic()
        if seen_version != version:
            _observed_versions[self._lock_key()] = version, now
            return False
        if now - since < TAKEOVER_TIMEOUT.total_seconds():
            return False
        silence = format_duration(TAKEOVER_TIMEOUT)
        log.warning(
            "%s: taking over a lock that was not renewed for %s: %s", self._table.name, silence, self._describe_holder()
        )
        return True

    def _new_renewer(self) -> Renewer:
        return Renewer(f"lakefold's own lock on {self._table.name}", self._renew, interval=RENEWAL_INTERVAL)

    def _loss_reason(self) -> str | None:
        return self._renewer.renew_now()

    def _renew(self) -> str | None:
        """Replace the record, which only the lock's holder can do."""
        if self._version is not None:
            self._version = self._compare_and_set(self._owner_record | {"renewal": uuid.uuid4().hex}, self._version)
        return None if self._version is not None else f"{self._display_path()} was taken over or replaced"

    def _on_thread_unanswered(self, java_thread: JavaThread) -> None:
        # The lock is renewed until the Java process has ended, regardless of its connection. If the end can't be
        # observed, renewal stops and the record expires.
        if java_thread.process is None:
            self._renewer.close()

    def _unlock(self) -> None:
        self._renewer.close()
        version, self._version = self._version, None
        if version is None:
            return
        try:
            if self._compare_and_set({"free": True, "token": uuid.uuid4().hex}, version) is None:
                log.error("%s: lakefold's own lock was taken over while it was held", self._table.name)
        except Exception as error:
            _unreleased_tokens.add(str(self._owner_record["token"]))
            log.warning("%s: could not release lakefold's own lock: %s", self._table.name, error)

    def _read_owner_record(self) -> bytes:
        found = self._read_version()
        return found[1] if found else b""
