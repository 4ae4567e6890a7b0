# SPDX-License-Identifier: Apache-2.0
"""The CPU time and memory of a process, from Linux's /proc."""

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
