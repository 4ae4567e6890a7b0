# SPDX-License-Identifier: Apache-2.0
"""Workers in processes of their own, to kill and to stop."""

import os
import subprocess
import sys
from pathlib import Path

from toys.bench import Bench
from toys.cases import CASES

#: what a process of Python needs in its environment to import what tests import
PYTHONPATH = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])


def start(
    bench: Bench, how: str, *, lease: float = 1.0, failpoints: str = "", slots: int = 1, most: float = 60.0
) -> "subprocess.Popen[str]":
    """A worker on the tables of ``bench``, with what it prints."""
    name = next(name for name, case in CASES.items() if isinstance(bench.case, case))
    return subprocess.Popen(
        [sys.executable, "-m", "toys.worker", name, bench.url, str(lease), how, str(slots), str(most)],
        env={**os.environ, "PYTHONPATH": PYTHONPATH, "LAKEFOLD_FAILPOINTS": failpoints},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def wait(process: "subprocess.Popen[str]") -> str:
    """What it printed, once it has ended."""
    output, _ = process.communicate(timeout=60)
    return output
