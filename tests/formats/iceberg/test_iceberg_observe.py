# SPDX-License-Identifier: Apache-2.0
"""Iceberg tables are found, listed and refused without a JVM; PyIceberg is their writer here."""

import errno
import json
import logging
import os
import re
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from contract.plans import plan_all
from iceberg_tables import (
    CATALOG,
    append,
    hadoop_settings,
    hive_settings,
    jdbc_settings,
    observing,
    only_table,
    owner_catalog,
    postgresql_settings,
    rest_settings,
    rows,
)
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.typedef import Record
from pyiceberg.types import DateType, LongType, NestedField, StringType, TimestamptzType

from lake.capabilities import with_identity
from lake.engines import build_task
from lake.errors import Conflict, Rejected, TableGone, Transient
from lake.formats.iceberg.catalog.settings import CatalogKind, CatalogSettings, read_settings, unsafe_table_reason
from lake.formats.iceberg.catalog.tables import load_table
from lake.formats.iceberg.format import IcebergFormat
from lake.formats.iceberg.inputs import read_inputs
from lake.formats.iceberg.jvm.iceberg_engine import unsortable_reason
from lake.formats.iceberg.read import footers
from lake.formats.iceberg.read.commits import EPOCH, PLAN
from lake.formats.iceberg.read.lineage import FIELD_IDS
from lake.formats.iceberg.read.live_files import read_live_files, snapshot_of
from lake.formats.iceberg.session import RUNTIME
from lake.formats.iceberg.writer import IcebergWriter
from lake.model import SLICES_SCHEMA, CatalogRef, SearchFailure, TableRef
from lake.plan import StagedWork, SupersededVersion

BY_DT = PartitionSpec(PartitionField(source_id=3, field_id=1000, transform=IdentityTransform(), name="dt"))
SCHEMA = Schema(
    NestedField(1, "id", LongType()), NestedField(2, "value", LongType()), NestedField(3, "dt", StringType())
)


@pytest.fixture
def owner(tmp_path: Path) -> Any:
    catalog = owner_catalog(tmp_path)
    catalog.create_namespace("sales")
    yield catalog
    catalog.engine.dispose()


@pytest.fixture
def orders(owner: Any) -> Any:
    """A partitioned table of six small files in two partitions."""
    table = owner.create_table("sales.orders", SCHEMA, partition_spec=BY_DT)
    append(table, *(rows(50 * number, 50 * number + 50, number // 3) for number in range(6)))
    return table


def hadoop_copy(table: Any, warehouse: Path) -> None:
    """Make a Hadoop catalog's table of a table: its metadata under a numbered name; data stays where it is."""
    metadata = warehouse / "sales" / "orders" / "metadata"
    metadata.mkdir(parents=True)
    document = json.loads(Path(table.metadata_location.removeprefix("file://")).read_text())
    document["location"] = f"file:{warehouse}/sales/orders"
    (metadata / "v1.metadata.json").write_text("{}")
    (metadata / "v10.metadata.json").write_text(json.dumps(document))
    (metadata / "version-hint.text").write_text("9")


@pytest.mark.parametrize("kind", ["jdbc", "hadoop"])
def test_a_catalog_names_its_tables_and_a_snapshot_lists_their_files(tmp_path: Path, orders: Any, kind: str):
    if kind == "hadoop":
        hadoop_copy(orders, tmp_path / "hadoop")
    format_ = observing(jdbc_settings(tmp_path) if kind == "jdbc" else hadoop_settings(tmp_path / "hadoop"))
    ref = only_table(format_)
    assert (ref.name, ref.format) == ("sales.orders", "iceberg")
    assert ref.catalog is not None
    assert (ref.catalog.name, ref.catalog.table) == (CATALOG, "sales.orders")
    snapshot = format_.snapshot(ref)
    assert snapshot.slices.schema.equals(SLICES_SCHEMA)
    listed = snapshot.slices.to_pylist()
    assert [row["partition"] for row in listed].count("dt=0") == 3
    assert all(Path(row["path"]).stat().st_size == row["bytes"] for row in listed)
    assert sum(row["rows"] for row in listed) == 300
    (reason,) = {row["busy_reason"] for row in listed}
    assert (reason is not None and f"spark.sql.catalog.{CATALOG}.lock-impl" in reason) is (kind == "hadoop")
    assert snapshot.instant == str(orders.current_snapshot().snapshot_id)
    newest = max(listed, key=lambda row: row["written_order"])
    assert newest["modified_at"] == datetime.fromtimestamp(orders.current_snapshot().timestamp_ms / 1000, UTC)
    assert {row["path"] for row in format_.snapshot(ref, ["dt=1"]).slices.to_pylist()} == {
        row["path"] for row in listed if row["partition"] == "dt=1"
    }


def test_reading_a_table_logs_nothing_of_pyiceberg_s(tmp_path: Path, owner: Any, caplog: pytest.LogCaptureFixture):
    append(owner.create_table("sales.orders", SCHEMA, location=f"{tmp_path}/warehouse/orders"), rows(0, 50))
    format_ = observing(jdbc_settings(tmp_path))
    with caplog.at_level(logging.INFO):
        format_.snapshot(only_table(format_))
    assert [record.getMessage() for record in caplog.records if record.name.startswith("pyiceberg")] == []


@pytest.mark.parametrize(("database", "table", "found"), [("sal*", "ord*", 1), ("sales", "o", 0), ("other", "*", 0)])
def test_only_tables_that_match_the_patterns_are_found(
    tmp_path: Path, orders: Any, database: str, table: str, found: int
):
    format_ = observing(jdbc_settings(tmp_path))
    assert len(list(format_.discover_in_catalog(CATALOG, database, table))) == found


def test_a_table_in_a_nested_namespace_is_found_by_its_whole_name(tmp_path: Path, owner: Any):
    owner.create_namespace("sales.eu")
    owner.create_table("sales.eu.orders", SCHEMA)
    format_ = observing(jdbc_settings(tmp_path))
    assert [one.name for one in format_.discover_in_catalog(CATALOG, "sales.*", "*")] == ["sales.eu.orders"]


def test_a_table_whose_metadata_is_torn_hides_no_other_one(tmp_path: Path, owner: Any, orders: Any):
    other = owner.create_table("sales.other", SCHEMA)
    Path(other.metadata_location.removeprefix("file://")).write_text('{"format-version": 2, ')
    found = list(observing(jdbc_settings(tmp_path)).discover_in_catalog(CATALOG, "*", "*"))
    assert [one.name for one in found if isinstance(one, TableRef)] == ["sales.orders"]
    (failure,) = [one for one in found if isinstance(one, SearchFailure)]
    assert failure.location == "prod.sales.other"


def test_a_dropped_table_is_gone_and_another_location_is_named(tmp_path: Path, owner: Any, orders: Any):
    format_ = observing(jdbc_settings(tmp_path))
    ref = only_table(format_)
    with orders.transaction() as change:
        change.set_properties({"owner": "me"})
    assert format_.identity(ref) == str(orders.metadata.table_uuid)
    owner.drop_table("sales.orders")
    with pytest.raises(TableGone, match=r"no table sales\.orders"):
        format_.check(ref)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, None),
        ({"": None}, "has no settings"),
        ({"": "org.example.Catalog"}, "of the class"),
        ({".type": "nessie"}, "nessie: lakefold opens catalogs of type hadoop, hive, jdbc and rest"),
        ({".type": None, ".uri": None}, "names the Hive metastore"),
        ({".type": "hive", ".uri": "http://host:9083"}, "thrift"),
        ({".type": "rest"}, "must be the http:// or https:// address of a REST server"),
        ({".type": "rest", ".uri": "http://host", ".rest.auth.type": "basic"}, "none and oauth2 only"),
        ({".type": "rest", ".uri": "http://host", ".rest.sigv4-enabled": "true"}, "sigv4-enabled = true"),
        ({".type": None, ".catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog"}, None),
        ({".catalog-impl": "org.apache.iceberg.aws.glue.GlueCatalog"}, "GlueCatalog: lakefold opens"),
        ({".warehouse": None}, "warehouse is not set"),
        ({".warehouse": "s3://bucket/warehouse"}, "local or mounted file systems only"),
        ({".io-impl": "org.apache.iceberg.aws.s3.S3FileIO"}, "HadoopFileIO only"),
        ({".uri": "jdbc:mysql://host/db"}, "opens jdbc:sqlite:/PATH and jdbc:postgresql://HOST/DATABASE only"),
        ({".uri": "jdbc:postgresql://one,two/db"}, "with one host"),
        ({".uri": "jdbc:postgresql://host"}, "with one host"),
        ({".uri": "jdbc:postgresql://host:/db"}, "HOST:PORT/DATABASE"),
        ({".uri": "jdbc:postgresql://host:port/db"}, "HOST:PORT/DATABASE"),
        ({".uri": "jdbc:postgresql://host:99999/db"}, "HOST:PORT/DATABASE"),
        ({".type": None}, "without spark.sql.catalog.prod.type it is hive"),
        ({".uri": "jdbc:sqlite:catalog.db"}, "PATH is absolute"),
    ],
)
def test_settings_of_a_catalog_are_refused_by_name_and_value(
    tmp_path: Path, change: dict[str, str | None], words: str | None
):
    key, settings = f"spark.sql.catalog.{CATALOG}", dict[str, str | None](jdbc_settings(tmp_path))
    settings |= {key + name: value for name, value in change.items()}
    given = {name: value for name, value in settings.items() if value is not None}
    if words is None:
        assert read_settings(given, CATALOG).database == f"{tmp_path}/catalog.db"
        return
    with pytest.raises(Rejected, match=words) as caught:
        read_settings(given, CATALOG)
    assert key in str(caught.value)


def test_catalogs_with_a_server_are_opened_by_the_settings_of_spark():
    key = f"spark.sql.catalog.{CATALOG}"
    spark = {key: "org.apache.iceberg.spark.SparkCatalog"}
    on_postgresql = spark | {
        f"{key}.type": "jdbc",
        f"{key}.uri": "jdbc:postgresql://db:5433/catalogs?user=other&sslmode=require&prepareThreshold=0",
        f"{key}.jdbc.user": "me@here",
        f"{key}.jdbc.password": "p/w:1",
        f"{key}.warehouse": "/lake",
    }
    found = read_settings(on_postgresql, CATALOG)
    assert found.uri == "postgresql+psycopg://me%40here:p%2Fw%3A1@db:5433/catalogs?sslmode=require"
    assert "p%2Fw" not in repr(found)
    hive = spark | {"spark.hadoop.hive.metastore.uris": "thrift://one:9083,thrift://two"}
    assert read_settings(hive, CATALOG).uri == "thrift://one:9083,thrift://two:9083"
    unlocked = hive | {"spark.hadoop.iceberg.engine.hive.lock-enabled": "false"}
    assert "lock-enabled = false" in str(read_settings(unlocked, CATALOG).unsafe_reason)
    rest = spark | {
        f"{key}.catalog-impl": "org.apache.iceberg.rest.RESTCatalog",
        f"{key}.uri": "https://catalog/api",
        f"{key}.warehouse": "prod",
        f"{key}.credential": "id:secret",
        f"{key}.header.X-Team": "lake",
        f"{key}.cache-enabled": "false",
    }
    found = read_settings(rest, CATALOG)
    assert found.properties == {
        "uri": "https://catalog/api",
        "warehouse": "prod",
        "credential": "id:secret",
        "header.X-Team": "lake",
    }
    assert "id:secret" not in repr(found)


@pytest.mark.parametrize(
    ("kind", "version", "properties", "words"),
    [
        ("rest", 1, {}, "format version 1 has no sequence numbers"),
        ("rest", 2, {}, None),
        ("hive", 2, {"engine.hive.lock-enabled": "false"}, "engine.hive.lock-enabled = false"),
        ("hive", 1, {}, None),
    ],
)
def test_tables_whose_catalog_can_t_refuse_a_late_commit_are_only_observed(
    kind: str, version: int, properties: dict[str, str], words: str | None
):
    settings = CatalogSettings(name=CATALOG, kind=CatalogKind(kind))
    reason = unsafe_table_reason(settings, version, properties)
    assert reason is None if words is None else words in str(reason)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (rest_settings("http://127.0.0.1:9"), "http://127.0.0.1:9"),
        (hive_settings("thrift://127.0.0.1:9", Path("/lake")), "no metastore can be reached"),
        (postgresql_settings("postgresql+psycopg://me:secret-word-1@127.0.0.1:9/x", Path("/lake")), "127.0.0.1"),
    ],
)
def test_a_server_that_can_t_be_reached_is_named_without_its_password(settings: dict[str, str], words: str):
    with pytest.raises(Transient, match=words) as caught:
        list(observing(settings).discover_in_catalog(CATALOG, "*", "*"))
    assert "secret-word-1" not in str(caught.value)


def test_a_database_without_a_catalog_is_named_with_the_reason(tmp_path: Path):
    with closing(sqlite3.connect(tmp_path / "catalog.db")) as connection:
        connection.execute("CREATE TABLE other (id INTEGER)")
    with pytest.raises(Transient, match="no Iceberg client has created a catalog in this database") as caught:
        list(observing(jdbc_settings(tmp_path)).discover_in_catalog(CATALOG, "*", "*"))
    assert f"({tmp_path}/catalog.db): no such table: iceberg_" in str(caught.value)


def test_the_message_of_a_wrong_login_names_the_database_as_the_settings_do(tmp_path: Path, postgres_url: str):
    server = urlsplit(postgres_url)
    wrong = f"postgresql+psycopg://lakefold:secret-word-1@{server.hostname}:{server.port}/postgres"
    with pytest.raises(Transient, match="password authentication failed") as caught:
        list(observing(postgresql_settings(wrong, tmp_path)).discover_in_catalog(CATALOG, "*", "*"))
    address = f"(jdbc:postgresql://{server.hostname}:{server.port}/postgres): connection failed"
    assert address in str(caught.value)
    assert "secret-word-1" not in str(caught.value)


def test_a_session_gets_the_drivers_of_the_catalogs_that_need_them(tmp_path: Path):
    on_postgresql = postgresql_settings("postgresql+psycopg://me:word@db:5432/x", tmp_path)
    for settings, drivers in (
        (jdbc_settings(tmp_path), ["org.xerial:sqlite-jdbc"]),
        (on_postgresql, ["org.postgresql:postgresql"]),
        (hadoop_settings(tmp_path), []),
        ({"spark.sql.catalog.h2": "org.example.Catalog", "spark.sql.catalog.h2.uri": "jdbc:sqlite:/x"}, []),
        ({}, []),
    ):
        runtime, *more = observing(settings).session_requirements.packages
        assert runtime == RUNTIME
        assert [one.rpartition(":")[0] for one in more] == drivers


def test_a_lock_of_one_process_does_not_make_a_hadoop_catalog_safe(tmp_path: Path, orders: Any):
    hadoop_copy(orders, tmp_path / "hadoop")
    lock = "org.apache.iceberg.util.LockManagers$InMemoryLockManager"
    format_ = observing(hadoop_settings(tmp_path / "hadoop") | {f"spark.sql.catalog.{CATALOG}.lock-impl": lock})
    reasons = {row["busy_reason"] for row in format_.snapshot(only_table(format_)).slices.to_pylist()}
    assert all(f"{lock} excludes only threads of one process" in str(reason) for reason in reasons)


def test_a_table_below_a_directory_is_found_for_a_hint(tmp_path: Path, orders: Any):
    format_ = observing({})
    found = format_.find_unlisted(str(tmp_path))
    assert found is not None
    assert Path(found, "metadata").is_dir()
    assert format_.find_unlisted(found) == found
    for without in ("empty", "nowhere"):
        assert format_.find_unlisted(str(tmp_path / without)) is None
    assert list(format_.discover(str(tmp_path))) == []


def test_a_table_s_facts_name_the_columns_of_its_partitions_and_its_order(tmp_path: Path, owner: Any):
    table = owner.create_table(
        "sales.events", Schema(NestedField(1, "id", LongType()), NestedField(2, "at", DateType()))
    )
    with table.update_spec() as change:
        change.add_field("at", DayTransform(), "at_day")
        change.add_identity("id")
    with table.update_sort_order() as order:
        order.desc("at", DayTransform(), NullOrder.NULLS_LAST)
        order.asc("id", IdentityTransform(), NullOrder.NULLS_FIRST)
    format_ = observing(jdbc_settings(tmp_path))
    facts = format_.describe(only_table(format_))
    assert facts["partitioned by"] == "day(at), id"
    assert facts["sorted by"] == "day(at) DESC NULLS LAST, id ASC NULLS FIRST"
    assert facts["manifests"] == "none"


def test_a_table_of_spark_s_session_catalog_is_refused_with_the_remedy(tmp_path: Path):
    ref = TableRef(name="t", format="iceberg", location="/t", catalog=CatalogRef(kind="spark", name="", table="a.t"))
    for table, words in ((ref, "session catalog"), (replace(ref, catalog=None), "through their catalog")):
        with pytest.raises(Rejected, match=words):
            observing(jdbc_settings(tmp_path)).check(table)


def test_a_catalog_of_the_older_schema_is_read_without_a_warning(
    tmp_path: Path, orders: Any, caplog: pytest.LogCaptureFixture
):
    """Iceberg's Java client makes such catalogs unless ``jdbc.schema-version`` is V1."""
    with closing(sqlite3.connect(tmp_path / "catalog.db")) as connection, connection:
        connection.execute("ALTER TABLE iceberg_tables DROP COLUMN iceberg_type")
    format_ = observing(jdbc_settings(tmp_path))
    assert len(format_.snapshot(only_table(format_)).slices) == 6
    assert [record.getMessage() for record in caplog.records] == []


def test_a_catalog_without_a_database_file_is_refused_and_none_is_made(tmp_path: Path):
    format_ = observing(jdbc_settings(tmp_path))
    with pytest.raises(Rejected, match="there is no SQLite file"):
        list(format_.discover_in_catalog(CATALOG, "*", "*"))
    assert not (tmp_path / "catalog.db").exists()


@pytest.mark.parametrize(
    ("transform", "source", "value", "name"),
    [
        (IdentityTransform(), 1, 7, "p=7"),
        (IdentityTransform(), 3, "a/b c", "p=a%2Fb+c"),
        (IdentityTransform(), 3, None, "p=null"),
        (BucketTransform(16), 1, 7, None),
        (TruncateTransform(2), 3, "abcdef", "p=ab"),
        (YearTransform(), 4, datetime(2026, 11, 27, 5, tzinfo=UTC), "p=2026"),
        (MonthTransform(), 4, datetime(2026, 11, 27, 5, tzinfo=UTC), "p=2026-11"),
        (DayTransform(), 4, datetime(2026, 11, 27, 5, tzinfo=UTC), "p=2026-11-27"),
        (HourTransform(), 4, datetime(1969, 11, 27, 5, tzinfo=UTC), "p=1969-11-27-05"),
    ],
    ids=lambda one: type(one).__name__ if hasattr(one, "result_type") else None,
)
def test_partitions_of_every_transform_have_iceberg_s_names(
    tmp_path: Path, owner: Any, transform: Any, source: int, value: Any, name: str | None
):
    schema = Schema(*SCHEMA.fields, NestedField(4, "at", TimestamptzType()))
    spec = PartitionSpec(PartitionField(source_id=source, field_id=1000, transform=transform, name="p"))
    table = owner.create_table("sales.orders", schema, partition_spec=spec)
    given = {"id": 7, "value": 1, "dt": "a", "at": datetime(2026, 1, 1, tzinfo=UTC)}
    given[schema.find_field(source).name] = value
    table.append(pa.Table.from_pylist([given], schema=table.schema().as_arrow()))
    format_ = observing(jdbc_settings(tmp_path))
    (row,) = format_.snapshot(only_table(format_)).slices.to_pylist()
    assert row["partition"] == name if name is not None else row["partition"].startswith("p=")
    assert f"{row['partition'].split('=')[0]}=" in row["path"]
    assert row["group_key"].startswith("0:{")
    assert "null" not in row["group_key"]


def test_null_and_the_text_null_share_a_name_and_are_never_rewritten_together(tmp_path: Path, owner: Any):
    table = owner.create_table("sales.orders", SCHEMA, partition_spec=BY_DT)
    for value in (None, "null"):
        table.append(pa.Table.from_pylist([{"id": 1, "value": 1, "dt": value}], schema=table.schema().as_arrow()))
    format_ = observing(jdbc_settings(tmp_path))
    listed = format_.snapshot(only_table(format_)).slices.to_pylist()
    assert [row["partition"] for row in listed] == ["dt=null", "dt=null"]
    assert len({row["group_key"] for row in listed}) == 2


def test_files_of_an_earlier_spec_are_left_alone_with_the_spec_s_number(tmp_path: Path, orders: Any):
    with orders.update_spec() as change:
        change.add_field("id", BucketTransform(4), "bucket")
    orders.append(rows(300, 310))
    format_ = observing(jdbc_settings(tmp_path))
    reasons = {row["busy_reason"] for row in format_.snapshot(only_table(format_)).slices.to_pylist()}
    assert reasons == {None, "it was written with partition spec 0; the table's spec is 1"}


def in_version_3(tmp_path: Path, table: Any, **columns: str) -> IcebergFormat:
    """A copy of a table in version 3, with other names of columns."""
    hadoop_copy(table, tmp_path / "hadoop")
    path = tmp_path / "hadoop" / "sales" / "orders" / "metadata" / "v10.metadata.json"
    document = json.loads(path.read_text()) | {"format-version": 3, "next-row-id": 0}
    for one in document["schemas"][0]["fields"]:
        one["name"] = columns.get(one["name"], one["name"])
    path.write_text(json.dumps(document))
    locked = hadoop_settings(tmp_path / "hadoop") | {f"spark.sql.catalog.{CATALOG}.lock-impl": "org.example.Lock"}
    return observing(locked)


def test_files_of_a_table_of_version_3_can_be_planned(tmp_path: Path, orders: Any):
    format_ = in_version_3(tmp_path, orders)
    listed = format_.snapshot(only_table(format_)).slices.to_pylist()
    assert [row["busy_reason"] for row in listed] == [None] * 6


def test_a_layout_that_iceberg_can_t_write_leaves_out_only_the_groups_that_it_would_rewrite(
    tmp_path: Path, orders: Any
):
    format_ = in_version_3(tmp_path, orders)
    ref = only_table(format_)
    table, plan = load_table(format_._settings, ref), plan_all(format_, ref, "p", sort_columns=("id",), layout="zorder")
    inputs, _ = read_inputs(table, plan)
    assert sorted(inputs.by_iceberg) == [0, 1], "an upgraded table whose rows have no ids yet"
    writer = IcebergWriter(ref, lambda: format_._settings, lambda: None, ())
    reason = unsortable_reason(table, plan.options)
    assert reason is not None
    assert reason.startswith("layout = zorder is not available")
    assert unsortable_reason(table, replace(plan.options, layout="linear")) is None
    assert writer._without_unsortable(inputs, None) == (inputs, ())
    # The next commit gives the rows ids, and then an engine can rewrite the same files: the plan is attempted again.
    with pytest.raises(Conflict, match=r"have no ids yet: the next commit .*; until then, layout = zorder"):
        writer._without_unsortable(inputs, reason)
    with pytest.raises(Rejected, match=r"orders: layout = zorder is not available"):
        writer._without_unsortable(replace(inputs, has_row_ids=True), reason)
    task = build_task(ref, 1, plan.groups[1], ["/new.parquet"])
    mixed = replace(inputs, has_row_ids=True, by_iceberg={0: "an equality delete file may apply to its files"})
    kept, skipped = writer._without_unsortable(replace(mixed, tasks=[task]), reason)
    assert (set(kept.files), kept.by_iceberg) == ({1}, {})
    assert [(one.group, one.reason, one.quarantine) for one in skipped] == [(0, reason, ())]


@pytest.mark.parametrize("name", ["_row_id", "_Last_Updated_Sequence_Number"])
def test_a_table_of_version_3_with_a_column_called_like_one_of_the_lineage_is_left_alone(
    tmp_path: Path, orders: Any, name: str
):
    format_ = in_version_3(tmp_path, orders, value=name)
    ref = only_table(format_)
    assert f"its column {name} has the name of a column" in format_.describe(ref)["not rewritten"]
    assert all("rename it" in row["busy_reason"] for row in format_.snapshot(ref).slices.to_pylist())
    # The plan may be older than the upgrade of the table.
    inputs, skipped = read_inputs(load_table(format_._settings, ref), plan_all(format_, ref, "p"))
    assert (inputs.files, len(skipped)) == ({}, 2)
    assert all("rename it" in one.reason for one in skipped)


@pytest.mark.parametrize(
    ("key", "value", "whole"),
    [("encryption.key-id", "k1", True), ("write.location-provider.impl", "org.example.Places", False)],
)
def test_unknown_features_are_refused_by_name(tmp_path: Path, orders: Any, key: str, value: str, whole: bool):
    with orders.transaction() as change:
        change.set_properties({key: value})
    format_ = observing(jdbc_settings(tmp_path))
    ref = only_table(format_)
    assert whole or f"{key} = {value}" in format_.describe(ref)["not rewritten"]
    if whole:
        with pytest.raises(Rejected, match=f"{key} = {value}"):
            format_.check(ref)
        return
    assert all(f"{key} = {value}" in row["busy_reason"] for row in format_.snapshot(ref).slices.to_pylist())


def test_the_facts_of_a_table_whose_files_are_rewritten_name_no_refusal(tmp_path: Path, orders: Any):
    format_ = observing(jdbc_settings(tmp_path))
    facts = format_.describe(only_table(format_))
    assert "not rewritten" not in facts
    assert "" not in facts.values()
    assert re.fullmatch(r"\d+, \d+\.\d KiB", facts["manifests"])


def delete_file(table: Any, content: DataFileContent, path: Path, **fields: Any) -> DataFile:
    """Metadata of a delete file; the file itself is never read here."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * 100)
    default = {
        "file_format": FileFormat.PARQUET,
        "equality_ids": [1] if content == DataFileContent.EQUALITY_DELETES else None,
    }
    made = DataFile.from_args(
        content=content,
        file_path=f"file://{path}",
        partition=Record("0"),
        record_count=1,
        file_size_in_bytes=100,
        **(default | fields),
    )
    made.spec_id = 0
    return made


def with_deletes(tmp_path: Path, table: Any, file: DataFile) -> None:
    """Add a delete file to a table's newest snapshot, as a writer of row-level deletes does."""
    from pyiceberg.manifest import (
        ManifestContent,
        ManifestEntry,
        ManifestEntryStatus,
        ManifestWriterV2,
        write_manifest_list,
    )

    class DeleteManifest(ManifestWriterV2):
        def content(self) -> ManifestContent:
            return ManifestContent.DELETES

        @property
        def _meta(self) -> dict[str, str]:
            return {**super()._meta, "content": "deletes"}

    snapshot, spec = table.current_snapshot(), table.spec()
    sequence = snapshot.sequence_number
    where = f"file://{tmp_path}/warehouse/deletes.avro"
    with DeleteManifest(spec, table.schema(), table.io.new_output(where), snapshot.snapshot_id, "null") as manifest:
        manifest.add_entry(
            ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED,
                snapshot_id=snapshot.snapshot_id,
                sequence_number=sequence,
                file_sequence_number=sequence,
                data_file=file,
            )
        )
    made = manifest.to_manifest_file()
    made.sequence_number = made.min_sequence_number = sequence
    made[3] = ManifestContent.DELETES
    manifests = [*snapshot.manifests(table.io), made]
    output = table.io.new_output(f"file://{tmp_path}/warehouse/list.avro")
    with write_manifest_list(2, output, snapshot.snapshot_id, snapshot.parent_snapshot_id, sequence, "null") as written:
        written.add_manifests(manifests)
    shutil.copy(tmp_path / "warehouse" / "list.avro", snapshot.manifest_list.removeprefix("file://"))


@pytest.mark.parametrize("kind", ["position", "position of one file", "equality"])
def test_delete_files_are_deltas_of_the_files_to_which_they_may_apply(tmp_path: Path, orders: Any, kind: str):
    paths = sorted(task.file.file_path for task in orders.scan().plan_files() if task.file.partition[0] == "0")
    content = DataFileContent.EQUALITY_DELETES if kind == "equality" else DataFileContent.POSITION_DELETES
    bounds = {2147483546: to_bytes(StringType(), paths[0])} if kind == "position of one file" else {}
    where = tmp_path / "warehouse" / "d.parquet"
    with_deletes(tmp_path, orders, delete_file(orders, content, where, lower_bounds=bounds, upper_bounds=bounds))
    format_ = observing(jdbc_settings(tmp_path))
    listed = format_.snapshot(only_table(format_)).slices.to_pylist()
    deleted = [row for row in listed if row["log_files"]]
    assert {row["partition"] for row in deleted} == {"dt=0"}
    assert len(deleted) == (1 if kind == "position of one file" else 3)
    assert sum(row["log_bytes"] for row in deleted) == 100
    newest = datetime.fromtimestamp(orders.current_snapshot().timestamp_ms / 1000, UTC)
    for row in deleted:
        assert row["log_files"] == [str(where)]
        assert row["delta_kind"] == "delete file"
        assert row["deleted_rows"] == (1 if kind == "position of one file" else None)
        assert row["modified_at"] == row["oldest_log_at"] == newest
    assert {row["busy_reason"] for row in listed} == {None}


@pytest.mark.parametrize(
    ("content", "fields", "words"),
    [
        (DataFileContent.POSITION_DELETES, {"file_format": FileFormat.AVRO}, "is AVRO; only PARQUET ones are merged"),
        (DataFileContent.EQUALITY_DELETES, {"equality_ids": [9]}, "compares field 9, which is not one of"),
    ],
)
def test_files_whose_deletes_can_t_be_merged_are_left_alone_by_name(
    tmp_path: Path, orders: Any, content: DataFileContent, fields: dict[str, Any], words: str
):
    where = tmp_path / "warehouse" / "d.bin"
    with_deletes(tmp_path, orders, delete_file(orders, content, where, **fields))
    format_ = observing(jdbc_settings(tmp_path))
    listed = format_.snapshot(only_table(format_)).slices.to_pylist()
    assert all((words in str(row["busy_reason"])) == bool(row["log_files"]) for row in listed)
    assert all(str(where) in row["busy_reason"] for row in listed if row["log_files"])


def test_a_file_with_lost_or_foreign_field_ids_is_recognized(tmp_path: Path, orders: Any):
    table = load_table(jdbc_settings(tmp_path), only_table(observing(jdbc_settings(tmp_path))))
    columns = footers.table_columns(table)
    files = read_live_files(table, snapshot_of(table))
    assert footers.different_files(columns, [file.path for file in files]) == {}
    content = pq.ParquetFile(files[0].path).read()
    without = content.cast(pa.schema([pa.field(one.name, one.type) for one in content.schema]))
    swapped = content.rename_columns(["value", "id", "dt"])
    for name, data in (("without", without), ("swapped", swapped)):
        pq.write_table(data, tmp_path / f"{name}.parquet")
        (found,) = footers.different_files(columns, [str(tmp_path / f"{name}.parquet")]).values()
        assert ("without field ids" in found.reason) == (name == "without")


def test_a_file_whose_lineage_readers_would_not_find_or_find_elsewhere_is_recognized(tmp_path: Path, orders: Any):
    table = load_table(jdbc_settings(tmp_path), only_table(observing(jdbc_settings(tmp_path))))
    columns = footers.table_columns(table)
    content = pq.ParquetFile(read_live_files(table, snapshot_of(table))[0].path).read()
    ids = dict(FIELD_IDS)
    named = {
        "right": ids,
        "swapped": {"_row_id": ids["_last_updated_sequence_number"], "_last_updated_sequence_number": ids["_row_id"]},
        "renamed": {"row": ids["_row_id"]},
        "of another column": {"_row_id": 2_147_483_500},
    }
    for name, added in named.items():
        rows_of_file = content
        for column, field_id in added.items():
            field = pa.field(column, pa.int64(), metadata={b"PARQUET:field_id": str(field_id).encode()})
            rows_of_file = rows_of_file.append_column(field, pa.nulls(content.num_rows, pa.int64()))
        pq.write_table(rows_of_file, tmp_path / f"{name}.parquet")
        found = footers.different_files(columns, [str(tmp_path / f"{name}.parquet")])
        assert len(found) == (name != "right")
        assert all("readers find the lineage of rows by the field ids" in one.reason for one in found.values())


def test_files_from_before_a_column_was_added_or_renamed_are_distinguished_from_new_ones(tmp_path: Path, orders: Any):
    with orders.update_schema() as change:
        change.rename_column("value", "amount")
    orders.append(rows(300, 310).rename_columns(["id", "amount", "dt"]))
    table = load_table(jdbc_settings(tmp_path), only_table(observing(jdbc_settings(tmp_path))))
    paths = [file.path for file in read_live_files(table, snapshot_of(table))]
    different = footers.different_files(footers.table_columns(table), paths)
    assert len(different) == 6
    assert "(id 2)" in next(iter(different.values())).reason


def test_a_file_that_storage_can_t_read_now_is_not_left_alone(
    tmp_path: Path, orders: Any, monkeypatch: pytest.MonkeyPatch
):
    """Files that are left alone stay so until an operator resumes them; only damaged ones deserve this."""
    format_ = observing(jdbc_settings(tmp_path))
    ref = only_table(format_)
    table, plan = load_table(jdbc_settings(tmp_path), ref), plan_all(format_, ref, "p")
    path, read_schema = str(plan.groups[0].slices[0].path), pq.read_schema
    numbers = [errno.EIO, errno.ESTALE, errno.EMFILE, errno.EACCES]

    def failing(asked: str) -> pa.Schema:
        if asked == path:
            number = numbers.pop()
            raise OSError(number, os.strerror(number), asked)
        return read_schema(asked)

    monkeypatch.setattr(pq, "read_schema", failing)
    while numbers:
        with pytest.raises(Transient, match="can't be read now"):
            read_inputs(table, plan)
    monkeypatch.undo()
    content = Path(path).read_bytes()
    Path(path).unlink()
    _, (skipped,) = read_inputs(table, plan)
    assert (skipped.reason, skipped.quarantine) == (f"{path} is gone from storage", ())
    Path(path).write_bytes(content[:-8] + b"\xff\xff\0\0PAR1")
    _, (skipped,) = read_inputs(table, plan)
    assert skipped.quarantine == (path,)


def test_superseded_files_that_a_tag_keeps_wait_and_live_ones_are_obsolete(tmp_path: Path, orders: Any):
    format_ = observing(jdbc_settings(tmp_path))
    ref = only_table(format_)
    before = format_.snapshot(ref).slices.to_pylist()
    orders.manage_snapshots().create_tag(orders.current_snapshot().snapshot_id, "audit").commit()
    orders.overwrite(rows(0, 10))
    versions = [
        SupersededVersion(partition=row["partition"], path=row["path"], bytes=row["bytes"], instant="1")
        for row in before
    ]
    assert all("'audit' keeps it" in str(why) for why in format_.deletion_blockers(ref, versions).values())
    assert format_.obsolete_deletions(ref, versions) == {}
    orders.manage_snapshots().rollback_to_snapshot(orders.metadata.refs["audit"].snapshot_id).commit()
    assert set(format_.obsolete_deletions(ref, versions)) == set(range(6))
    Path(before[0]["path"]).unlink()
    found = format_.verify(ref, (), rows=False)
    assert found.missing == (before[0]["path"],)


def test_a_staged_file_counts_as_left_until_a_snapshot_lists_it(tmp_path: Path, orders: Any):
    format_ = observing(jdbc_settings(tmp_path))
    ref = only_table(format_)
    live, other = format_.snapshot(ref).slices.to_pylist()[0]["path"], tmp_path / "staged.parquet"
    other.write_bytes(b"x")
    staged = [StagedWork(token=str(n), paths=(str(path),)) for n, path in enumerate([live, other, tmp_path / "none"])]
    assert list(format_.remaining_staged(ref, staged)) == ["1"]
    assert format_.verify(ref, (), rows=True).rows == 300


def test_a_recreated_table_does_not_show_which_files_its_predecessor_has(tmp_path: Path, owner: Any, orders: Any):
    """A renamed table keeps its location, where a new table with the former name may be created."""
    format_ = observing(jdbc_settings(tmp_path))
    ref = with_identity(format_, only_table(format_))
    live = format_.snapshot(ref).slices.to_pylist()[0]["path"]
    staged = [StagedWork(token="0", paths=(str(live),))]
    owner.rename_table("sales.orders", "sales.former_orders")
    owner.create_table("sales.orders", orders.schema(), location=orders.location())
    assert format_.remaining_staged(ref, staged) == []
    assert format_.remaining_staged(replace(ref, identity=None), staged) == ["0"], "without an identity, it can't tell"


def test_the_commit_of_a_plan_is_found_after_its_table_has_got_another_location(
    tmp_path: Path, owner: Any, orders: Any
):
    """Else the plan would stay inflight for ever, and no other plan of the table would run."""
    format_ = observing(jdbc_settings(tmp_path))
    ref = with_identity(format_, only_table(format_))
    orders.append(rows(300, 310), snapshot_properties={PLAN: "p", EPOCH: "1"})
    # PyIceberg does not implement the change: another entry for metadata that differs in the location only.
    document = json.loads(Path(orders.metadata_location.removeprefix("file://")).read_text())
    moved = tmp_path / "moved.metadata.json"
    moved.write_text(json.dumps(document | {"location": f"{orders.location()}_moved"}))
    owner.drop_table("sales.orders")
    owner.register_table("sales.orders", f"file://{moved}")
    found = format_.find_commit(ref, "p")
    assert found is not None
    assert [output.rows for output in found.outputs] == [10]
    with pytest.raises(Rejected, match="scan it again"):
        format_.find_commit(replace(ref, identity=None), "p")
    owner.drop_table("sales.orders")
    owner.create_table("sales.orders", orders.schema(), location=f"{orders.location()}_again")
    with pytest.raises(TableGone, match="was made anew"):
        format_.find_commit(ref, "p")


def test_dates_as_partition_values_are_given_in_iceberg_s_json(tmp_path: Path, owner: Any):
    from pyiceberg.types import DateType

    schema = Schema(NestedField(1, "day", DateType()))
    spec = PartitionSpec(PartitionField(source_id=1, field_id=1000, transform=IdentityTransform(), name="day"))
    table = owner.create_table("sales.orders", schema, partition_spec=spec)
    table.append(pa.table({"day": [date(2026, 11, 27)]}))
    format_ = observing(jdbc_settings(tmp_path))
    (row,) = format_.snapshot(only_table(format_)).slices.to_pylist()
    assert (row["partition"], row["group_key"]) == ("day=2026-11-27", '0:{"1000": "2026-11-27"}')
