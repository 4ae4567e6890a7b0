# SPDX-License-Identifier: Apache-2.0
"""The command line on a real Hudi table: verify, clean, repair, rollback."""

import os
import shutil
import sqlite3
from contextlib import closing
from datetime import timedelta

import pytest
from hudi_cli import ONE, TWO, on_disk

from executors.context import RunContext
from executors.engines import create_engines
from executors.worker import Worker
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.timeline.timeline import Timeline
from lake.model import FileSlice, TableRef
from lake.plan import (
    ClusteringGroup,
    Commit,
    OutputFile,
    PartitionFigures,
    Plan,
    PlanKind,
    RewriteOptions,
    SupersededVersion,
)

pytestmark = pytest.mark.spark


def test_verify_exits_3_on_a_missing_and_on_an_unowned_file(lakefold):
    assert "matches its last commits" in lakefold("verify", "orders", "--rows")
    newest = max(lakefold.base.rglob("*_*.parquet"), key=lambda path: path.name.rpartition("_")[2])
    shutil.copy(newest, newest.with_name(f"11111111-{newest.name}"))
    found = lakefold.json("verify", "orders", expect=3)[0]
    assert found["equal"] is False
    assert len(found["verification"]["unowned"]) == 1
    newest.unlink()
    assert "missing: " in lakefold("verify", "orders", expect=3)


def test_clean_lists_files_to_delete_with_their_times_and_leaves_live_files(lakefold):
    lakefold("plans", "request", "orders")
    store = lakefold.store
    claim = store.claim("test")
    assert claim is not None
    path, size = next(iter(on_disk(lakefold.base).items()))
    known = Timeline(TableStorage(str(lakefold.base))).newest_commit_time
    superseded = SupersededVersion(partition=ONE, path=path, bytes=size, instant=known)
    output = OutputFile(partition=ONE, path=f"{ONE}/new.parquet", bytes=1, rows=1)
    commit = Commit(plan_id=claim.plan.plan_id, instant=known, outputs=(output,), superseded=(superseded,))
    figures = PartitionFigures(partition=ONE, files_before=4, bytes_before=400, files_after=1, bytes_after=300)
    store.complete(claim, commit, [figures], {"rewrite": 12})
    store.close()
    (entry,) = lakefold.json("clean", "-n")
    assert (entry["path"], entry["is_due"]) == (path, False)
    assert entry["retained_reason"]  # the table says it is live
    assert 0 < entry["in_seconds"] <= 7 * 86400
    assert path in lakefold("clean", "orders", "--dry-run")
    assert "deleted 0 files" in lakefold("clean", "orders")
    lakefold.config.write_text(lakefold.config.read_text().replace("[defaults]", '[defaults]\nretention = "0s"'))
    (report,) = lakefold.json("clean", "orders", expect=3)
    assert (report["deleted_files"], report["retained"][0]["version"]["path"]) == (0, path)
    assert (lakefold.base / path).exists()
    shown = lakefold("plans", "show", claim.plan.plan_id)
    assert "rewrite 12 ms" in shown
    assert "300 B" in shown
    status = lakefold.json("status")[0]
    assert (status["files_removed"], status["bytes_rewritten"], status["superseded_files"]) == (3, 300, 1)
    assert lakefold("status").startswith("3 files fewer · 300 B rewritten · 0 B freed · ")


def test_clean_closes_files_without_a_replacement_on_the_timeline_and_reports_them(lakefold):
    lakefold("plans", "request", "orders")
    store = lakefold.store
    claim = store.claim("test")
    assert claim is not None
    path, size = next(iter(on_disk(lakefold.base).items()))
    undone = "20260101000000000"
    superseded = SupersededVersion(partition=ONE, path=path, bytes=size, instant=undone)
    commit = Commit(plan_id=claim.plan.plan_id, instant=undone, outputs=(), superseded=(superseded,))
    store.complete(claim, commit, [], {})
    store.close()
    assert path in lakefold("clean", "orders", "-n")
    assert "1 superseded file," in lakefold.error
    text = lakefold("clean", "orders")
    assert (
        f"no longer awaiting deletion: {path}: instant {undone} that replaced it is not among the table's commits"
        in text
    )
    assert (lakefold.base / path).exists()
    assert lakefold.json("clean", "-n") == []
    assert lakefold.json("status")[0]["superseded_files"] == 0


def test_clean_waits_for_older_files_that_are_not_due_in_a_dry_run_as_in_a_round(lakefold, spark):
    """A rewrite that was recorded late, as after a crash, is the older one and due later."""
    lakefold.config.write_text(lakefold.config.read_text().replace("[defaults]", '[defaults]\nretention = "0s"'))
    store = lakefold.store
    for partition in (ONE, TWO):
        lakefold("plans", "request", "orders", "-p", partition)
        context = RunContext(store=store, spark=lambda: spark, engines=create_engines(lambda: spark))
        Worker(context).run_once()
    store.close()
    assert [entry["is_due"] for entry in lakefold.json("clean", "-n")] == [True] * 4
    with closing(sqlite3.connect(lakefold.home / "lakefold.db")) as database, database:
        later = "superseded_at_ms + 3600000"
        database.execute(f"UPDATE superseded_version SET superseded_at_ms = {later} WHERE path LIKE '{ONE}/%'")
    entries = lakefold.json("clean", "-n")
    (report,) = lakefold.json("clean", "orders", expect=3)
    kept = {one["version"]["path"]: one["reason"] for one in report["retained"]}
    assert report["deleted_files"] == 0
    assert all("was superseded earlier" in reason for reason in kept.values())
    assert {e["path"]: e["retained_reason"] for e in entries if e["path"].startswith(TWO)} == kept
    assert [entry["is_due"] for entry in entries] == [False] * 4


def test_repair_finds_nothing_on_a_sound_table(lakefold):
    assert lakefold.json("tables", "repair", "orders", "--yes") == []
    lakefold.problem("tables", "repair", "sales.order", expect=10)


def test_clean_leaves_the_work_to_a_live_cleaner(lakefold):
    store = lakefold.store
    assert store.acquire_leader("clean", "daemon-9", timedelta(seconds=60))
    assert "daemon-9 is the cleaner and cleans every 5 min" in lakefold.problem("clean", expect=1)["detail"]
    store.close()


def test_rollback_removes_a_dead_write_and_refuses_completed_writes_and_lakefolds_instants(lakefold):
    timeline = lakefold.base / ".hoodie/timeline"
    dead = "20260101000000001"
    for name in (f"{dead}.commit.requested", f"{dead}.inflight"):
        (timeline / name).write_bytes(b"")
        os.utime(timeline / name, (1e9, 1e9))
    problem = lakefold.problem("tables", "rollback", "orders", "20200101000000000", expect=10)
    assert "has no pending instant 20200101000000000; lakefold tables show sales.orders lists them" in problem["detail"]
    shown = lakefold("tables", "show", "orders")
    assert f"lakefold tables rollback sales.orders {dead}" in shown
    slices = (FileSlice(partition=ONE, file_id="f", path=f"{ONE}/f.parquet", bytes=1),)
    plan = Plan(
        plan_id="0198-live",
        table=TableRef(name="sales.orders", format="hudi", location=str(lakefold.base)),
        kind=PlanKind.CLUSTERING,
        groups=(ClusteringGroup(partition=ONE, slices=slices, output_files=1),),
        options=RewriteOptions(target_file_max_bytes=1),
        snapshot_instant="",
        adopted_instant=dead,
    )
    lakefold.store.add_plan(plan, request_id=None, actor="test", estimate={})
    problem = lakefold.problem("tables", "rollback", "orders", dead, expect=11)
    assert problem["detail"].endswith("belongs to plan 0198-live; to end it: lakefold plans cancel 0198-live")
    assert f"{dead} by plan 0198-live" in lakefold("tables", "show", "orders")
    lakefold("plans", "cancel", "0198-live")
    (done,) = lakefold.json("tables", "rollback", "orders", dead)
    assert done == {
        "table": "sales.orders",
        "instant": dead,
        "done": f"commit {dead} is rolled back: its files are deleted",
    }
    assert not list(timeline.glob(f"{dead}*"))
    lakefold.problem("tables", "rollback", "orders", dead, expect=10)
