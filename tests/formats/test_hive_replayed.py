# SPDX-License-Identifier: Apache-2.0
"""The time machine against the real loop on a Hive table that a Spark of another process writes."""

import os
import time
from pathlib import Path

import pytest
from databases import sqlite_at
from harness import Installation, hive_installation
from hive_metastore import MetastoreServer
from hive_session import session
from toys.cases import no_spark

from executors.context import RunContext
from executors.engines.arrow import ArrowEngine
from executors.engines.backends import InProcessBackend
from executors.worker import Worker, WorkerSettings
from lake.metastore import MetastoreClient
from service.control.wiring import open_config, open_store

pytestmark = [pytest.mark.slow, pytest.mark.spark]

COMMITS, ROWS = 9, 9000
LIMIT = 1 << 20
#: between commits: files that are nearer to each other are taken for those of one job
APART_SECONDS = 120.0
MADE = (
    "CREATE DATABASE past",
    "CREATE TABLE past.t (id STRING, letters STRING, dt STRING) USING parquet PARTITIONED BY (dt)",
    # What is in a file must not shrink by being put together with others.
    "SET spark.sql.parquet.compression.codec=uncompressed",
    "SET parquet.enable.dictionary=false",
    "SET hive.exec.dynamic.partition.mode=nonstrict",
)


def inserted(number: int) -> str:
    """Rows of some 80 bytes that nothing compresses, two of three in the first of two partitions."""
    return (
        "INSERT INTO past.t SELECT /*+ COALESCE(1) */ format_string('%012d', id), sha2(CAST(id AS STRING), 256), "
        f"IF(id % 3 = 0, 'd2', 'd1') FROM range({number * ROWS}, {(number + 1) * ROWS})"
    )


def live(uri: str) -> dict[Path, int]:
    """The files that readers are given, with their sizes."""
    with MetastoreClient(uri) as metastore:
        found = metastore.partitions("past", "t", metastore.partition_names("past", "t"))
        places = [Path(one.storage.location.removeprefix("file:")) for _, one in found]
    return {path: path.stat().st_size for place in places for path in place.glob("[!._]*")}


def work(home: Installation) -> None:
    """Run the plans there are in this process, without a Spark of lakefold's."""
    store = open_store(open_config(home.config))
    try:
        settings = WorkerSettings()
        Worker(
            RunContext(store=store, spark=no_spark, engines=(ArrowEngine(InProcessBackend()),)), settings=settings
        ).run_once()
    finally:
        store.close()


@pytest.mark.shown_by(
    "tests/formats/test_hudi_replayed.py::"
    "test_replay_of_the_policy_in_use_has_the_real_loops_files_and_its_bytes_within_a_twentieth"
)
def test_replay_of_the_policy_in_use_has_the_real_loops_files_and_its_bytes_within_a_twentieth(
    metastore: MetastoreServer, tmp_path: Path
):
    home = hive_installation(
        tmp_path,
        sqlite_at(tmp_path),
        metastore.uri,
        "past",
        small_file_limit="1MiB",
        target_file_max="4MiB",
        max_bytes_per_group="8MiB",
        min_input_files=3,
        scan_interval="30s",
        verification="footer",
        payback="0s",
    )
    began, known = time.time() - (COMMITS + 1) * APART_SECONDS, set[Path]()
    with session(metastore) as writer:
        for statement in MADE:
            writer.sql(statement)
        for number in range(COMMITS):
            writer.sql(inserted(number))
            at = began + number * APART_SECONDS
            for path in live(metastore.uri).keys() - known:
                os.utime(path, (at, at))
            home.run("plans", "request", "past.t")
            work(home)
            known = set(live(metastore.uri))
    plans = [plan for plan in home.json("plans", "list") if plan["state"] == "completed"]
    assert len(plans) >= 3
    for plan in plans:
        (shown,) = home.json("plans", "show", plan["plan_id"])
        assert shown["cost_benefit"]["actual"]["cpu_measured"], "its tasks were counted"
        assert 0 < shown["cost_benefit"]["actual"]["cpu_seconds"] < 60
    (found,) = home.json("tables", "replay", "past.t", "--days", "0.1")
    configured = next(policy for policy in found["policies"] if policy["name"] == "configured")
    sizes, rewritten = list(live(metastore.uri).values()), sum(plan["input_bytes"] for plan in plans)
    print(f"\npredicted {configured['end']}, {configured['rewritten_bytes']} bytes rewritten by {configured['plans']}")
    print(f"real      {len(sizes)} files, {sum(sizes)} bytes, {rewritten} bytes rewritten by {len(plans)}")
    assert found["commits"] == COMMITS
    assert configured["final"]["files"] == len(sizes)
    assert configured["final"]["small_files"] == sum(size < LIMIT for size in sizes)
    assert configured["plans"] == len(plans)
    assert configured["final"]["bytes"] == pytest.approx(sum(sizes), rel=0.05)
    assert configured["rewritten_bytes"] == pytest.approx(rewritten, rel=0.05)
