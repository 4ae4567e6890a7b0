# SPDX-License-Identifier: Apache-2.0
"""Relocated partitions as the journal's rows describe them: relocations, files that wait for deletion, late copies."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from operator import attrgetter
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, select

from lake.plan import LocatedFile, Relocation
from lake.relocation.model import LateCopy, PreviousLocation, RelocatedPartition
from lake.relocation.owner_moves import find_owner_moves
from service.control.store.database import db_now
from service.control.store.models import LateCopyRow, PlanRow, RelocationRow, SupersededRow
from service.control.store.relocation.renamed_history import complete_histories
from service.control.store.relocation.tokens import DISCARDED_PREFIX, RELEASED_PREFIX, is_recreated
from service.control.store.repeated_replacements import (
    REMOVED_BY_WRITER,
    locations_of_tables,
    replaced_by_other_partitions,
)


def load_relocated(connection: Connection, table: str, partitions: Sequence[str]) -> list[RelocatedPartition]:
    """Return these partitions, without those that were never relocated."""
    row = RelocationRow
    chosen = row.table_name == table, row.partition_path.in_(partitions)
    return _load(connection, table, partitions, chosen, ())


def load_relocated_by_number(
    connection: Connection, table: str, partitions: Sequence[str], row_ids: Sequence[int]
) -> list[RelocatedPartition]:
    """Return these partitions, each with its unfinished late copies and only the relocations with these ``row_ids``.

    ``owner_location`` is empty, because it can be determined only from all relocations of a partition.
    """
    found = _load(connection, table, partitions, (RelocationRow.id.in_(row_ids),), (LateCopyRow.done_at_ms.is_(None),))
    return [replace(one, owner_location="") for one in found]


def _load(
    connection: Connection,
    table: str,
    partitions: Sequence[str],
    chosen: Sequence[ColumnElement[bool]],
    chosen_copies: Sequence[ColumnElement[bool]],
) -> list[RelocatedPartition]:
    """Return partitions with the ``chosen`` relocations, and with those of their late copies that are chosen."""
    relocations, superseded, late_copies = RelocationRow, SupersededRow, LateCopyRow
    by_partition: dict[str, list[Row[Any]]] = defaultdict(list)
    age = (db_now() - relocations.made_at_ms).label("age_ms")
    rows_with_age = select(relocations.__table__, age, PlanRow.identity).outerjoin(
        PlanRow, PlanRow.id == relocations.plan_id
    )
    for row in connection.execute(rows_with_age.where(*chosen).order_by(relocations.id)):
        by_partition[row.partition_path].append(row)
    recorded: dict[tuple[str, str], list[Row[Any]]] = defaultdict(list)
    replaced_files = (
        select(superseded.__table__)
        .join(relocations, (relocations.plan_id == superseded.plan_id) & (relocations.token == superseded.instant))
        .where(*chosen, relocations.partition_path == superseded.partition_path, superseded.table_name == table)
    )
    # Sorted here: to sort by path, SQLite would read the files of all partitions of a plan.
    rows = sorted(connection.execute(replaced_files), key=attrgetter("path"))
    for row in rows:
        recorded[row.partition_path, row.instant].append(row)
    replaced_again = replaced_by_other_partitions(connection, rows)
    locations = locations_of_tables(connection, {row.table_name for row in replaced_again.values()})
    copied: dict[str, list[LateCopy]] = defaultdict(list)
    of_partitions = late_copies.table_name == table, late_copies.partition_path.in_(partitions)
    copies = select(late_copies.__table__).where(*of_partitions, *chosen_copies)
    for row in connection.execute(copies.order_by(late_copies.id)):
        copied[row.partition_path].append(_late_copy(row))
    applied = {partition: these for partition, rows in by_partition.items() if (these := _applied_rows(rows))}
    histories = complete_histories(connection, table, applied)
    return [
        _relocated_partition(
            by_partition[partition],
            applied[partition],
            histories[partition],
            recorded,
            replaced_again,
            locations,
            tuple(copied[partition]),
        )
        for partition in sorted(applied)
    ]


def file_from_json(entry: Sequence[Any]) -> LocatedFile:
    """Return the file of an entry of ``files`` or ``left_files``."""
    path, size, at = entry
    return LocatedFile(path=path, bytes=size, modified_ms=at)


def _is_applied(row: Row[Any]) -> bool:
    return row.made_at_ms is not None and not is_recreated(row.token)


def _applied_rows(rows: Sequence[Row[Any]]) -> Sequence[Row[Any]]:
    """Return the rows of applied relocations. Those of an earlier table of the same name do not concern this one."""
    applied = [row for row in rows if _is_applied(row)]
    return [
        row for row in applied if None in (row.identity, applied[-1].identity) or row.identity == applied[-1].identity
    ]


def _relocated_partition(
    rows: Sequence[Row[Any]],
    applied: Sequence[Row[Any]],
    history: Sequence[Relocation],
    recorded: Mapping[tuple[str, str], Sequence[Row[Any]]],
    replaced_again: Mapping[int, Row[Any]],
    locations: Mapping[str, str],
    late_copies: tuple[LateCopy, ...],
) -> RelocatedPartition:
    last, name = applied[-1], applied[-1].partition_path
    # If a location was left several times, the last of these relocations counts.
    by_location = {row.left_place: row for row in applied}
    recreated = {row.left_place: row for row in rows if is_recreated(row.token)}
    owner_moves = find_owner_moves([(move.previous_location, move.location) for move in history])
    by_token = {row.token: row for row in applied}
    moved_ms = {
        history[left].token: _made_ms(by_token[next(one.token for one in history[move:] if one.partition == name)])
        for left, move in owner_moves.moved_before.items()
        if history[left].partition == name
    }
    released = {row.token for row in rows if row.token.startswith(RELEASED_PREFIX)}
    previous_locations = tuple(
        _previous_location(
            row,
            recorded.get((row.partition_path, row.token), ()),
            replaced_again,
            locations,
            owner_moved_ms=moved_ms.get(row.token),
            is_released=f"{RELEASED_PREFIX}{row.token}" in released,
        )
        for location, row in (recreated | by_location).items()
        if location != last.place
    )
    return RelocatedPartition(
        latest=_relocation(last),
        previous_locations=previous_locations,
        late_copies=late_copies,
        begun_relocations=tuple(_relocation(row) for row in rows if row.made_at_ms is None),
        plan_id=last.plan_id,
        is_waiting=last.unsettled_since_ms is not None,
        original_location=applied[0].left_place,
        # If a partition was renamed while it was located in a version, no relocation shows a location that the owner
        # set; the directory that matches its name is used.
        owner_location=str(last.partition_path) if owner_moves.location is None else owner_moves.location,
        since_relocation=timedelta(milliseconds=last.age_ms),
        table_identity=last.identity,
        earlier_locations=_earlier_locations(applied) | _discarded_locations(rows) | _locations_before(history, name),
        other_names=frozenset(move.partition for move in history) - {name},
    )


def _made_ms(move: Row[Any]) -> int:
    """Return the time of the relocation ``move`` in milliseconds; the owner's preceding move happened before it.

    It is the start of the relocation by the database's clock, or the latest time of its files by the storage's clock,
    whichever is later: the two clocks may differ. Files are on record only for a partition's latest relocation. For an
    earlier one the start is enough: before the next relocation, a sweep decided about all files that had arrived.
    """
    return max(int(move.begun_at_ms), *(file_from_json(entry).modified_ms for entry in move.files), 0)


def _discarded_locations(rows: Sequence[Row[Any]]) -> frozenset[tuple[str, str | None]]:
    """Return the location and the token of each discarded relocation, which the catalog may still apply."""
    return frozenset(
        (row.left_place, row.token.removeprefix(DISCARDED_PREFIX))
        for row in rows
        if row.token.startswith(DISCARDED_PREFIX)
    )


def _earlier_locations(applied: Sequence[Row[Any]]) -> frozenset[tuple[str, str | None]]:
    """Return the location of a partition before each relocation, with the token of the relocation to that location.

    The token is None if the table's owner had set the location: the partition's original directory, or a location that
    the owner named when adding the partition again. Unlike in ``find_owner_moves``, a location in a version counts too:
    the question is which entries the catalog had, not which directory the owner would write to.
    """
    by_relocation = {(row.place, row.token) for row in applied[:-1]}
    by_owner = [
        row
        for last, row in zip([None, *applied], applied, strict=False)
        if last is None or (last.place, last.partition_made_at) != (row.left_place, row.partition_made_at)
    ]
    return frozenset(by_relocation | {(row.left_place, None) for row in by_owner})


def _locations_before(history: Sequence[Relocation], name: str) -> frozenset[tuple[str, str | None]]:
    """Return the locations that relocations under ``name`` left, each with its token from one under another name."""
    return frozenset(
        (before.location, before.token)
        for before, after in pairwise(history)
        if before.partition != name == after.partition and before.location == after.previous_location
    )


def _previous_location(
    move: Row[Any],
    recorded: Sequence[Row[Any]],
    replaced_again: Mapping[int, Row[Any]],
    locations: Mapping[str, str],
    *,
    owner_moved_ms: int | None,
    is_released: bool,
) -> PreviousLocation:
    # If another partition replaced a file again, lakefold deletes it under that partition's record.
    counted = [replaced_again.get(row.id, row) for row in recorded]
    is_waiting = [
        (last.deleted_at_ms is None and last.deleting_at_ms is None)
        or (row.id in replaced_again and _is_removed_by_writer_if_gone(row, last))
        for row, last in zip(recorded, counted, strict=True)
    ]
    files = [LocatedFile(path=row.path, bytes=row.bytes, modified_ms=row.modified_at_ms or 0) for row in recorded]
    expected = tuple(file for file, waiting in zip(files, is_waiting, strict=True) if waiting)
    return PreviousLocation(
        location=move.left_place,
        expected_files=expected,
        possible_files=tuple(file for file, waiting in zip(files, is_waiting, strict=True) if not waiting),
        deleting_files=tuple(
            file
            for file, last, waiting in zip(files, counted, is_waiting, strict=True)
            if last.deleting_at_ms is not None and last.deleted_at_ms is None and not waiting
        ),
        shared_files=frozenset(file for file, row in zip(files, recorded, strict=True) if row.id in replaced_again),
        shared_with=frozenset(
            (locations[last.table_name], last.instant, last.partition_path)
            for row in recorded
            if (last := replaced_again.get(row.id)) is not None
        ),
        files_of_other_tables=frozenset(
            file
            for file, row in zip(files, recorded, strict=True)
            if row.id in replaced_again and replaced_again[row.id].table_name != row.table_name
        ),
        is_cleaning_begun=any(last.deleting_at_ms is not None and last.closed_reason is None for last in counted),
        token=move.token,
        plan_id=move.plan_id,
        partition_created_at=move.partition_made_at,
        owner_moved_ms=owner_moved_ms,
        is_released=is_released,
    )


def _is_removed_by_writer_if_gone(row: Row[Any], last: Row[Any]) -> bool:
    """True if only a writer can have removed the file of ``row``, which another partition replaced again as ``last``.

    lakefold has not begun to delete it, or it deletes a later file of its name.
    """
    is_same_file = (row.bytes, row.modified_at_ms) == (last.bytes, last.modified_at_ms)
    return last.closed_reason == REMOVED_BY_WRITER or last.deleting_at_ms is None or not is_same_file


def _relocation(row: Row[Any]) -> Relocation:
    files = tuple(file_from_json(entry) for entry in row.files)
    return Relocation(
        partition=row.partition_path,
        token=row.token,
        previous_location=row.left_place,
        location=row.place,
        files=files,
        partition_created_at=row.partition_made_at,
    )


def _late_copy(row: Row[Any]) -> LateCopy:
    return LateCopy(
        row_id=row.id,
        partition=row.partition_path,
        source=LocatedFile(path=row.source, bytes=row.bytes, modified_ms=row.modified_at_ms),
        target=row.target,
        arrived_ms=row.came_at_ms,
        is_done=row.done_at_ms is not None,
    )
