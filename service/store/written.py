# SPDX-License-Identifier: Apache-2.0
"""Partitions that writers say they have written, each waiting for a look at it by the scheduler."""

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, case, delete, exists, select, update
from sqlalchemy.dialects import postgresql, sqlite

from lake.plan import PlanState
from service.store.base import StorePart
from service.store.clock import db_now, milliseconds, moment
from service.store.consent import may_run
from service.store.models import ALL_PARTITIONS, LivePartitionRow, PlanRow, ScanRow, TableRow, WrittenPartitionRow
from service.store.tables import served
from service.store.views import WrittenPartition

#: a scan that a plan's end brings about waits for so many times as long as the last one took
_REST_TIMES = 10
_KEY = (WrittenPartitionRow.table_name, WrittenPartitionRow.partition_path)


class Written(StorePart):
    """Reports of writers. One row a partition: a burst of reports costs one look."""

    def report_written(self, table: str, partitions: Collection[str] | None, *, by: str, delay: timedelta) -> None:
        """Somebody has written ``partitions`` of ``table``, anywhere in it with None: a look is due in ``delay``.

        A partition that waits already keeps the earlier time, so that a steady stream of reports postpones nothing.
        """
        named = [ALL_PARTITIONS] if partitions is None else sorted(set(partitions))
        if not named:
            return
        with self._database.write() as connection:
            _report(connection, table, named, by, milliseconds(delay))

    def due_written(self, limit: int = 10_000) -> dict[str, tuple[WrittenPartition, ...]]:
        """Reported partitions that are due now, by table.

        Those of paused and halted tables wait for their resume, those that a live plan holds for its end.
        """
        row = WrittenPartitionRow
        held = exists().where(
            LivePartitionRow.table_name == row.table_name,
            LivePartitionRow.partition_path == row.partition_path,
            LivePartitionRow.expires_at_ms.is_(None) | (LivePartitionRow.expires_at_ms > db_now()),
        )
        due = (
            select(row.__table__)
            .where(row.due_at_ms <= db_now(), served(row.table_name), ~held)
            .order_by(row.due_at_ms, *_KEY)
            .limit(limit)
        )
        found: dict[str, list[WrittenPartition]] = {}
        with self._database.read() as connection:
            for entry in connection.execute(due):
                found.setdefault(entry.table_name, []).append(_written(entry))
        return {table: tuple(partitions) for table, partitions in found.items()}

    def looked_at(
        self, written: Collection[WrittenPartition], again_in: Mapping[str | None, timedelta] | None = None
    ) -> None:
        """Forget what was looked at, or look once more after ``again_in`` (partition → time).

        What was reported again since ``due_written`` gave it out stays as it is: it waits for a look of its own.
        """
        again_in = again_in or {}
        row = WrittenPartitionRow
        with self._database.write() as connection:
            for entry in sorted(written, key=lambda entry: (entry.table, entry.partition or "")):
                path = ALL_PARTITIONS if entry.partition is None else entry.partition
                this: tuple[Any, ...] = (
                    row.table_name == entry.table,
                    row.partition_path == path,
                    row.reported_at_ms == entry.report,
                )
                wait = again_in.get(entry.partition)
                if wait is None:
                    connection.execute(delete(row).where(*this))
                else:
                    connection.execute(update(row).where(*this).values(due_at_ms=db_now() + milliseconds(wait)))

    def written(self, table: str | None = None) -> list[WrittenPartition]:
        """Everything that waits, of one table with ``table``, the first due first."""
        row = WrittenPartitionRow
        waiting = select(row.__table__).order_by(row.due_at_ms, *_KEY)
        if table is not None:
            waiting = waiting.where(row.table_name == table)
        with self._database.read() as connection:
            return [_written(entry) for entry in connection.execute(waiting)]


def _written(row: Any) -> WrittenPartition:
    return WrittenPartition(
        table=row.table_name,
        partition=None if row.partition_path == ALL_PARTITIONS else row.partition_path,
        reported_by=row.reported_by,
        due_at=moment(row.due_at_ms),
        report=row.reported_at_ms,
    )


def scan_after_work(connection: Connection, table: str) -> None:
    """Have a table scanned anew once the last of its plans has ended, so that nobody reads a layout from before them.

    Tables take from no time to minutes to scan; a tenth of the time at most is spent on this.
    """
    more = select(PlanRow.id).where(
        PlanRow.table_name == table, PlanRow.state.in_((PlanState.REQUESTED, PlanState.INFLIGHT)), may_run()
    )
    if connection.execute(more.limit(1)).first() is not None:
        return
    last = select(ScanRow.record).join(TableRow, TableRow.last_ok_scan_id == ScanRow.id).where(TableRow.name == table)
    scan = connection.execute(last).scalar_one_or_none() or {}
    _report(connection, table, [ALL_PARTITIONS], "lakefold", round(_REST_TIMES * 1000 * scan.get("seconds", 0.0)))


def _report(connection: Connection, table: str, partitions: Sequence[str], by: str, delay_ms: int) -> None:
    """``partitions`` are sorted, so that two reports of the same ones never wait for each other in a circle."""
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    now, due = db_now(), db_now() + delay_ms
    row = WrittenPartitionRow
    report = dialect.insert(row).values(table_name=table, reported_at_ms=now, reported_by=by, due_at_ms=due)
    # Always a later time than before: whoever looks meanwhile must see that there was another report.
    later = case((row.reported_at_ms < now, now), else_=row.reported_at_ms + 1)
    earlier = case((row.due_at_ms > due, due), else_=row.due_at_ms)
    report = report.on_conflict_do_update(
        index_elements=_KEY, set_={"reported_at_ms": later, "reported_by": by, "due_at_ms": earlier}
    )
    connection.execute(report, [{"partition_path": partition} for partition in partitions])
