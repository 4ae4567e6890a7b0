# SPDX-License-Identifier: Apache-2.0
"""A lakefold with a wrong clock changes no Iceberg table: Iceberg refuses all commits after one from the future."""

from datetime import timedelta
from pathlib import Path

import pytest
from contract.attempts import attempt, run
from contract.plans import plan_all
from iceberg_case import IcebergCase

from lake.errors import Transient
from lake.formats.iceberg.read import storage_clock
from lake.model import TableRef

pytestmark = [pytest.mark.spark, pytest.mark.paired("case")]

MINUTE_NS = 60_000_000_000


def set_clock(monkeypatch: pytest.MonkeyPatch, minutes: float) -> None:
    right = storage_clock.time.time_ns
    monkeypatch.setattr(storage_clock, "_now_ns", lambda: right() + round(minutes * MINUTE_NS))


def metadata_files(table: TableRef) -> set[str]:
    return {path.name for path in (Path(table.location) / "metadata").iterdir()}


@pytest.mark.parametrize("minutes", [1.5, -1.5, 540])
def test_a_plan_is_neither_prepared_nor_committed_nor_withdrawn_by_a_wrong_clock(
    case: IcebergCase, table: TableRef, minutes: float, monkeypatch: pytest.MonkeyPatch
):
    plan = plan_all(case.format, table, "p")
    with attempt(case, plan) as one:
        rewrite = one.rewritten()
        before = metadata_files(table)
        with monkeypatch.context() as patch:
            set_clock(patch, minutes)
            with pytest.raises(Transient, match=r"committing waits: the clock of this host says .*, the storage's"):
                one.writer.commit(rewrite)
            with pytest.raises(Transient, match="withdrawing an attempt waits"):
                one.discarded(None)
            with attempt(case, plan, 2) as later, pytest.raises(Transient, match="preparing the plan waits"):
                later.prepared()
        assert metadata_files(table) == before
        one.writer.commit(rewrite)
    case.append(table, "dt=0", 1000, 1001)


def test_no_snapshot_expires_by_a_clock_that_is_ahead(
    case: IcebergCase, table: TableRef, monkeypatch: pytest.MonkeyPatch
):
    commit = run(case, plan_all(case.format, table, "p"))
    before = metadata_files(table)
    set_clock(monkeypatch, 540)
    with case.format.writer(table, case.spark, case.engines) as writer:
        writer.retention = timedelta(hours=1)  # type: ignore[attr-defined]
        with pytest.raises(Transient, match="expiring snapshots waits"):
            writer.delete(commit.superseded)
    assert metadata_files(table) == before


@pytest.mark.parametrize("seconds", [29, -29])
def test_a_clock_that_is_half_a_minute_off_commits(
    case: IcebergCase, table: TableRef, seconds: float, monkeypatch: pytest.MonkeyPatch
):
    set_clock(monkeypatch, seconds / 60)
    run(case, plan_all(case.format, table, "p"))
    assert len(case.commits(table)) == 1


def test_no_snapshot_expires_too_early_by_a_clock_that_is_half_a_minute_ahead(
    case: IcebergCase, table: TableRef, monkeypatch: pytest.MonkeyPatch
):
    commit = run(case, plan_all(case.format, table, "p"))
    case.append(table, "dt=0", 1000, 1001)

    def retained(retention: timedelta) -> int:
        with case.format.writer(table, case.spark, case.engines) as writer:
            writer.retention = retention  # type: ignore[attr-defined]
            return len(writer.delete(commit.superseded).retained)

    with monkeypatch.context() as patch:
        set_clock(patch, 29 / 60)
        patch.setattr("time.time_ns", storage_clock._now_ns)
        assert retained(timedelta(seconds=25)) == len(commit.superseded)
    assert retained(timedelta()) == 0
