# SPDX-License-Identifier: Apache-2.0
"""What a process calls itself in the database, and whether the process of such a name is gone."""

import os
import socket
import time
from pathlib import Path

#: process start times come from the kernel's ticks and the boot time in whole seconds
_CLOCK_SLACK_SECONDS = 2.0


def executor_name() -> str:
    """What this process calls itself in the database: host, process id and a moment, never the same twice."""
    return f"{socket.gethostname()}/{os.getpid()}/{time.time_ns() // 1_000_000:x}"


def is_gone(executor: str) -> bool:
    """Whether the process that called itself ``executor`` is known to have ended.

    False for another host's, and for names that are none of ours: nothing can be known of those.
    """
    try:
        host, pid_text, moment = executor.rsplit("/", 2)
        pid, named_at = int(pid_text), int(moment, 16) / 1000
    except ValueError:
        return False
    if host != socket.gethostname():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # it is there, and somebody else's
    started_at = _started_at(pid)
    # The name was made after its process started; one that started later only has the same number.
    return started_at is not None and started_at > named_at + _CLOCK_SLACK_SECONDS


def _started_at(pid: int) -> float | None:
    """When a process started, in seconds since 1970; infinity where it has ended, None where nobody can tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
    except (OSError, StopIteration):
        return None
    if fields[0] in "ZX":  # ended, and only not yet waited for
        return float("inf")
    return int(boot.split()[1]) + int(fields[19]) / os.sysconf("SC_CLK_TCK")
