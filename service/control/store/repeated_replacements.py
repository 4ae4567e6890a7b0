# SPDX-License-Identifier: Apache-2.0
"""Files that were replaced more than once: each awaits its deletion under the last commit or relocation only.

Such a file was part of the table again after the first commit, or of a partition or table that got its directory. If
it awaited its deletion under both commits, the deletion under the first one would look like an overwrite by a writer to
the partition of the second one.

A closed record names the plan of the last replacement. So the partition of the first one can tell whether lakefold has
deleted the file since.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, select, update

from lake.relocation.capabilities import RETURNED
from lake.storage.locations import is_below_table, relative_path, resolve_path
from service.control.store.base import in_batches
from service.control.store.database import db_now
from service.control.store.models import RelocationRow, SupersededRow, TableRow

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
            closed = {"closed_reason": _closed_reason(plan_id, token)}
            connection.execute(update(row).where(*returned, row.path.in_(these)).values(closed))


def close_in_other_tables(
    connection: Connection, table: str, location: str, plan_id: str, token: str, paths: Sequence[str]
) -> None:
    """Close the records of these files in tables other than ``table``, whose directory is ``location``.

    A partition of another table may have been read from the same file. Its record has the full path if the file is
    outside of that table's directory, otherwise the path below that directory.
    """
    full_paths = [resolve_path(location, path) for path in paths]
    _close(connection, SupersededRow.table_name != table, plan_id, token, full_paths)
    above = sorted({directory for path in full_paths for directory in _directories_above(path)})
    tables = select(TableRow.name, TableRow.location).where(TableRow.name != table)
    for some in in_batches(above):
        for name, other_location in connection.execute(tables.where(TableRow.location.in_(some))).all():
            below = [
                path for path in (relative_path(other_location, one) for one in full_paths) if is_below_table(path)
            ]
            _close(connection, SupersededRow.table_name == name, plan_id, token, below)


def replaced_by_other_partitions(
    connection: Connection, table: str, rows: Sequence[Row[Any]]
) -> Mapping[int, Row[Any]]:
    """Return the last record of each file of ``rows`` that another partition of the table replaced again, by row id.

    Files that another table replaced again are left out, and so are records that an earlier release closed. One
    statement reads the records of many files, see ``in_batches``.
    """
    known, missing = {(row.plan_id, row.path): row for row in rows}, set[tuple[str, str]]()
    while wanted := {key for row in known.values() if (key := _following(row)) is not None} - known.keys() - missing:
        known |= _load_rows(connection, table, wanted)
        missing |= wanted - known.keys()
    ends = {row.id: _last_record(row, known) for row in rows}
    return {
        row.id: last for row in rows if (last := ends[row.id]) is not None and last.partition_path != row.partition_path
    }


def _last_record(row: Row[Any], known: Mapping[tuple[str, str], Row[Any]]) -> Row[Any] | None:
    """Return the record that replaced the closed record ``row`` last; None if it is not in the database."""
    last, seen = row, {row.id}
    while (key := _following(last)) is not None:
        if (following := known.get(key)) is None or following.id in seen:
            return None
        last = following
        seen.add(last.id)
    return last


def _following(row: Row[Any]) -> tuple[str, str] | None:
    """Return plan and path of the record for which a record was closed; None if it was not closed for another one."""
    reason = row.closed_reason or ""
    if not reason.startswith(REPLACED_AGAIN) or _OF_PLAN not in reason:
        return None
    return reason.rpartition(_OF_PLAN)[2], row.path


def _load_rows(
    connection: Connection, table: str, keys: Collection[tuple[str, str]]
) -> Mapping[tuple[str, str], Row[Any]]:
    """Return the records of a table's files by plan and path."""
    row, found = SupersededRow, dict[tuple[str, str], Row[Any]]()
    for some in in_batches(sorted(keys)):
        plans, paths = zip(*some, strict=True)
        these = row.table_name == table, row.plan_id.in_(sorted(set(plans))), row.path.in_(sorted(set(paths)))
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
    closed = {"deleted_at_ms": db_now(), "closed_reason": _closed_reason(plan_id, token)}
    for some in in_batches(paths):
        connection.execute(update(row).where(*other_plans, row.path.in_(some)).values(closed))


def _closed_reason(plan_id: str, token: str) -> str:
    return f"{REPLACED_AGAIN}{token}{_OF_PLAN}{plan_id}"
