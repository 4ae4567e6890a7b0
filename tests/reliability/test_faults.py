# SPDX-License-Identifier: Apache-2.0
"""Faults of the world around a plan: a full disk, a database that goes away, two daemons on one database."""

import os
import shutil
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest
from harness import Installation, stop_group
from hudi_tables import table_rows
from invariants import check_plan_landed_once, ids_in_hudi_rs, pending_instants
from support import needs_server


@pytest.fixture
def small_disk(tmp_path):
    """An empty file system in memory; ``resize(bytes)`` sets how much fits."""
    where = tmp_path / "disk"
    where.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(where)], check=False).returncode:
        needs_server("a file system of its own size needs root and mount(8)")
    yield where
    subprocess.run(["umount", "-l", str(where)], check=True)


def resize(disk: Path, size: int) -> None:
    """Let the file system hold ``size`` bytes."""
    subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)


@pytest.mark.spark
@pytest.mark.shown_by(
    "tests/formats/test_hdfs.py::test_a_quota_that_is_exceeded_ends_the_attempt_with_the_namenodes_words_and_nothing_of_it_stays"
)
def test_a_full_disk_during_a_rewrite_fails_the_plan_with_a_one_line_error_and_loses_nothing(
    spark, template, small_disk, tmp_path
):
    base = small_disk / "full"
    shutil.copytree(template, base)
    before = table_rows(spark, base)
    installation = Installation(
        home=tmp_path,
        url=f"sqlite:///{tmp_path}/lakefold.db",
        tables={"t.full": base},
        policy={"max_attempts": 1},
        write_options={"hoodie.index.bloom.num_entries": "60000"},  # each new file is larger than the room left
    )
    plan = installation.json("plans", "request", "t.full")[0]["plan_ids"][0]
    resize(small_disk, shutil.disk_usage(small_disk).used + 300_000)
    installation.work(spark)
    shown = installation.json("plans", "show", plan)[0]
    assert shown["state"] == "failed", shown
    assert "no space left" in shown["error"].lower() or "disk" in shown["error"].lower(), shown["error"]
    assert "\n" not in shown["error"]
    assert table_rows(spark, base) == before

    resize(small_disk, 1 << 30)
    installation.run("plans", "retry", plan)
    installation.work(spark)
    check_plan_landed_once(installation, "t.full", base, plan)
    assert table_rows(spark, base) == before


@pytest.mark.spark
@pytest.mark.shown_by("tests/service/test_daemon.py::test_two_daemons_on_one_database_scan_once_and_both_execute")
def test_two_daemons_on_one_postgresql_share_the_work_and_never_do_it_twice(spark, template, tmp_path, request):
    import postgres

    server = request.getfixturevalue("postgres_url")
    url = postgres.new_database(server, "two_daemons")
    tables = {f"t.n{number}": tmp_path / "lake" / f"n{number}" for number in range(4)}
    for base in tables.values():
        shutil.copytree(template, base)
    before = table_rows(spark, template)
    installation = Installation(home=tmp_path, url=url, tables=tables, policy={"scan_interval": "1s"})
    daemons = [installation.start("serve", log=tmp_path / f"daemon{number}.log") for number in range(2)]
    try:
        deadline = time.monotonic() + 240
        while Counter(p["state"] for p in installation.json("plans", "list"))["completed"] < len(tables):
            assert time.monotonic() < deadline, (tmp_path / "daemon0.log").read_text()[-3000:]
            assert [daemon.poll() for daemon in daemons] == [None, None]
            time.sleep(1)
        plans = installation.json("plans", "list")
        assert len(plans) == len(tables), plans
        for daemon in daemons:
            daemon.terminate()
        assert [daemon.wait(timeout=60) for daemon in daemons] == [0, 0]
    finally:
        for daemon in daemons:
            stop_group(daemon)
    for plan in plans:
        base = tables[plan["table"]]
        check_plan_landed_once(installation, plan["table"], base, plan["plan_id"])
        assert table_rows(spark, base) == before
        assert ids_in_hudi_rs(base) == list(range(600))
        assert pending_instants(base) == []
    postgres.drop_database(server, "two_daemons")
