# SPDX-License-Identifier: Apache-2.0
"""What Spark SQL does to Hive tables that the daemon compacts: one session and one daemon, for all commands.

The session lives through all of it, so it has cached what a session caches.
"""

import itertools
import json
import shutil
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hive_session
import pytest
from databases import sqlite_at
from harness import Installation, stop_group
from hive_metastore import MetastoreServer
from hive_session import Session
from pyarrow import orc
from pyarrow import parquet as pq
from support import HEAP, free_port
from waiting import wait_for

from lake.metastore import MetastoreClient

pytestmark = pytest.mark.slow

DATABASE = "sql"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shop:
    """The session, the daemon's installation, and where its API is."""

    session: Session
    home: Installation
    uri: str
    port: int
    token: str

    def places(self, table: str) -> dict[str, Path]:
        """Where the table's partitions are, or it is itself."""
        with MetastoreClient(self.uri) as metastore:
            found = metastore.table(DATABASE, table)
            assert found is not None
            if not found.partition_columns:
                return {"": Path(found.storage.location.removeprefix("file:"))}
            names = metastore.partition_names(DATABASE, table)
            return {
                name: Path(one.storage.location.removeprefix("file:"))
                for name, one in metastore.partitions(DATABASE, table, names)
            }

    def files(self, table: str) -> list[Path]:
        """The files that readers of the table read, while no sweep is due."""
        return sorted(
            path for place in self.places(table).values() for path in place.iterdir() if path.name[0] not in "._"
        )

    def rows(self, table: str) -> Counter[int]:
        """What the session reads."""
        return Counter(row["id"] for row in self.session.sql(f"SELECT id FROM {DATABASE}.{table}"))

    def plans(self, table: str) -> list[dict[str, Any]]:
        """The table's completed plans."""
        plans = self.home.json("plans", "list", "--table", f"{DATABASE}.{table}")
        return [plan for plan in plans if plan["state"] == "completed"]

    def told(self, table: str) -> list[dict[str, Any]]:
        """What the daemon tells as Spark's auto-merge does."""
        path = self.home.home / "merges.jsonl"
        events = map(json.loads, path.read_text().splitlines() if path.exists() else ())
        return [event for event in events if event["table"] == f"{DATABASE}.{table}"]

    def written(self, table: str) -> bool:
        """Tell the daemon that the table was written; False while it does not listen or know the table yet."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/events/commit",
            data=json.dumps({"table": f"{DATABASE}.{table}"}).encode(),
            headers={"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return bool(json.load(answer)["accepted"])
        except urllib.error.URLError as error:
            if not isinstance(error, urllib.error.HTTPError) or error.code == 404:
                return False
            raise


def in_files(paths: list[Path]) -> Counter[int]:
    """What pyarrow reads of them."""
    read = {".orc": orc.read_table, ".parquet": pq.read_table}
    return Counter(value for path in paths for value in read[path.suffix](path, columns=["id"])["id"].to_pylist())


@pytest.fixture(scope="module")
def shop(
    metastore: MetastoreServer, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Shop]:
    """The session, with what the tests of this run want written before the daemon begins, and the daemon."""
    asked = {item.name.partition("[")[2].rstrip("]") for item in request.session.items}
    directory = tmp_path_factory.mktemp("sql")
    port = free_port()
    home = Installation(home=directory, url=sqlite_at(directory))
    heap = "".join(f"{json.dumps(key)} = {json.dumps(value)}\n" for key, value in HEAP.items())
    home.config.write_text(
        f'[database]\nurl = "{home.url}"\n[spark]\nmaster = "local[2]"\n{heap}[http]\nport = {port}\n'
        f'[daemon]\ndiscover_interval = "2s"\nmerge_events_file = "{directory}/merges.jsonl"\n'
        f'[[sources]]\nmetastore = "{metastore.uri}"\ndatabase = "{DATABASE}"\n'
        '[defaults]\nquiet_period = "0s"\nscan_interval = "1h"\nverification = "hash"\n'
        "spark.hive.automerge.enabled = true\nspark.hive.automerge.least.filenum = 3\n"
        "spark.hive.automerge.block.percent = 0.25\nspark.hive.automerge.shuffle.enabled = false\n"
        '[[tables]]\nmatch = "*"\nmode = "compact"\naccess = "catalog"\nsessions_refresh = true\n'
    )
    (token,) = home.json("tokens", "add", "tests", "--scope", "write")
    with hive_session.session(metastore) as session:
        made = Shop(session=session, home=home, uri=metastore.uri, port=port, token=token["token"])
        session.sql(f"CREATE DATABASE {DATABASE}")
        session.sql("SET hive.exec.dynamic.partition.mode=nonstrict")
        for command in filter(asked.__contains__, WRITES):
            before, statements = WRITES[command]
            run(session, [*before, *statements], name_of(command, "later"))
            run(session, before, name_of(command, "now"))
        for case, kind in itertools.product(OWNERS, KINDS):
            if f"{case}-{kind}" in asked:
                run(session, [KINDS[kind], FILLED], f"{case}_{kind}")
        for name in filter(asked.__contains__, itertools.chain.from_iterable(map(whole, ("kept", "anew", *LATE)))):
            run(session, [WHOLE[name.rpartition("_")[2]], WHOLE_FILLED, WHOLE_READ], name)
        daemon = home.start("serve", log=directory / "daemon.log")
        try:
            yield made
        finally:
            stop_group(daemon)


# The commands that the authors of Spark's auto-merge list, each as its users run it.

_FIVE = "SELECT /*+ REPARTITION(4) */ id, concat('d', id % 2) AS dt FROM range(40)"
_ONE = "SELECT /*+ REPARTITION(4) */ id FROM range(40)"
_MADE = f"CREATE TABLE {DATABASE}.{{name}} (id BIGINT) PARTITIONED BY (dt STRING) STORED AS"
_AT = f"CREATE EXTERNAL TABLE {DATABASE}.{{name}} (id BIGINT) PARTITIONED BY (dt STRING) STORED AS"
_ADDED = f"ALTER TABLE {DATABASE}.{{name}} ADD PARTITION (dt='d0') LOCATION '{{{{place}}}}/{{name}}/dt=d0'"
_BEHIND = "LOCATION '{{place}}/{name}'"
WRITES: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "CreateHiveTableAsSelectCommand": (
        (),
        (f"CREATE TABLE sql.{{name}} STORED AS ORC PARTITIONED BY (dt) AS {_FIVE}",),
    ),
    "CreateDataSourceTableAsSelectCommand": (
        (),
        (f"CREATE TABLE sql.{{name}} USING parquet PARTITIONED BY (dt) AS {_FIVE}",),
    ),
    "InsertIntoHiveDirCommand": (
        (f"{_AT} ORC {_BEHIND}",),
        (f"INSERT OVERWRITE DIRECTORY '{{{{place}}}}/{{name}}/dt=d0' STORED AS ORC {_ONE}", _ADDED),
    ),
    "InsertIntoHiveTable, static": (
        (f"{_MADE} PARQUET",),
        (
            f"INSERT INTO sql.{{name}} PARTITION (dt='d0') {_ONE}",
            f"INSERT OVERWRITE TABLE sql.{{name}} PARTITION (dt='d0') {_ONE}",
        ),
    ),
    "InsertIntoHiveTable, dynamic": (
        (f"{_MADE} ORC",),
        (
            f"INSERT INTO TABLE sql.{{name}} PARTITION (dt) {_FIVE}",
            f"INSERT OVERWRITE TABLE sql.{{name}} PARTITION (dt) {_FIVE}",
        ),
    ),
    "InsertIntoHadoopFsRelationCommand, saveAsTable": (
        (),
        (f'PYTHON spark.sql("{_FIVE}").write.partitionBy("dt").format("parquet").saveAsTable("sql.{{name}}")',),
    ),
    "InsertIntoHadoopFsRelationCommand, path": (
        (f"{_AT} ORC {_BEHIND}",),
        (
            f'PYTHON spark.sql("{_ONE}").write.mode("append").orc("{{{{place}}}}/{{name}}/dt=d0")',
            "MSCK REPAIR TABLE sql.{name}",
        ),
    ),
}
"""By the physical plan of Spark that writes: how the table is made, where nothing of it does so, and what is run."""


def name_of(command: str, when: str) -> str:
    return f"{''.join(letter for letter in command.lower() if letter.isalpha())}_{when}"


def run(session: Session, statements: Sequence[str], name: str) -> None:
    for statement in statements:
        session.sql(statement.format(name=name))


@pytest.mark.parametrize("command", WRITES)
@pytest.mark.crossed(2)
def test_files_of_a_spark_command_are_compacted_at_the_next_scan_or_at_once_if_reported(shop: Shop, command: str):
    later, now = name_of(command, "later"), name_of(command, "now")
    run(shop.session, WRITES[command][1], now)
    wait_for(lambda: shop.written(now), "the daemon does not find the table", seconds=60, every=0.2)
    for name in (later, now):
        wait_for(lambda name=name: shop.plans(name), f"{name} is not compacted", seconds=180, every=0.5)
        found = shop.files(name)
        assert len(found) == len(shop.places(name))
        assert shop.rows(name) == in_files(found) == Counter(range(40))
        # They are written when the database has the plan.
        wait_for(lambda name=name: shop.told(name), "no event is told", every=0.1)
        told = shop.told(name)
        assert {event["part"] for event in told} == set(shop.places(name))
        assert {(event["numBefore"] - event["diff"], event["numAfter"]) for event in told} == {(1, 1)}
        assert all(event["numBefore"] >= 3 and event["costInMillSec"] > 0 for event in told)


# What owners do to tables whose partitions were moved.

KINDS = {
    "managed": "CREATE TABLE sql.{name} (id BIGINT) PARTITIONED BY (dt STRING) STORED AS PARQUET",
    "external": f"{_AT} PARQUET {_BEHIND}",
}
FILLED = "INSERT INTO sql.{name} SELECT /*+ REPARTITION(4) */ id, concat('d', id % 2) FROM range(20)"
#: the sweep looks every five seconds at what was moved within an hour
_SWEPT_WITHIN = 6.0
_EVEN, _ODD, _ADDED_LATER = range(0, 20, 2), range(1, 20, 2), range(100, 108)
_INSERT = "INSERT INTO sql.{name} PARTITION (dt='d0') SELECT /*+ REPARTITION(4) */ 100 + id FROM range(8)"
_DROP = "ALTER TABLE sql.{name} DROP PARTITION (dt='d0')"


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """What an owner runs, and the rows that there are then, by whether the table is external."""

    statements: Sequence[str]
    managed: Sequence[Iterable[int]]
    external: Sequence[Iterable[int]]
    #: another name that the table has then
    renamed: bool = False


OWNERS = {
    "drop_insert": Owner(statements=(_DROP, _INSERT), managed=(_ODD, _ADDED_LATER), external=(_ODD, _ADDED_LATER)),
    "drop_add": Owner(
        statements=(_DROP, "ALTER TABLE sql.{name} ADD PARTITION (dt='d0')"), managed=(_ODD,), external=(_ODD,)
    ),
    "drop_msck": Owner(statements=(_DROP, "MSCK REPAIR TABLE sql.{name}"), managed=(_ODD,), external=(_ODD,)),
    "drop_table_msck": Owner(
        statements=(_INSERT, "DROP TABLE sql.{name}", "{made}", "MSCK REPAIR TABLE sql.{name}"),
        managed=(),
        external=(_EVEN, _ODD),
    ),
    "rename": Owner(
        statements=("ALTER TABLE sql.{name} RENAME TO sql.{name}_after", _INSERT.replace("{name}", "{name}_after")),
        managed=(_EVEN, _ODD, _ADDED_LATER),
        external=(_EVEN, _ODD, _ADDED_LATER),
        renamed=True,
    ),
    "add_columns": Owner(
        statements=("ALTER TABLE sql.{name} ADD COLUMNS (more STRING)", _INSERT.replace("100 + id", "100 + id, 'x'")),
        managed=(_EVEN, _ODD, _ADDED_LATER),
        external=(_EVEN, _ODD, _ADDED_LATER),
    ),
}


def is_in_files(shop: Shop, name: str, expected: Counter[int]) -> bool:
    """Whether these rows are in the table's files, none of which is moved aside meanwhile."""
    try:
        return in_files(shop.files(name)) == expected
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", OWNERS)
@pytest.mark.paired("kind")
def test_an_owners_actions_on_a_compacted_table_have_the_rows_of_the_docs(shop: Shop, case: str, kind: str):
    owner, name = OWNERS[case], f"{case}_{kind}"
    wait_for(lambda: shop.plans(name), f"{name} is not compacted", seconds=180, every=0.5)
    made = KINDS[kind].format(name=name)
    for statement in owner.statements:
        shop.session.sql(made if statement == "{made}" else statement.format(name=name))
    expected = Counter(value for rows in getattr(owner, kind) for value in rows)
    name += "_after" * owner.renamed
    # What was replaced is out of the way once the sweep has been: within ten seconds, and those of a busy machine.
    wait_for(lambda: is_in_files(shop, name, expected), lambda: f"{in_files(shop.files(name))}", seconds=60, every=0.2)
    time.sleep(_SWEPT_WITHIN)
    shop.session.sql(f"REFRESH TABLE {DATABASE}.{name}")
    assert shop.rows(name) == in_files(shop.files(name)) == expected
    if expected[100]:
        wait_for(lambda: shop.written(name), "the daemon does not find the table", seconds=60, every=0.2)
        wait_for(lambda: len(shop.plans(name)) > (not owner.renamed), "not compacted again", seconds=120, every=0.5)
        assert shop.rows(name) == in_files(shop.files(name)) == expected
    assert not [table for table in shop.home.json("tables", "list") if table["halted_reason"]]


# Tables without partitions.

WHOLE = {
    "hive": f"CREATE EXTERNAL TABLE {DATABASE}.{{name}} (id BIGINT) STORED AS ORC {_BEHIND}",
    "spark": f"CREATE TABLE {DATABASE}.{{name}} (id BIGINT) USING parquet {_BEHIND}",
}
WHOLE_FILLED = f"INSERT INTO {DATABASE}.{{name}} SELECT /*+ REPARTITION(4) */ id FROM range(20)"
WHOLE_READ = f"SELECT count(*) FROM {DATABASE}.{{name}}"


def whole(case: str) -> list[str]:
    """The names of a test's tables."""
    return [f"whole_{case}_{kind}" for kind in WHOLE]


def compacted(shop: Shop, name: str, times: int = 1) -> None:
    wait_for(lambda: len(shop.plans(name)) == times, f"{name} is not compacted", seconds=180, every=0.5)


def comes_to(shop: Shop, name: str, *rows: Iterable[int]) -> None:
    """These are the table's rows within the time that the docs give, and that of a busy machine."""
    expected = Counter(value for some in rows for value in some)
    wait_for(lambda: is_in_files(shop, name, expected), lambda: f"{in_files(shop.files(name))}", seconds=60, every=0.2)
    shop.session.sql(f"REFRESH TABLE {DATABASE}.{name}")
    assert shop.rows(name) == expected


@pytest.mark.crossed
@pytest.mark.parametrize("name", whole("kept"))
def test_a_table_without_partitions_is_compacted_again_and_again_beside_its_writers(shop: Shop, name: str):
    compacted(shop, name)
    assert (len(shop.files(name)), ".lakefold" in shop.places(name)[""].parts) == (1, True)
    comes_to(shop, name, range(20))
    shop.session.sql(f"INSERT INTO sql.{name} SELECT /*+ REPARTITION(4) */ 100 + id FROM range(8)")
    comes_to(shop, name, range(20), _ADDED_LATER)
    wait_for(lambda: shop.written(name), "the daemon does not find the table", seconds=60, every=0.2)
    compacted(shop, name, 2)
    comes_to(shop, name, range(20), _ADDED_LATER)
    shop.session.sql(f"ALTER TABLE sql.{name} RENAME TO sql.{name}_after")
    comes_to(shop, f"{name}_after", range(20), _ADDED_LATER)
    shop.session.sql(f"INSERT OVERWRITE sql.{name}_after SELECT id FROM range(3)")
    comes_to(shop, f"{name}_after", range(3))


LATE: dict[str, tuple[str, Sequence[Iterable[int]]]] = {
    "late": ("INSERT INTO sql.{name} SELECT /*+ REPARTITION(1) */ 100 + id FROM range(8)", (range(20), _ADDED_LATER)),
    "over": ("INSERT OVERWRITE sql.{name} SELECT /*+ REPARTITION(1) */ 200 + id FROM range(5)", (range(200, 205),)),
}


@pytest.mark.crossed(2, first="spark")
@pytest.mark.parametrize("name", [name for case in LATE for name in whole(case)])
def test_rows_of_a_session_that_cached_a_table_without_partitions_become_the_tables_rows(shop: Shop, name: str):
    """One of Hive's it does not cache; one of Spark's it writes where that was, and empties all that is there."""
    _, case, kind = name.split("_")
    compacted(shop, name)
    (version,) = shop.places(name).values()
    own = version.parents[2]
    before, (statement, expected) = set(own.glob("part-*")), LATE[case]
    shop.session.sql(statement.format(name=name))
    assert bool(set(own.glob("part-*")) - before) == (kind == "spark"), "it knew where the table was"
    comes_to(shop, name, *expected)
    assert not [table for table in shop.home.json("tables", "list") if table["halted_reason"]]


@pytest.mark.crossed
@pytest.mark.parametrize("name", whole("anew"))
def test_a_recreated_table_without_partitions_has_the_rows_from_before_its_compaction(shop: Shop, name: str):
    compacted(shop, name)
    shop.session.sql(f"DROP TABLE sql.{name}")
    shop.session.sql(WHOLE[name.rpartition("_")[2]].format(name=name))
    comes_to(shop, name, range(20))


def test_a_moved_managed_table_without_partitions_could_not_be_recreated_and_might_lose_its_rows(shop: Shop):
    """So it is left alone, but for this test, which moves some."""
    for name, made in (
        ("moved", "USING parquet"),
        ("dropped", "USING parquet"),
        ("dropped_hive", "STORED AS PARQUET"),
    ):
        run(shop.session, [f"CREATE TABLE {DATABASE}.{{name}} (id BIGINT) {made}", WHOLE_FILLED], name)
        place = shop.places(name)[""]
        version = place / ".lakefold" / "v" / "data"
        shutil.copytree(place, version, ignore=shutil.ignore_patterns("_*", ".*"))
        with MetastoreClient(shop.uri) as metastore:
            table = metastore.table(DATABASE, name)
            assert table is not None
            storage = table.storage.with_location(f"file:{version}")
            storage = storage.with_spark_path(f"file:{version}") if storage.spark_path else storage
            metastore.alter_table(DATABASE, name, table.with_changes(storage, table.parameters))
        comes_to(shop, name, range(20))
    shop.session.sql("ALTER TABLE sql.moved RENAME TO sql.moved_after")
    assert shop.rows("moved_after") == Counter(), "Spark looks for them where the new name says"
    for name, made in (("dropped", "USING parquet"), ("dropped_hive", "STORED AS PARQUET")):
        shop.session.sql(f"DROP TABLE sql.{name}")
        with pytest.raises(AssertionError, match="LOCATION_ALREADY_EXISTS"):
            shop.session.sql(f"CREATE TABLE sql.{name} (id BIGINT) {made}")
