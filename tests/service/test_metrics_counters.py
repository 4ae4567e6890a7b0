# SPDX-License-Identifier: Apache-2.0
"""Metrics that are counted as work is done: plans' ends, steps, deletions, scans."""

import time
from datetime import UTC, datetime

import pytest
from metric_inputs import TABLE, WHERE, commit_of, figures_of, page, plan_of, published, value

from executors.outcome import RunOutcome, RunResult
from lake.plan import Claim, Step


def claim_of(plan, *, epoch=1):
    return Claim(plan=plan, epoch=epoch, attempt=1, executor="executor-1", lease_until=datetime.now(UTC))


def ended(result, **facts):
    return RunOutcome(result=result, **facts)


def test_counters_of_plans_are_zero_before_their_first_plan_and_count_its_end(metrics, store):
    store.register_table(TABLE, "compact")
    scraped = published(metrics, store)
    work = {**WHERE, "kind": "clustering", "engine": "auto"}
    counted = ("rewrite_input_files_total", "rewrite_input_bytes_total", "rewrite_output_files_total")
    assert [value(scraped, name, **work) for name in counted] == [0, 0, 0]
    assert value(scraped, "plans_finished_total", **WHERE, kind="clustering", outcome="completed") == 0

    plan = plan_of()
    metrics.plan_finished(claim_of(plan), ended(RunResult.COMPLETED, commit=commit_of(plan), figures=figures_of(plan)))
    metrics.plan_finished(claim_of(plan_of()), ended(RunResult.CANCELLED, reason="Conflict"))
    metrics.plan_finished(claim_of(plan_of()), ended(RunResult.FAILED, reason="Rejected"))
    metrics.plan_finished(claim_of(plan_of()), ended(RunResult.REQUEUED, reason="Transient"))
    metrics.lease_expired(claim_of(plan_of()))
    scraped = page(metrics)
    assert [value(scraped, name, **work) for name in counted] == [3, 3000, 1]
    assert value(scraped, "rewrite_output_bytes_total", **work) == 2500
    finished = {
        outcome: value(scraped, "plans_finished_total", **WHERE, kind="clustering", outcome=outcome)
        for outcome in ("completed", "failed", "cancelled")
    }
    assert finished == {"completed": 1, "failed": 1, "cancelled": 1}
    assert value(scraped, "plan_commit_conflicts_total", **WHERE) == 1
    assert value(scraped, "plan_retries_total", format="hudi", reason="Transient") == 1
    assert value(scraped, "plan_leases_expired_total", format="hudi") == 1


def test_a_plans_wait_ends_with_its_first_claim_and_is_counted_once(metrics):
    plan = plan_of()
    time.sleep(0.05)
    metrics.step_finished(claim_of(plan), Step.FIND_COMMIT, 0.01)
    metrics.step_finished(claim_of(plan), Step.REWRITE, 7.0)
    metrics.step_finished(claim_of(plan, epoch=2), Step.FIND_COMMIT, 0.01)
    scraped = page(metrics)
    labels = {"format": "hudi", "kind": "clustering"}
    assert value(scraped, "plan_wait_seconds_count", **labels) == 1
    assert 0.03 <= value(scraped, "plan_wait_seconds_sum", **labels) < 5
    stage = {**labels, "engine": "auto"}
    assert value(scraped, "plan_stage_duration_seconds_count", **stage, stage="find_commit") == 2
    assert value(scraped, "plan_stage_duration_seconds_sum", **stage, stage="rewrite") == 7.0
    assert value(scraped, "plan_stage_duration_seconds_bucket", **stage, stage="rewrite", le="5.0") == 0
    assert value(scraped, "plan_stage_duration_seconds_bucket", **stage, stage="rewrite", le="15.0") == 1


def test_deletions_before_the_first_reading_of_the_database_are_counted(metrics):
    metrics.files_deleted(TABLE, 3, 3000)
    metrics.clean_failed(TABLE, "Transient")
    scraped = page(metrics)
    assert value(scraped, "cleaner_deleted_files_total", **WHERE) == 3
    assert value(scraped, "cleaner_failures_total", **WHERE, reason="Transient") == 1


def test_the_cleaner_is_counted_by_table(metrics, store):
    store.register_table(TABLE, "compact")
    published(metrics, store)
    metrics.files_deleted(TABLE, 3, 3000)
    metrics.files_deleted(TABLE, 1, 10)
    metrics.clean_failed(TABLE, "Transient")
    before = time.time()
    metrics.clean_succeeded()
    scraped = page(metrics)
    assert value(scraped, "cleaner_deleted_files_total", **WHERE) == 4
    assert value(scraped, "cleaner_deleted_bytes_total", **WHERE) == 3010
    assert value(scraped, "cleaner_failures_total", **WHERE, reason="Transient") == 1
    assert before <= value(scraped, "cleaner_last_success_timestamp_seconds") <= time.time()


def test_scans_are_counted_by_outcome_and_only_a_good_one_is_a_success(metrics):
    metrics.record_scan("hudi", "error", 0.2, {})
    assert value(page(metrics), "planner_last_success_timestamp_seconds") == 0
    metrics.record_scan("hudi", "ok", 0.3, {"quiet": 2})
    scraped = page(metrics)
    assert value(scraped, "planner_runs_total", format="hudi", outcome="ok") == 1
    assert value(scraped, "planner_runs_total", format="hudi", outcome="error") == 1
    assert value(scraped, "planner_run_duration_seconds_count", format="hudi") == 2
    assert value(scraped, "planner_partitions_skipped_total", reason="quiet") == 2
    assert value(scraped, "planner_last_success_timestamp_seconds") == pytest.approx(time.time(), abs=60)
