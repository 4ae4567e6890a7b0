# SPDX-License-Identifier: Apache-2.0
"""What a process calls itself in the database, and whether the process of such a name is gone."""

import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path

#: process start times come from the kernel's ticks and the boot time in whole seconds
_CLOCK_SLACK_SECONDS = 2.0


def executor_name() -> str:
    """What this process calls itself in the database: host, process id and a moment, never the same twice."""
    return f"{socket.gethostname()}/{os.getpid()}/{time.time_ns() // 1_000_000:x}"


@dataclass(frozen=True, slots=True)
class KernelProcess:
    """What the kernel tells of a process of this host. ``started_ticks`` counts from its boot."""

    ended: bool
    started_ticks: int


def process_of(pid: int) -> KernelProcess | None:
    """The process ``pid``; None where there is none, or no Linux to tell. Raises OSError where it may not be seen."""
    try:
        # The name before the last bracket may itself hold brackets and blanks.
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # Z and X: ended, and only not yet waited for.
    return KernelProcess(ended=state in "ZX", started_ticks=int(fields[18]))


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
        process = process_of(pid)
        boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
    except (OSError, StopIteration):
        return None
    if process is None:
        return None
    if process.ended:
        return float("inf")
    return int(boot.split()[1]) + process.started_ticks / os.sysconf("SC_CLK_TCK")
