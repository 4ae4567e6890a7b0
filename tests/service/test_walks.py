# SPDX-License-Identifier: Apache-2.0
"""The order in which a scan, the planner and a run call their steps, as docs/architecture.md describes it."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from daemon_toys import write_config
from toys.timeline_tables import create

from executors.context import RunContext
from executors.outcome import RunResult
from executors.worker import Worker
from service.control.config.loader import load_config
from service.control.config.table_settings import configure_table
from service.control.planning.scan import scan_and_plan

ROOT = Path(__file__).parents[2]


def described(before: str) -> list[str]:
    """The functions of the first table after the text ``before``, in its order, as ``path:qualified name``."""
    table = (ROOT / "docs" / "architecture.md").read_text().partition(before)[2].partition("|---|---|\n")[2]
    return re.findall(r"^\| `([\w/]+\.py:[\w.]+)` \|", table.partition("\n\n")[0], re.MULTILINE)


def called(call: Callable[[], Any], functions: list[str]) -> list[str]:
    """Call ``call`` and return which of ``functions`` this thread called meanwhile, in order."""
    wanted, found = {str(ROOT / name): name for name in functions}, list[str]()

    def note(frame: FrameType, event: str, _: object) -> None:
        name = wanted.get(f"{frame.f_code.co_filename}:{frame.f_code.co_qualname}")
        if event == "call" and name is not None:
            found.append(name)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return found


def test_a_scan_and_a_run_call_each_step_in_the_described_order_and_once(toys, tmp_path, store):
    table = create(tmp_path / "lake" / "t1", name="t1")
    config = load_config(write_config(tmp_path))
    scan, stages = described("## One table through a scan"), described("Inside `planner/`, the stages")
    assert len(scan) > 10
    assert len(stages) > 5
    order = called(
        lambda: scan_and_plan(config, store, configure_table(config, table), actor="test"), list({*scan, *stages})
    )
    assert [name for name in order if name in scan] == scan
    further = scan.count("planner/planner.py:next_plan") - 1
    assert [name for name in order if name in stages] == stages + stages[-2:] * further

    run, results = described("## One plan from claim to commit"), list[Any]()
    assert len(run) > 5
    worker = Worker(RunContext(store=store, spark=lambda: None))
    order = called(lambda: results.append(worker.run_once()), run)
    assert results == [{RunResult.COMPLETED: 1}]
    assert order[: len(run)] == run
    assert set(order[len(run) :]) <= {"service/control/store/claims.py:Claims.claim"}, "it looks for another plan"
