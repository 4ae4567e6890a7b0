# SPDX-License-Identifier: Apache-2.0
"""Checks whether the kernel's file locks on a table are shared by all hosts."""

from collections.abc import Iterator
from pathlib import Path

from lake.storage.mounts import mount_with_host_locks

_NO_EXCLUSION = "so nothing excludes a second lakefold process"


def unshared_lock_refusals(path: str | Path) -> Iterator[str]:
    """Yield the refusal of a table at ``path`` whose kernel locks are not shared by all hosts; nothing if they are."""
    found = mount_with_host_locks(str(path))
    if found is not None:
        yield (
            f"{path} is on a mount ({found}) whose locks no other host sees, {_NO_EXCLUSION}; mount it with shared "
            "locks (NFS: without nolock and local_lock), or give the table's location on S3 as s3://"
        )


def missing_lock_refusal(path: str | Path, message: str) -> str:
    """Return the refusal of a table whose file system has no locks; ``message`` is its error for a lock on ``path``."""
    return f"the file system of {path} has no locks ({message}), {_NO_EXCLUSION}; mount it with locks"
