# SPDX-License-Identifier: Apache-2.0
"""Files of local and mounted file systems, as ``lake.storage.files`` defines them."""

import ctypes
import errno
import os
import pwd
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from lake.errors import Rejected
from lake.storage.files import FileEntry

#: the arguments of Linux's renameat2(2) for paths from the working directory, and for an exchange of two names
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
#: errors of a kernel, C library or file system without an exchange of names
_NO_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP)
_ACL_ATTRIBUTES = ("system.posix_acl_access", "system.posix_acl_default")


class LocalFileIO:
    """See ``lake.storage.files.FileIO``."""

    has_arrival_times = True

    def list(self, directory: str) -> Sequence[FileEntry]:
        found = []
        with os.scandir(directory) as entries:
            for entry in entries:
                # Skip a file that was removed after its name was read, as other file systems do, and dangling links.
                with suppress(FileNotFoundError):
                    found.append(_entry(entry.path, entry.stat(), is_directory=entry.is_dir()))
        return found

    def status(self, path: str) -> FileEntry:
        return _entry(path, os.stat(path), is_directory=os.path.isdir(path))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def read_tail(self, path: str, count: int) -> bytes:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - count))
            return file.read(count)

    def read(self, path: str) -> bytes:
        return Path(path).read_bytes()

    def write(self, path: str, content: bytes) -> None:
        scratch = _temporary_path(path)
        try:
            with scratch.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            scratch.rename(path)
        except OSError:
            scratch.unlink(missing_ok=True)
            raise
        self.sync(os.path.dirname(path))

    def make_directory(self, path: str) -> None:
        os.mkdir(path)

    def make_directories(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def replace(self, source: str, target: str) -> None:
        """See ``FileIO``. Exchanges the names where the kernel and the file system can do that."""
        if not _exchange_names(source, target):
            os.stat(target)
            os.rename(source, target)

    def link_or_copy(self, source: str, target: str) -> None:
        try:
            os.link(source, target)
        except (FileNotFoundError, FileExistsError):
            raise
        except OSError:
            if os.path.exists(target):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target) from None
            scratch = _temporary_path(target)
            try:
                shutil.copy2(source, scratch)
                self.sync(str(scratch))
                scratch.rename(target)
            except OSError:
                scratch.unlink(missing_ok=True)
                raise

    def sync(self, path: str) -> None:
        sync_path(path)

    def delete_data_file(self, path: str) -> None:
        self.remove_own_file(path)
        # The checksum file that Hadoop writes beside every file of a local file system.
        directory, _, name = path.rpartition("/")
        try:
            self.remove_own_file(f"{directory}/.{name}.crc")
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:  # then Hadoop could not write such a file either
                raise

    def remove_own_file(self, path: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(path)

    def remove_empty_directory(self, directory: str) -> None:
        os.rmdir(directory)

    def remove_own_tree(self, directory: str) -> None:
        shutil.rmtree(directory, ignore_errors=True)

    def check_owner(self, subject: str, path: str) -> None:
        owner, me = os.stat(path).st_uid, os.geteuid()
        if me not in (0, owner):
            raise Rejected(
                f"{subject}: {path} belongs to {_user_name(owner)}, and lakefold runs as {_user_name(me)}: its owner "
                f"could not overwrite lakefold's files; run lakefold's executors as {_user_name(owner)}"
            )
        if not os.access(path, os.W_OK | os.X_OK):
            raise Rejected(f"{subject}: lakefold may not write to {path}; allow {_user_name(me)} to")

    def copy_permissions(self, path: str, reference: str) -> None:
        status, now = os.stat(reference), os.stat(path)
        if (now.st_uid, now.st_gid) != (status.st_uid, status.st_gid):
            try:
                os.chown(path, status.st_uid if os.geteuid() == 0 else -1, status.st_gid)
            except PermissionError as error:
                raise Rejected(
                    f"{path} can't be given the group of {reference} ({status.st_gid}): "
                    f"make {_user_name(os.geteuid())} a member"
                ) from error
        for name in _ACL_ATTRIBUTES:
            try:
                _set_acl(path, name, _read_attribute(reference, name))
            except OSError as error:
                raise Rejected(
                    f"{path} can't be given the access list of {reference} ({error.strerror}): "
                    f"run lakefold's executors as {_user_name(status.st_uid)}"
                ) from error
        os.chmod(path, status.st_mode & 0o7777)


def sync_path(path: str) -> None:
    """Make a file, or the names in a directory, survive a power failure."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _entry(path: str, status: os.stat_result, *, is_directory: bool) -> FileEntry:
    return FileEntry(
        path=path,
        bytes=status.st_size,
        modified_ns=status.st_mtime_ns,
        arrived_ns=max(status.st_mtime_ns, status.st_ctime_ns),
        is_directory=is_directory,
    )


def _exchange_names(one: str, other: str) -> bool:
    """Exchange the names of two files in one step. Returns False if that is not possible here.

    Raises FileNotFoundError if one of them is missing, and OSError like a rename.
    """
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:  # the C library is older than glibc 2.28, or the system is not Linux
        return False
    if renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _NO_EXCHANGE:
        return False
    raise OSError(number, os.strerror(number), one, None, other)


def _temporary_path(path: str) -> Path:
    target = Path(path)
    return target.with_name(f".{target.name}")


def _set_acl(path: str, name: str, wanted: bytes | None) -> None:
    """Set the access list; with None remove a list that the path inherited from its directory."""
    if wanted is not None:
        os.setxattr(path, name, wanted)
    elif _read_attribute(path, name) is not None:
        os.removexattr(path, name)


def _read_attribute(path: str, name: str) -> bytes | None:
    try:
        return os.getxattr(path, name)
    except OSError:  # it has none, or the file system does not support them
        return None


def _user_name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)
