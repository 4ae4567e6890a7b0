# SPDX-License-Identifier: Apache-2.0
"""lakefold's own lock for a table on S3: an object.

Its writes are conditional (``If-None-Match`` for the first write, ``If-Match`` for all others). It is never deleted.
"""

import json
from collections.abc import Hashable
from typing import Any

from lake.errors import LakefoldError, Rejected, Transient
from lake.formats.hudi.client.locks.base import LOCK_FILE
from lake.formats.hudi.client.locks.renewed import RenewedLock
from lake.model import TableRef
from lake.storage import s3

#: buckets whose stores are verified to refuse a write whose condition does not hold
_verified_buckets: set[str] = set()


class ObjectStoreLock(RenewedLock):
    """The lock of the table at ``base``, a bucket and the key in it."""

    def __init__(self, table: TableRef, base: str, jvm: Any) -> None:
        super().__init__(table, jvm)
        self._bucket, _, key = base.partition("/")
        self._key = f"{key}/{LOCK_FILE}".lstrip("/")
        self._store = s3.access(self._bucket).conditional_store(self._bucket)

    def _lock_key(self) -> Hashable:
        return self._bucket, self._key

    def _display_path(self) -> str:
        return f"s3://{self._bucket}/{self._key}"

    def _verify_conditional_writes(self) -> None:
        """Raise Rejected if the store writes although the condition does not hold."""
        if self._bucket in _verified_buckets:
            return
        if (
            self._compare_and_set({"free": True}, None) is not None
            or self._compare_and_set({"free": True}, '"0"') is not None
        ):
            self._version = None
            raise Rejected(self._refusal("writes although If-None-Match or If-Match does not hold"))
        _verified_buckets.add(self._bucket)

    def _compare_and_set(self, record: dict[str, object], version: str | None) -> str | None:
        from obstore import exceptions

        content = json.dumps(record).encode()
        try:
            mode: Any = "create" if version is None else {"e_tag": version}
            return self._etag_of(self._store.put(self._key, content, mode=mode))
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError, FileNotFoundError):
            # The existing object may be this process's own: a write whose answer was lost is repeated, and the
            # repetition finds the object of the first call.
            found = self._read_version()
            return found[0] if found is not None and found[1] == content else None
        except (exceptions.BaseError, OSError, NotImplementedError) as error:
            raise self._translate_error(error) from error

    def _read_version(self) -> tuple[str, bytes] | None:
        from obstore import exceptions

        try:
            found = self._store.get(self._key)
            return self._etag_of(found.meta), bytes(found.bytes())
        except FileNotFoundError:
            return None
        except (exceptions.BaseError, OSError) as error:
            raise self._translate_error(error) from error

    def _translate_error(self, error: Exception) -> LakefoldError:
        line = str(error).splitlines()[0][:300]
        if "NotImplemented" in str(error) or "501" in line or isinstance(error, NotImplementedError):
            return Rejected(self._refusal(f"supports no conditional writes ({line})"))
        return Transient(f"{self._table.name}: {self._display_path()}: {line}")

    def _etag_of(self, answer: Any) -> str:
        tag = answer["e_tag"]
        if not tag:
            raise Rejected(self._refusal("returns no ETag"))
        return str(tag)

    def _refusal(self, rule: str) -> str:
        return (
            f"{self._table.name}: the store of s3://{self._bucket} {rule}, so nothing excludes a second lakefold "
            "process; use a store with conditional writes, as Amazon S3 has them"
        )
