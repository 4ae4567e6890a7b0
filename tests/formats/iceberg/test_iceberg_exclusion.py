# SPDX-License-Identifier: Apache-2.0
"""Nothing is committed to a table whose commits may replace each other by now, although a plan has begun."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import iceberg_case
import pytest
from contract.attempts import attempt, run
from contract.plans import plan_all
from iceberg_case import IcebergCase, NewCase

from lake.errors import Conflict
from lake.formats.iceberg.catalog import settings as catalog_settings
from lake.model import TableRef

pytestmark = pytest.mark.spark

Unlock = Callable[[IcebergCase, TableRef], object]


@pytest.fixture(params=["hadoop", "hive"])
def case(new_case: NewCase, request: pytest.FixtureRequest) -> IcebergCase:
    return new_case(request.param)


@pytest.fixture
def unlock(case: IcebergCase, monkeypatch: pytest.MonkeyPatch) -> Unlock:
    """The owner switches the lock off."""

    def act(case: IcebergCase, table: TableRef) -> object:
        if case.kind == "hadoop":
            return monkeypatch.setattr(catalog_settings, "_unsafe_reason", iceberg_case._unsafe_reason)
        properties = "SET TBLPROPERTIES ('engine.hive.lock-enabled' = 'false')"
        return case.sql(f"ALTER TABLE {case.name(table)} {properties}")

    return act


def snapshots(case: IcebergCase, table: TableRef) -> list[int]:
    rows = case.sql(f"SELECT snapshot_id FROM {case.name(table)}.snapshots").collect()
    return sorted(row["snapshot_id"] for row in rows)


def test_no_snapshot_expires(case: IcebergCase, table: TableRef, unlock: Unlock):
    commit = run(case, plan_all(case.format, table, "p"))
    unlock(case, table)
    history = snapshots(case, table)
    with case.format.writer(table, case.spark, case.engines) as writer:
        writer.retention = timedelta()  # type: ignore[attr-defined]
        with pytest.raises(Conflict, match=r"replace|lock"):
            writer.delete(commit.superseded)
    assert snapshots(case, table) == history
    assert all(Path(version.path).exists() for version in commit.superseded)


def test_a_plan_neither_commits_nor_withdraws_its_work(case: IcebergCase, table: TableRef, unlock: Unlock):
    history = snapshots(case, table)
    with attempt(case, plan_all(case.format, table, "p")) as one:
        rewrite = one.rewritten()
        unlock(case, table)
        with pytest.raises(Conflict, match=r"replace|lock"):
            one.writer.commit(rewrite)
        with pytest.raises(Conflict, match=r"replace|lock"):
            one.discarded(None)
    assert snapshots(case, table) == history
    assert all(Path(output.path).exists() for output in rewrite.outputs)
