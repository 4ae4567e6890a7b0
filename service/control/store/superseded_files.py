# SPDX-License-Identifier: Apache-2.0
"""Files that completed plans replaced, from the commit until the cleaner has deleted them."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import Select, bindparam, case, func, literal, select, update

from lake.model import TableRef
from lake.plan import SupersededVersion
from lake.plan_store import SupersededRecord
from service.control.store.base import StorePart
from service.control.store.database import datetime_from_ms, db_now, optional_datetime_from_ms, timedelta_to_ms
from service.control.store.models import PlanRow, SupersededRow, TableRow
from service.control.store.repeated_replacements import locations_of_tables, paths_in_other_tables
from service.control.store.rows import view_of
from service.control.store.views import DeletionDay

#: maximum number of rows that one statement changes, well below the parameter limits of both databases
_BATCH_SIZE = 1000
_DAY = timedelta(days=1)


class SupersededVersions(StorePart):
    """Superseded versions. The cleaner deletes them after their retention."""

    def due_for_deletion(
        self, table: TableRef, retention: timedelta, limit: int = 10_000
    ) -> Sequence[SupersededRecord]:
        """Return the superseded versions whose ``retention`` has passed, in the order in which they were superseded."""
        return self._load_due(
            _undeleted(table)
            .where(SupersededRow.superseded_at_ms <= db_now() - timedelta_to_ms(retention))
            .limit(limit)
        )

    def awaiting_deletion(self, table: TableRef) -> Sequence[SupersededRecord]:
        """Return the table's superseded versions that are not deleted, in the order in which they were superseded."""
        return self._load_due(_undeleted(table))

    def superseded_paths(self, table: TableRef) -> Collection[str]:
        """Return the paths of the table's superseded versions that are not deleted.

        Versions below the table's location are included under any table name: the table may have had another name.
        """
        below = SupersededRow.path.startswith(f"{table.location}/", autoescape=True)
        wanted = (SupersededRow.table_name == table.name) | below
        query = select(SupersededRow.path).where(SupersededRow.deleted_at_ms.is_(None), wanted)
        with self._database.read() as connection:
            return set(connection.scalars(query))

    def deletion_days(self, tables: Mapping[timedelta, Collection[str]]) -> list[DeletionDay]:
        """Return the files that wait for deletion, by table and by the day (UTC) on which their retention ends.

        The earliest day is first. ``tables`` maps each retention to the names of its tables. A day in the past has
        files that the cleaner has not deleted yet or keeps for another reason.
        """
        if not tables:
            return []
        # The most common retention is the default, so that the query names only the tables with another retention.
        usual, *others = sorted(tables, key=lambda retention: -len(tables[retention]))
        retention: Any = literal(timedelta_to_ms(usual))
        if others:
            named = [(SupersededRow.table_name.in_(tables[other]), timedelta_to_ms(other)) for other in others]
            retention = case(*named, else_=timedelta_to_ms(usual))
        day = ((SupersededRow.superseded_at_ms + retention) // timedelta_to_ms(_DAY)).label("day")
        query = (
            select(
                SupersededRow.table_name, day, func.count().label("files"), func.sum(SupersededRow.bytes).label("size")
            )
            .where(SupersededRow.deleted_at_ms.is_(None))
            .group_by(SupersededRow.table_name, day)
            .order_by(day, SupersededRow.table_name)
        )
        with self._database.read() as connection:
            return [
                DeletionDay(
                    table=row.table_name,
                    day=datetime_from_ms(row.day * timedelta_to_ms(_DAY)).date(),
                    files=row.files,
                    bytes=int(row.size),
                )
                for row in connection.execute(query)
            ]

    def begin_deletion(self, rows: Collection[int]) -> Collection[int]:
        """Mark that the files of these rows are about to be deleted. Returns the rows that still wait for deletion.

        The mark stays if the deletion fails or its process dies, because some of the files may be gone. Other rows of
        these files are marked too. They exist if two sweeps recorded the same late file for their partitions, or for
        partitions of two tables, at once, so that neither record closed the other one.
        """
        ordered, waiting = sorted(rows), set[int]()
        with self._database.write() as connection:
            for start in range(0, len(ordered), _BATCH_SIZE):
                row = SupersededRow
                these = row.id.in_(ordered[start : start + _BATCH_SIZE]), row.deleted_at_ms.is_(None)
                found = connection.execute(select(row.table_name, row.path).where(*these)).all()
                locations = locations_of_tables(connection, {one.table_name for one in found})
                for table, location in sorted(locations.items()):
                    paths = [one.path for one in found if one.table_name == table]
                    # Concatenated, since SQLite would otherwise read all waiting files of the table.
                    of_table = row.table_name.concat("") == table
                    begun = {"deleting_at_ms": func.coalesce(row.deleting_at_ms, db_now())}
                    elsewhere = paths_in_other_tables(connection, table, location, paths)
                    for of_tables, spelled in [(of_table, paths), *elsewhere]:
                        of_files = row.path.in_(spelled), row.deleted_at_ms.is_(None)
                        connection.execute(update(row).where(of_tables, *of_files).values(begun))
                waiting.update(connection.execute(select(row.id).where(*these)).scalars())
        return waiting

    def mark_deleted(self, rows: Sequence[int]) -> None:
        """Set ``deleted_at_ms`` of these rows to now, unless it is set already."""
        freed: Counter[str] = Counter()
        with self._database.write() as connection:
            for start in range(0, len(rows), _BATCH_SIZE):
                marked = connection.execute(
                    update(SupersededRow)
                    .where(
                        SupersededRow.id.in_(rows[start : start + _BATCH_SIZE]), SupersededRow.deleted_at_ms.is_(None)
                    )
                    .values(deleted_at_ms=db_now())
                    .returning(SupersededRow.table_name, SupersededRow.bytes)
                )
                for row in marked:
                    freed[row.table_name] += row.bytes
            for name, bytes_ in sorted(freed.items()):
                added = {"freed_bytes": TableRow.freed_bytes + bytes_}
                connection.execute(update(TableRow).where(TableRow.name == name).values(added))

    def close_superseded(self, rows: Mapping[int, str]) -> None:
        """Stop tracking these rows, each with its reason: lakefold may no longer delete their files.

        Rows that do not wait for their deletion stay unchanged.
        """
        ordered = sorted(rows)
        with self._database.write() as connection:
            for start in range(0, len(ordered), _BATCH_SIZE):
                connection.execute(
                    update(SupersededRow)
                    .where(SupersededRow.id == bindparam("row"), SupersededRow.deleted_at_ms.is_(None))
                    .values(deleted_at_ms=db_now(), closed_reason=bindparam("reason")),
                    [{"row": row, "reason": rows[row]} for row in ordered[start : start + _BATCH_SIZE]],
                )

    def _load_due(self, query: Select[Any]) -> list[SupersededRecord]:
        with self._database.read() as connection:
            return [
                SupersededRecord(
                    row_id=row.id,
                    plan_id=row.plan_id,
                    version=view_of(SupersededVersion, row, partition=row.partition_path),
                    superseded_at=datetime_from_ms(row.superseded_at_ms),
                    table_identity=row.identity,
                    deletion_begun_at=optional_datetime_from_ms(row.deleting_at_ms),
                )
                for row in connection.execute(query)
            ]


def _undeleted(table: TableRef) -> Select[Any]:
    return (
        select(SupersededRow.__table__, PlanRow.identity)
        .join(PlanRow, PlanRow.id == SupersededRow.plan_id)
        .where(SupersededRow.table_name == table.name, SupersededRow.deleted_at_ms.is_(None))
        .order_by(SupersededRow.superseded_at_ms, SupersededRow.id)
    )
