# SPDX-License-Identifier: Apache-2.0
"""lakefold's own lock for a table on HDFS: one file per version; the file with the highest number counts.

HDFS can't replace a file conditionally, but it renames a file only to a free name. A version is therefore written under
a unique name and renamed to the number after the version that it replaces. Of several processes only one gets that
name. Older versions are deleted afterwards. A process that was stopped meanwhile may get a number that is free again;
it then finds a higher number and gives up. The highest number never decreases.
"""

import json
import uuid
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

from lake.errors import Rejected, Transient
from lake.formats.hudi.client.locks.base import LOCK_FILE
from lake.formats.hudi.client.locks.renewed import RenewedLock
from lake.formats.hudi.files.storage import TableStorage
from lake.model import TableRef
from lake.storage.hdfs import client, errors_with_errno

_DIRECTORY, _, _NAME = LOCK_FILE.rpartition("/")


class HdfsLock(RenewedLock):
    """The lock of the table in ``storage``."""

    def __init__(self, table: TableRef, storage: TableStorage, jvm: Any) -> None:
        super().__init__(table, jvm)
        self._storage = storage
        self._client = client(storage.location)
        self._directory = storage.path(_DIRECTORY)

    def _lock_key(self) -> Hashable:
        return self._storage.location

    def _display_path(self) -> str:
        return self._storage.display_path(LOCK_FILE)

    def _compare_and_set(self, record: dict[str, object], version: str | None) -> str | None:
        number = 1 if version is None else int(version) + 1
        content = json.dumps(record).encode()
        draft = f"{self._directory}/.{_NAME}.{uuid.uuid4().hex}"
        with self._translated_errors():
            # Only the lock's directory is created: a dropped table must not reappear.
            self._client.mkdirs(self._directory)
            with self._client.create(draft) as file:
                file.write(content)
            try:
                self._client.rename(draft, self._version_path(number))
            except FileExistsError:
                self._client.delete(draft)
                # The existing file may be this process's own: a rename whose answer was lost is repeated, and the
                # repetition finds the file of the first call.
                found = self._read_version()
                return found[0] if found is not None and found[1] == content else None
            numbers = self._list_version_numbers()
            if max(numbers, default=0) != number:
                self._client.delete(self._version_path(number))
                return None
            for old in numbers:
                if old < number:
                    self._client.delete(self._version_path(old))
        return str(number)

    def _read_version(self) -> tuple[str, bytes] | None:
        with self._translated_errors():
            while numbers := self._list_version_numbers():
                try:
                    return str(max(numbers)), bytes(self._client.read(self._version_path(max(numbers))).read())
                except FileNotFoundError:
                    continue  # a higher version replaced it meanwhile
        return None

    def _list_version_numbers(self) -> list[int]:
        try:
            names = [one.path.rpartition("/")[2] for one in self._client.list_status(self._directory)]
        except FileNotFoundError:
            return []
        numbers = [name.removeprefix(f"{_NAME}.") for name in names if name.startswith(f"{_NAME}.")]
        return [int(number) for number in numbers if number.isdecimal()]

    def _version_path(self, number: int) -> str:
        return f"{self._directory}/{_NAME}.{number}"

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            with errors_with_errno():
                yield
        except PermissionError as error:
            raise Rejected(
                f"{self._table.name}: {self._display_path()}: {error.strerror}; let lakefold's user write to it"
            ) from error
        except OSError as error:
            raise Transient(f"{self._table.name}: {self._display_path()}: {error.strerror or error}") from error
