# SPDX-License-Identifier: Apache-2.0
"""Small real Hudi tables for tests, written by Hudi's own Spark writer."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from lake.formats.hudi.files.storage import TableStorage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FS_LOCK = {
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    "hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider",
    "hoodie.clean.failed.writes.policy": "LAZY",
    "hoodie.write.lock.wait_time_ms_between_retry": "200",
    "hoodie.write.lock.num_retries": "50",
    "hoodie.write.lock.client.wait_time_ms_between_retry": "200",
    "hoodie.write.lock.client.num_retries": "50",
    # A write that lost, or whose writer died, delays no plan once its heartbeat is silent this long.
    "hoodie.client.heartbeat.interval_in_ms": "3000",
    "hoodie.client.heartbeat.tolerable.misses": "3",
    # With any lock but the JVM's own, Hudi waits at each instant for as long as clocks may differ: here there is one.
    "hoodie.time.generator.max_expected_clock_skew_ms": "1",
}
"""Optimistic concurrency with a lock file in the table: what writer and lakefold share in tests."""

SMALL_BLOOM = {"hoodie.index.bloom.num_entries": "1000"}
"""For 60,000 keys, the default, each file has a filter of 430 KiB, more work than its rows."""
METADATA = {"hoodie.metadata.enable": "true"}
"""A metadata table, as Hudi's writers keep by default: twice what a small write costs."""
_COLUMNS = ("hoodie.metadata.index.column.stats.enable", "hoodie.metadata.index.partition.stats.enable")
STATISTICS = METADATA | dict.fromkeys(_COLUMNS, "true")
"""With the indexes that they keep in it by default: twice as much again."""
COMPACT_NOW = {"hoodie.compact.inline.max.delta.commits": "1"}


def rows(spark: "SparkSession", low: int, high: int, *, version: int = 0, partitions: int = 2) -> "DataFrame":
    """Ids ``low`` ≤ id < ``high`` with a decimal, a timestamp, a nested and a nullable column; partition ``dt``."""
    from pyspark.sql import functions as f

    return spark.range(low, high).select(
        "id",
        f.lit(version).cast("long").alias("ts"),
        f.format_string("2026-01-%02d", f.col("id") % partitions + 1).alias("dt"),
        (f.col("id") * 7 % 1000 / 8).cast("decimal(12,3)").alias("fare"),
        f.timestamp_seconds(f.lit(1_767_225_600) + f.col("id") * 61).alias("at"),
        f.when(f.col("id") % 5 != 0, f.col("id") % 17).cast("int").alias("tip"),
        f.struct((f.col("id") * 0.5).alias("lat"), f.sha1(f.col("id").cast("string")).alias("name")).alias("stop"),
    )


def write(
    frame: "DataFrame",
    base: Path | str,
    operation: str = "bulk_insert",
    *,
    merge_on_read: bool = False,
    files: int = 1,
    partitioned: bool = True,
    options: Mapping[str, str] | None = None,
) -> None:
    """One commit of ``frame`` to the Hudi table at ``base``; ``files`` is the write's parallelism.

    A new table gets a metadata table where the options ask for one, ``METADATA`` or more; later writes keep to that.
    """
    settings = {
        "hoodie.table.name": str(base).rpartition("/")[2],
        "hoodie.datasource.write.recordkey.field": "id",
        "hoodie.datasource.write.precombine.field": "ts",
        "hoodie.datasource.write.operation": operation,
        "hoodie.datasource.write.partitionpath.field": "dt" if partitioned else "",
        "hoodie.datasource.write.hive_style_partitioning": "true",
        "hoodie.datasource.write.table.type": "MERGE_ON_READ" if merge_on_read else "COPY_ON_WRITE",
        "hoodie.compact.inline": "false",
        "hoodie.datasource.compaction.async.enable": "false",
        "hoodie.clean.automatic": "false",
        "hoodie.parquet.small.file.limit": "0",
        **SMALL_BLOOM,
        **_as_it_is(base),
    }
    if not partitioned:
        settings["hoodie.datasource.write.keygenerator.class"] = "org.apache.hudi.keygen.NonpartitionedKeyGenerator"
    for step in ("bulkinsert", "upsert", "insert", "delete"):
        settings[f"hoodie.{step}.shuffle.parallelism"] = str(files)
    # As many tasks as the table has files, the default, are a third of what a small upsert costs.
    settings["hoodie.simple.index.parallelism"] = str(files)
    frame.write.format("hudi").options(**(settings | dict(options or {}))).mode("append").save(str(base))


def small_files(
    spark: "SparkSession",
    base: Path | str,
    *,
    commits: int = 3,
    rows_each: int = 200,
    partitions: int = 2,
    options: Mapping[str, str] | None = None,
    **kwargs: object,
) -> None:
    """A table of ``commits`` bulk inserts, each adding one small file a partition."""
    for commit in range(commits):
        frame = rows(spark, commit * rows_each, (commit + 1) * rows_each, version=commit, partitions=partitions)
        write(frame.coalesce(1), base, options=options, **kwargs)  # type: ignore[arg-type]


def run_service(spark: "SparkSession", procedure: str, base: Path, operation: str, **options: str) -> None:
    """Run one of Hudi's table services, ``run_clustering`` or ``run_compaction``, with a writer's ``options``."""
    given = ",".join(f"{key}={value}" for key, value in (_as_it_is(base) | options).items())
    spark.sql(f"CALL {procedure}(path => '{base}', op => '{operation}', options => '{given}')").collect()


def _as_it_is(base: Path | str) -> dict[str, str]:
    """Settings with which a write neither adds a metadata table nor deletes the one that is there."""
    kept = str(bool(TableStorage(str(base)).children(".hoodie/metadata"))).lower()
    return {"hoodie.metadata.enable": kept, **dict.fromkeys(_COLUMNS, "false")}


def copy(template: Path, to: Path) -> Path:
    """A copy of a table for a test that changes it, its files as if just written, however old the template is.

    Copy before plans are published, they hold absolute paths.
    """
    shutil.copytree(template, to, copy_function=shutil.copyfile)
    return to


def table_rows(spark: "SparkSession", base: Path | str) -> list[tuple[object, ...]]:
    """Every row as Spark reads the table now, sorted, with Hudi's meta columns except the file name."""
    spark.catalog.clearCache()
    frame = spark.read.format("hudi").load(str(base)).drop("_hoodie_file_name")
    return sorted((tuple(row) for row in frame.collect()), key=repr)
