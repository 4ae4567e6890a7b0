# SPDX-License-Identifier: Apache-2.0
"""Queries for planning: partitions that plans hold, plans that failed, and instants that plans adopted."""

from collections.abc import Collection
from datetime import timedelta

from sqlalchemy import select

from lake.plan import FailedPlan, PlanState
from service.control.store.base import StorePart
from service.control.store.database import db_now, timedelta_to_ms
from service.control.store.models import PlanRow
from service.control.store.partition_locks import partition_owners
from service.control.store.plan_filter import is_approved_or_exempt, is_awaiting_approval
from service.control.store.plan_queries import slices_by_plan
from service.control.store.views import FailureKind

_EXHAUSTED_REMEMBERED = timedelta(days=1)


class PlannerQueries(StorePart):
    """Earlier plans of a table on which further planning depends."""

    def locked_partitions(self, name: str, *, include_proposals: bool = True) -> dict[str, str]:
        """Return partition → live plan that holds it, for the table ``name``; with or without proposals."""
        with self._database.read() as connection:
            owners = partition_owners(connection, name)[0]
            if include_proposals:
                return owners
            waiting = select(PlanRow.id).where(PlanRow.table_name == name, is_awaiting_approval())
            proposals = frozenset(connection.execute(waiting).scalars())
        return {partition: plan_id for partition, plan_id in owners.items() if plan_id not in proposals}

    def failed_plans(self, name: str, settings_digest: str) -> list[FailedPlan]:
        """Return the plans of the table ``name`` that failed under these settings and must not be repeated unchanged.

        A plan is returned until it is retried or the table is resumed. A plan whose attempts all failed is returned for
        only a day, because the storage may have been the cause.
        """
        remembered = (PlanRow.failure == FailureKind.REJECTED) | (
            PlanRow.finalized_at_ms > db_now() - timedelta_to_ms(_EXHAUSTED_REMEMBERED)
        )
        failed = select(PlanRow.id, PlanRow.attempts, PlanRow.failure, PlanRow.error).where(
            PlanRow.table_name == name,
            PlanRow.state == PlanState.FAILED,
            PlanRow.failure.is_not(None),
            PlanRow.settings == settings_digest,
            remembered,
        )
        with self._database.read() as connection:
            rows = connection.execute(failed.order_by(PlanRow.id)).all()
            slices = slices_by_plan(connection, [row.id for row in rows])
        return [
            FailedPlan(plan_id=row.id, attempts=row.attempts, error=row.error or "", slices=slices.get(row.id, ()))
            for row in rows
        ]

    def adopted_plans(self, name: str, instants: Collection[str]) -> dict[str, str]:
        """Return instant → plan for those ``instants`` that a plan of the table ``name`` has adopted, live or ended.

        A proposal that ended undecided does not count.
        """
        adopted = select(PlanRow.adopted, PlanRow.id).where(
            PlanRow.table_name == name,
            PlanRow.adopted.in_(instants),
            is_approved_or_exempt() | PlanRow.decision.is_not(None) | is_awaiting_approval(),
        )
        with self._database.read() as connection:
            return {row.adopted: row.id for row in connection.execute(adopted.order_by(PlanRow.id))}
