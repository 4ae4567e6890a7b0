# SPDX-License-Identifier: Apache-2.0
"""One plan's run on a toy table and a real SQLite store: every outcome, and what is recorded of it."""

import logging
import sqlite3
import threading
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from toys import files, timeline, timeline_tables
from toys.bench import QUICK, Background, Bench, Flaky, bench_at, raising
from toys.cases import LocationsCase, TimelineCase, VersionsCase, no_spark
from waiting import wait_for

from executors.context import RunContext
from executors.outcome import RunResult
from executors.take_over import take_over_one
from lake.errors import CommitUnknown, Conflict, Integrity, LeaseLost, Rejected, Transient
from lake.plan import Step


def test_a_plan_completes_and_the_table_holds_the_same_rows_in_fewer_files(bench: Bench, caplog):
    caplog.set_level(logging.INFO)
    before, plan = bench.rows(), bench.request()
    sizes = {s.path: s.bytes for g in plan.groups for s in g.slices}
    outcome = bench.run()
    assert outcome.result is RunResult.COMPLETED
    assert bench.rows() == before
    assert (bench.state(plan), bench.commits(plan), bench.pending()) == ("completed", 1, {})
    view = bench.store.plan(plan.plan_id)
    assert [(f.partition, f.files_before, f.files_after) for f in view.figures] == [("dt=0", 3, 1), ("dt=1", 3, 1)]
    for figure in view.figures:
        assert figure.bytes_before == sum(size for path, size in sizes.items() if path.startswith(figure.partition))
        folder = Path(bench.table.location) / figure.partition
        assert figure.bytes_after == sum(f.stat().st_size for f in folder.iterdir() if f.name[0] != "w")
    assert set(view.milliseconds) >= {step.value for step in Step if step is not Step.RECORD}
    assert {d.version.path for d in bench.store.awaiting_deletion(bench.table)} == set(sizes)
    lines = [r.getMessage() for r in caplog.records if "completed as" in r.getMessage()]
    assert len(lines) == 1
    for part in (plan.plan_id, "dt=0 3 -> 1 files", "dt=1 3 -> 1 files", "rewrite", "ms"):
        assert part in lines[0]
    assert bench.recorder.finished == [("completed", "")]
    assert [e.reason for e in bench.store.plan_events(plan.plan_id) if e.from_state == e.to_state] == ["engine: a toy"]
    assert f"plan {plan.plan_id} of toy: engine: a toy" in caplog.messages


def test_a_plan_names_the_columns_that_its_rewrite_may_change(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    prepare = timeline.ToyWriter.prepare
    monkeypatch.setattr(
        timeline.ToyWriter, "prepare", lambda *given: replace(prepare(*given), volatile_columns=frozenset({"note"}))
    )
    bench.request()
    outcome = bench.run()
    assert outcome.reason == "Integrity"
    assert "column _file, " in str(outcome.error)


def test_a_conflict_cancels_the_plan_and_discards_its_files(bench: Bench):
    before, plan = bench.rows(), bench.request()
    bench.format.hooks["commit"] = raising(Conflict("a writer was faster"))
    outcome = bench.run()
    assert (outcome.result, outcome.reason, outcome.error) == (RunResult.CANCELLED, "Conflict", "a writer was faster")
    assert (bench.state(plan), bench.commits(plan), bench.pending(), bench.unowned()) == ("cancelled", 0, {}, ())
    assert bench.rows() == before
    assert bench.store.locked_partitions("toy") == {}


@pytest.mark.parametrize("where", ["open", "prepare", "rewrite", "rewritten", "commit"])
def test_a_transient_error_anywhere_requeues_the_plan_until_its_attempts_are_used_up(bench: Bench, where: str):
    before, plan = bench.rows(), bench.request()
    bench.format.hooks[where] = raising(Transient("the lock is taken"))
    assert [bench.run().result for _ in range(2)] == [RunResult.REQUEUED, RunResult.REQUEUED]
    assert (bench.state(plan), bench.pending(), bench.unowned()) == ("requested", {}, ())
    assert bench.run().result is RunResult.FAILED
    assert bench.state(plan) == "failed"
    assert bench.store.plan(plan.plan_id).error == "the lock is taken"
    assert bench.rows() == before
    assert bench.store.table_state("toy").halted is False


def test_a_requeued_plan_runs_again_and_commits_once(bench: Bench):
    plan = bench.request()
    bench.format.hooks["rewritten"] = raising(Transient("a node went away"))
    bench.run()
    del bench.format.hooks["rewritten"]
    assert bench.run().result is RunResult.COMPLETED
    assert (bench.commits(plan), bench.unowned(), bench.store.plan(plan.plan_id).attempts) == (1, (), 2)


def test_a_rejected_plan_fails_without_a_retry_and_the_table_is_planned_again(bench: Bench):
    plan = bench.request()
    bench.format.hooks["prepare"] = raising(Rejected("bucket index simple is not supported"))
    assert bench.run().result is RunResult.FAILED
    assert bench.state(plan) == "failed"
    assert bench.store.table_state("toy").halted is False
    assert bench.store.locked_partitions("toy") == {}


def test_a_defect_ends_in_integrity_and_halts_this_table_only(bench: Bench):
    other = bench.add_table("other")
    before, plan, unharmed = bench.rows(), bench.request(), bench.request(other)
    bench.format.defect = lambda rows: rows.slice(1)
    outcome = bench.run()
    assert (outcome.result, outcome.reason) == (RunResult.FAILED, "Integrity")
    assert outcome.error == "partition 'dt=0', rows: expected 150, found 149"
    state = bench.store.table_state("toy")
    assert state.halted
    assert "expected 150, found 149" in str(state.halted_reason)
    assert (bench.state(plan), bench.pending(), bench.unowned(), bench.rows()) == ("failed", {}, (), before)
    bench.format.defect = lambda rows: rows
    assert bench.run().result is RunResult.COMPLETED
    assert bench.state(unharmed) == "completed"
    bench.request()
    assert bench.store.claim("another executor") is None


@pytest.mark.parametrize(
    ("case", "moment"),
    [
        (TimelineCase, "rewritten"),
        # these writers call the fence after the hook: the table is halted after the last check of the run itself
        (LocationsCase, "commit"),
        (VersionsCase, "commit"),
    ],
)
def test_a_plan_whose_table_is_halted_while_it_runs_commits_only_after_the_table_was_resumed(
    tmp_path: Path, case: type, moment: str
):
    with bench_at(tmp_path, case()) as bench:
        before, plan = bench.rows(), bench.request()
        bench.format.hooks[moment] = lambda: bench.store.halt_table(bench.table, "another plan's rows differ")
        for _ in range(4):  # more often than a plan has attempts
            outcome = bench.run()
            assert (outcome.result, outcome.reason) == (RunResult.REQUEUED, "TableHalted")
            assert outcome.error == "toy was halted while the plan ran: another plan's rows differ"
            assert (bench.state(plan), bench.commits(plan), bench.pending()) == ("requested", 0, {})
            assert bench.store.claim("another executor") is None
            assert bench.rows() == before
            bench.store.resume("toy", "ada")
        bench.format.hooks.clear()
        assert bench.run().result is RunResult.COMPLETED
        assert (bench.commits(plan), bench.rows()) == (1, before)


def test_a_plan_that_has_committed_before_its_table_is_halted_is_recorded(bench: Bench):
    plan = bench.request()
    bench.format.hooks["landed"] = lambda: bench.store.halt_table(bench.table, "rows differ")
    assert bench.run().result is RunResult.COMPLETED
    assert (bench.state(plan), bench.store.table_state("toy").halted) == ("completed", True)


def test_a_bug_requeues_the_plan_with_its_class_and_leaves_a_traceback_in_the_log(bench: Bench, caplog):
    plan = bench.request()
    bench.format.hooks["rewrite"] = lambda: 1 / 0  # type: ignore[assignment,return-value]
    outcome = bench.run()
    assert (outcome.result, outcome.reason) == (RunResult.REQUEUED, "ZeroDivisionError")
    assert bench.store.plan(plan.plan_id).error == "ZeroDivisionError: division by zero"
    assert any(r.exc_info and r.exc_info[0] is ZeroDivisionError for r in caplog.records)
    assert (bench.pending(), bench.unowned()) == ({}, ())


@pytest.mark.parametrize(
    "error", [CommitUnknown("no answer"), RuntimeError("py4j lost its connection"), Transient("?")]
)
def test_a_commit_that_took_effect_despite_an_error_is_looked_up_and_recorded(bench: Bench, error: Exception):
    plan = bench.request()
    bench.format.hooks["landed"] = raising(error)
    outcome = bench.run()
    assert outcome.result is RunResult.COMPLETED
    assert (bench.state(plan), bench.commits(plan)) == ("completed", 1)
    assert len(bench.store.awaiting_deletion(bench.table)) == 6


@pytest.mark.parametrize("error", [CommitUnknown("no answer"), RuntimeError("py4j lost its connection")])
def test_a_commit_that_may_still_take_effect_leaves_the_plan_inflight_and_deletes_nothing(
    bench: Bench, error: Exception
):
    before, plan = bench.rows(), bench.request()
    bench.format.hooks["commit"] = raising(error)
    outcome = bench.run()
    assert (outcome.result, outcome.reason) == (RunResult.INFLIGHT, "CommitUnknown")
    assert bench.state(plan) == "inflight"
    assert len(bench.pending()) == 1
    new = [p for p in Path(bench.table.location).rglob("*.parquet") if p.name[0] != "w"]
    assert len(new) == 2
    bench.format.hooks.clear()
    bench.expire()
    rescued = take_over_one(
        "second", RunContext(formats=lambda _: bench.format, store=bench.store, spark=no_spark, retry_delays=QUICK)
    )
    assert rescued is not None
    assert rescued.result is RunResult.REQUEUED
    assert (bench.pending(), bench.unowned()) == ({}, ())
    assert bench.run().result is RunResult.COMPLETED
    assert (bench.rows(), bench.commits(plan)) == (before, 1)


def test_an_unavailable_table_keeps_a_taken_over_plan_inflight(bench: Bench):
    plan = bench.request()
    bench.format.hooks["rewritten"] = raising(Transient("first attempt"))
    bench.run()
    bench.format.hooks["committed"] = raising(Transient("storage is down"))
    assert bench.run().result is RunResult.INFLIGHT
    assert bench.state(plan) == "inflight"


def test_a_stale_group_is_left_out_and_the_other_groups_commit(bench: Bench):
    plan = bench.request()
    stale = str(plan.groups[0].slices[0].path)
    timeline_tables.append_log(bench.table, stale, files.rows(0, 1))
    before = bench.rows()
    assert bench.run().result is RunResult.COMPLETED
    view = bench.store.plan(plan.plan_id)
    assert [g.partition for g in view.left_out] == ["dt=0"]
    assert [f.partition for f in view.figures] == ["dt=1"]
    assert bench.rows() == before
    assert bench.store.table_state("toy").quarantined == {}


def truncate(bench: Bench, path: str) -> None:
    whole = Path(bench.table.location) / path
    whole.write_bytes(whole.read_bytes()[:-100])


def test_an_unreadable_input_is_quarantined_and_only_its_group_left_out(bench: Bench):
    plan = bench.request()
    broken = str(plan.groups[0].slices[1].path)
    before = [s.path for s in plan.groups[0].slices]
    truncate(bench, broken)
    outcome = bench.run()
    assert outcome.result is RunResult.COMPLETED
    assert [f.partition for f in outcome.figures] == ["dt=1"]
    assert list(bench.store.table_state("toy").quarantined) == [broken]
    assert broken in str(bench.store.plan(plan.plan_id).left_out[0].left_out)
    live = [item["path"] for item in timeline.manifest(bench.table)["files"]]
    assert set(before) <= set(live)
    assert bench.unowned() == ()
    assert bench.store.plan(plan.plan_id).attempts == 1


def test_a_plan_whose_groups_are_all_unreadable_is_cancelled_and_the_files_quarantined(bench: Bench):
    plan = bench.request(partitions=["dt=1"])
    broken = str(plan.groups[0].slices[0].path)
    truncate(bench, broken)
    assert bench.run().result is RunResult.CANCELLED
    assert list(bench.store.table_state("toy").quarantined) == [broken]
    assert (bench.pending(), bench.unowned()) == ({}, ())


def test_a_short_database_outage_costs_nothing(bench: Bench):
    plan, flaky = bench.request(), Flaky(bench.store)
    claim = bench.claim()
    flaky.down = {"record_step": 4, "complete": 2}
    assert bench.run(claim, store=flaky, heartbeat=timedelta(hours=1)).result is RunResult.COMPLETED
    assert bench.state(plan) == "completed"


def test_a_plan_is_never_committed_without_an_answer_to_its_last_heartbeat(bench: Bench):
    plan, flaky = bench.request(), Flaky(bench.store)
    claim = bench.claim()
    flaky.down = {"heartbeat": 1000}
    bench.run(claim, store=flaky)
    assert bench.commits(plan) == 0


def test_a_commit_that_could_not_be_recorded_is_recorded_by_the_rescuer(bench: Bench):
    plan, flaky = bench.request(), Flaky(bench.store)
    claim = bench.claim()
    flaky.down = {"complete": 1000}
    assert bench.run(claim, store=flaky).result is RunResult.INFLIGHT
    assert (bench.commits(plan), bench.state(plan)) == (1, "inflight")
    bench.expire()
    rescued = take_over_one("second", RunContext(formats=lambda _: bench.format, store=bench.store, spark=no_spark))
    assert rescued is not None
    assert rescued.result is RunResult.COMPLETED
    assert [f.files_after for f in rescued.figures] == [1, 1]
    assert len(bench.store.awaiting_deletion(bench.table)) == 6


def test_progress_reaches_the_store_while_the_rewrite_runs(bench: Bench):
    plan, gate = bench.request(), threading.Event()
    calls = iter([lambda: None, lambda: gate.wait(10) and None])
    bench.format.hooks["rewrite"] = lambda: next(calls)()
    run = Background(bench.run)
    first_group = plan.groups[0].bytes
    wait_for(lambda: bench.store.plan(plan.plan_id).progress_bytes_done == first_group, "one group's progress")
    assert bench.store.plan(plan.plan_id).progress_bytes_total == plan.bytes
    gate.set()
    assert run.join().result is RunResult.COMPLETED


def test_closing_a_writer_that_fails_does_not_hide_the_commit(bench: Bench):
    plan = bench.request()
    bench.format.hooks["close"] = raising(RuntimeError("the JVM is gone"))
    assert bench.run().result is RunResult.COMPLETED
    assert bench.state(plan) == "completed"


@pytest.mark.parametrize("error", [LeaseLost("moved on"), Integrity("differs")])
def test_an_outcome_raised_by_a_writer_keeps_its_meaning(bench: Bench, error: Exception):
    plan = bench.request()
    bench.format.hooks["rewrite"] = raising(error)
    expected = RunResult.LEASE_LOST if isinstance(error, LeaseLost) else RunResult.FAILED
    assert bench.run().result is expected
    assert bench.state(plan) == ("inflight" if expected is RunResult.LEASE_LOST else "failed")


def test_and_p9_epoch_evidence_and_payload_reach_the_commit(bench: Bench, monkeypatch):
    seen: list[Any] = []
    prepare, rewrite, commit = timeline.ToyWriter.prepare, timeline.ToyWriter.rewrite, timeline.ToyWriter.commit
    monkeypatch.setattr(
        timeline.ToyWriter, "prepare", lambda w, *args: replace(prepare(w, *args), preconditions={"schema": 3})
    )

    def with_payload(writer: Any, *args: Any) -> Any:
        done = rewrite(writer, *args)
        return replace(done, outputs=tuple(replace(o, payload={"rows": o.rows}) for o in done.outputs))

    def spy(writer: Any, done: Any) -> Any:
        seen.append((done.prepared.preconditions, [o.payload for o in done.outputs]))
        return commit(writer, done)

    monkeypatch.setattr(timeline.ToyWriter, "rewrite", with_payload)
    monkeypatch.setattr(timeline.ToyWriter, "commit", spy)
    plan = bench.request()
    outcome = bench.run()
    assert seen == [({"schema": 3}, [{"rows": 150}, {"rows": 150}])]
    assert outcome.commit is not None
    assert outcome.commit.epoch == 1
    found = bench.format.find_commit(bench.table, plan.plan_id)
    assert found is not None
    assert found.epoch == 1


def test_a_plan_is_kept_for_as_long_as_its_commit_may_take_before_that_begins(bench: Bench):
    bench.format.max_commit_duration = timedelta(minutes=10)
    lasts: list[int] = []

    def look() -> None:
        with sqlite3.connect(bench.home / "lakefold.db") as connection:
            query = "SELECT lease_until_ms - heartbeat_at_ms, grace_ms FROM plan"
            lasts.extend(connection.execute(query).fetchone())
        connection.close()

    bench.format.hooks["commit"] = look
    bench.request()
    assert bench.run().result is RunResult.COMPLETED
    assert lasts[0] > 19 * 60_000
    assert lasts[1] == 20 * 60_000
