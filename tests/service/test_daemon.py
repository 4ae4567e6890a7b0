# SPDX-License-Identifier: Apache-2.0
"""The daemon in its roles on toy tables and a real database: it plans, runs, cleans, shares and survives."""

import io
import json
import logging
import threading
import time

import pytest
from daemon_toys import running, write_config
from toy_homes import completed, daemon_at, files_on_disk, live_files, table_at, value
from toys.timeline_tables import create, table_rows
from waiting import wait_for

from lake.errors import Rejected, Transient
from lake.plan import PlanState
from service.control.config.loader import load_config
from service.control.store import Store
from service.problems import ExitCode
from service.server.daemon.process import Daemon
from service.server.observability.logs import JsonFormatter

pytestmark = pytest.mark.slow


def test_a_table_is_compacted_and_after_its_retention_cleaned_while_the_metrics_follow(toys, home, store):
    before, rows = live_files(home), table_rows(table_at(home))
    table = {"table": "t1", "format": "toy"}
    work = {**table, "kind": "clustering", "engine": "auto"}
    with running(daemon_at(home, policy={"retention": "0s"})) as daemon:
        wait_for(completed(store), "a completed plan")
        wait_for(lambda: files_on_disk(home) == set(live_files(home)), "the superseded files gone")
        after = live_files(home)
        wait_for(lambda: value(daemon, "table_files", **table) == len(after), "the layout scanned again")
        wait_for(lambda: value(daemon, "superseded_files", **table) == 0, "the figures read again")
        assert value(daemon, "table_bytes", **table) == sum(after.values())
        assert value(daemon, "plans", **table, kind="clustering", state="completed") == 1
        assert value(daemon, "plans_finished_total", **table, kind="clustering", outcome="completed") == 1
        assert value(daemon, "rewrite_input_files_total", **work) == len(before)
        assert value(daemon, "rewrite_input_bytes_total", **work) == sum(before.values())
        assert value(daemon, "rewrite_output_files_total", **work) == len(after)
        assert value(daemon, "rewrite_output_bytes_total", **work) == sum(after.values())
        # The daemon counts what a cleaner reports, after the database shows it.
        wait_for(lambda: value(daemon, "cleaner_deleted_files_total", **table) == len(before), "the deletions counted")
        assert value(daemon, "cleaner_deleted_bytes_total", **table) == sum(before.values())
        assert value(daemon, "executor_slots", state="busy") == 0
        assert value(daemon, "executor_slots", state="free") == 1
        assert {role: value(daemon, "leader", role=role) for role in ("scan", "clean", "sweep")} == {
            "scan": 1,
            "clean": 1,
            "sweep": 1,
        }
    assert daemon.result == ExitCode.OK
    assert len(after) == 2
    assert table_rows(table_at(home)) == rows
    assert store.leaders() == [], "a daemon that ends gives its leader rows up"


def test_a_table_without_a_rule_is_scanned_but_never_planned(toys, home, store):
    with running(daemon_at(home, mode="observe")):
        wait_for(lambda: store.last_scan("t1"), "a scan")
    assert store.table_state("t1").mode == "observe"
    assert store.plans() == []
    assert store.last_scan("t1").reducible_files == 6


def test_a_request_is_answered_by_the_scheduler(toys, home, store):
    write_config(home, policy={"scan_interval": "1h"})
    with running(Daemon(load_config(home / "lakefold.toml"), "scheduler")):
        wait_for(lambda: store.last_scan("t1"), "the first scan")
        wait_for(lambda: store.plans(), "its plan")
        request = store.add_request("t1", dry_run=True, actor="test")
        answer = wait_for(lambda: store.request(request).answer, "an answer")
        assert answer["problem"] == "live-plan", "as the request itself"
        lost = store.add_request("nowhere", actor="test")
        answer = wait_for(lambda: store.request(lost).answer, "an answer")
        assert answer["problem"] == "not-found"


def test_one_table_that_cannot_be_read_is_recorded_and_the_others_are_compacted(toys, home, store):
    create(home / "lake" / "t0", name="t0")
    (home / "lake" / "t0" / "manifests" / "00000006.json").write_text("{ not json")
    with running(daemon_at(home)) as daemon:
        wait_for(completed(store), "a completed plan")
        wait_for(lambda: value(daemon, "table_scan_failed", table="t0", format="toy") == 1, "the failure shown")
        wait_for(lambda: value(daemon, "table_scan_failed", table="t1", format="toy") == 0, "the other one shown")
        assert value(daemon, "planner_runs_total", format="toy", outcome="error") >= 1
    assert store.last_scan("t0").outcome == "error"
    assert [plan.table for plan in store.plans()] == ["t1"]


@pytest.mark.parametrize("error", [Rejected("table version 5 is not supported"), Transient("storage is away")])
def test_a_table_that_is_refused_or_away_recovers_by_itself(toys, home, store, monkeypatch, error):
    refusing = threading.Event()
    refusing.set()
    real = toys.check

    def check(table):
        if refusing.is_set():
            raise error
        real(table)

    monkeypatch.setattr(toys, "check", check)
    with running(daemon_at(home)):
        wait_for(lambda: store.last_scan("t1"), "a scan")
        assert (store.last_scan("t1").outcome, store.last_scan("t1").error) == ("error", str(error))
        refusing.clear()
        wait_for(completed(store), "a completed plan")


def test_writers_are_handed_the_engines_that_there_are(toys, home, store):
    handed, real = set(), toys.writer

    def writer(table, spark, engines=()):
        handed.update(engine.name for engine in engines)
        return real(table, spark)

    toys.writer = writer
    with running(daemon_at(home)):
        wait_for(completed(store), "a completed plan")
    assert handed == {"arrow", "hybrid", "stitch", "spark"}


def test_rows_that_differ_halt_the_table_and_never_the_service(toys, home, store):
    create(home / "lake" / "t2", name="t2")
    healthy = {"t2"}
    real = toys.writer

    def writer(table, spark, engines=()):
        toys.defect = (lambda rows: rows) if table.name in healthy else (lambda rows: rows.slice(1))
        return real(table, spark)

    toys.writer = writer
    with running(daemon_at(home)) as daemon:
        wait_for(lambda: store.figures().halted_tables == ("t1",), "a halted table")
        wait_for(completed(store), "the other table compacted")
        wait_for(lambda: value(daemon, "table_halted", table="t1", format="toy") == 1, "the halt shown")
        assert value(daemon, "table_halted", table="t2", format="toy") == 0
        ended = {"table": "t1", "format": "toy", "kind": "clustering"}
        assert value(daemon, "plans_finished_total", **ended, outcome="failed") == 1
        seen = store.last_scan("t1").taken_at
        wait_for(lambda: store.last_scan("t1").taken_at > seen, "the halted table still scanned")
    assert {(plan.table, plan.state) for plan in store.plans()} == {
        ("t1", PlanState.FAILED),
        ("t2", PlanState.COMPLETED),
    }


@pytest.mark.crossed
def test_two_daemons_on_one_database_scan_once_and_both_execute(toys, database_url, tmp_path):
    """One leads, both run plans, no partition is planned twice, and the second takes over when the first ends."""
    for number in range(6):
        create(tmp_path / "lake" / f"t{number}", name=f"t{number}")
    store = Store(database_url)
    meeting = threading.Barrier(2, timeout=30)
    met = threading.Event()

    def meet():
        if not met.is_set():  # the first two rewrites wait for each other, so that both daemons have one
            meeting.wait()
            met.set()

    toys.hooks["rewritten"] = meet
    try:
        # Long, since a busy machine renews late; the second daemon takes over because the first one releases the role.
        config = load_config(write_config(tmp_path, url=database_url, daemon={"leader_ttl": "20s"}))
        with running(Daemon(config, "all")) as first:
            wait_for(lambda: first.leadership.is_leader("scan"), "the first to lead")
            with running(Daemon(config, "all")) as second:
                wait_for(completed(store, 6), "all tables compacted")
                assert first.leadership.is_leader("scan")
                assert not second.leadership.is_leader("scan")
                assert value(second, "leader", role="scan") == 0
                events = [event for plan in store.plans() for event in store.plan_events(plan.plan_id)]
                assert {event.actor for event in events if event.to_state is PlanState.COMPLETED} == {
                    first.name,
                    second.name,
                }
                first.drain()
                wait_for(lambda: second.leadership.is_leader("scan"), "the second to take over")
                wait_for(lambda: second.leadership.is_leader("clean"), "the second to take over cleaning")
        assert [plan.state for plan in store.plans()] == [PlanState.COMPLETED] * 6
        assert all(len(live_files(tmp_path, f"t{n}")) == 2 for n in range(6))
    finally:
        store.close()


def test_a_scheduler_and_an_executor_in_two_processes_share_the_work(toys, home, store):
    with running(daemon_at(home, "scheduler")) as scheduler:
        wait_for(lambda: store.plans(), "a plan")
        assert store.plans()[0].state is PlanState.REQUESTED
        assert value(scheduler, "executor_slots", state="free") == 0
        with running(daemon_at(home, "executor")) as executor:
            wait_for(completed(store), "a completed plan")
            assert value(executor, "leader", role="scan") == 0
            assert value(executor, "leader", role="clean") == 1


def test_the_api_role_touches_nothing(toys, home, store):
    with running(daemon_at(home, "api")) as daemon:
        wait_for(lambda: daemon.readiness_problem() is None, "ready")
        assert value(daemon, "paused") == 0
    assert store.table_states() == []
    assert store.leaders() == []


def test_lasting_objects_are_excluded_from_garbage_collection_once_after_the_first_reading(toys, home, store):
    settled = []
    with running(
        Daemon(load_config(write_config(home)), "api", on_first_refresh=lambda: settled.append(time.time()))
    ) as daemon:
        wait_for(lambda: settled, "the first reading")
        wait_for(lambda: (value(daemon, "stored_metrics_timestamp_seconds") or 0) > settled[0] + 0.1, "another one")
    assert len(settled) == 1


def test_the_service_does_not_listen_beyond_the_loopback_before_a_token_exists(toys, home, store):
    with (
        daemon_at(home, "api", http={"address": "0.0.0.0"}) as daemon,
        pytest.raises(Rejected, match=r"no token is stored; first: lakefold tokens add NAME --scope read"),
    ):
        daemon.run()


def test_a_paused_service_scans_and_starts_no_plan(toys, home, store):
    store.pause(None, "test")
    with running(daemon_at(home)) as daemon:
        wait_for(lambda: store.last_scan("t1"), "a scan")
        wait_for(lambda: value(daemon, "paused") == 1, "shown")
        assert store.plans() == []
        store.resume(None, "test")
        wait_for(completed(store), "a completed plan")


def test_the_layout_after_a_plan_is_seen_without_waiting_for_the_next_scan_of_the_interval(toys, home, store):
    with running(daemon_at(home, policy={"scan_interval": "1h"})):
        wait_for(completed(store), "a completed plan")
        wait_for(lambda: store.last_scan("t1").files == len(live_files(home)) == 2, "the layout scanned again")
        wait_for(lambda: store.write_reports() == [], "nothing left to look at")


def test_each_change_of_a_plans_state_is_one_line_with_plan_table_and_epoch(toys, home, store, caplog):
    caplog.set_level(logging.INFO)
    lines = io.StringIO()
    handler = logging.StreamHandler(lines)
    handler.setFormatter(JsonFormatter())
    logging.getLogger().addHandler(handler)
    try:
        with daemon_at(home) as daemon:
            daemon.run_once()
            daemon.store.pause("t1", "ada")
    finally:
        logging.getLogger().removeHandler(handler)
    [plan] = store.plans()
    entries = [json.loads(line) for line in lines.getvalue().splitlines()]
    told = [entry for entry in entries if entry.get("plan") == plan.plan_id]
    assert {(entry["table"], entry["epoch"]) for entry in told} == {("t1", 0), ("t1", 1)}
    words = [entry["message"] for entry in told]
    for change in ("requested", "claimed", "completed"):
        assert sum(change in message for message in words) == 1, change
    [paused] = [entry for entry in entries if "paused by ada" in entry["message"]]
    assert paused["table"] == "t1"


def test_a_plan_past_keep_finished_is_pruned_and_still_counted(toys, home, store, monkeypatch):
    monkeypatch.setenv("LAKEFOLD_DATABASE__PLAN_RETENTION", "1ms")
    for _ in range(2):
        with daemon_at(home, policy={"retention": "0s"}) as daemon:
            assert daemon.run_once() == ExitCode.OK
    assert store.plans() == []
    assert store.figures().count(PlanState.COMPLETED) == 1
    assert store.figures().files_removed == 4


def test_once_scans_runs_and_ends(toys, home, store):
    with daemon_at(home) as daemon:
        assert daemon.run_once() == ExitCode.OK
    assert [plan.state for plan in store.plans()] == [PlanState.COMPLETED]
    assert len(live_files(home)) == 2
    assert store.leaders() == []
    assert [point.files for point in store.trend("t1")] == [6], "the history begins with what was found first"


def test_once_with_a_plan_that_fails_is_partial(toys, home, store):
    toys.defect = lambda rows: rows.slice(1)
    with daemon_at(home) as daemon:
        assert daemon.run_once() == ExitCode.PARTIAL


def test_the_pending_instant_of_an_ended_plan_is_swept(toys, home, store):
    """A pending instant that names an ended plan is withdrawn; an instant of an unknown plan is left alone."""
    with daemon_at(home) as daemon:
        daemon.run_once()
    ended = store.plans()[0].plan_id
    pending = home / "lake" / "t1" / "pending"
    (pending / "straggler.json").write_text(f'{{"plan_id": "{ended}", "epoch": 1}}')
    (pending / "stranger.json").write_text('{"plan_id": "somebody else", "epoch": 1}')
    with running(daemon_at(home)):
        wait_for(lambda: not (pending / "straggler.json").exists(), "swept")
    assert (pending / "stranger.json").exists()
