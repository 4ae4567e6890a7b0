# SPDX-License-Identifier: Apache-2.0
"""Files that were replaced more than once: each awaits its deletion under the last commit or relocation only.

Such a file was part of the table again after the first commit, or of a partition or table that got its directory. If
it awaited its deletion under both commits, the deletion under the first one would look like an overwrite by a writer to
the partition of the second one.

A closed record names the plan of the last replacement. So the partition of the first one can tell whether lakefold has
deleted the file since, also if the last one is a partition of another table.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, select, update

from lake.relocation.capabilities import RETURNED
from lake.storage.locations import is_below_table, relative_path, resolve_path
from service.control.store.base import in_batches
from service.control.store.database import db_now
from service.control.store.models import PlanRow, RelocationRow, SupersededRow, TableRow

REPLACED_AGAIN = "replaced again, as "
"""The beginning of the reason for closing the record of a file that a later commit or relocation replaced again."""

REMOVED_BY_WRITER = "a writer has removed the file"
"""The reason for closing the record of a replaced file that an overwrite, or the table's owner, has removed."""

_OF_PLAN = " of plan "


def close_earlier_replacements(
    connection: Connection, table: str, plan_id: str, token: str, paths: Sequence[str]
) -> None:
    """Close the records of these files under other plans: the relocation ``token`` replaced the files again.

    A file that a restore had returned to the table gets a full retention again. Its earlier record was closed when its
    partition had returned to the file's directory, and names the last replacement from now on: other partitions that
    left the directory before find the deletion of the file by it.
    """
    _close(connection, SupersededRow.table_name == table, plan_id, token, paths)
    row, relocation, directories = SupersededRow, RelocationRow, sorted({path.rpartition("/")[0] for path in paths})
    plans = set[str]()
    for some in in_batches(directories):
        left = select(relocation.plan_id).where(relocation.table_name == table, relocation.left_place.in_(some))
        plans.update(connection.execute(left).scalars())
    for earlier in in_batches(sorted(plans - {plan_id})):
        returned = row.table_name == table, row.plan_id.in_(earlier), row.closed_reason.endswith(RETURNED)
        for these in in_batches(paths):
            closed = {"closed_reason": closed_reason(plan_id, token)}
            connection.execute(update(row).where(*returned, row.path.in_(these)).values(closed))


def close_in_other_tables(
    connection: Connection, table: str, location: str, plan_id: str, token: str, paths: Sequence[str]
) -> None:
    """Close the records of these files in tables other than ``table``, whose directory is ``location``.

    A partition of another table may have been read from the same file.
    """
    for of_tables, spelled in paths_in_other_tables(connection, table, location, paths):
        _close(connection, of_tables, plan_id, token, spelled)


def paths_in_other_tables(
    connection: Connection, table: str, location: str, paths: Sequence[str]
) -> Iterator[tuple[ColumnElement[bool], list[str]]]:
    """Yield the paths that records of other tables than ``table``, whose directory is ``location``, have for files.

    Each time the result is a condition for the tables, and the paths in their spelling. A record has the full path of a
    file outside of its table's directory, and otherwise the path below that directory.
    """
    full_paths = [resolve_path(location, path) for path in paths]
    yield SupersededRow.table_name != table, full_paths
    for name, below in paths_below_tables(connection, full_paths):
        if name != table:
            yield SupersededRow.table_name == name, below


def paths_below_tables(connection: Connection, full_paths: Collection[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each table in whose directory some of ``full_paths`` are, with these paths as the table records them."""
    above = sorted({*full_paths, *(directory for path in full_paths for directory in _directories_above(path))})
    for some in in_batches(above):
        tables = select(TableRow.name, TableRow.location).where(TableRow.location.in_(some))
        for name, location in connection.execute(tables).all():
            spelled = [relative_path(location, path) for path in full_paths]
            if below := [path for path in spelled if is_below_table(path)]:
                yield name, below


def replaced_by_other_partitions(connection: Connection, rows: Sequence[Row[Any]]) -> Mapping[int, Row[Any]]:
    """Return the last record of each file of ``rows`` that another partition replaced again, by row id.

    It is a partition of the same table or of another one. Records that an earlier release closed are left out. One
    statement reads the records of many files, see ``in_batches``.
    """
    following, found, new = dict[int, Row[Any]](), {row.id for row in rows}, list(rows)
    while new:
        next_rows = _following_rows(connection, new)
        following |= next_rows
        new = [row for row_id, row in {row.id: row for row in next_rows.values()}.items() if row_id not in found]
        found.update(row.id for row in new)
    ends = {row: end for row in rows if (end := _last_record(row, following)) is not None}
    return _of_other_partitions(connection, ends)


def _last_record(row: Row[Any], following: Mapping[int, Row[Any]]) -> Row[Any] | None:
    """Return the record that replaced the closed record ``row`` last; None if it is not in the database."""
    last, seen = row, {row.id}
    while _following_plan(last) is not None:
        if last.id not in following or following[last.id].id in seen:
            return None
        last = following[last.id]
        seen.add(last.id)
    return last


def _of_other_partitions(connection: Connection, ends: Mapping[Row[Any], Row[Any]]) -> Mapping[int, Row[Any]]:
    """Return by row id the records of ``ends`` that are another partition's than the row's.

    A table with the same directory is the same table under another name.
    """
    others = {row.id: end for row, end in ends.items() if end.partition_path != row.partition_path}
    elsewhere = {row: end for row, end in ends.items() if end.table_name != row.table_name}
    if not elsewhere:
        return others
    locations = locations_of_tables(connection, {one.table_name for pair in elsewhere.items() for one in pair})
    for row, end in elsewhere.items():
        others.pop(row.id, None)
        if locations[row.table_name] != locations[end.table_name]:
            others[row.id] = end
    return others


def locations_of_tables(connection: Connection, names: Collection[str]) -> Mapping[str, str]:
    """Return the directory of each table in ``names``."""
    if not names:
        return {}
    tables = select(TableRow.name, TableRow.location).where(TableRow.name.in_(sorted(names)))
    return dict(connection.execute(tables).all())


def _following_plan(row: Row[Any]) -> str | None:
    """Return the plan of the record for which a record was closed; None if it was not closed for another one."""
    reason = row.closed_reason or ""
    if not reason.startswith(REPLACED_AGAIN) or _OF_PLAN not in reason:
        return None
    return str(reason.rpartition(_OF_PLAN)[2])


def _following_rows(connection: Connection, rows: Sequence[Row[Any]]) -> Mapping[int, Row[Any]]:
    """Return by row id the record for which each of ``rows`` was closed, as far as it is in the database."""
    plans = {row.id: plan_id for row in rows if (plan_id := _following_plan(row)) is not None}
    keys = {row.id: (plans[row.id], row.path) for row in rows if row.id in plans}
    known = _load_rows(connection, set(keys.values()))
    tables = {row.id: row.table_name for row in rows}
    found = {
        row_id: row
        for row_id, key in keys.items()
        # Equal paths below the directories of two tables are two files.
        if (row := known.get(key)) is not None and (row.table_name == tables[row_id] or not is_below_table(row.path))
    }
    missing = [row for row in rows if row.id in keys.keys() - found.keys()]
    if not missing:
        return found
    locations = dict[str, str]()
    for some in in_batches(sorted({plan_id for row in missing for plan_id in (row.plan_id, plans[row.id])})):
        located = select(PlanRow.id, PlanRow.location).where(PlanRow.id.in_(some))
        locations.update(connection.execute(located).all())
    spelled = {
        row.id: (plans[row.id], relative_path(locations[plans[row.id]], resolve_path(locations[row.plan_id], row.path)))
        for row in missing
        if {row.plan_id, plans[row.id]} <= locations.keys()
    }
    known = _load_rows(connection, {key for row_id, key in spelled.items() if key != keys[row_id]})
    return found | {row_id: known[key] for row_id, key in spelled.items() if key in known}


def _load_rows(connection: Connection, keys: Collection[tuple[str, str]]) -> Mapping[tuple[str, str], Row[Any]]:
    """Return the records of files by plan and path."""
    row, found = SupersededRow, dict[tuple[str, str], Row[Any]]()
    for some in in_batches(sorted(keys)):
        plans, paths = zip(*some, strict=True)
        these = row.plan_id.in_(sorted(set(plans))), row.path.in_(sorted(set(paths)))
        found |= {(one.plan_id, one.path): one for one in connection.execute(select(row.__table__).where(*these))}
    return found


def _directories_above(path: str) -> Iterator[str]:
    """Yield the directories in which a file is, from the nearest one."""
    directory = path.rpartition("/")[0]
    while directory and not directory.endswith("/"):
        yield directory
        directory = directory.rpartition("/")[0]


def _close(
    connection: Connection, of_tables: ColumnElement[bool], plan_id: str, token: str, paths: Sequence[str]
) -> None:
    """Close the records of these paths under other plans, for the tables that the condition ``of_tables`` names."""
    row = SupersededRow
    other_plans = of_tables, row.deleted_at_ms.is_(None), row.plan_id != plan_id
    closed = {"deleted_at_ms": db_now(), "closed_reason": closed_reason(plan_id, token)}
    for some in in_batches(paths):
        connection.execute(update(row).where(*other_plans, row.path.in_(some)).values(closed))


def closed_reason(plan_id: str, token: str) -> str:
    """Return the reason for closing the record of a file that relocation ``token`` of a plan has replaced again."""
    return f"{REPLACED_AGAIN}{token}{_OF_PLAN}{plan_id}"
