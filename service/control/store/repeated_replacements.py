# SPDX-License-Identifier: Apache-2.0
"""Files that were replaced more than once: each awaits its deletion under the last commit or relocation only.

Such a file was part of the table again after the first commit, or of a partition or table that got its directory. If
it awaited its deletion under both commits, the deletion under the first one would look like an overwrite by a writer to
the partition of the second one.
"""

from collections.abc import Iterator, Sequence

from sqlalchemy import ColumnElement, Connection, select, update

from lake.storage.locations import is_below_table, relative_path, resolve_path
from service.control.store.database import db_now
from service.control.store.models import SupersededRow, TableRow

#: maximum number of paths in one statement
_CHUNK = 500


def close_earlier_replacements(
    connection: Connection, table: str, plan_id: str, token: str, paths: Sequence[str]
) -> None:
    """Close the records of these files under other plans: the relocation ``token`` replaced the files again.

    A file that a restore had returned to the table gets a full retention again.
    """
    _close(connection, SupersededRow.table_name == table, plan_id, token, paths)


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
    for start in range(0, len(above), _CHUNK):
        some = tables.where(TableRow.location.in_(above[start : start + _CHUNK]))
        for name, other_location in connection.execute(some).all():
            below = [
                path for path in (relative_path(other_location, one) for one in full_paths) if is_below_table(path)
            ]
            _close(connection, SupersededRow.table_name == name, plan_id, token, below)


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
    closed = {"deleted_at_ms": db_now(), "closed_reason": f"replaced again, as {token}"}
    for start in range(0, len(paths), _CHUNK):
        some = row.path.in_(paths[start : start + _CHUNK])
        connection.execute(update(row).where(*other_plans, some).values(closed))
