# SPDX-License-Identifier: Apache-2.0
"""The search for orphan files keeps files that tables, engines and catalogs outside of lakefold's reach may need."""

import json
import os
import shutil
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from hive_case import DATABASE
from hive_case import Owner as HiveOwner
from hive_metastore import MetastoreServer
from iceberg_tables import CATALOG, append, hive_settings, jdbc_settings, observing, only_table, owner_catalog, rows
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from lake.capabilities import OrphanSearch
from lake.errors import Rejected
from lake.formats.iceberg.catalog.tables import load_table
from lake.formats.iceberg.format import IcebergFormat
from lake.formats.iceberg.jvm import expiry
from lake.model import TableRef
from lake.plan import SupersededVersion

SCHEMA = Schema(
    NestedField(1, "id", LongType()), NestedField(2, "value", LongType()), NestedField(3, "dt", StringType())
)
NAME = "sales.orders"


def make_old(directory: Path, days: float = 4) -> None:
    """Set the modification time of all files below a directory."""
    at = time.time() - days * 86_400
    for path in directory.rglob("*"):
        if path.is_file():
            os.utime(path, (at, at))


def left_by_a_killed_writer(home: Path) -> Path:
    live = next((home / "warehouse").rglob("*.parquet"))
    return Path(shutil.copy(live, live.with_name("orphan.parquet")))


def find(format_: IcebergFormat) -> list[str]:
    search = OrphanSearch(older_than=timedelta(days=3), tracked=tuple)
    return [one.path for one in format_.find_orphans(only_table(format_), search)]


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[SqlCatalog]:
    owner = owner_catalog(tmp_path)
    owner.create_namespace("sales")
    append(owner.create_table(NAME, SCHEMA), rows(0, 50), rows(50, 100))
    yield owner
    owner.engine.dispose()


@pytest.fixture
def served(owner: SqlCatalog, tmp_path: Path) -> IcebergFormat:
    return observing(jdbc_settings(tmp_path))


def test_a_table_that_moved_to_a_catalog_unknown_to_lakefold_is_refused(
    owner: SqlCatalog, served: IcebergFormat, tmp_path: Path
):
    """After ``register_table`` in another catalog, both tables have one UUID and one location."""
    other = owner_catalog(tmp_path / "elsewhere")
    other.create_namespace("sales")
    moved = other.register_table(NAME, owner.load_table(NAME).metadata_location)
    append(moved, rows(100, 150))
    other.engine.dispose()
    make_old(tmp_path)
    with pytest.raises(Rejected, match=r"is newer than the metadata in the catalog: .*another catalog"):
        find(served)


def test_the_metadata_of_a_commit_that_is_being_made_is_not_refused(
    owner: SqlCatalog, served: IcebergFormat, tmp_path: Path
):
    orphan = left_by_a_killed_writer(tmp_path)
    make_old(tmp_path)
    current = Path(owner.load_table(NAME).metadata_location.removeprefix("file://"))
    content = json.loads(current.read_text())
    content["last-updated-ms"] += 1
    new = current.with_name("00009-a.metadata.json")
    new.write_text(json.dumps(content))
    assert find(served) == [str(orphan)]
    make_old(new.parent, days=1)
    with pytest.raises(Rejected, match=r"00009-a\.metadata\.json is newer"):
        find(served)


@pytest.mark.parametrize("marker", ["_delta_log", ".hoodie", "data/x/_delta_log"])
def test_a_directory_that_is_also_a_table_of_another_format_is_refused(
    served: IcebergFormat, tmp_path: Path, marker: str
):
    """Delta's UniForm and Apache XTable give a Delta or Hudi table Iceberg's metadata too, which may lag behind."""
    left_by_a_killed_writer(tmp_path)
    make_old(tmp_path)
    Path(only_table(served).location, marker).mkdir(parents=True)
    with pytest.raises(Rejected, match=rf"{Path(marker).name} is of a table of another format"):
        find(served)


def test_files_of_a_directory_that_the_metadata_names_in_another_way_stay(
    owner: SqlCatalog, served: IcebergFormat, tmp_path: Path
):
    """A bind mount, a second mount of one file server, or a bucket that is mounted here."""
    location, mount = only_table(served).location, tmp_path / "mount"
    table = owner.load_table(NAME)
    table.transaction().set_properties({"write.data.path": f"file://{mount}/orders"}).commit_transaction()
    append(owner.load_table(NAME), rows(100, 150))
    orphan = left_by_a_killed_writer(tmp_path)
    (mount / "orders").rename(Path(location, "mounted"))
    make_old(tmp_path)
    assert find(served) == [str(orphan)]


def test_a_table_of_the_catalog_that_can_t_be_read_is_refused(owner: SqlCatalog, served: IcebergFormat, tmp_path: Path):
    """Its files may be below the location, and only its metadata says so. Without metadata no client can read it."""
    orphan = left_by_a_killed_writer(tmp_path)
    ref = only_table(served)
    properties = {"write.data.path": f"{ref.location}/data/other", "write.metadata.path": f"file://{tmp_path}/meta"}
    other = owner.create_table("sales.other", SCHEMA, properties=properties)
    append(other, rows(0, 50))
    make_old(tmp_path)
    metadata = Path(owner.load_table("sales.other").metadata_location.removeprefix("file://"))
    metadata.write_text("{")
    search = OrphanSearch(older_than=timedelta(days=3), tracked=tuple)
    with pytest.raises(Rejected, match=r"not known where the files of table sales\.other are \(.*; repair or drop"):
        served.find_orphans(ref, search)
    metadata.unlink()
    shutil.rmtree(Path(ref.location, "data/other"))
    assert [one.path for one in served.find_orphans(ref, search)] == [str(orphan)]


@pytest.mark.slow
def test_a_hive_table_at_the_location_is_refused(owner: SqlCatalog, metastore: MetastoreServer, tmp_path: Path):
    """Its files became part of the Iceberg table by ``add_files``, or it is the backup that ``migrate`` leaves."""
    served, loaded = observing(hive_settings(metastore.uri, tmp_path)), owner.load_table(NAME)
    location = loaded.location().removeprefix("file://")
    with HiveOwner(metastore.uri) as hive:
        hive.make_table("orders", location)
        made = hive.table(DATABASE, "orders")
        assert made is not None
        parameters = {"table_type": "ICEBERG", "metadata_location": loaded.metadata_location}
        hive.alter_table(DATABASE, "orders", made.with_changes(made.storage, {**made.parameters, **parameters}))
        (ref,) = served.discover_in_catalog(CATALOG, DATABASE, "orders")
        assert isinstance(ref, TableRef)
        orphan = left_by_a_killed_writer(tmp_path)
        make_old(tmp_path)
        search = OrphanSearch(older_than=timedelta(days=3), tracked=tuple)
        assert [one.path for one in served.find_orphans(ref, search)] == [str(orphan)]
        hive.make_table("before", location)
        with pytest.raises(Rejected, match=rf"table {DATABASE}\.before has files in {location}"):
            served.find_orphans(ref, search)


@pytest.mark.parametrize(("value", "kept"), [("true", False), ("TRUE", False), ("false", True), ("no", True)])
def test_the_cleaner_keeps_files_that_an_expiry_left_unless_iceberg_may_delete_files(
    owner: SqlCatalog, served: IcebergFormat, tmp_path: Path, value: str, kept: bool
):
    table = owner.create_table("sales.one", SCHEMA, properties={"gc.enabled": value})
    append(table, rows(0, 50))
    ref = next(ref for ref in served.discover_in_catalog(CATALOG, "sales", "one") if isinstance(ref, TableRef))
    loaded = load_table(jdbc_settings(tmp_path), ref)
    left = left_by_a_killed_writer(tmp_path)
    instant = str(loaded.metadata.current_snapshot_id)
    version = SupersededVersion(partition="", path=str(left), bytes=1, instant=instant)
    assert list(expiry.unlisted_versions(loaded, {7: version})) == ([] if kept else [7])


def test_an_age_before_the_first_year_finds_nothing(served: IcebergFormat, tmp_path: Path):
    left_by_a_killed_writer(tmp_path)
    make_old(tmp_path)
    search = OrphanSearch(older_than=timedelta(days=999_999), tracked=tuple)
    assert list(served.find_orphans(only_table(served), search)) == []
