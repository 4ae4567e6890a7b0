# SPDX-License-Identifier: Apache-2.0
"""Staged work on tables without a record of it: the sweep finds it by the records in the database."""

import time
from datetime import timedelta

import pytest
from support import SOAK
from toys.bench import Bench, raising

from contract.attempts import attempt
from executors.outcome import RunResult
from lake.errors import LakefoldError, Transient
from lake.plan import Plan, StagedWork
from service.control.store.errors import PartitionsLocked

SILENT = [f"{case}-{on}" for case in ("locations", "versions") for on in ("sqlite", "postgresql")[: 1 + SOAK]]
pytestmark = pytest.mark.parametrize("bench", SILENT, indirect=True)
WEEK_MS = 7 * 24 * 3_600_000


class Killed(BaseException):
    """Not an error: the process ends here."""


def die() -> None:
    raise Killed


def staged(bench: Bench) -> list[StagedWork]:
    return [left.staged for left in bench.store.orphaned_stagings(bench.table)]


@pytest.mark.parametrize("cancelled", [True, False])
def test_staged_files_of_a_killed_executor_are_withdrawn_before_its_plan_is_released(bench: Bench, cancelled: bool):
    before, files, plan = bench.rows(), bench.stored(), bench.request()
    bench.format.hooks["rewritten"] = die
    with pytest.raises(Killed):
        bench.run()
    assert (bench.sweep(), staged(bench)) == (0, []), "its executor may live"
    assert bench.stored().keys() > files.keys()
    bench.format.hooks.clear()
    if cancelled:
        bench.store.request_cancel(plan.plan_id, "ada")
    bench.format.hooks["discard"] = raising(Transient("the storage is down"))
    bench.expire()
    outcome = bench.rescue()
    assert outcome is not None
    assert (outcome.result, bench.state(plan)) == (RunResult.INFLIGHT, "inflight")
    bench.format.hooks.clear()
    bench.expire()
    bench.rescue()
    assert bench.state(plan) == ("cancelled" if cancelled else "requested")
    assert (bench.stored(), bench.sweep(), bench.rows()) == (files, 0, before)


def test_files_that_a_suspended_executor_writes_after_its_withdrawal_are_found_for_a_week(bench: Bench):
    before, files, plan = bench.rows(), bench.stored(), bench.request()
    claim = bench.claim()
    bench.store.request_cancel(plan.plan_id, "ada")
    with bench.format.writer(bench.table, bench.case.spark, bench.case.engines) as sleeper:
        sleeper.journal = lambda one: bench.store.record_staged(claim, one)
        prepared = sleeper.prepare(plan, claim.epoch)
        sleeper.rewrite(prepared, lambda _: None)
        bench.expire()
        bench.rescue()
        assert (bench.state(plan), bench.sweep(), bench.stored()) == ("cancelled", 0, files)
        for output in plan.partitions:  # a task on another host creates the directory again
            sleeper.folder_of(output, prepared.instant).mkdir(parents=True, exist_ok=True)
        rewrite = sleeper.rewrite(prepared, lambda _: None)
        assert (bench.sweep(), bench.stored()) == (1, files)
        with pytest.raises(LakefoldError):
            sleeper.commit(rewrite)
    assert len(staged(bench)) == 1, "it may write again"
    bench.execute(f"UPDATE staged SET staged_at_ms = staged_at_ms - {WEEK_MS}")
    assert (bench.sweep(), staged(bench), bench.rows()) == (0, [], before)


def test_the_files_of_a_commit_never_count_as_abandoned(bench: Bench):
    plan = bench.request()
    bench.format.hooks["landed"] = die
    with pytest.raises(Killed):
        bench.run()
    bench.format.hooks.clear()
    before = bench.rows()
    bench.expire()
    outcome = bench.rescue()
    assert outcome is not None
    assert outcome.result is RunResult.COMPLETED
    assert (bench.state(plan), bench.sweep(), bench.rows(), staged(bench)) == ("completed", 0, before, [])


@pytest.mark.parametrize("cancelled", [True, False])
def test_a_commit_that_its_table_forgot_before_it_was_recorded_costs_its_record_and_nothing_else(
    bench: Bench, cancelled: bool
):
    rows, plan = bench.rows(), bench.request()
    bench.format.hooks["landed"] = die
    with pytest.raises(Killed):
        bench.run()
    bench.format.hooks.clear()
    assert bench.case.forget(bench.table)
    files = bench.stored()
    if cancelled:
        bench.store.request_cancel(plan.plan_id, "ada")
    bench.expire()
    outcome = bench.rescue()
    assert outcome is not None
    assert outcome.result is (RunResult.CANCELLED if cancelled else RunResult.REQUEUED), (
        "nothing of it is left to withdraw"
    )
    if not cancelled:
        assert bench.run().result is RunResult.CANCELLED, "its inputs are gone"
    assert (bench.state(plan), bench.sweep(), bench.stored(), bench.rows()) == ("cancelled", 0, files, rows)
    following = bench.request()
    assert (bench.run().result, bench.commits(following), bench.rows()) == (RunResult.COMPLETED, 1, rows)
    assert (bench.sweep(), bench.rows()) == (0, rows)


def test_an_attempt_withdrawn_during_its_commit_does_not_take_effect(bench: Bench):
    before, files, plan = bench.rows(), bench.stored(), bench.request()
    bench.format.max_commit_duration = min(bench.format.max_commit_duration, timedelta(seconds=0.3))
    with attempt(bench.case, plan) as sleeper:
        rewrite = sleeper.rewritten()

        def sleep() -> None:
            bench.format.hooks.clear()
            time.sleep(1.2 * sleeper.writer.max_commit_duration.total_seconds())
            with attempt(bench.case, plan, 2) as successor:
                successor.journal = sleeper.journal
                assert successor.discarded(None) == 1

        bench.format.hooks["in_commit"] = sleep
        with pytest.raises(LakefoldError):
            sleeper.writer.commit(rewrite)
    assert (bench.stored(), bench.commits(plan), bench.rows()) == (files, 0, before)


def written_late(bench: Bench) -> Plan:
    """Return a cancelled plan of which an attempt wrote files after the last sweep."""
    plan, claim = bench.request(), bench.claim()
    bench.store.request_cancel(plan.plan_id, "ada")
    with attempt(bench.case, plan) as sleeper:
        sleeper.writer.journal = lambda one: bench.store.record_staged(claim, one)
        prepared = sleeper.prepared()
        bench.expire()
        bench.rescue()
        assert bench.state(plan) == "cancelled"
        for partition in plan.partitions:
            sleeper.writer.folder_of(partition, prepared.instant).mkdir(parents=True, exist_ok=True)
        sleeper.writer.rewrite(prepared, lambda _: None)
    return plan


def test_the_sweep_locks_the_partitions_of_the_attempts_that_it_withdraws(bench: Bench):
    files, _ = bench.stored(), written_late(bench)
    refused = []

    def plan_meanwhile() -> None:
        with pytest.raises(PartitionsLocked) as taken:
            bench.request()
        refused.append(taken.value.lock_owners)

    bench.format.hooks["discard"] = plan_meanwhile
    assert bench.sweep() == 1
    bench.format.hooks.clear()
    assert [(sorted(keepers), {text.split(" (")[0] for text in keepers.values()}) for keepers in refused] == [
        (["dt=0", "dt=1"], {"the sweep"})
    ]
    assert bench.stored() == files
    bench.request()
    assert bench.run().result is RunResult.COMPLETED


def test_abandoned_files_in_partitions_of_a_live_plan_are_swept_after_its_end(bench: Bench):
    before, files, _ = bench.rows(), bench.stored(), written_late(bench)
    left = bench.stored().keys() - files.keys()
    bench.request()
    assert (bench.sweep(), bench.stored().keys() - files.keys()) == (0, left)
    assert bench.run().result is RunResult.COMPLETED
    assert (bench.sweep(), bench.stored().keys() & left, bench.rows()) == (1, set(), before)
