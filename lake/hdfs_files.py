# SPDX-License-Identifier: Apache-2.0
"""Files on HDFS, as ``lake.files`` asks for them.

A file has one name there, and no time at which it came under it; that of its directory says when the last one did.
"""

import errno
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from lake import hdfs
from lake.errors import Rejected
from lake.files import Entry
from lake.hdfs import outcomes, path_of

if TYPE_CHECKING:
    from hdfs_native import AclEntry, FileStatus


class HdfsFiles:
    """See ``lake.files.Files``; of the name service of ``location``. Raises Rejected where it can't be known."""

    tells_arrivals = False

    def __init__(self, location: str) -> None:
        self._client = hdfs.client(location)
        self._root = location.removesuffix(path_of(location)).rstrip("/")

    def list(self, directory: str) -> Sequence[Entry]:
        """See ``Files``."""
        with outcomes():
            found = list(self._client.list_status(path_of(directory)))
        return [_entry(f"{self._root}{one.path}", one) for one in found]

    def status(self, path: str) -> Entry:
        """See ``Files``."""
        return _entry(path, self._status(path))

    def exists(self, path: str) -> bool:
        """See ``Files``."""
        try:
            self._status(path)
        except FileNotFoundError:
            return False
        return True

    def end(self, path: str, count: int) -> bytes:
        """See ``Files``."""
        with outcomes():
            file = self._client.read(path_of(path))
            size = len(file)
            return bytes(file.read_range(max(0, size - count), min(count, size)))

    def read(self, path: str) -> bytes:
        """See ``Files``."""
        with outcomes():
            return bytes(self._client.read(path_of(path)).read())

    def write(self, path: str, content: bytes) -> None:
        """See ``Files``."""
        from hdfs_native import WriteOptions

        scratch = _scratch(path)
        with outcomes():
            with self._client.create(path_of(scratch), WriteOptions(overwrite=True, create_parent=False)) as file:
                file.write(content)
                file.hsync()
            self._client.rename(path_of(scratch), path_of(path), overwrite=True)

    def make_directory(self, path: str) -> None:
        """See ``Files``."""
        if self.exists(path):
            raise FileExistsError(errno.EEXIST, "it is there already", path)
        with outcomes():
            self._client.mkdirs(path_of(path), create_parent=False)

    def make_directories(self, path: str) -> None:
        """See ``Files``."""
        with outcomes():
            self._client.mkdirs(path_of(path), create_parent=True)

    def rename(self, source: str, target: str) -> None:
        """See ``Files``."""
        with outcomes():
            self._client.rename(path_of(source), path_of(target), overwrite=True)

    def second_name(self, source: str, target: str) -> None:
        """See ``Files``. A copy of the same time."""
        scratch = _scratch(target)
        self.remove(scratch)
        hdfs.copy(self._client, path_of(source), path_of(scratch))
        self.take_after(scratch, source)
        with outcomes():
            known = self._client.get_file_info(path_of(source))
            self._client.set_times(path_of(scratch), known.modification_time, known.access_time)
            self._client.rename(path_of(scratch), path_of(target))

    def sync(self, path: str) -> None:
        """See ``Files``. A NameNode has its journal on disk before it answers; blocks are their replicas' to keep."""

    def delete(self, path: str) -> None:
        """See ``Files``. Into the trash, where the cluster has one: so its administrators want it."""
        from hdfs_native import TrashNotEnabledError

        try:
            with outcomes():
                self._client.trash(path_of(path))
        except TrashNotEnabledError:
            self.remove(path)
        except FileNotFoundError:
            return
        except PermissionError as error:
            raise Rejected(
                f"{path} can't be moved into the trash of this cluster ({error.strerror}): make a directory below "
                "/user for lakefold's user"
            ) from error

    def remove(self, path: str) -> None:
        """See ``Files``."""
        with outcomes():
            self._client.delete(path_of(path), False)

    def remove_empty(self, directory: str) -> None:
        """See ``Files``."""
        with outcomes():
            self._client.delete(path_of(directory), False)

    def remove_tree(self, directory: str) -> None:
        """See ``Files``."""
        with suppress(OSError), outcomes():
            self._client.delete(path_of(directory), True)

    def check_owner(self, what: str, path: str) -> None:
        """See ``Files``. Only the NameNode knows whom it takes lakefold for, and says so when asked for more."""
        try:
            self._status(path)
        except PermissionError as error:
            raise Rejected(f"{what}: lakefold may not look at {path} ({error.strerror})") from error

    def take_after(self, path: str, model: str) -> None:
        """See ``Files``."""
        wanted, now = self._status(model), self._status(path)
        try:
            if (now.owner, now.group) != (wanted.owner, wanted.group):
                with outcomes():
                    self._client.set_owner(
                        path_of(path),
                        wanted.owner if now.owner != wanted.owner else None,
                        wanted.group if now.group != wanted.group else None,
                    )
            if now.permission != wanted.permission:
                with outcomes():
                    self._client.set_permission(path_of(path), wanted.permission)
            self._take_lists(path, model, wanted.permission)
            if not wanted.isdir and not now.isdir and now.replication != wanted.replication:
                with outcomes():
                    self._client.set_replication(path_of(path), int(wanted.replication or 1))
        except PermissionError as error:
            _refuse(path, model, wanted, now, error)

    def _take_lists(self, path: str, model: str, permission: int) -> None:
        wanted, now = self._lists(model), self._lists(path)
        if [_told(one) for one in wanted] == [_told(one) for one in now]:
            return
        from hdfs_native import AclEntry

        with outcomes():
            if not wanted:
                self._client.remove_acl(path_of(path))
                self._client.set_permission(path_of(path), permission)
                return
            scopes = {one.scope for one in wanted}
            own = [
                AclEntry("user", "access", _ACTIONS[permission >> 6 & 7]),
                AclEntry("other", "access", _ACTIONS[permission & 7]),
            ]
            # With a list the mode's middle digit is its mask; without one it is the group's.
            own.append(AclEntry("mask" if "access" in scopes else "group", "access", _ACTIONS[permission >> 3 & 7]))
            self._client.set_acl(path_of(path), [*wanted, *own])

    def _lists(self, path: str) -> "Sequence[AclEntry]":
        try:
            with outcomes():
                return list(self._client.get_acl_status(path_of(path)).entries)
        except PermissionError:
            raise
        except OSError:  # the NameNode knows none
            return ()

    def _status(self, path: str) -> "FileStatus":
        with outcomes():
            return self._client.get_file_info(path_of(path))


_ACTIONS = ("---", "--x", "-w-", "-wx", "r--", "r-x", "rw-", "rwx")


def _refuse(path: str, model: str, wanted: "FileStatus", now: "FileStatus", error: PermissionError) -> NoReturn:
    raise Rejected(
        f"{path} can't be given what {model} has, which belongs to {wanted.owner}:{wanted.group} ({error.strerror}), "
        f"and lakefold is {now.owner} there: its owner could not overwrite what lakefold writes; run lakefold's "
        f"executors as {wanted.owner}, as a member of {wanted.group}, or as a superuser of HDFS"
    ) from error


def _told(entry: "AclEntry") -> tuple[str, str, str, str | None]:
    return entry.type, entry.scope, entry.permissions, entry.name


def _scratch(path: str) -> str:
    directory, _, name = path.rpartition("/")
    return f"{directory}/.{name}"


def _entry(path: str, status: "FileStatus") -> Entry:
    modified = status.modification_time * 1_000_000
    return Entry(path=path, bytes=status.length, modified_ns=modified, came_ns=modified, is_directory=status.isdir)
