# SPDX-License-Identifier: Apache-2.0
"""Commits that appear in a table after their plan has ended: each of them is recorded."""

import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from contract.plans import plan_all
from toys import timeline
from toys.bench import QUICK, Bench, bench_at, raising
from toys.cases import TimelineCase, VersionsCase, no_spark
from uuid_utils import uuid7

from executors.context import RunContext
from executors.outcome import RunResult
from executors.sweep import sweep_table
from executors.take_over import take_over_one
from lake.errors import Rejected, TableGone
from lake.plan import Claim, Plan
from service.control.store.plan_creation import QueueEntry


def sleeper(bench: Bench) -> tuple[Plan, Claim, Callable[[], None]]:
    """A plan whose executor stopped right before its commit, its claim, and its commit."""
    plan, claim = bench.request(), bench.claim("asleep")
    writer = bench.format.writer(bench.table, no_spark)
    rewrite = writer.rewrite(writer.prepare(plan, claim.epoch), lambda _: None)

    def commit() -> None:
        bench.format.hooks.clear()
        writer.commit(rewrite)

    return plan, claim, commit


def recorded(bench: Bench, plan: Plan) -> tuple[str, int, int]:
    """How the plan ended, its commits, and how many of its files wait for their deletion."""
    return bench.state(plan), bench.commits(plan), len(bench.store.awaiting_deletion(bench.table))


@pytest.mark.parametrize("moment", ["pending", "discard"])
@pytest.mark.parametrize("cancelled", [True, False])
def test_a_commit_that_appears_after_the_table_was_checked_is_recorded_by_the_take_over(
    bench: Bench, moment: str, cancelled: bool
):
    plan, _, commit = sleeper(bench)
    if cancelled:
        bench.store.request_cancel(plan.plan_id, "operator", "not today")
    bench.expire()
    bench.format.hooks[moment] = commit
    assert bench.rescue().result is RunResult.COMPLETED
    assert recorded(bench, plan) == ("completed", 1, 6)
    assert bench.store.plan(plan.plan_id).cancel_reason is None


def test_a_commit_of_an_earlier_epoch_that_appears_during_the_next_attempt_is_recorded_by_it(bench: Bench):
    before = bench.rows()
    plan, _, commit = sleeper(bench)
    bench.expire()
    claim = bench.store.take_over_expired("second")
    assert claim is not None
    bench.format.hooks["discard"] = commit
    assert bench.run(claim).result is RunResult.COMPLETED
    assert (recorded(bench, plan), bench.rows()) == (("completed", 1, 6), before)


@pytest.mark.parametrize("lake", ["not mounted", "forbidden"])
@pytest.mark.parametrize("cancelled", [True, False])
def test_a_lake_that_is_unmounted_or_forbidden_leaves_the_plan_inflight(bench: Bench, lake: str, cancelled: bool):
    plan, _, commit = sleeper(bench)
    commit()
    if cancelled:
        bench.store.request_cancel(plan.plan_id, "operator", "not today")
    here, away = Path(bench.table.location), bench.home / "away"
    refused = raising(Rejected(f"{here}: {lake}"))
    if lake == "forbidden":
        bench.format.hooks |= dict.fromkeys(("committed", "pending", "open"), refused)
    else:
        shutil.move(here, away)
        here.mkdir()  # what a mount point looks like without its lake
        bench.format.hooks |= {"committed": refused, "pending": refused}
    for _ in range(4):  # more often than a plan has attempts
        bench.expire()
        assert bench.rescue().result is RunResult.INFLIGHT
        assert bench.state(plan) == "inflight"
    bench.format.hooks.clear()
    if away.exists():
        here.rmdir()
        shutil.move(away, here)
    bench.expire()
    assert bench.rescue().result is RunResult.COMPLETED
    assert recorded(bench, plan) == ("completed", 1, 6)


def test_a_plan_of_a_removed_table_ends_when_an_operator_cancels_it_and_is_completed_if_the_table_returns(
    bench: Bench,
):
    plan, _, commit = sleeper(bench)
    commit()
    here, away = Path(bench.table.location), bench.home / "away"
    shutil.move(here, away)
    gone = raising(TableGone(f"{here}: no table"))
    bench.format.hooks |= dict.fromkeys(("committed", "pending", "open"), gone)
    for _ in range(6):  # more often than a plan has attempts
        bench.expire()
        stays = bench.rescue()
        assert (stays.result, bench.state(plan)) == (RunResult.INFLIGHT, "inflight")
    assert stays.error.endswith(f"no table; to give it up: lakefold plans cancel {plan.plan_id}")
    bench.store.request_cancel(plan.plan_id, "ada", "the table was dropped")
    bench.expire()
    ended_now = bench.rescue()
    assert (ended_now.result, ended_now.error) == (
        RunResult.CANCELLED,
        f"cancelled as requested, the table is gone: {here}: no table",
    )
    assert bench.store.locked_partitions("toy") == {}
    bench.format.hooks.clear()
    shutil.move(away, here)
    sweep_table(bench.table, RunContext(store=bench.store, spark=no_spark), format=bench.format)
    assert recorded(bench, plan) == ("completed", 1, 6)


def test_a_table_that_can_not_be_read_after_the_withdrawal_keeps_the_plan_inflight(bench: Bench):
    plan, _, _ = sleeper(bench)
    bench.expire()
    gone = raising(Rejected("no such directory"))
    bench.format.hooks["discard"] = lambda: bench.format.hooks.update(committed=gone)
    assert bench.rescue().result is RunResult.INFLIGHT
    assert bench.state(plan) == "inflight"
    bench.format.hooks.clear()
    bench.expire()
    assert bench.rescue().result is RunResult.REQUEUED


def test_a_first_attempt_that_never_reached_its_commit_ends_without_reading_the_table(bench: Bench):
    plan = bench.request()
    gone = raising(Rejected("no such directory"))
    bench.format.hooks |= {"committed": gone, "pending": gone, "open": gone}
    assert bench.run().result is RunResult.FAILED
    assert bench.state(plan) == "failed"


def test_an_executor_without_an_adapter_of_the_format_leaves_a_plan_that_may_have_committed(bench: Bench):
    plan, _, commit = sleeper(bench)
    commit()
    bench.expire()

    def unknown(_: str) -> Any:
        raise Rejected("no table format toy")

    outcome = take_over_one("older", RunContext(formats=unknown, store=bench.store, spark=no_spark, retry_delays=QUICK))
    assert outcome is not None
    assert (outcome.result, bench.state(plan)) == (RunResult.INFLIGHT, "inflight")


def ended(bench: Bench, how: str) -> tuple[Plan, Callable[[], None]]:
    """A plan that ended without being asked for, as an older lakefold did, and its sleeper's commit."""
    plan, claim, commit = sleeper(bench)
    if how == "cancelled":
        bench.store.cancel(claim, "cancelled before its commit", actor="older")
    else:
        bench.store.fail(claim, "the lock is taken")
    return plan, commit


@pytest.mark.parametrize("how", ["cancelled", "failed"])
def test_an_ended_plan_whose_commit_is_in_the_table_is_completed_by_the_sweep(bench: Bench, how: str):
    before = bench.rows()
    plan, commit = ended(bench, how)
    commit()
    assert recorded(bench, plan) == (how, 1, 0)
    bench.format.hooks["open"] = raising(AssertionError("no session is needed to ask"))
    for _ in range(2):
        assert sweep_table(bench.table, RunContext(store=bench.store, spark=no_spark), format=bench.format) == 0
        assert recorded(bench, plan) == ("completed", 1, 6)
    view = bench.store.plan(plan.plan_id)
    assert (view.error, view.files_before, view.files_after) == (None, 6, 2)
    assert [(f.partition, f.files_before, f.files_after) for f in view.figures] == [("dt=0", 3, 1), ("dt=1", 3, 1)]
    assert (bench.rows(), bench.unowned()) == (before, ())


def test_a_plan_completed_by_the_sweep_takes_no_partition_from_the_plan_that_holds_it_now(bench: Bench):
    plan, commit = ended(bench, "failed")
    other = bench.request()
    commit()
    sweep_table(bench.table, RunContext(store=bench.store, spark=no_spark), format=bench.format)
    assert recorded(bench, plan) == ("completed", 1, 6)
    assert set(bench.store.locked_partitions("toy").values()) == {other.plan_id}
    assert bench.run().result is RunResult.CANCELLED, "its inputs are replaced"


def test_a_failed_plan_that_was_retried_records_its_commit_when_it_is_claimed(bench: Bench):
    plan, commit = ended(bench, "failed")
    bench.store.retry(plan.plan_id, "operator")
    commit()
    assert sweep_table(bench.table, RunContext(store=bench.store, spark=no_spark), format=bench.format) == 0
    assert bench.state(plan) == "requested"
    assert bench.run().result is RunResult.COMPLETED
    assert recorded(bench, plan) == ("completed", 1, 6)


class Deaf:
    """A store whose answers to some calls are lost, although the database took note."""

    def __init__(self, store: Any, *calls: str) -> None:
        self._store, self._lost = store, list(calls)

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._store, name)
        if name not in self._lost:
            return call
        self._lost.remove(name)

        def lost(*arguments: Any, **named: Any) -> None:
            call(*arguments, **named)
            raise ConnectionError("the answer was lost")

        return lost


def test_a_completion_whose_answer_was_lost_is_found_and_reported_as_completed(bench: Bench):
    plan, claim = bench.request(), bench.claim()
    outcome = bench.run(claim, store=Deaf(bench.store, "complete"))
    assert outcome.result is RunResult.COMPLETED
    assert recorded(bench, plan) == ("completed", 1, 6)
    assert bench.recorder.finished == [("completed", "")]
    assert len([e for e in bench.store.plan_events(plan.plan_id) if e.to_state == "completed"]) == 1


def test_a_cancellation_that_is_too_late_only_leaves_its_event(bench: Bench):
    plan = bench.request()
    bench.format.hooks["commit"] = lambda: bench.store.request_cancel(plan.plan_id, "ada", "cancelled by hand") and None
    assert bench.run().result is RunResult.COMPLETED
    view = bench.store.plan(plan.plan_id)
    assert (view.error, view.cancel_reason, view.cancel_requested_by) == (None, None, None)
    reasons = [event.reason for event in bench.store.plan_events(plan.plan_id)]
    assert "cancel requested: cancelled by hand" in reasons
    assert reasons[-1].endswith("; the cancel request was too late")


@pytest.mark.parametrize("step", ["prepare", "commit"])
def test_under_the_tables_lock_an_executor_learns_that_its_plan_was_taken_over(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, step: str
):
    monkeypatch.setattr(timeline.ToyWriter, "fence", staticmethod(lambda: None), raising=False)
    plan, claim = bench.request(), bench.claim("asleep")
    go_on = getattr(timeline.ToyWriter, step)

    def wait_for_the_lock(writer: Any, *arguments: Any) -> Any:
        bench.expire()
        while bench.store.take_over_expired("second") is None:  # renewed in between
            bench.expire()
        time.sleep(0.06)  # longer than a heartbeat
        writer.fence()
        return go_on(writer, *arguments)

    monkeypatch.setattr(timeline.ToyWriter, step, wait_for_the_lock)
    assert bench.run(claim).result is RunResult.LEASE_LOST
    assert (bench.commits(plan), bench.pending(), bench.unowned()) == (0, {}, ())


@contextmanager
def restored(bench: Bench) -> Iterator[None]:
    """After the block, the database is as it was before the block."""
    database, backup = bench.url.removeprefix("sqlite:///"), bench.home / "backup.db"
    with closing(sqlite3.connect(database)) as now, closing(sqlite3.connect(backup)) as kept:
        now.backup(kept)
    yield
    with closing(sqlite3.connect(backup)) as kept, closing(sqlite3.connect(database)) as now:
        kept.backup(now)


@pytest.mark.parametrize("case", [TimelineCase, VersionsCase])
@pytest.mark.parametrize("end", ["cancelled", "declined", "withdrawn"])
def test_a_commit_after_the_backup_is_recorded_although_the_restored_plan_ends_before_any_claim(
    tmp_path: Path, case: type, end: str
):
    """Otherwise the replaced files are never deleted. The next scan withdraws a proposal, since its files changed."""
    with bench_at(tmp_path, case()) as bench:
        before, plan = bench.rows(), plan_all(bench.format, bench.table, str(uuid7()))
        proposed = QueueEntry(needs_approval=end != "cancelled")
        bench.store.add_plan(plan, request_id=None, actor="test", estimate={}, queued=proposed)
        with restored(bench):
            if proposed.needs_approval:
                bench.store.approve(plan.plan_id, "ada")
            assert bench.run().result is RunResult.COMPLETED
        assert recorded(bench, plan) == ("requested", 1, 0)
        if end == "cancelled":
            bench.store.request_cancel(plan.plan_id, "bob")
        elif end == "declined":
            bench.store.decline(plan.plan_id, "bob")
        else:
            bench.store.withdraw_proposals({plan.plan_id: "6 of its 6 files changed"}, actor="scheduler")
        bench.sweep()
        assert (recorded(bench, plan), bench.rows()) == (("completed", 1, 6), before)
        known = bench.store.plan(plan.plan_id)
        assert known.decision == ("approved" if proposed.needs_approval else None)
        state = bench.store.table_state("toy")
        assert "attempt 1 committed" in str(state.halted_reason), "a copy of the database could have made it"
        bench.store.resume("toy", "ada")
        bench.sweep()
        assert (bench.clean().deleted_files, bench.unowned(), bench.rows()) == (6, (), before)
