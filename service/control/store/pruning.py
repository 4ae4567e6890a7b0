# SPDX-License-Identifier: Apache-2.0
"""Pruning of old plans, requests and bulk actions, a few rows at a time. Sums over pruned plans are kept."""

from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, delete, exists, func, select, update

from lake.plan import LIVE_STATES
from service.control.store.base import StorePart, insert_if_absent, with_row_locks
from service.control.store.database import db_now, timedelta_to_ms
from service.control.store.models import (
    BulkActionRow,
    EventRow,
    GroupRow,
    PlanRow,
    PlanTotalRow,
    RelocationRow,
    RequestRow,
    StagedRow,
    SupersededRow,
)

#: maximum number of plans or requests that one transaction deletes, so that it stays short
_BATCH_SIZE = 200
_KEY = (PlanRow.table_name, PlanRow.kind, PlanRow.state)
#: the columns of pruned plans whose sums are kept, each in a column of the same name
SUMMED_COLUMNS = ("input_files", "input_bytes", "files_before", "bytes_before", "files_after", "bytes_after")


class Pruning(StorePart):
    """Deletion of old plans, requests and bulk actions."""

    def prune(self, retention: timedelta) -> int:
        """Delete some plans that ended more than ``retention`` ago; if there are none, old requests or bulk actions.

        Returns the number of deleted rows. Call it until it returns 0. Events, groups, stagings and deleted superseded
        versions are deleted with their plan. A plan is kept while one of its superseded versions waits for deletion,
        while files that an attempt has staged may be left or appear, or while the database has a record of a partition
        that the plan moved. A declined plan is kept while scans leave
        its files alone because of it. A request is old if it was answered more than ``retention`` ago and all its plans
        are deleted; a bulk action is old if it began more than ``retention`` ago. ``Store.figures`` still counts the
        deleted plans (``PlanTotalRow``).
        """
        with self._database.write() as connection:
            ids = self._prunable_plans(connection, retention)
            if not ids:
                return self._prune_requests(connection, retention) or self._prune_bulk_actions(connection, retention)
            _add_to_totals(connection, ids)
            for row in (EventRow, GroupRow, StagedRow, SupersededRow):
                connection.execute(delete(row).where(row.plan_id.in_(ids)))
            connection.execute(delete(PlanRow).where(PlanRow.id.in_(ids)))
            return len(ids)

    @staticmethod
    def _prunable_plans(connection: Connection, retention: timedelta) -> list[str]:
        # A declined plan is kept as long as it prevents scans from proposing its files again.
        last = func.coalesce(PlanRow.spared_at_ms, PlanRow.finalized_at_ms)
        waits = exists().where(SupersededRow.plan_id == PlanRow.id, SupersededRow.deleted_at_ms.is_(None))
        # Late files in a location that a partition has left wait for deletion under the plan of that relocation.
        has_relocation = exists().where(RelocationRow.plan_id == PlanRow.id)
        # The sweep clears the record after ``STAGED_WATCH_PERIOD``. Formats that find the files on a timeline record no
        # paths.
        has_staged = exists().where(
            StagedRow.plan_id == PlanRow.id, StagedRow.cleared_at_ms.is_(None), StagedRow.paths != []
        )
        ended = (
            select(PlanRow.id)
            .where(
                PlanRow.state.not_in(LIVE_STATES),
                last < db_now() - timedelta_to_ms(retention),
                ~waits,
                ~has_relocation,
                ~has_staged,
            )
            .order_by(PlanRow.id)
            .limit(_BATCH_SIZE)
        )
        # Locked, so that a failed plan is not pruned while it is retried.
        return list(connection.execute(with_row_locks(ended)).scalars())

    @staticmethod
    def _prune_requests(connection: Connection, retention: timedelta) -> int:
        planned = exists().where(PlanRow.request_id == RequestRow.id)
        answered = (
            select(RequestRow.id)
            .where(RequestRow.answered_at_ms < db_now() - timedelta_to_ms(retention), ~planned)
            .order_by(RequestRow.id)
            .limit(_BATCH_SIZE)
        )
        ids = list(connection.execute(answered).scalars())
        connection.execute(delete(RequestRow).where(RequestRow.id.in_(ids)))
        return len(ids)

    @staticmethod
    def _prune_bulk_actions(connection: Connection, retention: timedelta) -> int:
        old = (
            select(BulkActionRow.id)
            .where(BulkActionRow.created_at_ms < db_now() - timedelta_to_ms(retention))
            .order_by(BulkActionRow.id)
        )
        ids = list(connection.execute(old.limit(_BATCH_SIZE)).scalars())
        connection.execute(delete(BulkActionRow).where(BulkActionRow.id.in_(ids)))
        return len(ids)


def _add_to_totals(connection: Connection, ids: list[str]) -> None:
    sums = [func.sum(getattr(PlanRow, name)).label(name) for name in SUMMED_COLUMNS]
    counted = [func.count().label("plans"), func.min(PlanRow.created_at_ms).label("oldest_created_at_ms")]
    for row in connection.execute(select(*_KEY, *counted, *sums).where(PlanRow.id.in_(ids)).group_by(*_KEY)):
        key = {"table_name": row.table_name, "kind": row.kind, "state": row.state}
        # PostgreSQL sums bigints as numerics.
        added = {name: int(getattr(row, name)) for name in ("plans", *SUMMED_COLUMNS)}
        if insert_if_absent(connection, PlanTotalRow, **key, **added, oldest_created_at_ms=row.oldest_created_at_ms):
            continue
        values: dict[str, Any] = {name: getattr(PlanTotalRow, name) + value for name, value in added.items()}
        this = [getattr(PlanTotalRow, name) == value for name, value in key.items()]
        connection.execute(update(PlanTotalRow).where(*this).values(**values))
