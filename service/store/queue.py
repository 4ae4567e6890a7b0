# SPDX-License-Identifier: Apache-2.0
"""The plans that wait for an executor, in the order in which they start."""

from typing import Any

from sqlalchemy import func, select

from lake.plan import PlanState
from service.store.clock import db_now
from service.store.consent import is_approved_or_exempt
from service.store.models import PlanRow
from service.store.tables import is_served
from service.store.views import StoreSettings


def runnable_plans(settings: StoreSettings) -> Any:
    """Requested plans that wait for no yes, due or not, of tables that may have one more inflight, in their order."""
    busy = (
        select(PlanRow.table_name)
        .where(PlanRow.state == PlanState.INFLIGHT)
        .group_by(PlanRow.table_name)
        .having(func.count() >= settings.max_inflight_per_table)
    )
    return (
        select(PlanRow.id, PlanRow.table_name, PlanRow.input_bytes, PlanRow.predicted_cpu_ms)
        .where(
            PlanRow.state == PlanState.REQUESTED,
            is_approved_or_exempt(),
            is_served(PlanRow.table_name),
            PlanRow.table_name.not_in(busy),
        )
        .order_by(PlanRow.rank_ms, PlanRow.id)
    )


def claimable_plans(settings: StoreSettings) -> Any:
    """Those of them that are due."""
    return runnable_plans(settings).where(PlanRow.not_before_ms <= db_now())
