# SPDX-License-Identifier: Apache-2.0
"""lakefold's own lock where a table is on a file system: the kernel's lock on a file, which network mounts share.

The Java process holds it, because it is that one which commits, and which may outlive this one by seconds. The kernel
gives the lock back in the moment in which that process ends and never before: nothing expires, nothing has to be
cleaned up, and whoever is stopped in the middle goes on holding it.

The file is never deleted, since a lock on a file without a name excludes nobody. The holder writes into it and then
reads it by its name: so it knows that what it has locked is what everybody else will try to lock.
"""

import json
import os
import uuid
from collections.abc import Hashable
from contextlib import suppress
from pathlib import Path
from typing import Any

from lake.errors import Rejected
from lake.formats.hudi.client.locks.base import LOCK_FILE, LakefoldLock
from lake.formats.hudi.jvm.errors import is_unanswered, java_cause_chain, root_message
from lake.formats.hudi.jvm.java_thread import JavaThread
from lake.formats.hudi.lock_settings.mounts import missing_lock_refusal, unshared_lock_refusals
from lake.model import TableRef

#: the byte that is locked lies behind what is written, which can be read everywhere then
_LOCKED_BYTE = 1 << 40
_LOCKING_UNSUPPORTED_MESSAGES = ("No locks available", "not supported", "not implemented", "Invalid argument")


class FileLock(LakefoldLock):
    """The lock of the table at the local path ``base``."""

    def __init__(self, table: TableRef, base: str, jvm: Any) -> None:
        super().__init__(table, jvm)
        self._path = Path(base) / LOCK_FILE
        #: the locked file as the Java process has it open
        self._file: Any = None
        self._owner_record: dict[str, object] = {}

    def _lock_key(self) -> Hashable:
        """The very file, whatever name of it the table has: closing it anywhere in the JVM would unlock it."""
        # Not its parents: a table that was dropped must not come back as a directory.
        with suppress(FileExistsError):
            self._path.parent.mkdir()
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            status = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        return status.st_dev, status.st_ino

    def _try_lock(self, owner_record: dict[str, object]) -> bool:
        for refusal in unshared_lock_refusals(self._path):
            raise Rejected(f"{self._table.name}: {refusal}")
        self._file = self._jvm.java.io.RandomAccessFile(str(self._path), "rw")
        try:
            if self._file.getChannel().tryLock(_LOCKED_BYTE, 1, False) is None:
                return False
        except Exception as error:
            for name, message in java_cause_chain(error):
                if name.endswith("OverlappingFileLockException"):
                    return False
                if any(text in message for text in _LOCKING_UNSUPPORTED_MESSAGES):
                    raise Rejected(f"{self._table.name}: {missing_lock_refusal(self._path, message)}") from error
            raise
        self._owner_record = owner_record
        return self._is_visible_by_path()

    def _loss_reason(self) -> str | None:
        try:
            # A network file system that has lost our lock answers a write with an error.
            return None if self._is_visible_by_path() else f"{self._path} was deleted or replaced"
        except Exception as error:
            if is_unanswered(error):
                raise
            return root_message(error, java_cause_chain(error))

    def _is_visible_by_path(self) -> bool:
        """Whether what is written into the locked file is what others find."""
        # New each time: a copy of the file is not the file.
        signature = f"{json.dumps(self._owner_record | {'token': uuid.uuid4().hex})}\n".encode()
        self._file.seek(0)
        self._file.write(signature)
        self._file.setLength(len(signature))
        self._file.getFD().sync()
        try:
            return self._read_owner_record() == signature
        except FileNotFoundError:
            return False

    def _on_thread_unanswered(self, java_thread: JavaThread) -> None:
        """The file stays open, so that the kernel keeps the lock until the Java process ends or closes it."""

    def _unlock(self) -> None:
        file, self._file = self._file, None
        try:
            if file is not None:
                file.close()
        except Exception as error:
            if not is_unanswered(error):  # the process has ended and so gave it back
                raise

    def _read_owner_record(self) -> bytes:
        return self._path.read_bytes()
