# SPDX-License-Identifier: Apache-2.0
"""lakefold's own lock for a table on a file system: the kernel's lock on a file, which network mounts share.

The Java process holds it, since that process commits and may outlive this one by seconds. The kernel releases the lock
when that process ends and never before: nothing expires, nothing has to be cleaned up, and a stopped process keeps the
lock.

The file is never deleted. Otherwise another process would create a new file at the path and lock that one, although the
deleted file is still locked. The holder writes into the file and then reads it by its path. This verifies that the
locked file is the one that other processes try to lock.
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

#: the locked byte is beyond the content, so that the content can be read everywhere
_LOCKED_BYTE = 1 << 40
_LOCKING_UNSUPPORTED_MESSAGES = ("No locks available", "not supported", "not implemented", "Invalid argument")


class FileLock(LakefoldLock):
    """The lock of the table at the local path ``base``."""

    def __init__(self, table: TableRef, base: str, jvm: Any) -> None:
        super().__init__(table, jvm)
        self._path = Path(base) / LOCK_FILE
        #: the locked file, open in the Java process
        self._file: Any = None
        self._owner_record: dict[str, object] = {}

    def _lock_key(self) -> Hashable:
        """Return the file's device and inode.

        All users of one file in this process need one key, under whatever path they open it: if one of them closed the
        file, the kernel would end the lock of the whole Java process.
        """
        # Parents are not created: a dropped table must not reappear as a directory.
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
            # On a network file system that has lost the lock the write fails.
            return None if self._is_visible_by_path() else f"{self._path} was deleted or replaced"
        except Exception as error:
            if is_unanswered(error):
                raise
            return root_message(error, java_cause_chain(error))

    def _is_visible_by_path(self) -> bool:
        """True if other processes that open the path read the content written into the locked file."""
        # The token is new each time, since a copy of the file has the old one.
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
        """Keep the file open: the kernel keeps the lock until the Java process ends or closes the file."""

    def _unlock(self) -> None:
        file, self._file = self._file, None
        try:
            if file is not None:
                file.close()
        except Exception as error:
            if not is_unanswered(error):  # else the process has ended, which released the lock
                raise

    def _read_owner_record(self) -> bytes:
        return self._path.read_bytes()
