# SPDX-License-Identifier: Apache-2.0
"""Workers in separate processes, which tests kill and stop."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from hive_case import HiveCase
from iceberg_case import IcebergCase
from iceberg_worker import IcebergWorkerCase

from toys.bench import Bench
from toys.cases import CASES

#: what a process of Python needs in its environment to import what tests import
PYTHONPATH = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])


def start(
    bench: Bench, how: str, *, lease: float = 1.0, failpoints: str = "", slots: int = 1, most: float = 60.0
) -> "subprocess.Popen[str]":
    """Start a worker on the tables of ``bench``; its output is captured."""
    return subprocess.Popen(
        [sys.executable, "-m", "toys.worker", _name_of(bench), bench.url, str(lease), how, str(slots), str(most)],
        env={**os.environ, "PYTHONPATH": PYTHONPATH, "LAKEFOLD_FAILPOINTS": failpoints},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def case_of(name: str) -> Any:
    """The case of this name: one of the toys, ``KIND@URI`` for tables of a Hive metastore, ``iceberg@FILE``."""
    kind, at, uri = name.partition("@")
    if kind == "iceberg":
        return IcebergWorkerCase.of(Path(uri))
    return HiveCase(uri=uri, kind=kind) if at else CASES[name]()


def _name_of(bench: Bench) -> str:
    case: object = bench.case
    if isinstance(case, IcebergCase):
        return f"iceberg@{case.settings_file(bench.home)}"
    if isinstance(case, HiveCase):
        return f"{case.kind}@{case.uri}"
    return next(name for name, known in CASES.items() if isinstance(case, known))


def wait(process: "subprocess.Popen[str]") -> str:
    """Wait for the process's end and return its output."""
    output, _ = process.communicate(timeout=180)
    return output
