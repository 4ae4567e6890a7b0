# SPDX-License-Identifier: Apache-2.0
"""Observed reads of tables by day. A transaction stores reads and the position in their log, so none counts twice."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from sqlalchemy import Connection, delete, func, select, update

from service.control.store.base import StorePart, insert_if_absent
from service.control.store.database import datetime_from_ms, db_now, timedelta_to_ms
from service.control.store.models import ReadLogRow, TableReadRow

#: observations are kept for the longest window
_RETENTION = timedelta(days=31)
_DAY_MS = timedelta_to_ms(timedelta(days=1))
#: the source that contains all reads of a file system, including those that other sources report
HDFS = "HDFS audit logs"
#: the id of a reported query is kept for this time; a report may be delivered again within minutes
_QUERY_RETENTION = timedelta(days=1)
#: the prefix of a reported query's id in the column of log paths; no path begins with it
_QUERY_PREFIX = "query:"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLog:
    """A query log: its size in storage when it was last read, and the position up to which it was read.

    The position is -1 for a log that is ignored.
    """

    log: str
    bytes: int
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedReads:
    """The reads of a table since ``since`` that ``sources`` reported; ``days`` is the length of that time."""

    reads: int
    since: datetime
    days: float
    sources: tuple[str, ...]

    @property
    def per_day(self) -> float:
        """The reads per day, rounded to two significant digits, so that small changes do not change it."""
        return float(f"{self.reads / self.days:.2g}")


class Reads(StorePart):
    """Observed reads."""

    def read_logs(self) -> dict[str, ReadLog]:
        """Return key → log, for the logs that were read."""
        with self._database.read() as connection:
            query = select(ReadLogRow.__table__).where(ReadLogRow.log.not_like(f"{_QUERY_PREFIX}%"))
            rows = connection.execute(query).all()
        return {row.log: ReadLog(log=row.log, bytes=row.bytes, position=row.position) for row in rows}

    def record_reads(self, log: ReadLog, source: str, counts: Mapping[tuple[str, date], int]) -> None:
        """Add reads by table and day, and store the position in ``log``, in one transaction."""
        place = {"bytes": log.bytes, "position": log.position, "seen_at_ms": db_now()}
        with self._database.write() as connection:
            known = update(ReadLogRow).where(ReadLogRow.log == log.log).values(**place)
            if not connection.execute(known).rowcount:
                insert_if_absent(connection, ReadLogRow, log=log.log, **place)
            _add_reads(connection, source, counts)

    def record_query_reads(self, query_id: str, source: str, tables: Collection[str], day: date) -> bool:
        """Add one read of each of ``tables`` by a query; return False if the query is already counted.

        The id is stored in the same transaction, so that a repeated report counts once in every process. It is kept
        for a day.
        """
        facts = {"bytes": 0, "position": 0, "seen_at_ms": db_now()}
        with self._database.write() as connection:
            is_new = insert_if_absent(connection, ReadLogRow, log=f"{_QUERY_PREFIX}{source} {query_id}", **facts)
            if is_new:
                _add_reads(connection, source, dict.fromkeys(((table, day) for table in tables), 1))
        return is_new

    def prune_reads(self) -> None:
        """Delete old observations, and the ids of queries that were reported more than a day ago."""
        with self._database.write() as connection:
            kept = db_now() - timedelta_to_ms(_RETENTION)
            connection.execute(delete(TableReadRow).where(TableReadRow.day_ms < kept))
            old = ReadLogRow.seen_at_ms < db_now() - timedelta_to_ms(_QUERY_RETENTION)
            connection.execute(delete(ReadLogRow).where(ReadLogRow.log.like(f"{_QUERY_PREFIX}%"), old))

    def forget_read_logs(self, missing: Collection[str]) -> None:
        """Delete those ``missing`` logs that were not read for longer than observations are kept."""
        kept = db_now() - timedelta_to_ms(_RETENTION)
        with self._database.write() as connection:
            for log in missing:
                connection.execute(delete(ReadLogRow).where(ReadLogRow.log == log, ReadLogRow.seen_at_ms < kept))

    def observed_reads(self, table: str, window: timedelta) -> ObservedReads | None:
        """Return the reads of a table within ``window``. Returns None if no read was observed.

        The observed time begins with the first day with a known read of any table. Audit logs of HDFS also contain the
        reads that other sources report. So the result is the larger of both numbers, not their sum.
        """
        with self._database.read() as connection:
            now = int(connection.execute(select(db_now())).scalar_one())
            start = now - timedelta_to_ms(window)
            recent = TableReadRow.day_ms > start - _DAY_MS
            first = connection.execute(select(func.min(TableReadRow.day_ms)).where(recent)).scalar_one()
            query = select(TableReadRow.source, func.sum(TableReadRow.reads)).where(
                TableReadRow.table_name == table, recent
            )
            rows = connection.execute(query.group_by(TableReadRow.source)).all()
        if not rows or first is None:
            return None
        since = max(int(first), start - start % _DAY_MS)
        by_source = {str(source): int(reads) for source, reads in rows}
        audited = by_source.pop(HDFS, 0)
        if audited >= sum(by_source.values()):
            by_source = {HDFS: audited}
        return ObservedReads(
            reads=sum(by_source.values()),
            since=datetime_from_ms(since),
            days=max(1.0, (now - since) / _DAY_MS),
            sources=tuple(sorted(by_source)),
        )


def _add_reads(connection: Connection, source: str, counts: Mapping[tuple[str, date], int]) -> None:
    for (table, day), reads in sorted(counts.items()):
        key = {"table_name": table, "day_ms": _day_ms(day), "source": source}
        conditions = [getattr(TableReadRow, name) == value for name, value in key.items()]
        more = update(TableReadRow).where(*conditions).values(reads=TableReadRow.reads + reads)
        if not connection.execute(more).rowcount:
            insert_if_absent(connection, TableReadRow, **key, reads=reads)


def _day_ms(day: date) -> int:
    return (day.toordinal() - date(1970, 1, 1).toordinal()) * _DAY_MS
