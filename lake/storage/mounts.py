# SPDX-License-Identifier: Apache-2.0
"""The kernel's record of the file system that a local path is on."""

import os
import re
from pathlib import Path

#: file systems in user space over object stores or other hosts; on these, each host has locks of its own
_LOCKS_OF_ONE_HOST = frozenset(
    {
        "blobfuse",
        "blobfuse2",
        "fuse-dfs",
        "gcsfuse",
        "geesefs",
        "goofys",
        "mountpoint-s3",
        "ossfs",
        "rclone",
        "s3fs",
        "seaweedfs",
        "sshfs",
    }
)
_OF_ONE_HOST = frozenset({"nolock", "local_lock=all", "local_lock=posix", "localflock"})


def mount_with_host_locks(path: str) -> str | None:
    """Return kind and option of a network mount whose locks other hosts don't see; None if this is not known."""
    kind, options = _mount_of(os.path.realpath(path))
    if kind.removeprefix("fuse.") in _LOCKS_OF_ONE_HOST:
        return kind
    if kind.startswith("nfs") or kind == "lustre":
        found = sorted(_OF_ONE_HOST.intersection(options))
        return f"{kind} with {found[0]}" if found else None
    return None


def _mount_of(path: str) -> tuple[str, list[str]]:
    """Return kind and options of the mount that ``path`` is on; '' and no options if the kernel does not show it."""
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return "", []
    best, found = -1, ("", [""])
    for line in lines:
        mount, _, rest = line.partition(" - ")
        point = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), mount.split()[4])
        kind, _, options = [*rest.split(), "", "", ""][:3]
        # Of two mounts at one path the later one is in effect.
        if (path == point or path.startswith(point.rstrip("/") + "/")) and len(point) >= best:
            best, found = len(point), (kind, options.split(","))
    return found
