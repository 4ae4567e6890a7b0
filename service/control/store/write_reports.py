# SPDX-License-Identifier: Apache-2.0
"""Writers' reports of written partitions, which wait for a scan by the scheduler."""

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, case, delete, exists, select, update
from sqlalchemy.dialects import postgresql, sqlite

from lake.plan import PlanState
from service.control.store.base import StorePart
from service.control.store.database import db_now, timedelta_to_ms
from service.control.store.models import (
    ALL_PARTITIONS,
    LivePartitionRow,
    PlanRow,
    ScanRow,
    TableRow,
    WrittenPartitionRow,
)
from service.control.store.pauses import is_served
from service.control.store.plan_filter import is_approved_or_exempt
from service.control.store.rows import view_of
from service.control.store.views import WriteReport

#: a scan after the end of a plan is delayed by this many times the duration of the last scan
_RESCAN_DELAY_FACTOR = 10
_KEY = (WrittenPartitionRow.table_name, WrittenPartitionRow.partition_path)


class WriteReports(StorePart):
    """Reports of writers, one row for each partition, so that repeated reports cause only one scan."""

    def report_written(
        self, table: str, partitions: Collection[str] | None, *, reporter: str, delay: timedelta
    ) -> None:
        """Record that ``partitions`` of ``table`` were written (None: unknown ones). A scan is due in ``delay``.

        A partition that waits already keeps the earlier time, so that repeated reports do not postpone its scan.
        """
        named = [ALL_PARTITIONS] if partitions is None else sorted(set(partitions))
        if not named:
            return
        with self._database.write() as connection:
            _upsert_reports(connection, table, named, reporter, timedelta_to_ms(delay))

    def due_write_reports(self, limit: int = 10_000) -> dict[str, tuple[WriteReport, ...]]:
        """Return the reported partitions that are due now, by table.

        Partitions of paused and halted tables are not due until the table is resumed. Locked partitions are not due
        until their lock ends.
        """
        row = WrittenPartitionRow
        held = exists().where(
            LivePartitionRow.table_name == row.table_name,
            LivePartitionRow.partition_path == row.partition_path,
            LivePartitionRow.expires_at_ms.is_(None) | (LivePartitionRow.expires_at_ms > db_now()),
        )
        due = (
            select(row.__table__)
            .where(row.due_at_ms <= db_now(), is_served(row.table_name), ~held)
            .order_by(row.due_at_ms, *_KEY)
            .limit(limit)
        )
        found: dict[str, list[WriteReport]] = {}
        with self._database.read() as connection:
            for entry in connection.execute(due):
                found.setdefault(entry.table_name, []).append(_write_report(entry))
        return {table: tuple(partitions) for table, partitions in found.items()}

    def finish_write_reports(
        self, reports: Collection[WriteReport], rescan_in: Mapping[str | None, timedelta] | None = None
    ) -> None:
        """Delete the reports of scanned partitions, or make them due again after ``rescan_in`` (partition → time).

        A partition that was reported again after ``due_write_reports`` returned it does not change, because it needs
        another scan.
        """
        rescan_in = rescan_in or {}
        row = WrittenPartitionRow
        with self._database.write() as connection:
            for entry in sorted(reports, key=lambda entry: (entry.table, entry.partition or "")):
                path = ALL_PARTITIONS if entry.partition is None else entry.partition
                this: tuple[Any, ...] = (
                    row.table_name == entry.table,
                    row.partition_path == path,
                    row.reported_at_ms == entry.report_ms,
                )
                wait = rescan_in.get(entry.partition)
                if wait is None:
                    connection.execute(delete(row).where(*this))
                else:
                    connection.execute(update(row).where(*this).values(due_at_ms=db_now() + timedelta_to_ms(wait)))

    def write_reports(self, table: str | None = None) -> list[WriteReport]:
        """Return all waiting reports, or those of ``table``, sorted by their due time."""
        row = WrittenPartitionRow
        waiting = select(row.__table__).order_by(row.due_at_ms, *_KEY)
        if table is not None:
            waiting = waiting.where(row.table_name == table)
        with self._database.read() as connection:
            return [_write_report(entry) for entry in connection.execute(waiting)]


def _write_report(row: Any) -> WriteReport:
    partition = None if row.partition_path == ALL_PARTITIONS else row.partition_path
    return view_of(WriteReport, row, table=row.table_name, partition=partition, report_ms=row.reported_at_ms)


def schedule_rescan(connection: Connection, table: str) -> None:
    """Schedule a scan of a table if no live plan of it is left, so that its recorded layout is not outdated.

    The delay of the scan is proportional to its duration, so that at most a tenth of the time is spent on these scans.
    """
    more = select(PlanRow.id).where(
        PlanRow.table_name == table,
        PlanRow.state.in_((PlanState.REQUESTED, PlanState.INFLIGHT)),
        is_approved_or_exempt(),
    )
    if connection.execute(more.limit(1)).first() is not None:
        return
    last = select(ScanRow.record).join(TableRow, TableRow.last_ok_scan_id == ScanRow.id).where(TableRow.name == table)
    scan = connection.execute(last).scalar_one_or_none() or {}
    _upsert_reports(
        connection, table, [ALL_PARTITIONS], "lakefold", round(_RESCAN_DELAY_FACTOR * 1000 * scan.get("seconds", 0.0))
    )


def _upsert_reports(
    connection: Connection, table: str, partitions: Sequence[str], reporter: str, delay_ms: int
) -> None:
    """Insert or update reports. ``partitions`` must be sorted, so that two concurrent reports never deadlock."""
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    now, due = db_now(), db_now() + delay_ms
    row = WrittenPartitionRow
    report = dialect.insert(row).values(table_name=table, reported_at_ms=now, reported_by=reporter, due_at_ms=due)
    # Always later than before, so that a scan in progress detects the new report.
    later = case((row.reported_at_ms < now, now), else_=row.reported_at_ms + 1)
    earlier = case((row.due_at_ms > due, due), else_=row.due_at_ms)
    report = report.on_conflict_do_update(
        index_elements=_KEY, set_={"reported_at_ms": later, "reported_by": reporter, "due_at_ms": earlier}
    )
    connection.execute(report, [{"partition_path": partition} for partition in partitions])
