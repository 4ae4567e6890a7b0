# SPDX-License-Identifier: Apache-2.0
"""Another table in the metastore, whose partitions are read from directories of the table that lakefold compacts."""

from pathlib import Path
from typing import Any

from hive_case import DATABASE, Owner, table_name
from toys.bench import Bench

OTHER, RENAMED = "publisher", "publisher_renamed"


def published(owner: Owner, location: Path, value: str = "0") -> None:
    """What ``ALTER TABLE other ADD PARTITION (dt = value) LOCATION …`` does."""
    owner.add(OTHER, value, location)


def pointed(owner: Owner, location: Path, value: str = "0") -> None:
    """What ``ALTER TABLE other PARTITION (dt = value) SET LOCATION …`` does."""
    ((_, before),) = owner.partitions(DATABASE, OTHER, [f"dt={value}"])
    moved = before.with_changes(before.storage.with_location(f"file:{location}"), before.parameters)
    owner.alter_partitions(DATABASE, OTHER, [moved])


def reasons(bench: Bench) -> dict[str, str | None]:
    """Why the files of each partition are left alone."""
    slices = bench.format.snapshot(bench.table).slices.to_pylist()
    return {str(one["partition"]): one["busy_reason"] for one in slices}


def metastore_table(bench: Bench) -> Any:
    """The table that lakefold compacts, as the metastore has it."""
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        found = owner.table(DATABASE, table_name(bench.table))
    assert found is not None
    return found
