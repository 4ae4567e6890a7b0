# SPDX-License-Identifier: Apache-2.0
"""lakefold's own lock where a table is on S3: an object that is only ever replaced by whoever knows what is in it.

It is taken, renewed and given back by conditional writes (``If-None-Match`` for the first one ever, ``If-Match`` for
all others), so that of several processes that try at once the store lets one through. It is never deleted.

Nothing frees it where its holder dies. Another process takes it over where the holder is proved dead, which its own
host, boot and process namespace can do, or where it has watched the object for ``SILENCE`` without a renewal, by its
own clock. A holder whose renewals fail does not begin to commit. What remains is a process that is stopped as a whole,
or cut off from the store, inside its commit for longer than ``SILENCE``, and then goes on.
"""

import json
import logging
import threading
import time
import uuid
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from lake import s3
from lake.errors import LakefoldError, Rejected, Transient
from lake.formats.hudi.client.exclusion import FILE, Exclusion
from lake.identity import Process
from lake.model import TableRef
from lake.units import format_duration

log = logging.getLogger(__name__)
RENEWAL = timedelta(seconds=10)
#: how long the object must not have changed before it is taken from a holder of whom nothing is known
SILENCE = timedelta(minutes=10)

#: objects as they were last found held, with when that was seen first; by place
_watched: dict[Hashable, tuple[str, float]] = {}
#: what this process could not give back
_abandoned: set[str] = set()
#: buckets whose stores were seen to refuse a write whose condition does not hold
_proved: set[str] = set()


class ObjectExclusion(Exclusion):
    """The lock of the table at ``base``, a bucket and the key in it."""

    def __init__(self, table: TableRef, base: str, jvm: Any) -> None:
        super().__init__(table, jvm)
        self._bucket, _, key = base.partition("/")
        self._key = f"{key}/{FILE}".lstrip("/")
        self._store = s3.access(self._bucket).conditional_store(self._bucket)
        self._claimed: dict[str, object] = {}
        #: the version of the object that is ours; None while it is not
        self._tag: str | None = None
        self._writing = threading.Lock()
        self._stopped = threading.Event()
        self._renewing: threading.Thread | None = None

    def _place(self) -> Hashable:
        return self._bucket, self._key

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
        """Whether the object may be taken: given back, abandoned by us, its holder dead, or silent for long."""
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
            return None if self._tag is not None else f"s3://{self._bucket}/{self._key} was taken over or replaced"

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

    def _prove(self) -> None:
        """Raise Rejected where the store writes although the condition does not hold."""
        if self._bucket in _proved:
            return
        if self._put({"free": True}, None) is not None or self._put({"free": True}, '"0"') is not None:
            self._tag = None
            raise Rejected(self._refusal("writes although If-None-Match or If-Match does not hold"))
        _proved.add(self._bucket)

    def _put(self, body: dict[str, object], tag: str | None) -> str | None:
        """The new version of the object, where it was the version ``tag`` (None: not there at all); else None."""
        from obstore import exceptions

        content = json.dumps(body).encode()
        try:
            mode: Any = "create" if tag is None else {"e_tag": tag}
            return self._tag_of(self._store.put(self._key, content, mode=mode))
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError, FileNotFoundError):
            # Perhaps by ourselves: a write whose answer was lost is repeated, and then meets what it wrote.
            found = self._find()
            return found[0] if found is not None and found[1] == content else None
        except (exceptions.BaseError, OSError, NotImplementedError) as error:
            raise self._outcome(error) from error

    def _find(self) -> tuple[str, bytes] | None:
        """Version and content of the object; None where there is none."""
        from obstore import exceptions

        try:
            found = self._store.get(self._key)
            return self._tag_of(found.meta), bytes(found.bytes())
        except FileNotFoundError:
            return None
        except (exceptions.BaseError, OSError) as error:
            raise self._outcome(error) from error

    def _outcome(self, error: Exception) -> LakefoldError:
        line = str(error).splitlines()[0][:300]
        if "NotImplemented" in str(error) or "501" in line or isinstance(error, NotImplementedError):
            return Rejected(self._refusal(f"knows no conditional writes ({line})"))
        return Transient(f"{self._table.name}: s3://{self._bucket}/{self._key}: {line}")

    def _tag_of(self, answer: Any) -> str:
        tag = answer["e_tag"]
        if not tag:
            raise Rejected(self._refusal("tells no ETag"))
        return str(tag)

    def _refusal(self, rule: str) -> str:
        return (
            f"{self._table.name}: the store of s3://{self._bucket} {rule}, so that nothing keeps two processes of "
            "lakefold apart; use a store with conditional writes, as Amazon S3 has them"
        )

    def _read(self) -> bytes:
        found = self._find()
        return found[1] if found else b""
