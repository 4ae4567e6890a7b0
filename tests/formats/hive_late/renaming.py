# SPDX-License-Identifier: Apache-2.0
"""What makes a table unknown to the database by its name: a rename, another prefix, the loss of the database."""

import shutil
from dataclasses import replace
from pathlib import Path

from databases import sqlite_at
from hive_case import DATABASE, Owner, table_name
from toys.bench import Bench

from lake.capabilities import with_identity
from lake.metastore import MetastoreClient, MetastoreTable
from lake.metastore.thrift import STRING
from service.control.store import Store
from service.control.store.views import StoreSettings


def renamed(bench: Bench, name: str | None = None, *, database: str = DATABASE, is_scanned: bool = True) -> str:
    """Rename the table as ``ALTER TABLE … RENAME TO`` does. Returns its former name; lakefold uses the new one now.

    The daemon registers a name before the first scan, so without the identity of its table.
    """
    old = table_name(bench.table)
    new = name or f"{old}_renamed"
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        table = owner.table(DATABASE, old)
        assert table is not None
        MetastoreClient.alter_table(
            owner, DATABASE, old, MetastoreTable(table.raw | {1: (STRING, new), 2: (STRING, database)})
        )
    now(bench, name=f"{database}.{new}", is_scanned=is_scanned)
    return old


def now(bench: Bench, *, name: str, is_scanned: bool = True) -> None:
    """The table of the bench under a name as a scan registers it, or as the daemon does before."""
    assert bench.table.catalog is not None
    catalog = replace(bench.table.catalog, table=name)
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        found = owner.table(*name.split("."))
    assert found is not None
    location = found.storage.location.removeprefix("file:")
    bench.table = with_identity(
        bench.format, replace(bench.table, name=name, catalog=catalog, location=location, identity=None)
    )
    registered = bench.table if is_scanned else replace(bench.table, identity=None)
    bench.store.register_table(registered, "compact")


def lose_database(bench: Bench) -> None:
    """Another database, which knows nothing: the one before was lost, or belongs to another lakefold."""
    bench.store.close()
    (bench.home / "other").mkdir()
    bench.url = sqlite_at(bench.home / "other")
    bench.store = Store(bench.url, StoreSettings(max_attempts=3))
    bench.table = with_identity(bench.format, replace(bench.table, identity=None))
    bench.store.register_table(bench.table, "compact")


def lose_again(bench: Bench) -> None:
    shutil.rmtree(bench.home / "other")
    lose_database(bench)


def prefixed(bench: Bench) -> None:
    """What a new ``prefix`` of its source does."""
    bench.table = replace(bench.table, name=f"lake.{bench.table.name}")
    bench.store.register_table(bench.table, "compact")


def as_managed(bench: Bench) -> None:
    """From now on the metastore moves the table's directory when the table is renamed."""
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        table = owner.table(DATABASE, table_name(bench.table))
        assert table is not None
        managed = MetastoreTable(table.raw | {12: (STRING, "MANAGED_TABLE")})
        MetastoreClient.alter_table(owner, DATABASE, table_name(bench.table), managed)


def moved_to(bench: Bench, to: Path) -> None:
    """What a metastore does of a managed table's rename: the same partitions, in the directory that was moved."""
    old, new = table_name(bench.table), f"{table_name(bench.table)}_managed"
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        table = owner.table(DATABASE, old)
        assert table is not None
        partitions = dict(owner.partitions(DATABASE, old, owner.partition_names(DATABASE, old)))
        moved = table.storage.with_location(f"file:{to}")
        there = MetastoreTable(table.raw | {1: (STRING, new)}).with_changes(moved, table.parameters)
        MetastoreClient.alter_table(owner, DATABASE, old, there)
        for one in partitions.values():
            place = one.storage.location.replace(bench.table.location, str(to))
            raw = one.raw | {3: (STRING, new)}
            changed = type(one)(raw).with_changes(one.storage.with_location(place), one.parameters)
            MetastoreClient.alter_partitions(owner, DATABASE, new, [changed])
    now(bench, name=f"{DATABASE}.{new}")


def renamed_with_its_directory(bench: Bench) -> str:
    """What a rename does once ``as_managed`` has told the metastore that the table's directory is its own."""
    old, to = table_name(bench.table), Path(bench.table.location).with_name("renamed")
    Path(bench.table.location).rename(to)
    moved_to(bench, to)
    return old


CHANGES = {"renamed": renamed, "another prefix": prefixed, "database lost": lose_database}
