# SPDX-License-Identifier: Apache-2.0
"""What other processes scheduled, from the scan to the completed plan; dead work told; the tables' own services."""

import logging
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from contract.plans import plan_all
from daemon_toys import running, write_config
from toys.files import base, rows
from toys.timeline import ToyFormat
from toys.timeline_tables import append_log, create, schedule, table_rows
from waiting import wait_for

from lake.capabilities import PendingAction
from lake.model import TableRef
from lake.plan import Plan, PlanKind, PlanState
from planner.cost import CostInputs
from service.cli.commands.tables import _check_rollback
from service.control.config.loader import load_config
from service.control.config.table_settings import ConfiguredTable, configure_table
from service.control.planning import adoption
from service.control.planning.adoption import AbandonedActionLog, abandoned_actions, adopt_pending_actions
from service.control.store import PlanView, Store
from service.problems import ProblemError
from service.server.daemon.maintenance import Maintenance
from service.server.daemon.process import Daemon
from service.server.observability.metrics import Metrics

pytestmark = pytest.mark.slow


@pytest.fixture
def table(tmp_path: Path) -> TableRef:
    return create(tmp_path / "lake" / "t1", name="t1")


def configured(home: Path, table: TableRef, **policy: Any) -> ConfiguredTable:
    return configure_table(load_config(write_config(home, policy=policy)), table)


def waiting(table: TableRef, instant: str = "7", **changes: Any) -> PendingAction:
    now = datetime.now(UTC)
    entry = PendingAction(
        instant=instant,
        action="clustering",
        is_begun=False,
        since=now,
        last_activity=now,
        is_alive=True,
        kind=PlanKind.CLUSTERING,
        groups=plan_all(ToyFormat(), table, "").groups,
        sort_columns=("id",),
    )
    return replace(entry, **changes)


def adopt(store: Store, table: ConfiguredTable, pending: Sequence[PendingAction], *, instant: str = "") -> list[Plan]:
    return adopt_pending_actions(
        store, table, pending, cost_inputs=CostInputs(), snapshot_instant=instant, actor="scheduler"
    )


def test_the_daemon_executes_a_plan_that_another_process_scheduled(
    toys: ToyFormat, tmp_path: Path, table: TableRef, store: Store
) -> None:
    before = table_rows(table)
    schedule(table, "7")
    with running(Daemon(load_config(write_config(tmp_path, policy={"adopt_pending": True})), "all")):
        wait_for(lambda: store.figures().count(PlanState.COMPLETED), "a completed plan")
    (done,) = store.plans()
    assert (done.adopted, done.instant, done.partition_count) == ("7", "7", 2)
    assert table_rows(table) == before
    assert list((base(table) / "pending").iterdir()) == []


def test_without_adopt_pending_nothing_of_others_is_touched(
    toys: ToyFormat, tmp_path: Path, table: TableRef, store: Store
) -> None:
    schedule(table, "7")
    with running(Daemon(load_config(write_config(tmp_path)), "all")):
        wait_for(lambda: store.figures().count(PlanState.COMPLETED), "a plan of our own")
    assert {view.adopted for view in store.plans()} == {None}
    assert [path.stem for path in (base(table) / "pending").iterdir()] == ["7"]


@pytest.mark.parametrize("kind", [PlanKind.COMPACTION, PlanKind.CLUSTERING])
def test_an_adopted_plan_is_proposed_once_while_its_writer_continues(
    toys: ToyFormat, tmp_path: Path, table: TableRef, store: Store, monkeypatch: pytest.MonkeyPatch, kind: PlanKind
) -> None:
    pending = [waiting(table, kind=kind)]
    monkeypatch.setattr(toys, "pending_actions", lambda ref: pending)
    policy = {"adopt_pending": True, "min_input_files": 50}  # nothing of our own to plan
    config = load_config(write_config(tmp_path, mode="propose", policy=policy))

    def scanned() -> list[PlanView]:
        with Daemon(config, "scheduler") as daemon:
            daemon.run_once()
        return [plan for plan in store.plans() if plan.adopted]

    (asked,) = scanned()
    assert asked.waits_for_approval
    append_log(table, str(pending[0].groups[0].slices[0].path), rows(0, 1))
    for _ in range(3):
        (found,) = scanned()
    assert found.plan_id == asked.plan_id
    if kind is PlanKind.CLUSTERING:
        assert "withdrawn: 1 of its 6 files changed" in str(found.cancel_reason), "it would lose what came since"
        return
    assert found.waits_for_approval, "a compaction leaves later logs to the next one"
    pending.clear()
    (found,) = scanned()
    assert not found.waits_for_approval
    assert "the rewrite that it would have executed, 7, was executed or withdrawn" in str(found.cancel_reason)


def test_an_adopted_plan_keeps_the_writers_order_and_has_our_other_options(
    tmp_path: Path, table: TableRef, store: Store
) -> None:
    found = configured(tmp_path, table, compression="zstd", sort_columns=["value"], layout="zorder")
    (made,) = adopt(store, found, [waiting(table)], instant="5")
    claim = store.claim("e")
    assert claim is not None
    assert claim.plan == made
    assert (made.adopted_instant, made.snapshot_instant, made.groups) == (
        "7",
        "5",
        plan_all(ToyFormat(), table, "").groups,
    )
    options = made.options
    assert (options.sort_columns, options.layout, options.compression) == (("id",), "linear", "zstd")


def test_instants_that_are_begun_ours_no_rewrite_or_not_executable_are_not_adopted(
    tmp_path: Path, table: TableRef, store: Store
) -> None:
    found = configured(tmp_path, table)
    entries = [
        waiting(table, "1", is_begun=True),
        waiting(table, "2", plan_id="ours"),
        waiting(table, "3", kind=None),
        waiting(table, "4", refusal="it names no file slices"),
    ]
    assert adopt(store, found, entries) == []
    assert store.plans() == []


def test_an_instant_whose_partition_a_live_plan_holds_waits_for_a_later_scan(
    tmp_path: Path, table: TableRef, store: Store
) -> None:
    found = configured(tmp_path, table)
    own = replace(plan_all(ToyFormat(), table, "own", partitions=["dt=0"]), table=found.ref)
    store.add_plan(own, request_id=None, actor="scheduler", estimate={})
    assert adopt(store, found, [waiting(table)]) == []
    store.request_cancel("own", "operator")
    assert len(adopt(store, found, [waiting(table)])) == 1


def test_an_instant_whose_plan_was_cancelled_is_left_to_its_owner(
    tmp_path: Path, table: TableRef, store: Store
) -> None:
    found = configured(tmp_path, table)
    (made,) = adopt(store, found, [waiting(table)])
    assert adopt(store, found, [waiting(table)]) == []
    store.request_cancel(made.plan_id, "operator")
    assert adopt(store, found, [waiting(table)]) == []


def test_an_instant_whose_plan_met_a_refused_table_is_adopted_again_but_not_at_each_scan(
    tmp_path: Path, table: TableRef, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal ends, as when a writer's index is built, and the writer waits for an executor of its plan."""
    found = configured(tmp_path, table)
    adopt(store, found, [waiting(table)])
    claim = store.claim("e")
    assert claim is not None
    store.cancel(claim, "an index is being built", actor="e", is_refused=True)
    assert adopt(store, found, [waiting(table)]) == []
    monkeypatch.setattr(adoption, "READOPTION_DELAY", timedelta())
    (again,) = adopt(store, found, [waiting(table)])
    assert again.adopted_instant == "7"
    assert adopt(store, found, [waiting(table)]) == [], "by one plan at a time"


def test_dead_work_is_reported_once_with_the_command_that_ends_it(
    tmp_path: Path, table: TableRef, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    hours_ago = datetime.now(UTC) - timedelta(hours=3)
    dead = waiting(table, "9", is_begun=True, is_alive=False, last_activity=hours_ago)
    alive, lost = waiting(table, "8", is_begun=True), replace(dead, instant="6", plan_id="lost", is_begun=False)
    (being_executed,) = adopt(store, configured(tmp_path, table), [waiting(table, "5")])
    adopted = replace(dead, instant=str(being_executed.adopted_instant))
    ours = replace(dead, instant="4", plan_id=being_executed.plan_id)
    other_living_lakefold = replace(lost, instant="3", is_alive=True)
    found = abandoned_actions(store, "t1", [dead, alive, lost, ours, other_living_lakefold, adopted])
    assert found == [dead, lost]
    telling = AbandonedActionLog()
    for _ in range(2):
        telling.log_new("t1", found)
    other, line = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert re.search(
        r"clustering 6 of plan lost, which this database does not know, has shown no.*rollback t1 6$", other
    )
    assert re.search(
        r"clustering 9 of another process has shown no activity for 3 h.*: lakefold tables rollback t1 9$", line
    )
    telling.log_new("t1", [])
    telling.log_new("t1", [dead])
    assert len(caplog.records) == 3, "told again when it comes back"


def test_services_run_only_where_and_as_often_as_configured(
    toys: ToyFormat, tmp_path: Path, table: TableRef, store: Store
) -> None:
    def no_spark() -> Any:
        raise AssertionError("no session is needed")

    policy = {"table_services": ["archive", "clean"], "table_services_interval": "1h"}
    config = load_config(write_config(tmp_path, policy=policy))
    store.register_table(configure_table(config, table).ref, "compact")
    cleaning = Maintenance(config, store, no_spark, Metrics("all"))
    assert cleaning.run_table_services() == ["t1: archive, keeping 0", "t1: clean, keeping 0"]
    assert cleaning.run_table_services() == []
    for held in (lambda: store.pause("t1", "operator"), lambda: store.pause(None, "operator")):
        held()
        assert Maintenance(config, store, no_spark, Metrics("all")).run_table_services() == []
        store.resume("t1", "operator")
    store.resume(None, "operator")
    assert Maintenance(load_config(write_config(tmp_path)), store, no_spark, Metrics("all")).run_table_services() == []


@pytest.mark.parametrize("name", ["t1", None])
def test_no_services_run_for_a_table_that_was_paused_while_those_of_other_tables_ran(
    toys: ToyFormat, tmp_path: Path, table: TableRef, store: Store, monkeypatch: pytest.MonkeyPatch, name: str | None
) -> None:
    config = load_config(write_config(tmp_path, policy={"table_services": ["clean"]}))
    store.register_table(configure_table(config, table).ref, "compact")
    read = store.figures

    def pause_after_reading() -> Any:
        found = read()
        store.pause(name, "operator")
        return found

    monkeypatch.setattr(store, "figures", pause_after_reading)
    assert Maintenance(config, store, lambda: None, Metrics("all")).run_table_services() == []


def test_a_scan_reads_the_timeline_s_unfinished_work_once(
    toys: ToyFormat, tmp_path: Path, table: TableRef, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    read = toys.pending_actions
    monkeypatch.setattr(toys, "pending_actions", lambda ref: (reads.append(ref.name), read(ref))[1])
    schedule(table, "7")
    with Daemon(load_config(write_config(tmp_path, policy={"adopt_pending": True})), "scheduler") as daemon:
        daemon.run_once()
    assert [plan.adopted for plan in store.plans()][-1:] == ["7"], "it was adopted"
    assert reads == ["t1"]


def test_the_rollback_command_names_no_command_that_can_not_help(tmp_path: Path, table: TableRef, store: Store) -> None:
    run: Any = SimpleNamespace(store=store)
    own = replace(plan_all(ToyFormat(), table, "own"), table=table)
    store.add_plan(own, request_id=None, actor="scheduler", estimate={})
    lost, known = waiting(table, "7", plan_id="lost"), waiting(table, "8", plan_id="own")
    _check_rollback(run, "t1", [lost, known], "7")
    with pytest.raises(ProblemError, match=r"belongs to plan own; to end it: lakefold plans cancel own$"):
        _check_rollback(run, "t1", [lost, known], "8")
    store.request_cancel("own", "operator")
    _check_rollback(run, "t1", [lost, known], "8")  # the plan has ended


def test_the_instant_of_an_ended_plan_is_adopted_until_it_is_executed_but_not_at_each_scan(
    tmp_path: Path, table: TableRef, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = configured(tmp_path, table)
    own = replace(plan_all(ToyFormat(), table, "own"), table=table)
    store.add_plan(own, request_id=None, actor="scheduler", estimate={})
    left = waiting(table, "7", plan_id="own", must_execute=True, is_alive=False)

    def adopted(entry: PendingAction) -> list[str | None]:
        return [made.adopted_instant for made in adopt(store, found, [entry])]

    assert adopted(left) == [], "its plan is live"
    store.request_cancel("own", "operator")
    assert adopted(replace(left, is_alive=True)) == [], "a process may still work on it"
    assert adopted(replace(left, plan_id="of another database")) == []
    assert adopted(left) == ["7"]
    assert adopted(left) == [], "by one plan at a time"
    store.request_cancel(store.adopted_plans("t1", ["7"])["7"], "operator")
    assert adopted(left) == [], "what ended that plan would end the next one"
    monkeypatch.setattr(adoption, "READOPTION_DELAY", timedelta())
    assert adopted(left) == ["7"]
