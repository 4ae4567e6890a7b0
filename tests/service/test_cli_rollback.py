# SPDX-License-Identifier: Apache-2.0
"""Which instants of this database's plans ``lakefold tables rollback`` leaves to lakefold itself."""

from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lake.capabilities import PendingAction
from lake.model import FileSlice, TableRef
from lake.plan import ClusteringGroup, Plan, PlanKind, RewriteOptions
from service.cli.commands.tables import _check_rollback
from service.control.store import Store
from service.problems import ProblemError

TABLE = TableRef(name="orders", format="hudi", location="/lake/orders")
NOW = datetime(2026, 11, 27, tzinfo=UTC)
PENDING = PendingAction(
    instant="20261127000000000",
    action="clustering",
    is_begun=True,
    since=NOW,
    last_activity=NOW,
    is_alive=True,
    plan_id="0198-plan",
    kind=PlanKind.CLUSTERING,
)


def test_an_instant_of_an_ended_plan_may_be_withdrawn_and_one_of_a_live_plan_or_that_has_to_be_executed_not(
    store: Store,
) -> None:
    run = cast(Any, SimpleNamespace(store=store))
    store.register_table(TABLE, "compact")
    slices = (FileSlice(partition="p", file_id="f", path="p/f.parquet", bytes=1),)
    plan = Plan(
        plan_id="0198-plan",
        table=TABLE,
        kind=PlanKind.CLUSTERING,
        groups=(ClusteringGroup(partition="p", slices=slices, output_files=1),),
        options=RewriteOptions(target_file_max_bytes=1),
        snapshot_instant="",
    )
    store.add_plan(plan, request_id=None, actor="test", estimate={})
    claim = store.claim("executor")
    assert claim is not None
    with pytest.raises(ProblemError, match="to end it: lakefold plans cancel 0198-plan"):
        _check_rollback(run, TABLE.name, [PENDING], PENDING.instant)
    store.fail(claim, "its commit removed rows of a writer", halt=True)
    _check_rollback(run, TABLE.name, [PENDING], PENDING.instant)
    left = replace(PENDING, kind=PlanKind.COMPACTION, must_execute=True)
    with pytest.raises(ProblemError, match="the next scan creates a plan that executes it"):
        _check_rollback(run, TABLE.name, [left], left.instant)
