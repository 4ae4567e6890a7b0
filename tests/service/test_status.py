# SPDX-License-Identifier: Apache-2.0
"""The document behind "how is the lake?": what is worth a plan is told from what is only small."""

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from metric_inputs import TABLE, plan_of
from store_plans import sql

from lake.model import TableRef
from lake.plan import Commit, RewriteProgress
from lake.units import format_elapsed
from service.control import serializers
from service.control.lake_cache import read_lake_state
from service.control.store import ProcessFacts, ScanRecord
from service.text import format_percent

MINUTE = timedelta(minutes=1)
NOW = datetime.now(UTC).replace(microsecond=0)
FOUND = ScanRecord(
    table="t", taken_at=NOW, files=100, small_files=100, small_bytes=1000, reducible_files=95, reducible_bytes=950
)


def scanned(store, name, mode, *scans):
    store.register_table(TableRef(name=name, format="hudi", location=f"/lake/{name}"), mode)
    for number, scan in enumerate(scans):
        store.record_scan(replace(scan, table=name, taken_at=NOW + timedelta(minutes=number)))


def process(name="host-1/17/a/b.1", role="all", **facts):
    return ProcessFacts(**{"name": name, "role": role, "host": "host-1", "version": "1", "slots": 2} | facts)


def status(store):
    return serializers.status(read_lake_state(store))


def test_small_files_that_no_plan_is_worth_do_not_make_success_look_like_failure(store):
    after = replace(FOUND, files=6, small_files=6, reducible_files=0, reducible_bytes=0)
    scanned(store, "t", "compact", FOUND, after)
    found = status(store)
    assert (
        found["layout"]["compact"].items()
        >= {
            "reducible_files": 0,
            "residual_files": 6,
            "reducible_share": 0.0,
            "reducible_share_before": 0.95,
        }.items()
    )
    assert "reducible files 95 % → 0 % ·" in serializers.summary_line(found)


def test_observed_tables_are_counted_separately_and_tables_in_mode_off_are_not_counted(store):
    scanned(store, "a", "compact", replace(FOUND, files=200, reducible_files=1))
    scanned(store, "b", "observe", FOUND)
    scanned(store, "c", "off", FOUND)
    found = status(store)
    assert [found["layout"][mode]["reducible_files"] for mode in ("compact", "observe")] == [1, 95]
    line = serializers.summary_line(found)
    assert "reducible files < 1 % → < 1 %, 950 B to rewrite · 1 observed table: reducible files 95 %, 950 B" in line


def test_status_reports_no_reducible_share_of_scans_before_the_upgrade(store):
    unknown = replace(FOUND, reducible_files=None, reducible_bytes=None)
    scanned(store, "t", "compact", unknown)
    assert status(store)["layout"]["compact"]["reducible_share"] is None
    assert "reducible files unknown" in serializers.summary_line(status(store))
    scanned(store, "t", "compact", unknown, FOUND)
    assert "reducible files 95 %, 950 B to rewrite" in serializers.summary_line(status(store))


def waiting(store):
    """A table with a completed plan, and one that waits."""
    store.register_table(TABLE, "compact")
    done, plan = plan_of("dt=1"), plan_of("dt=2")
    store.add_plan(done, request_id=None, actor="a", estimate={})
    claim = store.claim("e")
    assert claim is not None
    store.complete(claim, Commit(plan_id=done.plan_id, instant="2", outputs=(), superseded=()), (), {"rewrite": 1000})
    store.add_plan(plan, request_id=None, actor="a", estimate={})
    return plan


@pytest.fixture
def told(store, run, clean_environment, monkeypatch):
    """What a command says."""
    monkeypatch.setenv("LAKEFOLD_DATABASE__URL", store.url)
    return lambda *words: run(*words)[1]


def test_waiting_plans_report_that_no_executor_runs_and_promise_no_time(store, told):
    plan = waiting(store)
    found = status(store)
    assert (found["requested"], found["bytes_per_second"] > 0, found["backlog_seconds"]) == (1, True, None)
    reason = "no executor is running; lakefold worker starts one"
    assert f"1 plan waits: {reason}." in told("status")
    assert reason in told("plans", "show", plan.plan_id)
    store.register_process(process(role="scheduler", slots=0), MINUTE)
    assert status(store)["no_executor_reason"] == reason
    store.register_process(process("host-1/18/a/b.1", spark="broken", problem="no jars"), MINUTE)
    assert status(store)["no_executor_reason"] == "no executor can run plans, since Spark is missing: no jars"
    assert "host-1/18 can't use Spark: no jars" in told("status")
    store.register_process(process("host-1/18/a/b.1", spark="running"), MINUTE)
    assert status(store)["no_executor_reason"] is None
    assert status(store)["backlog_seconds"] > 0
    assert "waits" not in told("plans", "show", plan.plan_id)
    store.pause(None, "ada")
    assert status(store)["backlog_seconds"] is None, "nothing ends while it is paused"


def test_a_process_is_shown_with_its_work_version_and_roles_also_after_it_fell_silent(store, told):
    plan = waiting(store)
    facts = process(spark="running", spark_ui="http://host-1:4040")
    store.register_process(facts, MINUTE)
    assert store.acquire_leader("clean", facts.name, MINUTE)
    assert store.claim(facts.name).plan.plan_id == plan.plan_id
    (found,) = status(store)["processes"]
    assert found.items() >= {"live": True, "leads": ["clean"], "slots": 2, "spark_ui": "http://host-1:4040"}.items()
    assert found.items() >= {"host": "host-1", "version": "1", "role": "all", "spark": "running"}.items()
    assert timedelta() <= datetime.now(UTC) - found["seen_at"] < MINUTE
    assert found["started_at"] <= found["seen_at"]
    assert [run["plan_id"] for run in found["runs"]] == [plan.plan_id]
    titles, line, *_ = (re.split(r"\s{2,}", line) for line in told("status").splitlines()[2:])
    assert titles == ["PROCESS", "ROLE", "LEADS", "RUNS", "SPARK", "SEEN", "SINCE", "VERSION"]
    assert line[:5] == ["host-1/17", "all", "clean", f"1 of 2: {plan.table.name}", "running"]
    assert line[-1] == "1"
    assert all(re.fullmatch(r"(just now|.+ ago)", cell) for cell in line[5:7]), line
    assert json.loads(told("status", "--json"))["processes"][0]["name"] == facts.name
    store.register_process(facts, timedelta(milliseconds=-1))
    (found,) = status(store)["processes"]
    assert (found["live"], status(store)["no_executor_reason"] is None) == (False, False)
    store.unregister_process(facts.name)
    assert status(store)["processes"] == []


def test_a_missing_scheduler_is_reported_although_other_roles_have_leaders(store, told):
    assert store.acquire_leader("clean", "host-1/17", MINUTE)
    assert "No scheduler is running" in told("status")
    assert store.acquire_leader("scan", "host-1/17", MINUTE)
    assert "No scheduler is running" not in told("status")


def test_a_table_whose_scans_fail_needs_attention_until_one_succeeds(store):
    scanned(store, "t", "compact", FOUND, ScanRecord(table="t", taken_at=NOW, outcome="error", error="no such file"))
    (entry,) = status(store)["attention"]
    assert (entry["table"], entry["scan_error"]) == ("t", "no such file")
    scanned(store, "t", "compact", FOUND)
    assert status(store)["attention"] == []


def test_the_page_of_a_halted_table_links_its_plan_and_the_check_of_its_rows_before_resume(store, told):
    plan = waiting(store)
    store.fail(store.claim("e"), "3 rows fewer than were read", halt=True)
    words = told("status")
    look = f"check first: lakefold plans show {plan.plan_id}; lakefold verify {TABLE.name} --rows; "
    assert f"{look}then lakefold resume {TABLE.name} (docs/runbook.md#tablehalted)" in words


def test_halted_partitions_are_named_with_the_command_that_settles_each_and_no_more_than_five(store, told):
    store.register_table(TABLE, "compact")
    for number in range(7):
        store.halt_partition(TABLE, f"dt={number}", "both overwritten: which one is later?")
    found = status(store)
    assert (found["halted"], found["halted_partitions"]) == ([], 7)
    assert serializers.summary_line(found).endswith("0 halted · 7 partitions halted")
    words = told("status")
    assert f"{TABLE.name}, partition dt=0, was halted" in words
    assert f"lakefold tables resolve {TABLE.name} --partition dt=0 --keep previous|current" in words
    assert f"{TABLE.name}: 2 more partitions halted; lakefold tables show {TABLE.name}" in words
    assert "partition dt=6" not in words
    store.resume(TABLE.name, "ada")
    assert status(store)["attention"] == []


def test_a_plan_that_a_writer_cancelled_reads_as_routine_and_one_of_a_person_names_the_person(store, told):
    plan = waiting(store)
    store.cancel(store.claim("e"), "a writer changed a.parquet", actor="e")
    why = "a writer changed a.parquet. Nothing was lost; the next scan plans the worthwhile files again."
    assert f"cancelled  {why}" in told("plans", "show", plan.plan_id)
    assert json.loads(told("plans", "show", plan.plan_id, "--json"))["end_reason"] == why
    another = plan_of("dt=3")
    store.add_plan(another, request_id=None, actor="a", estimate={})
    store.request_cancel(another.plan_id, actor="ada", reason="wrong day")
    assert "cancelled  wrong day (by ada)" in told("plans", "show", another.plan_id)


def test_a_second_writer_and_a_table_with_undeclared_writers_need_attention_with_a_remedy(store, told):
    met = "commit 20260101 of another process, while plan 0198 ran"
    scanned(store, "a", "compact", replace(FOUND, overlaps=2, overlap=met))
    scanned(store, "b", "compact", replace(FOUND, not_planned="mode compact needs concurrency to be set"))
    one, other = status(store)["attention"]
    assert (one["table"], one["conflicting_commits"], one["last_conflicting_commit"], one["not_planned_reason"]) == (
        "a",
        2,
        met,
        None,
    )
    assert (other["table"], other["overlaps"], bool(other["not_planned"])) == ("b", 0, True)
    words = told("status")
    assert (
        f"a is single_writer, and was written while lakefold worked on it: 2 commits in the last day, the newest {met}"
        in words
    )
    assert "lakefold verify a --rows" in words
    assert "b is not planned: mode compact needs concurrency to be set" in words


def test_a_plan_that_is_retried_is_named_while_it_waits_and_while_it_runs_again(store, told):
    plan = waiting(store)
    assert store.requeue(store.claim("e"), "no space left on device")
    (entry,) = status(store)["attention"]
    (retried,) = entry["retrying_plans"]
    assert retried.items() >= {"plan_id": plan.plan_id, "attempt": 1, "max_attempts": 5}.items()
    assert retried["error"] == "no space left on device"
    assert re.search(r"is retried, attempt 1 of 5: no space left on device; retry in \d+ s; lakefold", told("status"))
    sql(store.url, "UPDATE plan SET not_before_ms = 0")
    claim = store.claim("e")
    (retried,) = status(store)["attention"][0]["retrying_plans"]
    assert (retried["attempt"], retried["error"], retried["next_attempt_at"]) == (1, "no space left on device", None)
    assert "attempt 1 of 5: no space left on device; its next attempt runs" in told("status")
    store.complete(claim, Commit(plan_id=plan.plan_id, instant="3", outputs=(), superseded=()), (), {"rewrite": 1000})
    assert status(store)["attention"] == []


def test_a_silent_process_is_named_until_another_one_of_its_role_has_started(store, told):
    store.register_process(process("host-1/17/a/b.1", role="executor"), MINUTE)
    store.register_process(process("host-1/18/a/b.1", role="executor"), MINUTE)
    store.register_process(process("host-1/19/a/b.1", role="api", slots=0), MINUTE)
    assert status(store)["silent_processes"] == []
    sql(store.url, "UPDATE process SET expires_at_ms = 0 + seen_at_ms - 1000 WHERE name <> 'host-1/19/a/b.1'")
    assert status(store)["silent_processes"] == ["host-1/17/a/b.1", "host-1/18/a/b.1"]
    words = told("status")
    assert re.search(r"host-1/17 \(role executor\) was last seen .* ago and did not sign off", words)
    store.register_process(process("host-1/20/a/b.1", role="api", slots=0), MINUTE)
    store.register_process(process("host-1/21/a/b.1", role="executor"), MINUTE)
    assert status(store)["silent_processes"] == ["host-1/18/a/b.1"], "one process replaces one"
    store.register_process(process("host-1/22/a/b.1", role="executor"), MINUTE)
    assert status(store)["silent_processes"] == []


def test_a_configuration_that_is_not_loaded_is_named_once_for_all_its_processes(store, told):
    for number in range(3):
        store.register_process(process(f"host-1/{number}/a/b.1", config_problem="x.toml was edited"), MINUTE)
    assert status(store)["config_problems"] == [
        {"problem": "x.toml was edited", "processes": ["host-1/0", "host-1/1", "host-1/2"]}
    ]
    assert "host-1/0, host-1/1, host-1/2: x.toml was edited (docs/runbook.md#confignotloaded)" in told("status")


def test_a_table_that_is_gone_is_named_for_a_week_unless_it_is_off(store, told):
    gone = replace(FOUND, outcome="error", error="t: its directory /lake/t does not exist", is_gone=True)
    scanned(store, "t", "compact", FOUND, gone)
    (entry,) = status(store)["attention"]
    assert (entry["directory_gone"], entry["scan_error"]) == (True, gone.error)
    assert "t is gone: its directory /lake/t does not exist. Put it back or mount its storage" in told("status")
    store.register_table(TableRef(name="t", format="hudi", location="/lake/t"), "off")
    assert status(store)["attention"] == []
    store.register_table(TableRef(name="t", format="hudi", location="/lake/t"), "compact")
    store.record_scan(replace(gone, table="t", taken_at=NOW - timedelta(days=8)))
    assert status(store)["attention"] == []


def test_files_of_other_programs_are_named_in_status_with_the_remedy(store, told):
    scanned(store, "a", "compact", replace(FOUND, foreign_files=2, foreign_file="dt=1/junk.parquet"))
    assert (
        "a has 2 files of other programs among its data, ignored by lakefold, such as dt=1/junk.parquet; move them "
        "out of the table, since its own readers and writers may fail on them (docs/runbook.md#tablehasforeignfiles)"
    ) in told("status")


def test_a_running_plan_shows_speed_remaining_time_and_last_report(store, told):
    plan = waiting(store)
    claim = store.claim("e")
    assert serializers.progress_rate(store.plan(plan.plan_id), None) == {"bytes_per_second": None, "seconds_left": None}
    store.heartbeat(claim, RewriteProgress(bytes_done=1000, bytes_total=3000))
    view = store.plan(plan.plan_id)
    view = replace(view, claimed_at=view.heartbeat_at - timedelta(seconds=50), milliseconds={"ask": 10_000})
    assert serializers.progress_rate(view, None) == {"bytes_per_second": 25.0, "seconds_left": 80.0}
    gone = serializers.progress_rate(view, "no executor is running; lakefold worker starts one")
    assert gone == {"bytes_per_second": None, "seconds_left": None}
    proving = replace(view, step="rewrite", milliseconds={"ask": 10_000, "rewrite": 20_000}, progress_bytes_done=3000)
    assert serializers.progress_rate(proving, None) == {"bytes_per_second": 150.0, "seconds_left": 0.0}
    again = replace(view, step="prepare", milliseconds={"ask": 10_000, "rewrite": 30_000})
    assert serializers.progress_rate(again, None) == {"bytes_per_second": 100.0, "seconds_left": 20.0}, (
        "without groups left out"
    )
    assert "left" not in told("plans", "show", plan.plan_id), "no executor is running"
    store.register_process(process(spark="running"), MINUTE)
    words = told("plans", "show", plan.plan_id)
    assert re.search(r"progress   1000 B of 2.9 KiB, 33 %; [\d.]+ \w+/s, about [\d.]+ m?s left", words)
    assert re.search(r"heartbeat  [\d.]+ m?s ago", words)
    assert "AFTER" in words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.85, "850 ms"),
        (42.3, "42.3 s"),
        (59.99, "1m 0s"),
        (142, "2m 22s"),
        (3599.9, "1h 0m"),
        (11_050, "3h 4m"),
        (190_800, "2d 5h"),
    ],
)
def test_elapsed_time_has_two_units(seconds, words):
    assert format_elapsed(seconds) == words


def test_changes_of_the_lake_have_one_line_for_a_week_and_one_for_a_month(store, told):
    scanned(store, TABLE.name, "compact", FOUND)
    assert "days" not in told("status"), "one point is no trend"
    store.record_trends()
    sql(store.url, f"UPDATE trend SET at_ms = at_ms - {86_400_000}")
    since = store.trend(None)[0].at
    store.record_scan(
        replace(FOUND, table=TABLE.name, taken_at=datetime.now(UTC), files=6, small_files=6, reducible_files=0)
    )
    before = f"reducible {format_percent(FOUND.reducible_files / FOUND.files)} → 0 %, small "
    changed = f"files {FOUND.files} → 6; 0 B rewritten, 0 B freed"
    words = told("status")
    assert f"since {since:%Y-%m-%d %H:%M} UTC: {before}" in words
    assert changed in words
    sql(store.url, f"UPDATE trend SET at_ms = at_ms - {9 * 86_400_000}")
    store.record_trends()
    sql(store.url, f"UPDATE trend SET at_ms = at_ms - {8 * 86_400_000}")
    words = told("status")
    assert re.search(r"^7 days: reducible 0 % → 0 %, small 100 % → 100 %, files 6 → 6;", words, re.MULTILINE)
    assert re.search(rf"^30 days: {re.escape(before)}.*{re.escape(changed)}$", words, re.MULTILINE)
