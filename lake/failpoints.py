# SPDX-License-Identifier: Apache-2.0
"""Named points where tests stop, kill or disturb a process; off unless ``LAKEFOLD_FAILPOINTS`` names one.

``LAKEFOLD_FAILPOINTS="name=action[,name=action…]"`` with the actions

- ``kill``: SIGKILL to this process (its JVM notices and ends by itself),
- ``stop``: SIGSTOP to the whole process group, for a harness to continue later,
- ``wait:PATH``: create ``PATH.reached`` and block until ``PATH`` exists,
- ``hold``: block the first thread that reaches the point for ever; several such points hold the plans of a process at
  different points until a test kills it,
- ``hold:PATH``: the same until ``PATH`` exists; ``PATH.reached`` is created,
- ``error``: raise Transient once.

A name is ``before_STEP`` or ``after_STEP`` for each ``lake.plan.Step``, ``in_commit`` (under the table's lock, just
before its commit), or one that a module documents.
"""

import os
import signal
import threading
import time
from pathlib import Path

from lake.errors import Transient

_fired: set[str] = set()
_lock = threading.Lock()


def failpoint(name: str) -> None:
    """Perform the action that ``LAKEFOLD_FAILPOINTS`` gives to ``name``; do nothing if there is none."""
    configured = os.environ.get("LAKEFOLD_FAILPOINTS")
    if not configured:
        return
    actions = dict(item.split("=", 1) for item in configured.split(",") if "=" in item)
    action = actions.get(name)
    if action is None:
        return
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "stop":
        if _is_first_hit(name):
            os.killpg(os.getpgrp(), signal.SIGSTOP)
    elif action == "hold":
        if _is_first_hit(name):
            threading.Event().wait()
    elif action == "error":
        if _is_first_hit(name):
            raise Transient(f"failpoint {name}")
    elif action.startswith("wait:"):
        _wait_for_file(Path(action.removeprefix("wait:")))
    elif action.startswith("hold:"):
        if _is_first_hit(name):
            _wait_for_file(Path(action.removeprefix("hold:")))
    else:
        raise ValueError(
            f"LAKEFOLD_FAILPOINTS: unknown action {action!r} for {name}; "
            "use kill, stop, hold, error, hold:PATH or wait:PATH"
        )


def _wait_for_file(gate: Path) -> None:
    gate.with_name(gate.name + ".reached").touch()
    while not gate.exists():
        time.sleep(0.05)


def _is_first_hit(name: str) -> bool:
    """True if no thread of this process has reached ``name`` before."""
    with _lock:
        if name in _fired:
            return False
        _fired.add(name)
        return True
