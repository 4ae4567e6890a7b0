# SPDX-License-Identifier: Apache-2.0
"""Reads observed in HDFS audit logs: lines as Hadoop documents them, counted once through growth and rotation."""

import gzip
import os
import shutil
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from databases import store_at

from lake.model import TableRef
from service.control.config.loader import load_config
from service.control.config.table_settings import configure_table
from service.control.planning.hdfs_audit_logs import HdfsPaths
from service.control.planning.observed_reads import (
    SPARK,
    describe_reads,
    observe_hdfs_reads,
    observe_spark_reads,
    with_observed_reads,
)
from service.control.store.observed_reads import ReadLog

pytestmark = pytest.mark.usefixtures("clean_environment")

NOW = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(hours=2)
WEEK = timedelta(days=7)
IGNORED = ("lakefold",)


def line(
    src: str, minute: int = 0, second: int = 0, ugi: str = "etl (auth:SIMPLE)", caller: str = "", **more: str
) -> str:
    """A line of the audit log, ``minute`` minutes after the start of the tests."""
    at = NOW + timedelta(minutes=minute, seconds=second)
    fields = {"allowed": "true", "ugi": ugi, "ip": "/10.0.0.7", "cmd": "open"} | more
    fields |= {"src": src, "dst": "null", "perm": "null", "proto": "rpc"} | (
        {"callerContext": caller} if caller else {}
    )
    words = "\t".join(f"{name}={value}" for name, value in fields.items())
    return f"{at:%Y-%m-%d %H:%M:%S},123 INFO FSNamesystem.audit: {words}\n"


def put(path: Path, *lines: str, idle: bool = True, append: bool = False) -> Path:
    """Write a log whose last change was two minutes ago, or just now."""
    with path.open("a" if append else "w") as file:
        file.write("".join(lines))
    if idle:
        os.utime(path, (time.time() - 120,) * 2)
    return path


@pytest.fixture
def store(tmp_path):
    found = store_at(tmp_path)
    for name in ("sales.orders", "sales.items"):
        found.register_table(
            TableRef(name=name, format="hive", location=f"hdfs://nn:8020/lake/{name.partition('.')[2]}"), "observe"
        )
    yield found
    found.close()


def reads(store, name="sales.orders") -> int:
    found = store.observed_reads(name, WEEK)
    return 0 if found is None else found.reads


def observe(store, log: Path, **more) -> int:
    return observe_hdfs_reads(store, [str(log)], IGNORED, **more)


def test_all_opens_of_a_table_by_one_user_in_one_minute_are_one_read(tmp_path, store):
    log = put(
        tmp_path / "hdfs-audit.log",
        *(line(f"/lake/orders/dt=1/part-{n}.parquet", second=n, ip=f"/10.0.0.{n}") for n in range(40)),
        line("/lake/items/part-0.parquet", second=50),
        line("/lake/orders/dt=1/part-0.parquet", second=55, ugi="alice@EXAMPLE.COM (auth:KERBEROS)"),
        line("/lake/orders/dt=1/part-0.parquet", minute=1, ugi="alice/gw@EXAMPLE.COM (auth:KERBEROS)"),
    )
    assert observe(store, log) == 4
    assert (reads(store), reads(store, "sales.items")) == (3, 1)
    assert store.observed_reads("sales.orders", WEEK).sources == ("HDFS audit logs",)


def test_only_permitted_opens_of_data_files_by_other_users_count(tmp_path, store):
    log = put(
        tmp_path / "hdfs-audit.log",
        line("/lake/orders/.hoodie/hoodie.properties"),
        line("/lake/orders/_delta_log/0.json"),
        line("/lake/orders/metadata/v1.metadata.json"),
        line("/lake/orders_2/part-0.parquet"),
        line("/lake/orders", cmd="listStatus"),
        line("/lake/orders/part-0.parquet", allowed="false"),
        line("/lake/orders/part-0.parquet", ugi="lakefold (auth:SIMPLE)"),
        "java.io.IOException: not a line of the audit log\n",
    )
    assert observe(store, log) == 0
    proxied = "alice (auth:PROXY) via hive/hs2@EXAMPLE.COM (auth:KERBEROS)"
    put(log, line("/lake/orders/_lakefold/v1/dt=1/part-0.parquet", 5, ugi=proxied), append=True)
    put(log, line("/lake/orders/dt=1/.f1_2.log.1_0", 6, ugi=proxied, caller="SPARK_a"), append=True)
    assert (observe(store, log), reads(store)) == (2, 2), "relocated partitions, and log files of a merge-on-read table"
    put(log, line("/lake/orders/.lakefold/v2/dt=1/part-0.parquet", 8, ugi=proxied), append=True)
    assert (observe(store, log), reads(store)) == (1, 3), "the present name of the directory of versions"


def test_a_minute_that_is_being_written_is_counted_when_it_is_over(tmp_path, store):
    log = put(tmp_path / "hdfs-audit.log", line("/lake/orders/a"), line("/lake/orders/a", 1), idle=False)
    assert observe(store, log) == 1, "the second minute may go on"
    put(log, line("/lake/orders/b", 1, 30), append=True, idle=False)
    assert observe(store, log) == 0
    put(log, line("/lake/orders/b", 2)[:50], append=True)
    assert (observe(store, log), reads(store)) == (1, 2), "no line came for a minute; the last one is not complete"
    put(log, line("/lake/orders/b", 2)[50:], append=True)
    assert (observe(store, log), observe(store, log), reads(store)) == (1, 0, 3)


@pytest.mark.parametrize("how", ["rename", "copy", "gzip"])
def test_a_rotated_log_continues_at_its_position_and_counts_once(tmp_path, store, how):
    log = put(tmp_path / "hdfs-audit.log", line("/lake/orders/a"), line("/lake/orders/a", 1))
    (tmp_path / "hdfs-audit.logger").write_text(line("/lake/orders/a", 9))
    assert observe(store, log) == 2
    put(log, line("/lake/orders/a", 2), append=True)
    old = tmp_path / "hdfs-audit.log.1"
    if how == "rename":
        log.rename(old)
    elif how == "copy":
        shutil.copy2(log, old)
    else:
        old = old.with_name("hdfs-audit.log.2026-11-26.gz")
        old.write_bytes(gzip.compress(log.read_bytes()))
        os.utime(old, (time.time() - 90,) * 2)
    put(log, line("/lake/orders/b", 3))
    assert observe(store, log) == 2
    assert (observe(store, log), reads(store)) == (0, 4)


def test_lines_of_threads_that_overtook_each_other_do_not_split_a_minute(tmp_path, store):
    seconds = [(0, 59), (1, 0), (0, 59), (1, 1), (2, 0)]
    log = put(tmp_path / "hdfs-audit.log", *(line("/lake/orders/a", *at) for at in seconds))
    assert observe(store, log) == 3


def test_a_round_ends_with_a_whole_minute_and_the_next_one_continues(tmp_path, store):
    log = put(tmp_path / "hdfs-audit.log", *(line("/lake/orders/a", n // 10, n % 10) for n in range(300)))
    rounds = []
    while found := observe(store, log, max_bytes=2000):
        rounds.append(found)
    assert (sum(rounds), len(rounds) > 2) == (30, True)


def test_a_missing_and_a_damaged_log_do_not_stop_the_others(tmp_path, store, caplog):
    log = put(tmp_path / "hdfs-audit.log", line("/lake/orders/a"))
    whole = gzip.compress((line("/lake/orders/a", 1) * 500).encode())
    (tmp_path / "hdfs-audit.log.1.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "hdfs-audit.log.2.gz").write_bytes(b"no gzip")
    missing = [str(tmp_path / "none" / "hdfs-audit.log"), str(tmp_path / "audit.log")]
    assert observe_hdfs_reads(store, [*missing, str(log)], IGNORED) == 1
    assert "can't be listed" in caplog.text
    assert "does not exist" in caplog.text
    assert caplog.text.count("can't be read") == 2


def test_a_path_that_tables_of_two_clusters_have_is_not_guessed():
    paths = HdfsPaths(
        [("a.b", "hdfs://one/lake/t"), ("a.c", "hdfs://two/lake/t"), ("a.d", "hdfs://one/lake/d"), ("l", "/x")]
    )
    assert [paths.find(path) for path in ("/lake/t/f", "/lake/d/dt=1/f", "/x/f", "/lake/d")] == [
        None,
        "a.d",
        None,
        None,
    ]


def test_audit_logs_see_the_reads_of_other_sources_and_are_not_added_to_them(tmp_path, store):
    table = configure_table(load_config(), store.table_state("sales.orders").ref)
    today = datetime.now(UTC).date()
    store.record_reads(ReadLog(log="a", bytes=1, position=1), SPARK, {("sales.orders", today): 5})
    log = put(tmp_path / "hdfs-audit.log", *(line("/lake/orders/a", n) for n in range(4)))
    assert (observe(store, log), reads(store)) == (4, 5), "these four are among the five"
    put(log, *(line("/lake/orders/a", n) for n in range(4, 9)), append=True)
    assert (observe(store, log), reads(store)) == (5, 9)
    assert "observed: 9 reads since" in describe_reads(with_observed_reads(store, table))
    assert describe_reads(with_observed_reads(store, table)).endswith("HDFS audit logs)")


def test_rounds_of_one_source_do_not_forget_the_logs_of_the_other(tmp_path, store):
    log = put(tmp_path / "hdfs-audit.log", line("/lake/orders/a"))
    assert observe(store, log) == 1
    known = store.read_logs()
    (tmp_path / "events").mkdir()
    observe_spark_reads(store, [str(tmp_path / "events")])
    assert store.read_logs() == known
