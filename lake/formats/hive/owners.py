# SPDX-License-Identifier: Apache-2.0
"""Owner, group, mode and access list of what is replaced, for what takes its place (rule 13)."""

import os
import pwd
from pathlib import Path

from lake.errors import Rejected

_ACCESS_LISTS = ("system.posix_acl_access", "system.posix_acl_default")


def check_owner(what: str, path: str) -> None:
    """Raise Rejected where lakefold can't make something that belongs to the owner of ``path``, or may not write it."""
    owner, me = os.stat(path).st_uid, os.geteuid()
    if me not in (0, owner):
        raise Rejected(
            f"{what}: {path} belongs to {_name(owner)}, and lakefold runs as {_name(me)}: what it writes could not be "
            f"overwritten by its owner; run lakefold's executors as {_name(owner)}"
        )
    if not os.access(path, os.W_OK | os.X_OK):
        raise Rejected(f"{what}: lakefold may not write to {path}; allow {_name(me)} to")


def take_after(path: Path, model: str) -> None:
    """Give a file or directory what its ``model`` has."""
    status = os.stat(model)
    now = path.stat()
    if (now.st_uid, now.st_gid) != (status.st_uid, status.st_gid):
        try:
            os.chown(path, status.st_uid if os.geteuid() == 0 else -1, status.st_gid)
        except PermissionError as error:
            raise Rejected(
                f"{path} can't be given the group of {model} ({status.st_gid}): make {_name(os.geteuid())} a member"
            ) from error
    for name in _ACCESS_LISTS:
        try:
            _take_list(path, name, _attribute(model, name))
        except OSError as error:
            raise Rejected(
                f"{path} can't be given the access list of {model} ({error.strerror}): run lakefold's executors as "
                f"{_name(status.st_uid)}"
            ) from error
    path.chmod(status.st_mode & 0o7777)


def _take_list(path: Path, name: str, wanted: bytes | None) -> None:
    """Give it the access list; or none, where it has one of the directory that it was made in."""
    if wanted is not None:
        os.setxattr(path, name, wanted)
    elif _attribute(str(path), name) is not None:
        os.removexattr(path, name)


def _attribute(path: str, name: str) -> bytes | None:
    try:
        return os.getxattr(path, name)
    except OSError:  # it has none, or the file system knows none
        return None


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)
