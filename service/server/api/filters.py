# SPDX-License-Identifier: Apache-2.0
"""The filters of plans and tables in a request's query, for ``/v1`` and the page."""

from typing import Annotated, Literal

from fastapi import Depends, Query, Request

from lake.plan import PlanState
from service.control.store import ErrorClass, PlanFilter, TableFilter, TableOrder
from service.former_names import FORMER_ORDERS, FORMER_STATES, present_order
from service.modes import Mode
from service.server.api.deprecation import mark_deprecated
from service.server.api.request_types import TimeOrAge


def _plan_filter_from_query(
    table: Annotated[str | None, Query(description="Only this table's.")] = None,
    name: Annotated[str | None, Query(max_length=1024, description="Only of tables whose name contains this.")] = None,
    state: Annotated[PlanState | None, Query(description="Only plans in this state.")] = None,
    proposed: Annotated[
        bool | None, Query(description="Only plans that wait for approval (mode `propose`), or only others.")
    ] = None,
    error: Annotated[ErrorClass | None, Query(description="Only plans with this kind of error.")] = None,
    since: Annotated[TimeOrAge, Query(description="Created then or later: a date, a time, or how long ago.")] = None,
    until: Annotated[TimeOrAge, Query(description="Created before then.")] = None,
) -> PlanFilter:
    return build_plan_filter(
        table=table, name=name, state=state, proposed=proposed, error=error, since=since, until=until
    )


def build_plan_filter(
    *,
    table: str | None,
    name: str | None,
    state: PlanState | None,
    proposed: bool | None,
    error: ErrorClass | None,
    since: TimeOrAge,
    until: TimeOrAge,
) -> PlanFilter:
    """Build a filter from the parameters that are set."""
    plan_filter: PlanFilter = {}
    if table:
        plan_filter["table"] = table
    if name:
        plan_filter["name"] = name
    if state is not None:
        plan_filter["state"] = state
    if proposed is not None:
        plan_filter["proposed"] = proposed
    if error is not None:
        plan_filter["error_class"] = error
    if since is not None:
        plan_filter["since"] = since
    if until is not None:
        plan_filter["until"] = until
    return plan_filter


PlanFilterQuery = Annotated[PlanFilter, Depends(_plan_filter_from_query)]


StateFilter = Literal[
    "halted", "paused", "compact", "propose", "observe", "off", "unreadable", "objective_missed", "missed"
]
_ORDERS = "|".join([*TableOrder, *FORMER_ORDERS])
Sort = Annotated[
    str,
    Query(
        pattern=f"^-?({_ORDERS})$",
        description=f"One of {', '.join(TableOrder)}; a leading - means descending. "
        f"Deprecated: {', '.join(FORMER_ORDERS)}.",
    ),
]


def _table_filter_from_query(
    request: Request,
    name: Annotated[
        str, Query(max_length=1024, description="Only tables whose name contains this, in either case.")
    ] = "",
    database: Annotated[
        str | None, Query(max_length=1024, description="Only tables of this database (name up to the last dot).")
    ] = None,
    state: Annotated[
        StateFilter | Literal[""],
        Query(
            description="`unreadable`: their last scan failed; `objective_missed`: they miss an objective; `missed`: "
            "deprecated name of `objective_missed`."
        ),
    ] = "",
    format: Annotated[str, Query(max_length=100, description="Only tables of this format.")] = "",
    mode: Annotated[Mode | Literal[""], Query(description="Only tables in this mode.")] = "",
    owner: Annotated[str, Query(max_length=200, description="Only tables with this owner in the configuration.")] = "",
) -> TableFilter:
    table_filter: TableFilter = {}
    if database is not None:
        table_filter["database"] = database
    if name:
        table_filter["name"] = name
    if state:
        table_filter["state"] = FORMER_STATES.get(state, state)
        if state in FORMER_STATES:
            mark_deprecated(request)
    if format:
        table_filter["format"] = format
    if mode:
        table_filter["mode"] = mode
    if owner:
        table_filter["owner"] = owner
    return table_filter


TableFilterQuery = Annotated[TableFilter, Depends(_table_filter_from_query)]


def parse_sort(request: Request, sort: str) -> tuple[TableOrder, bool]:
    """Return the order of a checked ``sort``, and whether it is descending."""
    if (present := present_order(sort)) != sort:
        mark_deprecated(request)
    return TableOrder(present.removeprefix("-")), sort.startswith("-")
