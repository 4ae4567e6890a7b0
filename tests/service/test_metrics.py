# SPDX-License-Identifier: Apache-2.0
"""Metrics: values equal the rows of a real store, names and labels hold to their table, promtool agrees."""

import shutil
import subprocess
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from metric_inputs import (
    EXECUTOR,
    SIZES,
    TABLE,
    WHERE,
    absent,
    commit_of,
    figures_of,
    page,
    plan_of,
    published,
    scan_of,
    value,
)
from prometheus_client import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from support import needs_server

from lake.model import HISTOGRAM_EDGES_BYTES
from lake.plan import (
    Step,
)
from planner.budgets import Budget
from planner.slo.model import Objective, ObjectiveEvaluation
from service.control import serializers
from service.control.lake_cache import read_lake_state
from service.control.store import ProcessFacts, ScanRecord, WorkBudget
from service.control.store.plan_creation import QueueEntry
from service.server.observability.former_metrics import FORMER_METRICS
from service.server.observability.metric_specs import SPECS
from service.server.observability.metrics import Metrics
from service.server.observability.metrics_doc import render
from service.server.observability.scan_gauges import BUCKET_EDGES_BYTES


def test_layout_gauges_equal_the_last_scan_of_the_table(metrics, store):
    store.register_table(TABLE, "compact")
    scan = scan_of()
    store.record_scan(scan)
    scraped = published(metrics, store)
    assert {
        name: value(scraped, f"table_{name}", **WHERE)
        for name in ("files", "bytes", "small_files", "small_file_bytes", "log_files", "log_bytes", "partitions")
    } == {
        "files": len(SIZES),
        "bytes": sum(SIZES),
        "small_files": sum(size < 4096 for size in SIZES),
        "small_file_bytes": sum(size for size in SIZES if size < 4096),
        "log_files": 4,
        "log_bytes": 77,
        "partitions": 2,
    }
    assert value(scraped, "table_reducible_files", **WHERE) == 3
    assert value(scraped, "table_residual_files", **WHERE) == scan.small_files - 3
    assert value(scraped, "table_reducible_bytes", **WHERE) == 2050
    assert value(scraped, "table_snapshot_timestamp_seconds", **WHERE) == scan.taken_at.timestamp()
    assert value(scraped, "table_scan_failed", **WHERE) == 0
    assert value(scraped, "table_halted", **WHERE) == 0
    assert value(scraped, "table_mode", **WHERE, mode="compact") == 1
    assert value(scraped, "table_paused", **WHERE) == 0
    assert value(scraped, "processes", role="executor") == 0
    facts = ProcessFacts(name="a", role="all", host="h", version="1", slots=2)
    store.register_process(facts, timedelta(minutes=1))
    store.register_process(
        replace(facts, name="b", role="executor", spark="broken", problem="no jars"), timedelta(minutes=1)
    )
    store.register_process(replace(facts, name="c"), timedelta(seconds=-1))
    store.pause(TABLE.name, "ada")
    assert [value(scraped, f"table_{name}", **WHERE) for name in ("overlapping_commits", "not_planned")] == [0, 0]
    unsaid = "mode compact needs concurrency to be set"
    unknown = scan_of(reducible_files=None, reducible_bytes=None, overlaps=2, overlap="commit 7", not_planned=unsaid)
    store.record_scan(unknown)
    scraped = published(metrics, store)
    assert [value(scraped, "processes", role=role) for role in ("scheduler", "executor", "api")] == [1, 1, 1]
    assert value(scraped, "table_paused", **WHERE) == 1
    assert [value(scraped, f"table_{name}", **WHERE) for name in ("overlapping_commits", "not_planned")] == [2, 1]
    assert absent(scraped, "table_reducible_files"), "of a scan before the upgrade it is not known"


def test_each_size_bucket_counts_the_files_up_to_its_edge(metrics, store):
    store.register_table(TABLE, "compact")
    store.record_scan(scan_of())
    scraped = published(metrics, store)
    found = {edge: value(scraped, "table_file_size_bytes_bucket", **WHERE, le=str(edge)) for edge in ["+Inf"]}
    found |= {
        edge: value(scraped, "table_file_size_bytes_bucket", **WHERE, le=str(float(edge)))
        for edge in BUCKET_EDGES_BYTES
    }
    assert found == {edge: sum(size <= edge for size in SIZES) for edge in BUCKET_EDGES_BYTES} | {"+Inf": len(SIZES)}
    assert value(scraped, "table_file_size_bytes_gcount", **WHERE) == len(SIZES)
    assert value(scraped, "table_file_size_bytes_gsum", **WHERE) == sum(SIZES)
    assert BUCKET_EDGES_BYTES[0] == HISTOGRAM_EDGES_BYTES[0]
    assert BUCKET_EDGES_BYTES[-1] == HISTOGRAM_EDGES_BYTES[-1]


def test_the_error_of_predictions_is_the_median_of_the_last_completed_plans(metrics, store):
    assert absent(published(metrics, store), "plan_prediction_error_ratio")
    for number, seconds in enumerate((1, 2, 10)):
        plan = plan_of(f"p={number}", files=3, bytes_each=1250)
        predicted = {"cpu_seconds": 4.0, "bytes": 3750, "files_saved": 2, "cost": None}
        store.add_plan(
            plan, request_id=None, actor="test", estimate={"worth": predicted}, queued=QueueEntry(cpu_seconds=4.0)
        )
        store.complete(store.claim("executor"), commit_of(plan), figures_of(plan), {Step.REWRITE.value: seconds * 1000})
    scraped = published(metrics, store)
    errors = [value(scraped, "plan_prediction_error_ratio", quantity=name) for name in serializers.PREDICTED_FIELDS]
    assert errors == [1.0, 0.5, 0.0]


def test_a_failed_scan_is_shown_and_the_layout_of_the_last_good_one_stays(metrics, store):
    store.register_table(TABLE, "compact")
    store.record_scan(scan_of())
    store.record_scan(ScanRecord(table=TABLE.name, taken_at=datetime.now(UTC), outcome="error", error="unreadable"))
    scraped = published(metrics, store)
    assert value(scraped, "table_scan_failed", **WHERE) == 1
    assert value(scraped, "table_files", **WHERE) == len(SIZES)
    assert value(scraped, "table_snapshot_timestamp_seconds", **WHERE) == scan_of().taken_at.timestamp()


def test_damaged_slices_are_a_gauge_and_a_table_that_needs_a_person(metrics, store):
    store.register_table(TABLE, "compact")
    store.record_scan(scan_of())
    assert value(published(metrics, store), "table_damaged_slices", **WHERE) == 0
    assert serializers.status(read_lake_state(store))["attention"] == []
    store.record_scan(scan_of(taken_at=datetime.now(UTC), skipped={"damaged": 2}))
    assert value(published(metrics, store), "table_damaged_slices", **WHERE) == 2
    (entry,) = serializers.status(read_lake_state(store))["attention"]
    assert (entry["table"], entry["damaged_slices"], entry["halted_at"]) == (TABLE.name, 2, None)


def test_files_of_others_are_a_gauge_and_a_table_that_needs_a_person(metrics, store):
    store.register_table(TABLE, "compact")
    store.record_scan(scan_of(taken_at=datetime.now(UTC), foreign_files=2, foreign_file="dt=1/junk.parquet"))
    assert value(published(metrics, store), "table_foreign_files", **WHERE) == 2
    (entry,) = serializers.status(read_lake_state(store))["attention"]
    assert (entry["foreign_files"], entry["foreign_file"]) == (2, "dt=1/junk.parquet")
    store.record_scan(scan_of(taken_at=datetime.now(UTC)))
    assert value(published(metrics, store), "table_foreign_files", **WHERE) == 0
    assert serializers.status(read_lake_state(store))["attention"] == []


def test_a_table_that_could_not_be_scanned_or_whose_newest_plan_failed_needs_a_person(metrics, store):
    store.register_table(TABLE, "compact")
    store.record_scan(ScanRecord(table=TABLE.name, taken_at=datetime.now(UTC), outcome="error", error="unreadable"))
    (entry,) = serializers.status(read_lake_state(store))["attention"]
    assert (entry["scan_error"], entry["failed_plan"]) == ("unreadable", None)
    store.record_scan(scan_of(taken_at=datetime.now(UTC)))
    store.add_plan(plan_of(), request_id=None, actor="test", estimate={})
    claim = store.claim("executor")
    store.fail(claim, "no such column")
    (entry,) = serializers.status(read_lake_state(store))["attention"]
    assert (entry["scan_error"], entry["failed_plan"]) == (None, claim.plan.plan_id)
    assert entry["failed_reason"] == "no such column"


@pytest.mark.slow
def test_plan_gauges_equal_the_rows_of_the_store_through_a_plans_life(metrics, store):
    store.register_table(TABLE, "compact")
    scraped = published(metrics, store)
    states = ("requested", "inflight", "completed", "failed", "cancelled")

    def plans(scraped):
        return {
            state: value(scraped, "plans", **WHERE, kind="clustering", state=state)
            for state in states
            if value(scraped, "plans", **WHERE, kind="clustering", state=state)
        }

    assert plans(scraped) == {}
    assert value(scraped, "plan_backlog_bytes", **WHERE, kind="clustering") == 0
    assert absent(scraped, "plan_oldest_requested_timestamp_seconds")

    first, second = plan_of("p=1"), plan_of("p=2", files=5)
    for plan in (first, second):
        store.add_plan(plan, request_id=None, actor="test", estimate={})
    scraped = published(metrics, store)
    assert plans(scraped) == {"requested": 2}
    assert value(scraped, "plan_backlog_bytes", **WHERE, kind="clustering") == first.bytes + second.bytes
    oldest = min(plan.not_before for plan in store.plans())
    assert value(scraped, "plan_oldest_requested_timestamp_seconds") == oldest.timestamp()

    claim = store.claim("executor-1")
    assert claim is not None
    scraped = published(metrics, store)
    assert plans(scraped) == {"requested": 1, "inflight": 1}
    assert value(scraped, "plan_backlog_bytes", **WHERE, kind="clustering") == first.bytes + second.bytes

    store.complete(claim, commit_of(claim.plan), figures_of(claim.plan), {"start": 60_000, "rewrite": 2000})
    scraped = published(metrics, store)
    assert plans(scraped) == {"requested": 1, "completed": 1}
    other = second if claim.plan.plan_id == first.plan_id else first
    assert value(scraped, "plan_backlog_bytes", **WHERE, kind="clustering") == other.bytes
    assert absent(scraped, "plan_backlog_seconds"), "no executor runs"
    store.register_process(EXECUTOR, timedelta(minutes=1))
    speed = claim.plan.bytes / 2
    assert value(published(metrics, store), "plan_backlog_seconds") == pytest.approx(other.bytes / speed)
    waiting = store.awaiting_deletion(TABLE)
    assert value(scraped, "superseded_files", **WHERE) == len(waiting) == claim.plan.input_files
    assert value(scraped, "superseded_bytes", **WHERE) == sum(due.version.bytes for due in waiting)

    store.mark_deleted([due.row_id for due in waiting])
    scraped = published(metrics, store)
    assert value(scraped, "superseded_files", **WHERE) == 0
    assert value(scraped, "superseded_bytes", **WHERE) == 0


def test_halted_and_paused_show_until_resumed(metrics, store):
    store.register_table(TABLE, "compact")
    store.add_plan(plan_of(), request_id=None, actor="test", estimate={})
    claim = store.claim("executor-1")
    store.fail(claim, "rows differ", halt=True)
    store.pause(None, "test")
    scraped = published(metrics, store)
    assert value(scraped, "table_halted", **WHERE) == 1
    assert value(scraped, "paused") == 1
    assert value(scraped, "plans", **WHERE, kind="clustering", state="failed") == 1
    store.resume(TABLE.name, "test")
    store.resume(None, "test")
    scraped = published(metrics, store)
    assert value(scraped, "table_halted", **WHERE) == 0
    assert value(scraped, "paused") == 0


def everything(metrics, store):
    """Every metric with at least one sample."""
    store.register_table(TABLE, "compact")
    held = {"goal": 0.99, "window": timedelta(days=28), "valid_for": timedelta(hours=1)}
    judged = ObjectiveEvaluation(objective=Objective.SMALL_FILE_SHARE, value=0.5, bound=0.1, **held)
    store.record_scan(scan_of(), None, [judged])
    predicted = {"cpu_seconds": 4.0, "bytes": 3000, "files_saved": 2, "cost": None}
    store.add_plan(
        plan_of("p=0"), request_id=None, actor="test", estimate={"worth": predicted}, queued=QueueEntry(cpu_seconds=4.0)
    )
    done = store.claim("executor-1")
    store.complete(done, commit_of(done.plan), figures_of(done.plan), {"rewrite": 2000})
    store.add_plan(plan_of(), request_id=None, actor="test", estimate={})
    store.add_plan(plan_of("p=9"), request_id=None, actor="test", estimate={}, queued=QueueEntry(needs_approval=True))
    store.register_process(EXECUTOR, timedelta(minutes=1))
    published(metrics, store)
    limited = WorkBudget(budget=Budget.from_settings(0, 1 << 40, 0, 0))
    metrics.stored.publish(replace(read_lake_state(store), work=limited))
    metrics.record_scan("hudi", "ok", 0.3, {"quiet": 2})
    metrics.clean_failed(TABLE, "Transient")
    metrics.set_slots(busy=1, free=0)


def test_every_metric_of_the_table_is_on_the_page_with_its_labels_and_no_other(metrics, store):
    everything(metrics, store)
    families = {}
    for family in metrics.registry.collect():
        for sample in family.samples:
            families.setdefault(family.name, set()).add(frozenset(sample.labels) - {"le"})
    ours = {name: labels for name, labels in families.items() if name.startswith("lakefold_")}
    expected = {
        spec.name.removesuffix("_total" if spec.type == "counter" else "_info"): {frozenset(spec.labels)}
        for spec in SPECS.values()
    }
    former = {old.removesuffix("_total"): expected[new.removesuffix("_total")] for old, new in FORMER_METRICS.items()}
    assert ours == expected | former


def test_former_names_have_the_same_samples_and_name_the_present_name(metrics, store):
    everything(metrics, store)
    metrics.record_written_scan("hudi", "error", 2.5, 3)
    lines = generate_latest(metrics.registry).decode().splitlines()
    for old, new in FORMER_METRICS.items():
        assert f"# HELP {old} Deprecated, use {new}." in lines
        samples = [line for line in lines if line.startswith(new)]
        assert samples
        assert {line.replace(new, old, 1) for line in samples} <= set(lines)


def test_no_label_can_ever_carry_a_partition_a_path_or_a_plan():
    labels = {label for spec in SPECS.values() for label in spec.labels}
    allowed = "table format kind engine outcome reason stage state mode role version python method route status"
    assert labels <= {*allowed.split(), "quantity", "window", "objective"}


def test_names_end_in_their_unit_and_counters_in_total():
    for spec in SPECS.values():
        assert spec.name.endswith("_total") == (spec.type == "counter"), spec.name
        if "duration" in spec.name or "wait" in spec.name or "timestamp" in spec.name:
            assert spec.name.endswith("_seconds"), spec.name


def test_promtool_finds_no_fault_in_the_page(metrics, store):
    promtool = shutil.which("promtool")
    if promtool is None:
        needs_server("promtool not found; tests/servers.sh installs it (Debian package prometheus)")
    everything(metrics, store)
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=generate_latest(metrics.registry), capture_output=True, check=False
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_created_series_are_off_and_the_openmetrics_form_ends_as_it_must(metrics, store):
    everything(metrics, store)
    text = generate_openmetrics(metrics.registry).decode()
    assert "_created" not in text
    assert "# TYPE lakefold_table_file_size_bytes gaugehistogram" in text
    assert text.endswith("# EOF\n")


def test_two_processes_in_one_interpreter_do_not_share_counters():
    first, second = Metrics("all"), Metrics("executor")
    first.record_database_error()
    assert value(page(first), "database_errors_total") == 1
    assert value(page(second), "database_errors_total") == 0


def test_the_documentation_page_is_current():
    page_of_docs = Path(__file__).parents[2] / "docs" / "metrics.md"
    assert page_of_docs.read_text() == render(), "run: make metrics-doc"


def test_a_scrape_touches_no_database(metrics, store):
    store.register_table(TABLE, "compact")
    store.record_scan(scan_of())
    before = published(metrics, store)
    store.close()
    Path(store.url.removeprefix("sqlite:///")).unlink()
    after = page(metrics)
    stored = {
        f"lakefold_{name}" for name in ("table_files", "table_bytes", "plans", "stored_metrics_timestamp_seconds")
    }
    assert {k: v for k, v in after.items() if k[0] in stored} == {k: v for k, v in before.items() if k[0] in stored}


def test_the_figures_carry_the_time_at_which_they_were_read(metrics, store):
    before = datetime.now(UTC) - timedelta(seconds=2)
    scraped = published(metrics, store)
    assert before.timestamp() <= value(scraped, "stored_metrics_timestamp_seconds") <= time.time() + 2
