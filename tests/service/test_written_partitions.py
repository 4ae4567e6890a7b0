# SPDX-License-Identifier: Apache-2.0
"""What the scheduler does with partitions that writers report, on toy tables and a real database."""

import time
from datetime import UTC, datetime, timedelta

import pytest
from daemon_toys import running, write_config
from toys.files import rows
from toys.timeline import manifest
from toys.timeline_tables import create, write
from waiting import wait_for

from lake.errors import Rejected, Transient
from lake.plan import PlanState
from service.control.config.loader import load_config
from service.server.daemon.process import Daemon

pytestmark = pytest.mark.slow

#: no full scan comes to help
RARELY = {"scan_interval": "1h"}
AT_ONCE = timedelta(milliseconds=1)


@pytest.fixture
def toys(toys, monkeypatch):
    """The toy format; ``looks`` are the partitions of every snapshot taken."""
    real, toys.looks = toys.snapshot, []

    def snapshot(table, partitions=None):
        toys.looks.append(None if partitions is None else tuple(partitions))
        return real(table, partitions)

    monkeypatch.setattr(toys, "snapshot", snapshot)
    return toys


@pytest.fixture
def table(tmp_path):
    """A table ``t1`` with five partitions of one file each: nothing to do."""
    return create(tmp_path / "lake" / "t1", name="t1", partitions=5, files=1)


def scheduler(home, *, policy=None, mode="compact"):
    return running(Daemon(load_config(write_config(home, policy={**RARELY, **(policy or {})}, mode=mode)), "scheduler"))


def scanned(store):
    """Wait for the first full scan; what it recorded."""
    return wait_for(lambda: store.last_scan("t1"), "the first scan")


def report(store, *partitions):
    store.report_written("t1", partitions or None, reporter="test", delay=AT_ONCE)


def looks(daemon):
    """What the metrics tell of looks: how many by outcome, how many were timed, at how many partitions."""

    def value(name, **labels):
        registry = daemon.metrics.registry
        return registry.get_sample_value(f"lakefold_planner_written_scan{name}", {"format": "toy", **labels}) or 0

    return {
        "ok": value("s_total", outcome="ok"),
        "error": value("s_total", outcome="error"),
        "seconds_count": value("_duration_seconds_count"),
        "partitions": value("_partitions_total"),
    }


def nothing_waits(store):
    wait_for(lambda: store.write_reports() == [], "every report looked at")


def test_a_reported_partition_is_planned_at_once_and_no_other_is_scanned(toys, tmp_path, table, store):
    with scheduler(tmp_path) as daemon:
        full = scanned(store)
        write(table, "dt=2", rows(1000, 1050))
        write(table, "dt=4", rows(2000, 2050))
        report(store, "dt=2")
        (plan,) = wait_for(lambda: store.plans(), "a plan")
        nothing_waits(store)
    assert looks(daemon) == {"ok": 1, "error": 0, "seconds_count": 1, "partitions": 1}
    assert store.plan(plan.plan_id).partitions == ("dt=2",)
    assert plan.actor.startswith("scheduler ")
    assert toys.looks == [None, ("dt=2",)]
    assert store.last_scan("t1") == full, "the record of the full scan stays"


def test_a_burst_of_reports_causes_one_scan(toys, tmp_path, table, store):
    with scheduler(tmp_path) as daemon:
        scanned(store)
        for _ in range(20):
            store.report_written("t1", ["dt=1", "dt=3"], reporter="test", delay=timedelta(seconds=4))
        nothing_waits(store)
    assert looks(daemon) == {"ok": 1, "error": 0, "seconds_count": 1, "partitions": 2}
    assert toys.looks == [None, ("dt=1", "dt=3")]


def test_young_files_are_scanned_again_after_their_quiet_period(toys, tmp_path, table, store):
    with scheduler(tmp_path, policy={"quiet_period": "4s"}):
        scanned(store)
        write(table, "dt=1", rows(1000, 1050))
        over = datetime.fromtimestamp(manifest(table)["files"][-1]["written_at"] + 3.99, UTC)
        report(store, "dt=1")
        wait_for(lambda: len(toys.looks) == 2, "a look at once")
        wait_for(
            lambda: [entry.due_at for entry in store.write_reports() if entry.due_at >= over], "the next look put off"
        )
        assert (store.plans(), len(toys.looks)) == ([], 2)
        wait_for(lambda: store.plans(), "a plan")
        nothing_waits(store)
    # On a slow machine a look can come right before the end of the period, and then another one follows.
    assert toys.looks[:3] == [None, ("dt=1",), ("dt=1",)]
    assert set(toys.looks[3:]) <= {("dt=1",)}


def test_a_partition_that_was_dropped_meanwhile_is_no_error(toys, tmp_path, table, store, caplog):
    with scheduler(tmp_path):
        scanned(store)
        write(table, "dt=1", rows(1000, 1050))
        report(store, "dt=1", "dt=1999")
        wait_for(lambda: store.plans(), "a plan")
        nothing_waits(store)
    told = [record for record in caplog.records if record.name.startswith("service.")]
    assert {record.levelname for record in told} <= {"INFO"}


def test_a_partition_of_a_live_plan_is_scanned_when_the_plan_has_ended(toys, tmp_path, table, store):
    with scheduler(tmp_path):
        scanned(store)
        write(table, "dt=1", rows(1000, 1050))
        report(store, "dt=1")
        (plan,) = wait_for(lambda: store.plans(), "a plan")
        nothing_waits(store)
        write(table, "dt=1", rows(2000, 2050))
        report(store, "dt=1")
        time.sleep(0.5)
        assert len(toys.looks) == 2, "no scan runs while the plan is live"
        store.request_cancel(plan.plan_id, "test")
        wait_for(lambda: len(store.plans(state=PlanState.REQUESTED)) == 1, "the next plan")
    assert store.plans()[0].input_files == 3


def test_partitions_without_room_for_another_plan_wait_for_it(toys, tmp_path, table, store, monkeypatch):
    monkeypatch.setattr("service.control.planning.scan._SLOT_RETRY", timedelta(milliseconds=200))
    for number in range(4):
        write(table, f"dt={number}", rows(1000 * number, 1000 * number + 50))
    with scheduler(tmp_path, policy={"max_num_groups": 1, "scan_interval": "1h"}):
        scanned(store)
        first = wait_for(lambda: len(store.plans()) == 2 and store.plans(), "as many plans as there is room for")
        report(store, *(f"dt={n}" for n in range(5)))
        time.sleep(0.5)
        assert len(store.plans()) == 2
        for plan in first:
            store.request_cancel(plan.plan_id, "test")
        wait_for(lambda: len(store.plans(state=PlanState.REQUESTED)) == 2, "the room used again")


def test_partitions_for_which_proposals_leave_no_room_are_left_to_the_scans(toys, tmp_path, table, store):
    for number in range(4):
        write(table, f"dt={number}", rows(1000 * number, 1000 * number + 50))
    with scheduler(tmp_path, mode="propose", policy={"max_num_groups": 1}):
        scanned(store)
        wait_for(lambda: len(store.plans()) == 2, "as many proposals as there is room for")
        report(store, *(f"dt={n}" for n in range(5)))
        held = store.locked_partitions("t1").keys()
        wait_for(lambda: {entry.partition for entry in store.write_reports()} == held, "the others forgotten")
    assert toys.looks == [None], "no scan runs until the proposal is decided"


def test_a_table_that_may_not_be_planned_is_not_planned(toys, tmp_path, table, store):
    write(table, "dt=1", rows(1000, 1050))
    with scheduler(tmp_path, mode="observe") as daemon:
        scanned(store)
        report(store, "dt=1")
        nothing_waits(store)
    assert looks(daemon) == {"ok": 0, "error": 0, "seconds_count": 0, "partitions": 0}
    assert (store.plans(), toys.looks) == ([], [None])


def test_a_report_on_a_paused_table_counts_after_its_resume(toys, tmp_path, table, store):
    with scheduler(tmp_path):
        scanned(store)
        store.pause("t1", "ada")
        write(table, "dt=1", rows(1000, 1050))
        report(store, "dt=1")
        time.sleep(0.4)
        assert (store.plans(), toys.looks) == ([], [None])
        store.resume("t1", "ada")
        wait_for(lambda: store.plans(), "a plan")


def test_a_report_without_partitions_is_a_scan_of_the_whole_table(toys, tmp_path, table, store):
    with scheduler(tmp_path):
        first = scanned(store)
        write(table, "dt=1", rows(1000, 1050))
        report(store)
        wait_for(lambda: store.plans(), "a plan")
        nothing_waits(store)
    assert toys.looks == [None, None]
    assert store.last_scan("t1").taken_at > first.taken_at


def test_the_partition_filter_holds_for_reports_and_sees_the_whole_table(toys, tmp_path, table, store):
    with scheduler(tmp_path, policy={"skip_latest_partitions": 1, "scan_interval": "1h"}):
        scanned(store)
        write(table, "dt=4", rows(1000, 1050))
        write(table, "dt=3", rows(2000, 2050))
        report(store, "dt=4", "dt=3")
        (plan,) = wait_for(lambda: store.plans(), "a plan")
        nothing_waits(store)
    assert store.plan(plan.plan_id).partitions == ("dt=3",)


@pytest.mark.parametrize("error", [Transient("storage is away"), OSError(5, "input/output error")])
def test_an_unavailable_table_is_scanned_again(toys, tmp_path, table, store, monkeypatch, error):
    monkeypatch.setattr("service.server.daemon.scheduler._WRITTEN_RETRY_DELAY", timedelta(milliseconds=300))
    real, broken = toys.check, []

    def check(table):
        if broken:
            raise broken.pop()
        real(table)

    monkeypatch.setattr(toys, "check", check)
    with scheduler(tmp_path):
        scanned(store)
        write(table, "dt=1", rows(1000, 1050))
        broken.append(error)
        report(store, "dt=1")
        wait_for(lambda: store.plans(), "a plan")


def test_a_report_on_a_refused_or_unknown_table_is_dropped(toys, tmp_path, table, store, monkeypatch, caplog):
    def check(table):
        raise Rejected("table version 5 is not supported")

    with scheduler(tmp_path):
        scanned(store)
        monkeypatch.setattr(toys, "check", check)
        report(store, "dt=1")
        store.report_written("nowhere", ["dt=1"], reporter="test", delay=AT_ONCE)
        nothing_waits(store)
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "table t1: written partitions: table version 5 is not supported" in told
    assert any(line.startswith("table nowhere: written partitions: no table 'nowhere'") for line in told)
