# SPDX-License-Identifier: Apache-2.0
"""How tests wait for what other threads and processes do: by looking often, never by sleeping for long enough."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: how much slower a shared machine may be
_PATIENCE = 4


def wait_for(
    condition: Callable[[], Any], what: str | Callable[[], str], seconds: float = 30.0, *, every: float = 0.03
) -> Any:
    """Block until ``condition()`` is true; its value. ``what`` says what was missing, or finds it out.

    ``seconds`` are those of a machine that has nothing else to do.
    """
    deadline = time.monotonic() + seconds * _PATIENCE
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds * _PATIENCE:.0f} s: {what if isinstance(what, str) else what()}")
        time.sleep(every)
    return value


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped the process with all its threads, or a failpoint has."""
    threads = Path(f"/proc/{pid}/task").glob("*/stat")
    return {thread.read_text().rpartition(")")[2].split()[0] for thread in threads} == {"T"}


def suspend(pid: int) -> None:
    """Stop a process, and return when it stands: a signal takes its time, in which a call may still be answered."""
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: is_stopped(pid), f"process {pid} stopped", every=0.002)
