# SPDX-License-Identifier: Apache-2.0
"""Reads observed in Spark's event logs: real logs of a real session, counted once, and used as the rate."""

import gzip
import json
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta

import pytest
from api_toys import add_token, client_of, context_at
from databases import store_at
from store_plans import make_plan, sql

from lake.model import TableRef
from planner.cost import CostInputs, estimate_benefit
from planner.policy.policy import SizingPolicy
from service.control.config.loader import load_config
from service.control.config.table_settings import configure_table
from service.control.planning.observed_reads import (
    SPARK,
    TableIndex,
    describe_reads,
    observe_spark_reads,
    record_trino_reads,
    with_observed_reads,
)
from service.control.planning.spark_event_logs import LogReading, TableScan, read_scans
from service.control.serializers import describe_cost
from service.control.store.observed_reads import ReadLog
from service.former_names import both_names
from service.text import to_jsonable

pytestmark = pytest.mark.usefixtures("clean_environment")

NOW = datetime.now(UTC)
WEEK = timedelta(days=7)


def start_event(name: str, paths: str = "", at: datetime = NOW, **more: object) -> bytes:
    """A line as Spark writes it when a query starts."""
    leaf = {"nodeName": name, "simpleString": "", "children": [], "metadata": {"Location": paths} if paths else {}}
    plan = {"nodeName": "AdaptiveSparkPlan", "simpleString": "", "children": [leaf], "metadata": {}, **more}
    kind = "org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionStart"
    return json.dumps({"Event": kind, "time": int(at.timestamp() * 1000), "sparkPlanInfo": plan}).encode() + b"\n"


@pytest.fixture
def store(tmp_path):
    found = store_at(tmp_path)
    for name in ("sales.orders", "sales.items"):
        location = str(tmp_path / "warehouse" / f"{name.partition('.')[0]}.db" / name.partition(".")[2])
        found.register_table(TableRef(name=name, format="hudi", location=location), "observe")
    yield found
    found.close()


def reads(store, name="sales.orders") -> int:
    found = store.observed_reads(name, WEEK)
    return 0 if found is None else found.reads


def test_a_growing_log_is_read_from_where_the_last_reading_ended_and_its_open_end_the_next_time(tmp_path, store):
    logs = tmp_path / "logs"
    logs.mkdir()
    log = logs / "app-1.inprogress"
    line = start_event("Scan parquet spark_catalog.sales.orders")
    log.write_bytes(b'{"Event":"SparkListenerLogStart"}\n' + line + line[:40])
    assert (observe_spark_reads(store, [str(logs)]), reads(store)) == (1, 1)
    assert observe_spark_reads(store, [str(logs)]) == 0, "nothing is new"
    with log.open("ab") as file:
        file.write(line[40:] + line)
    assert (observe_spark_reads(store, [str(logs)]), reads(store)) == (2, 3)
    log.rename(logs / "app-1")
    assert (observe_spark_reads(store, [str(logs)]), reads(store)) == (0, 3), "the log of an application that ended"


def test_a_round_reads_a_bounded_part_and_the_next_one_the_rest(tmp_path, store):
    logs = tmp_path / "logs"
    logs.mkdir()
    line = start_event("Scan parquet spark_catalog.sales.orders", padding="x" * 1000)
    (logs / "app-1").write_bytes(line * 3000)
    rounds = []
    while found := observe_spark_reads(store, [str(logs)], max_bytes=1 << 20):
        rounds.append(found)
    assert (sum(rounds), len(rounds) > 2) == (3000, True)


def test_a_line_without_end_is_skipped_in_bounded_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("service.control.planning.spark_event_logs._MAX_LINE_BYTES", 1 << 20)
    log = tmp_path / "app-1"
    line = start_event("Scan parquet spark_catalog.sales.orders")
    long = start_event("Scan parquet a.b", padding="x" * (5 << 20))
    log.write_bytes(line + long + line)
    reading = LogReading(position=0)
    assert [scan.name for scan in read_scans(log, reading, 1 << 30)] == ["spark_catalog.sales.orders"] * 2
    assert reading.position == log.stat().st_size


def test_tables_are_found_by_location_before_name_and_with_or_without_a_catalog():
    index = TableIndex([("sales.orders", "/lake/orders"), ("ops.jobs", "file:///lake/ops/jobs"), ("loose", "/lake/l")])

    def found(name: str = "", *paths: str) -> str | None:
        return index.find(TableScan(at=NOW, name=name, paths=paths))

    assert found("spark_catalog.sales.orders") == "sales.orders"
    assert found("SALES.Orders") == "sales.orders"
    assert found("", "file:/lake/orders/dt=1") == "sales.orders"
    assert found("x.y", "file:/lake/ops/jobs") == "ops.jobs"
    assert found("", "file:/lake/orders_2") is None
    assert found("other.table") is None


def test_a_log_of_lakefold_itself_does_not_count(tmp_path, store):
    logs = tmp_path / "logs"
    logs.mkdir()
    began = b'{"Event":"SparkListenerApplicationStart","App Name":"lakefold","App ID":"a"}\n'
    line = start_event("Scan parquet spark_catalog.sales.orders")
    (logs / "app-1").write_bytes(began + line)
    rolling = logs / "eventlog_v2_app-2"
    rolling.mkdir()
    (rolling / "events_1_app-2").write_bytes(began + line)
    (rolling / "events_2_app-2").write_bytes(line)
    assert (observe_spark_reads(store, [str(logs)]), reads(store)) == (0, 0)
    with (logs / "app-1").open("ab") as file:
        file.write(line)
    assert observe_spark_reads(store, [str(logs)]) == 0


def test_a_missing_directory_and_a_damaged_log_do_not_stop_the_others(tmp_path, store, caplog):
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "app-0.zstd").write_bytes(b"no frame")
    (logs / "app-1").write_bytes(b"\xff\n{}\nSparkListenerSQLExecutionStart\n" + start_event("Scan hive sales.items"))
    (logs / "app-2.gz").write_bytes(gzip.compress(b"x"))
    assert observe_spark_reads(store, [str(tmp_path / "none"), str(logs)]) == 1
    assert "can't be listed" in caplog.text


def test_the_observed_rate_replaces_the_configured_one_and_is_named(tmp_path, store):
    (tmp_path / "lakefold.toml").write_text('[[tables]]\nmatch = "sales.orders"\nreads_per_day = 3\n')
    config = load_config()
    table = configure_table(config, store.table_state("sales.orders").ref)
    assert describe_reads(with_observed_reads(store, table)).startswith("3 reads a day (configured: lakefold.toml")
    today = NOW.date()
    counts = {("sales.orders", today): 100, ("sales.orders", today - timedelta(days=3)): 25}
    store.record_reads(ReadLog(log="a", bytes=1, position=1), SPARK, counts)
    found = with_observed_reads(store, table)
    days = (datetime.now(UTC) - datetime.combine(today - timedelta(days=3), datetime.min.time(), UTC)) / timedelta(1)
    assert found.policy.reads_per_day == float(f"{125 / days:.2g}")
    assert describe_reads(found).endswith(f"(observed: 125 reads since {today - timedelta(days=3)}, Spark event logs)")
    assert found.settings_digest == table.settings_digest, "a rate that changes all the time is no other setting"
    again = with_observed_reads(store, found)
    assert (again.settings_digest, again.configured_reads_per_day) == (table.settings_digest, 3), "explain observes it"
    other = configure_table(config, store.table_state("sales.items").ref)
    assert with_observed_reads(store, other) == other


def test_old_observations_leave_the_window_and_are_deleted(tmp_path, store):
    day = date(2026, 1, 1)
    store.record_reads(ReadLog(log="gone", bytes=1, position=1), SPARK, {("sales.orders", day): 5})
    assert store.observed_reads("sales.orders", WEEK) is None
    store.prune_reads()
    assert sql(f"sqlite:///{tmp_path}/lakefold.db", "SELECT count(*) FROM table_read")[0][0] == 0


def test_trino_reports_its_queries_and_each_table_counts_once(tmp_path, store):
    context = context_at(tmp_path)
    event = {
        "metadata": {"queryId": "20260131_1", "queryState": "FINISHED", "query": "SELECT 1"},
        "statistics": {"cpuTime": 1.0},
        "ioMetadata": {
            "inputs": [
                {"catalogName": "hudi", "schema": "sales", "table": "orders", "columns": []},
                {"catalogName": "hudi", "schema": "sales", "table": "orders", "columns": []},
                {"catalogName": "hudi", "schema": "hr", "table": "people", "columns": []},
            ]
        },
    }
    token = add_token(context.store, "write")
    with client_of(context, token) as client:
        answer = client.post("/v1/events/trino", json=event)
        assert (answer.status_code, answer.json()) == (202, {"reads": ["sales.orders"]})
        assert client.post("/v1/events/trino", json={"metadata": {}}).status_code == 422
    with client_of(context) as client:
        assert client.post("/v1/events/trino", json=event).status_code == 401
    assert reads(store, "sales.orders") == 1
    found = store.observed_reads("sales.orders", WEEK)
    assert found.sources == ("Trino's event listener",)
    context.store.close()


def test_an_event_that_trino_delivers_again_counts_once_for_every_process(tmp_path, store):
    context, other = context_at(tmp_path), store_at(tmp_path)
    inputs = [{"catalogName": "hudi", "schema": "sales", "table": "orders", "columns": []}]
    token = add_token(context.store, "write")

    def post(client, query: str) -> dict:
        event = {"metadata": {"queryId": query, "queryState": "FINISHED"}, "ioMetadata": {"inputs": inputs}}
        answer = client.post("/v1/events/trino", json=event)
        assert answer.status_code == 202
        return answer.json()

    with client_of(context, token) as client:
        first, again = (post(client, "20261127_041750_00123_abcde") for _ in range(2))
        assert (first, again) == ({"reads": ["sales.orders"]}, {"reads": ["sales.orders"]})
        assert reads(store) == 1, "a retry whose first delivery was counted, and whose answer was lost"
    assert record_trino_reads(other, "20261127_041750_00123_abcde", [("sales", "orders")]) == ["sales.orders"]
    assert reads(store) == 1, "another process behind the same address"
    record_trino_reads(other, "20261127_041751_00124_abcde", [("sales", "orders")])
    assert reads(store) == 2
    assert store.read_logs() == {}, "an id is no log that a round of the scheduler has to look at"
    other.close()
    context.store.close()


def test_ids_of_queries_are_kept_for_a_day_and_tables_that_are_not_served_leave_none(tmp_path, store):
    url = f"sqlite:///{tmp_path}/lakefold.db"
    record_trino_reads(store, "q1", [("hr", "people")])
    assert sql(url, "SELECT count(*) FROM read_log")[0][0] == 0
    record_trino_reads(store, "q2", [("sales", "orders")])
    store.prune_reads()
    record_trino_reads(store, "q2", [("sales", "orders")])
    assert reads(store) == 1
    sql(url, "UPDATE read_log SET seen_at_ms = seen_at_ms - 86400001")
    store.prune_reads()
    assert (sql(url, "SELECT count(*) FROM read_log")[0][0], reads(store)) == (0, 1)


@pytest.mark.parametrize(("observed", "word"), [(True, "observed"), (False, "configured")])
def test_the_savings_of_a_plan_name_their_read_rate(observed, word):
    worth = estimate_benefit(
        make_plan("dt=1"), SizingPolicy(reads_per_day=5.0), CostInputs(are_reads_observed=observed)
    )
    predicted = {**both_names("plan.cost_benefit.predicted", to_jsonable(worth))}
    lines = dict(describe_cost({"predicted": predicted, "actual": None, "errors": {}}))
    assert lines["saves"].endswith(f"(5 reads a day, {word})")


SESSION = """
import sys
from pyspark.sql import SparkSession
home = sys.argv[1]
for codec in ("none", "zstd", "lz4"):
    builder = SparkSession.builder.master("local[1]").appName("reader").config("spark.driver.memory", "600m")
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{home}/{codec}/logs",
        "spark.sql.warehouse.dir": f"{home}/{codec}/warehouse",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.eventLog.compress": str(codec != "none").lower(),
        "spark.eventLog.compression.codec": "zstd" if codec == "none" else codec,
        "spark.eventLog.rolling.enabled": str(codec == "zstd").lower(),
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sql("CREATE DATABASE sales")
    for name in ("orders", "items"):
        spark.range(10).write.format("parquet").saveAsTable(f"sales.{name}")
    spark.sql("SELECT count(*) FROM sales.orders").collect()
    spark.sql("SELECT o.id FROM sales.orders o JOIN sales.items i ON o.id = i.id WHERE o.id > 3").collect()
    spark.read.parquet(f"{home}/{codec}/warehouse/sales.db/orders").collect()
    spark.table("sales.items").groupBy("id").count().collect()
    spark.stop()
    SparkSession._instantiatedSession = None
"""


@pytest.mark.slow
def test_reads_are_counted_in_plain_rolling_and_compressed_logs_of_a_real_session(tmp_path):
    from executors.spark import java_home

    for codec in ("none", "zstd", "lz4"):
        (tmp_path / codec / "logs").mkdir(parents=True)
    script = tmp_path / "session.py"
    script.write_text(SESSION)
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "JAVA_HOME": str(java_home())}
    command = [sys.executable, str(script), str(tmp_path)]
    subprocess.run(command, check=True, cwd=tmp_path, env=environment, timeout=500, capture_output=True)
    for codec, suffix in {"none": "", "zstd": ".zstd", "lz4": ".lz4"}.items():
        home = tmp_path / codec
        logs = [path for path in (home / "logs").rglob("*") if path.is_file() and path.stat().st_size]
        assert any(path.name.endswith(suffix) for path in logs), codec
        store = store_at(home)
        for name in ("orders", "items"):
            ref = TableRef(name=f"sales.{name}", format="hudi", location=str(home / "warehouse/sales.db" / name))
            store.register_table(ref, "observe")
        assert observe_spark_reads(store, [str(home / "logs")]) == 5, codec
        assert (reads(store, "sales.orders"), reads(store, "sales.items")) == (3, 2), codec
        assert observe_spark_reads(store, [str(home / "logs")]) == 0, codec
        store.close()
