# SPDX-License-Identifier: Apache-2.0
"""Hive tables from scan to clean by the real daemon, beside a Spark that writes and reads in a process of its own."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from databases import sqlite_at
from harness import Installation, hive_installation
from hive_metastore import MetastoreServer
from pyarrow import orc

from lake.metastore import MetastoreClient

pytestmark = pytest.mark.slow

TABLES = ("plain", "grown", "striped")
MADE = (
    "CREATE DATABASE loop",
    "SET hive.exec.dynamic.partition.mode=nonstrict",
    "CREATE TABLE loop.plain (Id BIGINT, item STRING, at TIMESTAMP) PARTITIONED BY (day DATE, city STRING) "
    "STORED AS PARQUET",
    "CREATE TABLE loop.grown (Id BIGINT, dt STRING) USING parquet PARTITIONED BY (dt)",
    "CREATE TABLE loop.striped (id BIGINT, price DECIMAL(10,2)) PARTITIONED BY (dt STRING) STORED AS ORC",
)
GROWN = "ALTER TABLE loop.grown ADD COLUMNS (more STRUCT<x: INT, y: ARRAY<STRING>>)"


def written(low: int, high: int, more: str = "") -> tuple[str, ...]:
    """Statements that add three small files to each partition of each table."""
    rows = f"FROM range({low}, {high})"
    return (
        "INSERT INTO loop.plain SELECT /*+ REPARTITION(3) */ id, concat('i', id), timestamp_seconds(id), "
        "date_add(DATE'2024-01-01', CAST(id % 2 AS INT)), element_at(array('K/L =', CAST(NULL AS STRING)), "
        f"CAST(id % 2 AS INT) + 1) {rows}",
        f"INSERT INTO loop.grown SELECT /*+ REPARTITION(3) */ id, {more}concat('d', id % 2) {rows}",
        f"INSERT INTO loop.striped SELECT /*+ REPARTITION(3) */ id, CAST(id AS DECIMAL(10,2)), concat('d', id % 2) "
        f"{rows}",
    )


def told(folder: Path) -> tuple[str, ...]:
    """Statements that write the rows of each table, as that Spark reads them, below ``folder``."""
    return tuple(
        f"INSERT OVERWRITE DIRECTORY '{folder}/{name}' USING parquet SELECT to_json(struct(*)) AS row FROM loop.{name}"
        for name in TABLES
    )


def as_spark_read(folder: Path) -> dict[str, Counter[str]]:
    return {name: Counter(pq.read_table(folder / name)["row"].to_pylist()) for name in TABLES}


@pytest.fixture
def home(metastore: MetastoreServer, tmp_path: Path) -> Installation:
    return hive_installation(tmp_path, sqlite_at(tmp_path), metastore.uri, "loop")


def places(uri: str) -> dict[str, dict[str, Path]]:
    """Where each table's partitions are."""
    with MetastoreClient(uri) as metastore:
        return {
            table: {
                name: Path(one.storage.location.removeprefix("file:"))
                for name, one in metastore.partitions("loop", table, metastore.partition_names("loop", table))
            }
            for table in TABLES
        }


def live(found: Mapping[str, Path]) -> list[Path]:
    return sorted(path for place in found.values() for path in place.iterdir() if path.name[0] not in "._")


def ids(paths: Iterable[Path]) -> Counter[Any]:
    """What DuckDB reads of Parquet files, and pyarrow of ORC."""
    names = [str(path) for path in paths]
    if names[0].endswith(".orc"):
        return Counter(value for name in names for value in orc.ORCFile(name).read(["id"])["id"].to_pylist())
    read = f"SELECT id FROM read_parquet({names}, hive_partitioning = false, union_by_name = true)"
    with duckdb.connect() as connection:
        return Counter(value for (value,) in connection.execute(read).fetchall())


@pytest.mark.shown_by(
    "tests/reliability/test_hive_races.py::test_every_row_that_a_reader_has_seen_stays_until_an_overwrite_while_partitions_move"
)
def test_a_table_is_compacted_and_cleaned_twice_beside_writers_and_readers_of_the_metastore(
    metastore: MetastoreServer, home: Installation, tmp_path: Path
):
    old, new, last = tmp_path / "old", tmp_path / "new", tmp_path / "last"
    more = "struct(CAST(id AS INT) AS x, array('y') AS y), "
    metastore.spark(*MADE, *written(0, 60), GROWN, *written(60, 90, more), *told(old))
    before = places(metastore.uri)
    assert {table: len(live(found)) for table, found in before.items()} == dict.fromkeys(TABLES, 12)

    home.run("serve", "--once")
    plans = home.json("plans", "list")
    assert sorted((plan["table"], plan["state"]) for plan in plans) == [
        (f"loop.{name}", "completed") for name in sorted(TABLES)
    ]
    chosen = {
        plan["table"]: [
            str(event["reason"])
            for event in home.json("plans", "show", plan["plan_id"])[0]["events"]
            if str(event["reason"]).startswith("engine ")
        ]
        for plan in plans
    }
    (plain,) = chosen["loop.plain"]
    assert plain.startswith("engine arrow (2 groups): stitch can't: files average ")
    assert "so a copy would keep row groups too small (needs 8.0 MiB, min_row_group); hybrid can't: 0 B of " in plain
    for name, why in (("grown", "has another schema than"), ("striped", "is no Parquet file")):
        for reason in chosen[f"loop.{name}"]:
            assert reason.startswith("engine spark (1 group): stitch can't: ")
            assert "; arrow can't: " in reason
            assert why in reason
    swapped = places(metastore.uri)
    for table, found in swapped.items():
        assert len(live(found)) == 2
        assert {path.suffix for path in live(found)} == {".orc" if table == "striped" else ".parquet"}
        assert ids(live(found)) == Counter(range(90))
        assert all(".lakefold" in place.parts for place in found.values())

    metastore.spark(*told(new), *written(90, 120, more), *told(last))
    assert as_spark_read(new) == as_spark_read(old)
    expected = as_spark_read(last)
    assert {table: counted.total() for table, counted in expected.items()} == dict.fromkeys(TABLES, 120)
    home.run("serve", "--once")
    assert [plan["state"] for plan in home.json("plans", "list")] == ["completed"] * 6
    versions = places(metastore.uri)
    for table, found in versions.items():
        assert len(live(found)) == 2
        assert not swapped[table].items() & found.items()
    home.config.write_text(home.config.read_text().replace('retention = "1h"', 'retention = "1s"'))
    home.run("serve", "--once")
    time.sleep(1.1)
    home.run("clean")
    for table, found in places(metastore.uri).items():
        root = metastore.place / "warehouse" / "loop.db" / table
        assert {path for path in root.rglob("[!._]*") if path.suffix in (".orc", ".parquet")} == set(live(found))
        assert found == before[table], "they are at home again"
        assert [path.name for path in (root / ".lakefold").iterdir()] == ["_commits"]
        assert ids(live(found)) == Counter(range(120))
    metastore.spark(*told(new))
    assert as_spark_read(new) == expected
