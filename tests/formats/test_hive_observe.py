# SPDX-License-Identifier: Apache-2.0
"""Hive tables that Spark has made, in a real metastore: found, listed, refused, and never changed."""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from databases import sqlite_at
from harness import Installation
from hive_metastore import MetastoreServer

from lake.errors import Rejected, TableGone
from lake.formats import load_format
from lake.formats.hive import FORMAT
from lake.formats.hive.catalog import refusals
from lake.formats.hive.catalog.tables import CatalogPartition
from lake.formats.hive.files.listing import ListedFile, PartitionListing, list_partition_files, slices_table
from lake.metastore import MetastoreClient, MetastoreTable, StorageDescriptor
from lake.metastore.thrift import I32, string_list
from lake.model import SLICES_SCHEMA, CatalogRef, SearchFailure, TableRef
from lake.plan import SupersededVersion
from lake.ports import TableVerification
from lake.storage.locations import resolve_path

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tables(hive: MetastoreServer) -> dict[str, TableRef]:
    return {ref.name: ref for ref in FORMAT.discover_in_metastore(hive.uri, "*", "*")}


@pytest.fixture
def changed(hive: MetastoreServer) -> Iterator[MetastoreClient]:
    """A client; ``shop.flat`` and the partitions of ``shop.moved`` are afterwards as they were."""
    with MetastoreClient(hive.uri) as client:
        flat = client.table("shop", "flat")
        assert flat is not None
        moved = [one for _, one in client.partitions("shop", "moved", ["dt=d0", "dt=d1"])]
        yield client
        client.alter_table("shop", "flat", flat)
        client.alter_partitions("shop", "moved", moved)


def test_a_database_that_the_metastore_does_not_list_hides_no_table_of_another(hive, tables, monkeypatch):
    names_of = MetastoreClient.table_names

    def refused_for_odd(self: MetastoreClient, database: str):
        # A call that this metastore answers with an error of its own.
        return self.partition_names("shop", "nothing") if database == "odd" else names_of(self, database)

    monkeypatch.setattr(MetastoreClient, "table_names", refused_for_odd)
    found = list(FORMAT.discover_in_metastore(hive.uri, "*", "*"))
    (unsearched,) = [one for one in found if isinstance(one, SearchFailure)]
    assert unsearched.location == "odd"
    assert unsearched.reason.startswith("database odd: ")
    assert {one.name for one in found if one is not unsearched} == {n for n in tables if not n.startswith("odd.")}


def table(client: MetastoreClient, name: str) -> MetastoreTable:
    found = client.table("shop", name)
    assert found is not None
    return found


def listed(ref: TableRef, *partitions: str) -> dict[str, list[str]]:
    """The files of each partition, as paths; all partitions unless some are named."""
    slices = FORMAT.snapshot(ref, partitions or None).slices
    assert slices.schema.equals(SLICES_SCHEMA)
    found: dict[str, list[str]] = {}
    for row in slices.to_pylist():
        found.setdefault(row["partition"], []).append(row["path"])
    return found


def busy(ref: TableRef) -> dict[str, set[str | None]]:
    """Why the files of each partition are left alone."""
    found: dict[str, set[str | None]] = {}
    for row in FORMAT.snapshot(ref).slices.to_pylist():
        found.setdefault(row["partition"], set()).add(row["busy_reason"])
    return found


def test_a_metastores_tables_are_found_by_patterns_with_where_they_are_and_no_view_nor_other_format_among_them(
    hive: MetastoreServer, tables: dict[str, TableRef]
):
    assert {name for name in tables if name.startswith("shop.")} == {
        "shop.orders",
        "shop.clicks",
        "shop.events",
        "shop.flat",
        "shop.moved",
    }
    assert not {"odd.view", "odd.json"} & tables.keys()
    orders = tables["shop.orders"]
    assert (orders.format, orders.location) == ("hive", f"{hive.place}/warehouse/shop.db/orders")
    assert orders.catalog == CatalogRef(kind="metastore", name=hive.uri, table="shop.orders")
    some = FORMAT.discover_in_metastore(hive.uri, "s*", "[ce]*")
    assert sorted(ref.name for ref in some) == ["shop.clicks", "shop.events"]
    assert load_format("hive") is FORMAT


def test_files_are_listed_by_partition_with_size_and_time_for_all_partition_values(tables: dict[str, TableRef]):
    ref = tables["shop.orders"]
    FORMAT.check(ref)
    found = listed(ref)
    assert sorted(found) == [
        "day=2024-01-01/city=K%2FL",
        "day=2024-01-02/city=São Paulo",
        "day=2024-01-03/city=a%3Db c",
        "day=2024-01-04/city=100%25",
        "day=2024-01-05/city=__HIVE_DEFAULT_PARTITION__",
    ]
    assert {len(paths) for paths in found.values()} == {3}
    rows = FORMAT.snapshot(ref).slices.to_pylist()
    for row in rows:
        path = Path(ref.location) / row["path"]
        assert row["path"].startswith(f"{row['partition']}/part-")
        assert (row["bytes"], row["busy_reason"]) == (path.stat().st_size, None)
        assert abs(row["modified_at"].timestamp() - path.stat().st_mtime) < 1e-3
        assert row["written_order"] == path.stat().st_mtime_ns // 1000
    on_disk = {path.name for path in Path(ref.location).rglob("part-*")}
    assert on_disk == {row["path"].rpartition("/")[2] for row in rows}
    assert listed(ref, "day=2024-01-04/city=100%25") == {
        "day=2024-01-04/city=100%25": found["day=2024-01-04/city=100%25"]
    }
    assert listed(ref, "day=1999-01-01/city=x") == {}


def test_tables_of_spark_of_hive_with_orc_and_without_partitions_are_listed_alike(tables: dict[str, TableRef]):
    assert {name: len(paths) for name, paths in listed(tables["shop.clicks"]).items()} == {"dt=d0": 2, "dt=d1": 2}
    assert {name: len(paths) for name, paths in listed(tables["shop.events"]).items()} == {"dt=d0": 1}
    assert {name: len(paths) for name, paths in listed(tables["shop.flat"]).items()} == {"": 1}
    assert FORMAT.verify(tables["shop.orders"], (), rows=True).rows == 300
    events = FORMAT.verify(tables["shop.events"], (), rows=True)
    assert events == TableVerification(files=1, bytes=events.bytes, rows=7)


def test_a_table_without_partitions_is_explained_and_left_alone(tables: dict[str, TableRef]):
    (reason,) = busy(tables["shop.flat"])[""]
    assert reason is not None
    assert reason.startswith("the table has no partitions")


def test_a_partition_is_listed_at_its_location_in_the_metastore_and_a_missing_directory_is_empty(
    hive: MetastoreServer, tables: dict[str, TableRef], changed: MetastoreClient
):
    ref = tables["shop.moved"]
    (path,) = listed(ref)["dt=d1"]
    assert path.startswith(f"{hive.place}/elsewhere/part-")
    assert resolve_path(ref.location, path) == path
    ((_, partition),) = changed.partitions("shop", "moved", ["dt=d1"])
    nowhere = partition.with_changes(
        partition.storage.with_location(f"file:{hive.place}/nowhere"), partition.parameters
    )
    changed.alter_partitions("shop", "moved", [nowhere])
    assert listed(ref) == {}


def test_files_that_readers_ignore_are_not_listed_and_ambiguous_ones_are_left_alone(
    hive: MetastoreServer, tables: dict[str, TableRef]
):
    ref, home = tables["shop.moved"], hive.place / "elsewhere"
    (home / "_SUCCESS").touch()
    (home / ".part-1.crc").write_bytes(b"1")
    (home / "_temporary").mkdir()
    assert [len(paths) for paths in listed(ref).values()] == [1]
    (home / "000000_0").touch()
    assert busy(ref)["dt=d1"] == {None, "empty: readers skip a file without a byte"}
    (home / "000000_0").unlink()
    (home / "HIVE_UNION_SUBDIR_1").mkdir()
    (reason,) = busy(ref)["dt=d1"]
    assert reason is not None
    assert "HIVE_UNION_SUBDIR_1" in reason
    (home / "HIVE_UNION_SUBDIR_1").rmdir()
    assert busy(ref) == {"dt=d1": {None}}


def test_rule_7_partitions_that_share_a_directory_or_lie_in_one_another_are_left_alone(
    hive: MetastoreServer, tables: dict[str, TableRef]
):
    inner = hive.place / "shared" / "inner"
    inner.mkdir(parents=True, exist_ok=True)
    for directory in (inner, inner.parent):
        pq.write_table(pa.table({"id": [1]}), directory / "000000_0")
    reasons = busy(tables["odd.shared"])
    assert set(reasons) == {"dt=d0", "dt=d1"}
    assert all("dt=d1" in str(reason) for reason in reasons["dt=d0"])
    assert all("dt=d0" in str(reason) for reason in reasons["dt=d1"])


def test_a_partition_of_another_kind_of_file_than_its_table_is_left_alone(
    tables: dict[str, TableRef], changed: MetastoreClient
):
    orc = next(one for _, one in changed.partitions("shop", "events", ["dt=d0"]))
    ((_, before),) = changed.partitions("shop", "moved", ["dt=d1"])
    changed.alter_partitions(
        "shop", "moved", [before.with_changes(orc.storage.with_location(before.storage.location), before.parameters)]
    )
    (reason,) = busy(tables["shop.moved"])["dt=d1"]
    assert reason is not None
    assert "its files are read by OrcSerde, those of the table by ParquetHiveSerDe" in reason


def test_a_partition_that_keeps_the_buckets_that_its_table_no_longer_has_is_left_alone(
    tables: dict[str, TableRef], changed: MetastoreClient
):
    """As ``ALTER TABLE … NOT CLUSTERED`` leaves it; Hive joins such a partition bucket by bucket."""
    ((_, before),) = changed.partitions("shop", "moved", ["dt=d1"])
    bucketed = StorageDescriptor(before.storage.raw | {6: (I32, 4), 8: string_list(["id"])})
    changed.alter_partitions("shop", "moved", [before.with_changes(bucketed, before.parameters)])
    (reason,) = busy(tables["shop.moved"])["dt=d1"]
    assert reason is not None
    assert "it has 4 buckets, although the table has none" in reason


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("odd.bucketed", "it has 4 buckets but must have none"),
        ("odd.spark_bucketed", "it has 4 buckets but must have none"),
        ("odd.lines", "SerDe is LazySimpleSerDe and its input format TextInputFormat, but its files must be"),
        ("odd.by_directory", "run MSCK REPAIR TABLE odd.by_directory"),
    ],
)
def test_a_table_that_is_not_ours_is_refused_with_rule_and_value(tables: dict[str, TableRef], name: str, reason: str):
    with pytest.raises(Rejected, match=reason):
        FORMAT.check(tables[name])


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({"transactional": "true"}, "transactional is true but must not be set"),
        ({"storage_handler": "org.a.Handler"}, "storage_handler is org.a.Handler but must not be set"),
        ({"skip.header.line.count": "1"}, "skip.header.line.count is 1 but must not be set: Hive skips that many rows"),
        ({"skip.footer.line.count": "2"}, "skip.footer.line.count is 2 but must not be set: Hive skips that many rows"),
    ],
)
def test_a_table_whose_rows_are_not_all_in_plain_files_is_refused(
    changed: MetastoreClient, properties: dict[str, str], reason: str
):
    flat = table(changed, "flat")
    with pytest.raises(Rejected, match=reason):
        refusals.check_table("t", flat.with_changes(flat.storage, {**flat.parameters, **properties}))
    refusals.check_table("t", flat.with_changes(flat.storage, {**flat.parameters, "skip.header.line.count": "0"}))


def test_a_table_whose_partitions_the_metastore_drops_by_their_directories_is_refused(changed: MetastoreClient):
    def discovering(name: str, value: str) -> MetastoreTable:
        found = table(changed, name)
        return found.with_changes(found.storage, {**found.parameters, "discover.partitions": value})

    with pytest.raises(
        Rejected, match=r"t: discover.partitions is true .* SET TBLPROPERTIES \('discover.partitions' ="
    ):
        refusals.check_table("t", discovering("moved", "TRUE"))
    refusals.check_table("t", discovering("moved", "false"))
    refusals.check_table("t", discovering("flat", "true"))


def test_a_table_or_a_partition_elsewhere_than_on_a_local_file_system_is_refused(changed: MetastoreClient):
    flat = table(changed, "flat")
    reason = "at s3a://nn/flat, but Hive tables must be on HDFS, or on a local or mounted file system"
    with pytest.raises(Rejected, match=reason):
        refusals.check_table("t", flat.with_changes(flat.storage.with_location("s3a://nn/flat"), flat.parameters))
    moved = flat.storage.with_location("s3a://nn/flat")
    place = CatalogPartition(name="dt=d0", storage=moved, parameters={}, created_at=0, metastore_object=flat)
    with pytest.raises(Rejected, match=f"t, partition dt=d0: it is {reason}"):
        list_partition_files("t", [place])


def test_a_file_that_hive_reads_and_spark_skips_is_left_alone(changed: MetastoreClient):
    """``hdfs dfs -put`` was killed before it renamed the file; a rewrite would show its rows to Spark."""
    flat = table(changed, "flat")
    partition = CatalogPartition(name="", storage=flat.storage, parameters={}, created_at=0, metastore_object=flat)
    files = (ListedFile("/t/a.parquet", 5, 0), ListedFile("/t/b.parquet._COPYING_", 5, 0), ListedFile("/t/c", 0, 0))
    found = slices_table("/t", [PartitionListing(partition=partition, files=files)], {}).to_pylist()
    reasons = {row["path"]: row["busy_reason"] for row in found}
    assert reasons.pop("a.parquet") is None
    assert "Hive reads it and Spark does not" in reasons.pop("b.parquet._COPYING_")
    assert "readers skip" in reasons.pop("c")


def test_a_view_with_a_tables_former_name_and_a_dropped_table_are_distinguished(
    hive: MetastoreServer, tables: dict[str, TableRef]
):
    catalog = CatalogRef(kind="metastore", name=hive.uri, table="odd.view")
    with pytest.raises(Rejected, match="is a view"):
        FORMAT.check(replace(tables["odd.lines"], name="odd.view", catalog=catalog))
    for ask in (FORMAT.check, FORMAT.snapshot, FORMAT.identity, lambda ref: FORMAT.find_commit(ref, "p")):
        with pytest.raises(TableGone):
            ask(replace(tables["odd.lines"], catalog=replace(catalog, table="odd.gone")))
    with pytest.raises(Rejected, match="found through its metastore"):
        FORMAT.check(TableRef(name="t", format="hive", location="/t"))


def test_a_table_has_its_identity_and_its_facts(tables: dict[str, TableRef]):
    ref = tables["shop.orders"]
    made, _, where = FORMAT.identity(ref).partition(" ")
    assert (where, time.time() - int(made) < 3600) == (ref.location, True)
    facts = FORMAT.describe(ref)
    assert (facts["type"], facts["made by"], facts["files"]) == ("managed", "Hive (STORED AS)", "Parquet")
    assert (facts["partitioned by"], facts["partitions"]) == ("day date, city string", "5")
    assert FORMAT.describe(tables["shop.clicks"])["made by"] == "Spark (USING)"
    assert FORMAT.describe(tables["shop.moved"])["type"] == "external"


def test_files_that_can_not_be_listed_or_read_are_named(hive: MetastoreServer, tables: dict[str, TableRef]):
    broken = hive.place / "elsewhere" / "part-broken"
    broken.write_bytes(b"no Parquet")
    with pytest.raises(Rejected, match="part-broken can't be read as Parquet"):
        FORMAT.verify(tables["shop.moved"], (), rows=True)
    version = SupersededVersion(partition="dt=d1", path=str(broken), bytes=10, instant="1")
    assert FORMAT.verify(tables["shop.moved"], [version], rows=False).resurrected == (str(broken),)
    broken.unlink()


def test_a_source_is_explained_but_not_planned_until_access_is_declared(hive: MetastoreServer, tmp_path: Path):
    home = Installation(home=tmp_path, url=sqlite_at(tmp_path))
    home.config.write_text(
        f'[database]\nurl = "{home.url}"\n[[sources]]\nmetastore = "{hive.uri}"\ndatabase = "SHOP"\n'
        'prefix = "hms."\n[[tables]]\nmatch = "*.orders"\nmode = "compact"\nconcurrency = "single_writer"\n'
        'min_input_files = 2\nquiet_period = "0s"\n'
    )
    names = ["hms.shop.clicks", "hms.shop.events", "hms.shop.flat", "hms.shop.moved", "hms.shop.orders"]
    before = {path: path.stat().st_mtime_ns for path in hive.place.rglob("*")}
    checked = json.loads(home.run("config", "check", "--json", expect=None).stdout)
    assert checked["sources"] == [{"source": f"{hive.uri} shop.*", "tables": names}]
    assert list(checked["refused"]) == ["hms.shop.orders"]
    unsaid = 'set access = "catalog" in a rule of lakefold.toml; until then it is only scanned'
    assert unsaid in checked["refused"]["hms.shop.orders"]
    explained = home.run("tables", "explain", "hms.shop.orders", "--json").stdout
    assert json.loads(explained.splitlines()[0])["reason"] == "chosen"
    refused = home.run("plans", "request", "hms.shop.orders", expect=None)
    assert refused.returncode != 0
    assert unsaid in refused.stderr
    assert home.run("plans", "list", "--json").stdout.strip() in ("", "[]")
    assert {path: path.stat().st_mtime_ns for path in hive.place.rglob("*")} == before


def test_init_on_a_metastore_writes_rules_that_require_a_declaration_of_access(hive: MetastoreServer, tmp_path: Path):
    home = Installation(home=tmp_path, url=sqlite_at(tmp_path))
    home.config.unlink()
    first = json.loads(home.run("init", hive.uri, "--database", "shop", "--json").stdout)
    found = {entry["table"]: entry for entry in first["tables"]}
    assert sorted(found) == ["shop.clicks", "shop.events", "shop.flat", "shop.moved", "shop.orders"]
    assert found["shop.orders"]["reducible_files"] == 15
    assert "quiet_period" in found["shop.orders"]["main_skip_reason"]
    written = home.config.read_text()
    assert f'[[sources]]\nmetastore = "{hive.uri}"  # 5 tables; tables added later are found too\n' in written
    assert "concurrency" not in written
    rule = '[[tables]]\nmatch = "shop.orders"\nmode = "compact"\naccess = "?"  # "catalog"\n'
    assert "".join(f"# {line}\n" for line in rule.splitlines()) in written
    assert json.loads(home.run("config", "check", "--json").stdout)["modes"]["observe"] == 5
    home.config.write_text(f"{written}\n{rule}")
    refused = home.run("config", "check", expect=None)
    assert (refused.returncode, "access" in refused.stderr) == (1, True)
    home.config.write_text(f"{written}\n{rule}".replace('"?"', '"catalog"'))
    modes = json.loads(home.run("config", "check", "--json").stdout)["modes"]
    assert (modes["observe"], modes["compact"]) == (4, 1)
