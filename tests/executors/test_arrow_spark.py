# SPDX-License-Identifier: Apache-2.0
"""The engine ``arrow`` in tasks of Spark, and on what Spark writes."""

import os
import threading
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from executors.engines import create_engines, spark_tasks
from executors.engines.footer import RawParquetFooter
from executors.engines.inputs import ParquetInput
from lake.engines import ChecksManyTasks, RewriteEngine, RewriteTask
from lake.errors import CancelRequested, Conflict, EngineUnavailable, Transient
from lake.plan import RewriteOptions, RewriteProgress

pytestmark = pytest.mark.spark
OPTIONS = RewriteOptions(target_file_max_bytes=1 << 30)

#: a column of every type that Spark writes to Parquet
EVERY_TYPE = """
    SELECT id, id % 2 = 0 AS flag, cast(id % 100 AS tinyint) AS tiny, cast(id AS smallint) AS small,
      cast(id AS int) AS whole, cast(id AS float) / 7 AS half, id / 3 AS double, cast(id AS decimal(9, 2)) AS money,
      cast(id AS decimal(18, 4)) AS more, cast(id * 1e10 AS decimal(38, 10)) AS most, concat('n', id % 9) AS name,
      cast(concat('v', id) AS varchar(9)) AS bounded, cast(concat('c', id) AS char(9)) AS padded,
      cast(concat('b', id) AS binary) AS raw, date_add(date'0001-01-03', cast(id * 10000 AS int)) AS day,
      cast(timestamp_seconds(id * 800000000 - 62135500000.5) AS timestamp) AS at,
      cast(timestamp_seconds(id * 1000003.25) AS timestamp_ntz) AS local,
      make_ym_interval(cast(id AS int), 1) AS months, make_dt_interval(cast(id AS int), 2, 3, 4.5) AS seconds,
      array(id, null) AS numbers, map(concat('k', id), id) AS by_name,
      struct(id AS x, array(struct(timestamp_seconds(id) AS t, cast(id AS decimal(12, 1)) AS d)) AS y) AS nested,
      if(id % 3 = 0, null, array(map(id, timestamp_seconds(id)))) AS maybe
    FROM range(300)
"""
CALENDARS = {"parquet.int96RebaseModeInWrite": "CORRECTED", "parquet.datetimeRebaseModeInWrite": "CORRECTED"}


@pytest.fixture
def arrow(spark: Any) -> RewriteEngine:
    return next(one for one in create_engines(lambda: spark) if one.name == "arrow")


def written_by_spark(spark: Any, folder: Path, files: int = 3, **settings: str) -> list[str]:
    keys = {f"spark.sql.{key}": value for key, value in (CALENDARS | settings).items()}
    for key, value in keys.items():
        spark.conf.set(key, value)
    try:
        rows = spark.sql(EVERY_TYPE).repartition(files)
        rows.write.parquet(str(folder))
    finally:
        for key in keys:
            spark.conf.unset(key)
    return sorted(map(str, folder.glob("*.parquet")))


def task_of(inputs: list[str], folder: Path, group: int = 0) -> RewriteTask:
    folder.mkdir(exist_ok=True)
    output = str(folder / f"{group}.parquet")
    return RewriteTask(group=group, inputs=tuple(inputs), outputs=(output,), bytes=sum(map(os.path.getsize, inputs)))


def said(path: str) -> tuple[Any, ...]:
    fields = RawParquetFooter(ParquetInput.read(path).footer)._fields
    return fields[2], fields[5], fields[1]


def by_spark(spark: Any, paths: list[str]) -> tuple[Any, Counter[str]]:
    """The schema and the rows as text: Python has no timestamps of some years that Spark has."""
    frame = spark.read.parquet(*paths)
    return frame.schema, Counter(row.t for row in frame.selectExpr("cast(struct(*) AS string) AS t").collect())


def by_duckdb(paths: list[str]) -> Counter[str]:
    # DuckDB 2 has no type for the intervals of Spark, which are plain integers to it.
    return Counter(row for (row,) in duckdb.sql(f"SELECT t::VARCHAR FROM read_parquet({paths}) t").fetchall())


@pytest.mark.parametrize("timestamps", ["INT96", "TIMESTAMP_MICROS", "TIMESTAMP_MILLIS"])
def test_rewritten_files_of_spark_are_equal_for_spark_and_duckdb_and_value_by_value(spark, arrow, tmp_path, timestamps):
    paths = written_by_spark(spark, tmp_path / "t", **{"parquet.outputTimestampType": timestamps})
    task = task_of(paths, tmp_path / "new")
    assert arrow.unsupported_reason(task, OPTIONS) is None
    told: list[RewriteProgress] = []
    began = time.monotonic()
    (file,) = arrow.rewrite([task], OPTIONS, told.append, threading.Event())
    assert 0 < told[-1].cpu_seconds < (time.monotonic() - began) * os.cpu_count(), "of Spark's Python"
    assert (file.rows, told[-1].rows_done, os.listdir(tmp_path / "new")) == (300, 300, ["0.parquet"])
    assert said(file.path) == said(paths[0])
    kinds = [
        [schema.column(n).physical_type for n in range(len(schema))]
        for schema in (pq.read_metadata(path).schema for path in (paths[0], file.path))
    ]
    assert kinds[0] == kinds[1]
    assert ("INT96" in kinds[0]) is (timestamps == "INT96")
    assert by_spark(spark, paths) == by_spark(spark, [file.path])
    assert by_duckdb(paths) == by_duckdb([file.path])


def test_files_in_sparks_old_format_keep_it(spark, arrow, tmp_path):
    paths = written_by_spark(spark, tmp_path / "t", **{"parquet.writeLegacyFormat": "true"})
    task = task_of(paths, tmp_path / "new")
    assert arrow.unsupported_reason(task, OPTIONS) is None
    (file,) = arrow.rewrite([task], OPTIONS, lambda _: None, threading.Event())
    assert said(file.path) == said(paths[0])
    assert "bag" in str(pq.read_metadata(file.path).schema)
    assert by_spark(spark, paths) == by_spark(spark, [file.path])
    assert by_duckdb(paths) == by_duckdb([file.path])


def test_dates_of_the_old_calendar_are_not_mixed_with_others(spark, arrow, tmp_path):
    old = written_by_spark(spark, tmp_path / "old", **{"parquet.datetimeRebaseModeInWrite": "LEGACY"})
    new = written_by_spark(spark, tmp_path / "new")
    mixed = task_of([*old, *new], tmp_path / "out")
    assert "differ in metadata org.apache.spark.legacyDateTime" in str(arrow.unsupported_reason(mixed, OPTIONS))
    task = task_of(old, tmp_path / "out")
    (file,) = arrow.rewrite([task], OPTIONS, lambda _: None, threading.Event())
    assert by_spark(spark, old) == by_spark(spark, [file.path])


def test_many_groups_share_a_job_and_one_that_cant_be_read_stops_no_other(spark, arrow, tmp_path):
    paths = written_by_spark(spark, tmp_path / "t", files=2)
    tasks = [task_of(paths, tmp_path / "new", group=number) for number in range(40)]
    Path(paths[0]).with_name("damaged").write_bytes(b"PAR1" + bytes(40))
    tasks.append(task_of([str(Path(paths[0]).with_name("damaged"))], tmp_path / "new", group=40))
    written = []
    with pytest.raises(Conflict) as raised:
        written.extend(arrow.rewrite(tasks, OPTIONS, lambda _: None, threading.Event()))
    assert sorted(file.group for file in written) == list(range(40))
    assert sorted(os.listdir(tmp_path / "new")) == sorted(f"{number}.parquet" for number in range(40))
    assert [(item.group, bool(item.quarantine)) for item in raised.value.args[1]] == [(40, True)]


def test_many_groups_are_checked_in_tasks_with_the_reasons_of_each_group(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(spark_tasks, "MIN_FILES_FOR_JOB", 1)
    paths = []
    for number in range(6):
        paths.append(str(tmp_path / f"{number}.parquet"))
        pq.write_table(pa.table({"a" if number % 3 else "b": range(number, 9)}), paths[-1])
    tasks = [task_of(paths[start:end], tmp_path / "out", start) for start, end in ((1, 3), (2, 4), (4, 6), (0, 2))]
    for engine in create_engines(lambda: spark)[:3]:
        # A configured engine is not refused for row groups that are small.
        options = replace(OPTIONS, engine=engine.name)
        assert isinstance(engine, ChecksManyTasks)
        reasons = engine.unsupported_reasons(tasks, options)
        assert reasons == [engine.unsupported_reason(task, options) for task in tasks]
        assert [reason is None for reason in reasons] == [True, False, True, False], engine.name


def test_a_function_runs_for_each_item_in_tasks_and_a_check_can_end_it(spark, monkeypatch):
    monkeypatch.setattr(spark_tasks, "MIN_FILES_FOR_JOB", 1)
    tasks = spark_tasks.SparkTasks(lambda: spark)
    assert tasks.map(partial(max, 3), list(range(9)), files=9) == [3, 3, 3, 3, 4, 5, 6, 7, 8]
    with pytest.raises(Transient, match="Spark could not run the tasks"):
        tasks.map(len, [1, 2], files=2)

    def check() -> None:
        raise CancelRequested("it was cancelled")

    begun = time.monotonic()
    with pytest.raises(CancelRequested):
        tasks.map(time.sleep, [5, 5], files=2, check=check)
    assert time.monotonic() - begun < 5


def test_executors_without_python_leave_the_work_to_this_process(spark, monkeypatch):
    monkeypatch.setattr(spark_tasks, "MIN_FILES_FOR_JOB", 1)
    monkeypatch.setattr(spark_tasks, "_applications_without_python", set())
    tasks, jobs = spark_tasks.SparkTasks(lambda: spark), []

    def fail(*_: object) -> list[int]:
        jobs.append(1)
        raise EngineUnavailable("its executors have another Python")

    monkeypatch.setattr(tasks, "_map_in_tasks", fail)
    for _ in range(2):
        assert tasks.map(abs, [-1, 2], files=2) == [1, 2]
    assert len(jobs) == 1


def test_a_rewrite_in_tasks_is_cancelled(spark, arrow, tmp_path):
    cancelled = threading.Event()
    cancelled.set()
    task = task_of(written_by_spark(spark, tmp_path / "t"), tmp_path / "new")
    with pytest.raises(CancelRequested):
        list(arrow.rewrite([task], OPTIONS, lambda _: None, cancelled))


def test_rows_with_nan_and_with_zeros_of_one_sign_are_found_by_every_comparison(spark, arrow, tmp_path):
    nan, size = float("nan"), 200
    columns = {
        "nan": [float(n) for n in range(size - 2)] + [nan, -nan],
        "negative_zero": [-0.0, 5.0] * (size // 2),
        "positive_zero": [0.0, -5.0] * (size // 2),
    }
    paths = []
    for number, index in enumerate((False, True)):
        paths.append(str(tmp_path / f"{number}.parquet"))
        rows = pa.table({name: pa.array(values, pa.float64()) for name, values in columns.items()})
        rows = rows.append_column("nested", pa.array([{"d": value} for value in columns["nan"]]))
        filters = {"nan": {"ndv": size}, "negative_zero": {"ndv": 2}}
        pq.write_table(rows, paths[-1], write_page_index=index, bloom_filter_options=filters)
    task = task_of(paths, tmp_path / "new")
    assert arrow.unsupported_reason(task, OPTIONS) is None
    (file,) = arrow.rewrite([task], OPTIONS, lambda _: None, threading.Event())
    found = {
        predicate: spark.read.parquet(file.path).filter(predicate).count()
        for predicate in (
            "nan > 1000",
            "nan = double('NaN')",
            "not nan <= 1000",
            "nested.d > 1000",
            "negative_zero = 0D",
            "negative_zero >= 0D",
            "positive_zero = -0D",
            "positive_zero <= -0D",
        )
    }
    assert found == {
        "nan > 1000": 4,
        "nan = double('NaN')": 4,
        "not nan <= 1000": 4,
        "nested.d > 1000": 4,
        "negative_zero = 0D": size,
        "negative_zero >= 0D": 2 * size,
        "positive_zero = -0D": size,
        "positive_zero <= -0D": 2 * size,
    }
