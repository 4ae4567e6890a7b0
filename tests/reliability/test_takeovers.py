# SPDX-License-Identifier: Apache-2.0
"""Executors that die or sleep at the worst moment, and the one that takes their plan over."""

import logging
import os
import shutil
import signal

import pytest
from harness import Installation, stop_group
from hudi_tables import FS_LOCK, rows, table_rows, write
from invariants import check_plan_landed_once, ids_in_hudi_rs, pending_instants
from support import record_figure
from waiting import is_stopped, wait_for

from service.control.wiring import open_config
from service.server.daemon.process import Daemon


@pytest.mark.spark
def test_trap_a_kill_in_the_metadata_write_leaves_a_lock_that_the_next_process_removes(
    spark, template_with_statistics, tmp_path, caplog
):
    base = tmp_path / "lake" / "orphan"
    shutil.copytree(template_with_statistics, base)
    before = table_rows(spark, base)
    url = f"sqlite:///{tmp_path}/lakefold.db"
    installation = Installation(home=tmp_path, url=url, tables={"t.orphan": base}, policy={"lease": "1h"})
    plan = installation.json("plans", "request", "t.orphan")[0]["plan_ids"][0]
    lock, metadata = base / ".hoodie/lock", base / ".hoodie/metadata/.hoodie/timeline"
    known = set(metadata.iterdir())
    killed = installation.start("worker", "--once", log=tmp_path / "killed.log")
    try:
        wait_for(
            lambda: killed.poll() is not None or (lock.exists() and set(metadata.glob("*.inflight")) - known),
            "a commit to the metadata table",
            180,
            every=0.001,
        )
        assert killed.poll() is None, (tmp_path / "killed.log").read_text()[-3000:]
    finally:
        stop_group(killed)
    assert lock.exists()
    assert table_rows(spark, base) == before
    installation.expire_leases()
    with caplog.at_level(logging.INFO):
        installation.work(spark)
    assert "removed the lock of process" in caplog.text
    assert not lock.exists()
    check_plan_landed_once(installation, "t.orphan", base, plan)
    assert table_rows(spark, base) == before
    assert ids_in_hudi_rs(base) == list(range(600))
    record_figure(
        "kill -9 of executor and JVM under the table's lock, in the commit to the metadata table",
        "the next process removed the lock file and committed the plan once",
    )


@pytest.mark.spark
@pytest.mark.shown_by(
    "tests/formats/test_hive_processes.py::test_executors_suspended_at_every_point_for_longer_than_their_leases_change_nothing_afterwards"
)
def test_an_executor_suspended_before_its_commit_until_after_a_take_over_changes_nothing(
    database_url, spark, template, tmp_path
):
    base = tmp_path / "lake" / "sleeper"
    shutil.copytree(template, base)
    before = table_rows(spark, base)
    installation = Installation(
        home=tmp_path, url=database_url, tables={"t.sleeper": base}, policy={"lease": "3s", "heartbeat": "1s"}
    )
    plan = installation.json("plans", "request", "t.sleeper")[0]["plan_ids"][0]
    sleeper = installation.start("worker", "--once", failpoints="before_commit=stop", log=tmp_path / "sleeper.log")
    try:
        wait_for(lambda: is_stopped(sleeper.pid), "the executor stopped at its failpoint", 120)
        # SIGSTOP until well past two leases; the successor waits for the lease by itself.
        installation.work(spark)
        check_plan_landed_once(installation, "t.sleeper", base, plan)
        os.killpg(sleeper.pid, signal.SIGCONT)
        sleeper.wait(timeout=120)
    finally:
        stop_group(sleeper)
    check_plan_landed_once(installation, "t.sleeper", base, plan)
    assert table_rows(spark, base) == before
    assert ids_in_hudi_rs(base) == list(range(600))
    record_figure(
        f"SIGSTOP before the commit for more than two leases, take-over, SIGCONT ({database_url.split(':')[0]})",
        "one commit, of the successor; the stopped executor changed nothing",
    )


@pytest.mark.spark
@pytest.mark.shown_by(
    "tests/reliability/test_crashes.py::test_a_plan_whose_executor_is_killed_at_any_step_commits_exactly_once"
)
def test_a_compaction_killed_at_any_step_commits_exactly_once_and_keeps_a_writers_upsert(spark, tmp_path):
    names = ["published_unrecorded", "begun_unrecorded", "before_commit", "after_commit"]
    made = tmp_path / "template"
    for version in range(3):
        write(rows(spark, 0, 200, version=version).coalesce(1), made, "upsert", merge_on_read=True)
    tables = {f"t.{name}": tmp_path / "lake" / name for name in names}
    for base in tables.values():
        shutil.copytree(made, base)
    url = f"sqlite:///{tmp_path}/lakefold.db"
    policy = {"lease": "1h", "compact_log_files": 2}
    installation = Installation(home=tmp_path, url=url, tables=tables, policy=policy)
    plans, before = {}, {}
    for table, base in tables.items():
        (answer,) = installation.json("plans", "request", table, "--kind", "compaction")
        (plan,) = answer["plans"]
        assert (plan["kind"], plan["output_files"]) == ("compaction", 2)
        plans[table] = plan["plan_id"]
        killed = installation.run("worker", "--once", failpoints=f"{table.removeprefix('t.')}=kill", expect=None)
        assert killed.returncode == -9, killed.stderr[-3000:]
        # A pending compaction refuses no writer; what it appends now belongs to the slice, whatever becomes of it.
        if table != "t.begun_unrecorded":  # there the dead executor has the writers' lock, until the take-over
            again = rows(spark, 0, 200, version=7).where("id % 4 = 0").coalesce(1)
            write(again, base, "upsert", merge_on_read=True, options={**FS_LOCK, "hoodie.table.name": made.name})
        before[table] = table_rows(spark, base)
    installation.expire_leases()
    installation.work(spark)
    for table, base in tables.items():
        check_plan_landed_once(installation, table, base, plans[table])
        assert table_rows(spark, base) == before[table]
        assert ids_in_hudi_rs(base) == list(range(200))
    record_figure(
        f"kill -9 of a compaction at {len(names)} failpoints, an upsert before the take-over",
        f"{len(names)} plans committed exactly once, rows the same",
    )


@pytest.mark.spark
def test_an_adopted_plan_killed_while_hudi_begins_it_is_executed_by_the_next_process(spark, tmp_path):
    base = tmp_path / "lake" / "trips"
    schedules = {"hoodie.clustering.schedule.inline": "true", "hoodie.clustering.async.max.commits": "2"}
    for commit in range(2):
        write(rows(spark, commit * 60, commit * 60 + 60).coalesce(1), base, options=schedules)
    before = table_rows(spark, base)
    installation = Installation(
        home=tmp_path,
        url=f"sqlite:///{tmp_path}/lakefold.db",
        tables={"t.trips": base},
        policy={"lease": "1h", "adopt_pending": "true"},
    )
    with Daemon(open_config(installation.config), "scheduler") as daemon:
        daemon.run_once()
    (plan,) = installation.json("plans", "list")
    assert plan["adopted_instant"] in pending_instants(base)
    killed = installation.run("worker", "--once", failpoints="begun_unrecorded=kill", expect=None)
    assert killed.returncode == -9, killed.stderr[-3000:]
    assert list((base / ".hoodie/timeline").glob("*.clustering.inflight"))
    installation.expire_leases()
    installation.work(spark)
    check_plan_landed_once(installation, "t.trips", base, plan["plan_id"])
    assert table_rows(spark, base) == before
