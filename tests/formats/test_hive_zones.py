# SPDX-License-Identifier: Apache-2.0
"""ORC tables whose writers, readers and lakefold are in different time zones: no reader's answer changes.

A timestamp of ORC is the wall clock of its writer. Berlin has no 02:30 on 2024-03-31 and two of them on 2024-10-27.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from databases import sqlite_at
from harness import Installation, hive_installation
from hive_metastore import MetastoreServer
from hive_session import Session, session
from pyarrow import orc

from executors.datafiles.orc_tail import read_tail
from lake.metastore import MetastoreClient

pytestmark = pytest.mark.slow

BERLIN = "Europe/Berlin"
MADE = (
    "SET hive.exec.dynamic.partition.mode=nonstrict",
    *(
        f"CREATE TABLE zones.{name} (id BIGINT, at TIMESTAMP, day DATE, n STRUCT<z: ARRAY<TIMESTAMP>>) "
        "PARTITIONED BY (dt STRING) STORED AS ORC"
        for name in ("utc", "berlin", "mixed", "far")
    ),
)
#: instants around the gap, the overlap and old changes of clocks, in microseconds since 1970
INSTANTS = (
    "1711852200000000, 1711855800123456, 1729989000000000, 1729992600000000, "
    "-938908200000000, -929233800000000, 1508034600000000, -2272060800000000, -5364662400000000"
)


def written(table: str, low: int, instants: str = INSTANTS) -> str:
    """A statement that adds three files with the instants, each in many rows, most of them between the bounds."""
    instant = f"timestamp_micros(element_at(array({instants}), CAST(id % size(array({instants})) AS INT) + 1))"
    return (
        f"INSERT INTO zones.{table} PARTITION (dt = 'd') SELECT /*+ REPARTITION(3) */ id + {low}, "
        f"{instant}, date_add(DATE'1450-01-01', CAST(id * 3000 AS INT)), named_struct('z', array({instant})) "
        "FROM range(0, 90)"
    )


@pytest.fixture(scope="module")
def readers(metastore: MetastoreServer) -> Iterator[Mapping[str, Session]]:
    """A session in UTC and one in Berlin; each has written its own tables and half of another."""
    with session(metastore, "UTC") as utc, session(metastore, BERLIN) as berlin:
        utc.sql("CREATE DATABASE zones")
        for statement in (*MADE, written("utc", 0), written("mixed", 0), written("far", 0, "253402300799000000, 0")):
            utc.sql(statement)
        for statement in (written("berlin", 0), written("mixed", 100)):
            berlin.sql(statement)
        yield {"UTC": utc, BERLIN: berlin}


def answers(readers: Mapping[str, Session], table: str) -> Mapping[str, Counter[str]]:
    """What a reader in each zone, and one by ORC's C++ library, sees: rows, instants, and those that a filter finds."""
    found = {}
    for zone, reader in readers.items():
        rows = reader.sql(f"SELECT id, CAST(at AS STRING) AS at, unix_micros(at) AS m, day, n FROM zones.{table}")
        some = reader.sql(
            f"SELECT id FROM zones.{table} WHERE at = timestamp'2024-10-27 02:30:00' "
            "OR at = timestamp'2024-03-31 02:30:00' OR at = timestamp'1940-04-01 02:30:00'"
        )
        found[zone] = Counter(map(str, rows))
        found[f"{zone}, filtered"] = Counter(map(str, some))
    return found


def files(uri: str, table: str) -> list[Path]:
    with MetastoreClient(uri) as metastore:
        found = dict(metastore.partitions("zones", table, ["dt=d"]))
    place = Path(found["dt=d"].storage.location.removeprefix("file:"))
    return sorted(path for path in place.iterdir() if path.name[0] not in "._")


def zones_of(paths: list[Path]) -> set[str]:
    found: set[str] = set()
    for path in paths:
        with path.open("rb") as file:
            found |= read_tail(pa.PythonFile(file)).writer_zones
    return found


def by_cpp(paths: list[Path]) -> Counter[str]:
    return Counter(str(row) for path in paths for row in orc.ORCFile(path).read().to_pylist())


@pytest.fixture
def home(metastore: MetastoreServer, tmp_path: Path) -> Installation:
    return hive_installation(tmp_path, sqlite_at(tmp_path), metastore.uri, "zones", verification="footer")


def test_no_answer_changes_if_lakefold_runs_in_another_zone_than_the_writers(
    metastore: MetastoreServer,
    readers: Mapping[str, Session],
    home: Installation,
    monkeypatch: pytest.MonkeyPatch,
):
    tables = ("utc", "berlin", "mixed", "far")
    before = {table: answers(readers, table) for table in tables}
    by_others = {table: by_cpp(files(metastore.uri, table)) for table in tables if table != "far"}
    zones = {table: zones_of(files(metastore.uri, table)) for table in tables}
    assert zones == {"utc": {"UTC"}, "berlin": {BERLIN}, "mixed": {"UTC", BERLIN}, "far": {"UTC"}}
    monkeypatch.setenv("TZ", BERLIN)
    home.run("serve", "--once")
    for table in tables:
        found = files(metastore.uri, table)
        assert len(found) == 1
        assert zones_of(found) == zones[table]
        assert answers(readers, table) == before[table]
        if table != "far":
            assert by_cpp(found) == by_others[table]
    plans = {plan["table"]: plan for plan in home.json("plans", "list")}
    assert {name: plan["state"] for name, plan in plans.items()} == {f"zones.{t}": "completed" for t in tables}
    engines = {
        name: next(
            str(event["reason"])
            for event in home.json("plans", "show", plan["plan_id"])[0]["events"]
            if str(event["reason"]).startswith("engine ")
        )
        for name, plan in plans.items()
    }
    assert engines["zones.berlin"].startswith("engine spark (1 group): ")
    for table in ("utc", "mixed"):
        assert engines[f"zones.{table}"].startswith("engine stitch (1 group): ")
        assert "time zone UTC and Spark's JVM has Europe/Berlin" in engines[f"zones.{table}"]
