# SPDX-License-Identifier: Apache-2.0
"""The CPU time and memory of processes, from Linux's /proc."""

import os
from pathlib import Path


def cpu_seconds(process: int | str) -> float:
    """Return the CPU seconds of a process since its start."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(process: int | str, key: str) -> int:
    """Return the resident bytes of a process now (VmRSS), or their maximum since the last reset (VmHWM)."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"{key} is read from /proc, which this system does not have")


def cpu_seconds_of_tree() -> float:
    """Return the CPU seconds of this process and its descendants, ended descendants included."""
    fields = [_stat(pid)[11:15] for pid in ("self", *_descendants())]
    return sum(sum(map(int, some)) for some in fields) / os.sysconf("SC_CLK_TCK")


def peak_mib_of_tree() -> float:
    """Return the peak of resident MiB of the largest process among this one and its descendants."""
    return max(_peak_mib(pid) for pid in ("self", *_descendants()))


def _descendants() -> list[str]:
    """Return the ids of all descendants of this process."""
    stats = {entry.name: _stat(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()}
    found = [str(os.getpid())]
    for pid in found:
        found += [child for child, stat in stats.items() if stat and stat[1] == pid]
    return found[1:]


def _stat(pid: str) -> list[str]:
    """Return the fields of the process's /proc stat file, beginning with its state."""
    return _of_process(pid, "stat").rpartition(")")[2].split()


def _peak_mib(pid: str) -> float:
    lines = _of_process(pid, "status").splitlines()
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), 0.0)


def _of_process(pid: str, name: str) -> str:
    """Return the content of a file in the process's /proc directory, '' if the process has ended."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError:
        return ""
