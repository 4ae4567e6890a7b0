# SPDX-License-Identifier: Apache-2.0
"""The filters of plans and tables in a request's query, for ``/v1`` and the page."""

from typing import Annotated, Literal, cast

from fastapi import Depends, Query, Request
from pydantic import BaseModel, Field

from lake.plan import PlanState
from service.control.store import ErrorClass, PlanFilter, TableFilter, TableOrder, build_plan_filter
from service.former_names import FORMER_ORDERS, FORMER_STATES, present_order
from service.modes import Mode
from service.server.api.deprecation import mark_deprecated
from service.server.api.request_types import TimeOrAge


class PlanSelection(BaseModel):
    """The filter of plans in a request: the query of a list, the body of a bulk action, or a page's address."""

    table: str | None = Field(None, description="Only plans of this table.")
    name: str | None = Field(None, max_length=1024, description="Only plans of tables whose name contains this.")
    state: PlanState | None = Field(None, description="Only plans in this state.")
    proposed: bool | None = Field(
        None, description="true: only plans that wait for approval (mode `propose`); false: only other plans."
    )
    error: ErrorClass | None = Field(None, description="Only plans with this kind of error.")
    since: TimeOrAge = Field(None, description="Only plans created since this date, time or age (2d).")
    until: TimeOrAge = Field(None, description="Only plans created before this time.")

    def plan_filter(self) -> PlanFilter:
        """Return the filter of the fields that are set."""
        return build_plan_filter(**{name: getattr(self, name) for name in PlanSelection.model_fields})


def _plan_filter_from_query(selection: Annotated[PlanSelection, Query()]) -> PlanFilter:
    return selection.plan_filter()


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


def _labels_from_query(
    owner: Annotated[str, Query(max_length=200, description="Only tables with this owner in the configuration.")] = "",
    tag: Annotated[str, Query(max_length=100, description="Only tables with this tag in the configuration.")] = "",
) -> dict[str, str]:
    return {"owner": owner, "tag": tag}


_LabelsQuery = Annotated[dict[str, str], Depends(_labels_from_query)]


def _table_filter_from_query(
    request: Request,
    labels: _LabelsQuery,
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
) -> TableFilter:
    if state in FORMER_STATES:
        mark_deprecated(request)
    fields = {"name": name, "state": FORMER_STATES.get(state, state), "format": format, "mode": mode, **labels}
    found = {"database": database} if database is not None else {}
    return cast("TableFilter", found | {key: value for key, value in fields.items() if value})


TableFilterQuery = Annotated[TableFilter, Depends(_table_filter_from_query)]


def parse_sort(request: Request, sort: str) -> tuple[TableOrder, bool]:
    """Return the order of a checked ``sort``, and whether it is descending."""
    if (present := present_order(sort)) != sort:
        mark_deprecated(request)
    return TableOrder(present.removeprefix("-")), sort.startswith("-")
