# SPDX-License-Identifier: Apache-2.0
"""A plan that was queued under one way of keeping writers apart and claimed under another, on a real table."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from databases import store_at
from hudi_writing import FORMAT, QUICK_LOCK, Table, make_table

from executors.context import RunContext
from executors.outcome import RunResult
from executors.run import run_plan

pytestmark = pytest.mark.spark


def test_a_plan_queued_as_single_writer_takes_the_lock_of_a_table_that_is_occ_when_it_is_claimed(
    spark: Any, tmp_path: Path
) -> None:
    store = store_at(tmp_path)
    trips = make_table(spark, tmp_path)
    rows, other_rows = trips.rows(), trips.other_rows()
    store.register_table(trips.ref, "compact")
    plan = trips.plan()
    store.add_plan(plan, request_id=None, actor="test", estimate={})
    shared = Table(spark, trips.base, QUICK_LOCK)
    store.register_table(shared.ref, "compact")
    lock = Path(trips.base) / ".hoodie" / "lock" / "lock"
    lock.parent.mkdir(exist_ok=True)
    lock.write_text("a writer of another host has it")

    claim = store.claim("executor")
    assert claim is not None
    assert claim.plan.table == shared.ref
    outcome = run_plan(
        claim, RunContext(store=store, spark=lambda: spark, heartbeat=timedelta(seconds=5)), format=FORMAT
    )
    assert outcome.result is RunResult.REQUEUED, outcome
    assert "lock" in (outcome.error or "")
    assert lock.read_text() == "a writer of another host has it"
    assert (trips.rows(), trips.other_rows()) == (rows, other_rows)
    store.close()
