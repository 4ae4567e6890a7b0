# SPDX-License-Identifier: Apache-2.0
"""The relocations that lakefold made of renamed partitions under their other names."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from sqlalchemy import Connection, Row, select

from lake.plan import RELOCATED_BACK, Relocation
from lake.relocation.owner_moves import RenamedHistory, is_in_version, partition_of_version_directory
from service.control.store.models import RelocationRow
from service.control.store.relocation.tokens import RECREATED_PREFIX


def complete_histories(
    connection: Connection, table: str, applied: Mapping[str, Sequence[Row[Any]]]
) -> Mapping[str, Sequence[Relocation]]:
    """Return the relocations of partitions, with those between them that were made under other names.

    ``applied`` has the relocations under each partition's present name, oldest first. Reads more rows only if a
    relocation did not leave the location to which the preceding one had led.
    """
    by_name, followed = dict(applied), set[str]()
    open_rows = [row for these in applied.values() for row in _with_gap(these)]
    while names := _names_before(connection, table, open_rows) - followed:
        followed |= names
        if unread := names - by_name.keys():
            by_name |= _rows_of(connection, table, unread)
        open_rows = [row for name in names for row in _with_start(by_name.get(name, ()))]
    rows = {row.id: row for these in by_name.values() for row in these}
    history = RenamedHistory([_relocation(row) for _, row in sorted(rows.items())])
    return {partition: history.of_partition(partition) for partition in applied}


def _with_gap(rows: Sequence[Row[Any]]) -> Sequence[Row[Any]]:
    return [after for before, after in pairwise(rows) if before.place != after.left_place]


def _with_start(rows: Sequence[Row[Any]]) -> Sequence[Row[Any]]:
    return [*rows[:1], *_with_gap(rows)]


def _names_before(connection: Connection, table: str, rows: Iterable[Row[Any]]) -> set[str]:
    """Return the names under which the partitions of ``rows`` may have been moved to the locations that these left."""
    left = {row.left_place for row in rows}
    names = {partition_of_version_directory(location) for location in left if is_in_version(location)} - {None}
    found = {name for name in names if name is not None}
    if others := sorted(location for location in left if not is_in_version(location)):
        row = RelocationRow
        back = row.table_name == table, row.token.startswith(RELOCATED_BACK), row.made_at_ms.is_not(None)
        query = select(row.partition_path).where(*back, row.place.in_(others)).distinct()
        found.update(connection.execute(query).scalars())
    return found


def _rows_of(connection: Connection, table: str, names: Collection[str]) -> Mapping[str, Sequence[Row[Any]]]:
    row, found = RelocationRow, defaultdict[str, list[Row[Any]]](list)
    applied = row.made_at_ms.is_not(None), ~row.token.startswith(RECREATED_PREFIX)
    these = row.table_name == table, row.partition_path.in_(sorted(names)), *applied
    # The files of a relocation may be many, and they are not needed here.
    columns: Sequence[Any] = (
        row.id,
        row.partition_path,
        row.token,
        row.left_place,
        row.place,
        row.partition_made_at,
    )
    for one in connection.execute(select(*columns).where(*these).order_by(row.id)):
        found[one.partition_path].append(one)
    return found


def _relocation(row: Row[Any]) -> Relocation:
    return Relocation(
        partition=row.partition_path,
        token=row.token,
        previous_location=row.left_place,
        location=row.place,
        files=(),
        partition_created_at=row.partition_made_at,
    )
