# SPDX-License-Identifier: Apache-2.0
"""Files on HDFS, as ``lake.storage.files`` defines them.

A file has one name there and no arrival time; its directory's modification time is the arrival time of its last file.
"""

import errno
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from lake.errors import Rejected
from lake.storage import hdfs
from lake.storage.files import FileEntry
from lake.storage.hdfs import errors_with_errno, hdfs_path

if TYPE_CHECKING:
    from hdfs_native import AclEntry, FileStatus


class HdfsFileIO:
    """See ``lake.storage.files.FileIO``; for the name service of ``location``. Raises Rejected if it is unknown."""

    has_arrival_times = False

    def __init__(self, location: str) -> None:
        self._client = hdfs.client(location)
        self._root = location.removesuffix(hdfs_path(location)).rstrip("/")

    def list(self, directory: str) -> Sequence[FileEntry]:
        with errors_with_errno():
            found = list(self._client.list_status(hdfs_path(directory)))
        return [_entry(f"{self._root}{one.path}", one) for one in found]

    def status(self, path: str) -> FileEntry:
        return _entry(path, self._status(path))

    def exists(self, path: str) -> bool:
        try:
            self._status(path)
        except FileNotFoundError:
            return False
        return True

    def read_tail(self, path: str, count: int) -> bytes:
        with errors_with_errno():
            file = self._client.read(hdfs_path(path))
            size = len(file)
            return bytes(file.read_range(max(0, size - count), min(count, size)))

    def read(self, path: str) -> bytes:
        with errors_with_errno():
            return bytes(self._client.read(hdfs_path(path)).read())

    def write(self, path: str, content: bytes) -> None:
        from hdfs_native import WriteOptions

        scratch = _temporary_path(path)
        with errors_with_errno():
            with self._client.create(hdfs_path(scratch), WriteOptions(overwrite=True, create_parent=False)) as file:
                file.write(content)
                file.hsync()
            self._client.rename(hdfs_path(scratch), hdfs_path(path), overwrite=True)

    def make_directory(self, path: str) -> None:
        if self.exists(path):
            raise FileExistsError(errno.EEXIST, "it is there already", path)
        with errors_with_errno():
            self._client.mkdirs(hdfs_path(path), create_parent=False)

    def make_directories(self, path: str) -> None:
        with errors_with_errno():
            self._client.mkdirs(hdfs_path(path), create_parent=True)

    def rename(self, source: str, target: str) -> None:
        with errors_with_errno():
            self._client.rename(hdfs_path(source), hdfs_path(target), overwrite=True)

    def replace(self, source: str, target: str) -> None:
        """See ``FileIO``. HDFS can't exchange two names."""
        self.status(target)
        self.rename(source, target)

    def link_or_copy(self, source: str, target: str) -> None:
        """See ``FileIO``. Makes a copy with the source's times."""
        scratch = _temporary_path(target)
        self.remove_own_file(scratch)
        hdfs.copy_file(self._client, hdfs_path(source), hdfs_path(scratch))
        self.copy_permissions(scratch, source)
        with errors_with_errno():
            known = self._client.get_file_info(hdfs_path(source))
            self._client.set_times(hdfs_path(scratch), known.modification_time, known.access_time)
            self._client.rename(hdfs_path(scratch), hdfs_path(target))

    def sync(self, path: str) -> None:
        """See ``FileIO``. Does nothing: a NameNode syncs its journal before it answers; replicas keep the blocks."""

    def delete_data_file(self, path: str) -> None:
        """See ``FileIO``. Moves the file into the trash if the cluster has one, as its administrators decided."""
        from hdfs_native import TrashNotEnabledError

        try:
            with errors_with_errno():
                self._client.trash(hdfs_path(path))
        except TrashNotEnabledError:
            self.remove_own_file(path)
        except FileNotFoundError:
            return
        except PermissionError as error:
            raise Rejected(
                f"{path} can't be moved into the trash of this cluster ({error.strerror}): make a directory below "
                "/user for lakefold's user"
            ) from error

    def remove_own_file(self, path: str) -> None:
        with errors_with_errno():
            self._client.delete(hdfs_path(path), False)

    def remove_empty_directory(self, directory: str) -> None:
        with errors_with_errno():
            self._client.delete(hdfs_path(directory), False)

    def remove_own_tree(self, directory: str) -> None:
        with suppress(OSError), errors_with_errno():
            self._client.delete(hdfs_path(directory), True)

    def check_owner(self, subject: str, path: str) -> None:
        """See ``FileIO``. Does not compare owners: the NameNode checks permissions at each later operation."""
        try:
            self._status(path)
        except PermissionError as error:
            raise Rejected(f"{subject}: lakefold may not read {path} ({error.strerror})") from error

    def copy_permissions(self, path: str, reference: str) -> None:
        wanted, now = self._status(reference), self._status(path)
        try:
            if (now.owner, now.group) != (wanted.owner, wanted.group):
                with errors_with_errno():
                    self._client.set_owner(
                        hdfs_path(path),
                        wanted.owner if now.owner != wanted.owner else None,
                        wanted.group if now.group != wanted.group else None,
                    )
            if now.permission != wanted.permission:
                with errors_with_errno():
                    self._client.set_permission(hdfs_path(path), wanted.permission)
            self._copy_acl(path, reference, wanted.permission)
            if not wanted.isdir and not now.isdir and now.replication != wanted.replication:
                with errors_with_errno():
                    self._client.set_replication(hdfs_path(path), int(wanted.replication or 1))
        except PermissionError as error:
            _raise_not_permitted(path, reference, wanted, now, error)

    def _copy_acl(self, path: str, model: str, permission: int) -> None:
        wanted, now = self._acl_entries(model), self._acl_entries(path)
        if [_acl_key(one) for one in wanted] == [_acl_key(one) for one in now]:
            return
        from hdfs_native import AclEntry

        with errors_with_errno():
            if not wanted:
                self._client.remove_acl(hdfs_path(path))
                self._client.set_permission(hdfs_path(path), permission)
                return
            scopes = {one.scope for one in wanted}
            own = [
                AclEntry("user", "access", _ACTIONS[permission >> 6 & 7]),
                AclEntry("other", "access", _ACTIONS[permission & 7]),
            ]
            # With an access list the mode's middle digit is the list's mask, otherwise the group's permission.
            own.append(AclEntry("mask" if "access" in scopes else "group", "access", _ACTIONS[permission >> 3 & 7]))
            self._client.set_acl(hdfs_path(path), [*wanted, *own])

    def _acl_entries(self, path: str) -> "Sequence[AclEntry]":
        try:
            with errors_with_errno():
                return list(self._client.get_acl_status(hdfs_path(path)).entries)
        except PermissionError:
            raise
        except OSError:  # the NameNode does not support access lists
            return ()

    def _status(self, path: str) -> "FileStatus":
        with errors_with_errno():
            return self._client.get_file_info(hdfs_path(path))


_ACTIONS = ("---", "--x", "-w-", "-wx", "r--", "r-x", "rw-", "rwx")


def _raise_not_permitted(
    path: str, model: str, wanted: "FileStatus", now: "FileStatus", error: PermissionError
) -> NoReturn:
    raise Rejected(
        f"{path} can't be given the owner and permissions of {model}, which belongs to {wanted.owner}:{wanted.group} "
        f"({error.strerror}); lakefold runs as {now.owner}, so that {wanted.owner} could not overwrite its files; run "
        f"lakefold's executors as {wanted.owner}, as a member of {wanted.group}, or as a superuser of HDFS"
    ) from error


def _acl_key(entry: "AclEntry") -> tuple[str, str, str, str | None]:
    return entry.type, entry.scope, entry.permissions, entry.name


def _temporary_path(path: str) -> str:
    directory, _, name = path.rpartition("/")
    return f"{directory}/.{name}"


def _entry(path: str, status: "FileStatus") -> FileEntry:
    modified = status.modification_time * 1_000_000
    return FileEntry(
        path=path, bytes=status.length, modified_ns=modified, arrived_ns=modified, is_directory=status.isdir
    )
