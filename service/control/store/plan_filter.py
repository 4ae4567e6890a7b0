# SPDX-License-Identifier: Apache-2.0
"""Selection of plans: the newest plans that match a filter, and the plans that executors may claim.

Each filter has an index, so that a query reads only one page of a million plans.
"""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, func, not_, or_, select, true, union_all

from lake.plan import PlanState, ProposalDecision
from service.control.store.database import datetime_to_ms, db_now
from service.control.store.models import ALL_TABLES, PlanRow, TableRow
from service.control.store.pauses import is_served
from service.control.store.views import PlanFilter, StoreSettings

#: a plan's id contains the time of the host that made it; that clock may differ from the database's by this much
_MAX_CLOCK_SKEW = timedelta(days=1)


def newest_plan_ids(
    connection: Connection, plan_filter: PlanFilter, in_scope: Any, limit: int, after: str | None
) -> list[str]:
    """Return the ids of the newest ``limit`` plans in scope that are older than ``after``, newest first."""
    terms = [in_scope, *filter_conditions(plan_filter)]
    if after is not None:
        terms.append(PlanRow.id < after)
    if not plan_filter.get("name"):
        query = select(PlanRow.id).where(*terms).order_by(PlanRow.id.desc()).limit(limit)
        return list(connection.execute(query).scalars())
    of_each = [
        select(_newest_plans_of(table, terms, limit).subquery())
        for table in _tables_with_newest_plans(connection, plan_filter, terms, limit)
    ]
    found = connection.execute(union_all(*of_each)).scalars() if of_each else ()
    return sorted(found, reverse=True)[:limit]


def _tables_with_newest_plans(
    connection: Connection, plan_filter: PlanFilter, conditions: list[Any], limit: int
) -> list[str]:
    """Return the ``limit`` tables with the newest plans, of the tables whose name matches.

    Each of them has a plan that is newer than all plans of the other tables. So the newest ``limit`` plans all belong
    to these tables.
    """
    last = _newest_plans_of(TableRow.name, conditions, 1).correlate(TableRow).scalar_subquery().label("last")
    having = func.lower(TableRow.name).contains((plan_filter.get("name") or "").lower(), autoescape=True)
    tables = select(TableRow.name, last).where(having, TableRow.name != ALL_TABLES).subquery()
    query = select(tables.c.name).where(tables.c.last.is_not(None)).order_by(tables.c.last.desc()).limit(limit)
    return list(connection.execute(query).scalars())


def _newest_plans_of(table: Any, conditions: list[Any], limit: int) -> Any:
    query = select(PlanRow.id).where(PlanRow.table_name == table, *conditions)
    return query.order_by(PlanRow.id.desc()).limit(limit)


def filter_conditions(plan_filter: PlanFilter) -> list[Any]:
    """Return the conditions of the filter on a plan's row, except the condition on a part of the table's name."""
    equal = (
        (PlanRow.table_name, plan_filter.get("table")),
        (PlanRow.state, plan_filter.get("state")),
        (PlanRow.error_class, plan_filter.get("error_class")),
        (PlanRow.request_id, plan_filter.get("request_id")),
    )
    found: list[Any] = [column == value for column, value in equal if value is not None]
    if (proposed := plan_filter.get("proposed")) is not None:
        found.append(is_awaiting_approval() if proposed else not_(is_awaiting_approval()))
    if (since := plan_filter.get("since")) is not None:
        found += [PlanRow.created_at_ms >= datetime_to_ms(since), PlanRow.id >= _lowest_id_at(since - _MAX_CLOCK_SKEW)]
    if (until := plan_filter.get("until")) is not None:
        found += [PlanRow.created_at_ms < datetime_to_ms(until), PlanRow.id < _lowest_id_at(until + _MAX_CLOCK_SKEW)]
    return found


def _lowest_id_at(moment: datetime) -> str:
    """Return a lower bound of the UUIDv7 ids that are made at ``moment`` or later."""
    digits = f"{max(datetime_to_ms(moment), 0):012x}"
    return f"{digits[:8]}-{digits[8:]}"


def is_awaiting_approval() -> ColumnElement[bool]:
    """Return the condition that a plan was proposed and is not decided."""
    undecided = PlanRow.proposed_at_ms.is_not(None) & PlanRow.decision.is_(None)
    return and_(undecided, PlanRow.state == PlanState.REQUESTED)


def is_approved_or_exempt() -> ColumnElement[bool]:
    """Return the condition that a plan needs no approval, or has it."""
    return or_(PlanRow.proposed_at_ms.is_(None), PlanRow.decision == ProposalDecision.APPROVED)


#: the resource group of tables without one
DEFAULT_GROUP = "default"


def is_in_groups(settings: StoreSettings) -> ColumnElement[bool]:
    """Return the condition that the plan's table is in a resource group whose plans this process claims."""
    groups = settings.resource_groups
    if groups is None:
        return true()
    of_others = func.coalesce(TableRow.resource_group, DEFAULT_GROUP).not_in(sorted(groups))
    return PlanRow.table_name.not_in(select(TableRow.name).where(of_others))


def runnable_plans(settings: StoreSettings) -> Any:
    """Return the query of the requested plans that may run, ordered by priority.

    These plans need no approval or are approved, and their tables are neither paused, halted nor at
    ``max_inflight_per_table``. Plans that are not due yet are included.
    """
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
    """Return the query of runnable plans that are due."""
    return runnable_plans(settings).where(PlanRow.not_before_ms <= db_now())
