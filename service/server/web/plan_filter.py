# SPDX-License-Identifier: Apache-2.0
"""The filter of plans in a page's address; an empty field of a form does not filter."""

from collections.abc import Mapping
from typing import Annotated, Literal

from fastapi import Depends, Query

from lake.plan import PlanState
from service.control.store import ErrorClass, PlanFilter
from service.server.api.filters import build_plan_filter
from service.server.api.request_types import TableName, TimeOrAge

_NAMES = ("table", "name", "state", "proposed", "error", "since", "until")
Table = TableName | Literal[""]
State = PlanState | Literal[""]
Proposed = Literal["true", "false", ""]
Error = ErrorClass | Literal[""]


_PROPOSED_VALUES: Mapping[Proposed, bool | None] = {"true": True, "false": False, "": None}


def _filter_from_address(
    table: Annotated[Table, Query()] = "",
    name: Annotated[Table, Query()] = "",
    state: Annotated[State, Query()] = "",
    proposed: Annotated[Proposed, Query()] = "",
    error: Annotated[Error, Query()] = "",
    since: Annotated[TimeOrAge, Query()] = None,
    until: Annotated[TimeOrAge, Query()] = None,
) -> PlanFilter:
    return build_plan_filter(
        table=table,
        name=name,
        state=state or None,
        proposed=_PROPOSED_VALUES[proposed],
        error=error or None,
        since=since,
        until=until,
    )


AddressPlanFilter = Annotated[PlanFilter, Depends(_filter_from_address)]


def plan_filter_query(fields: Mapping[str, str]) -> dict[str, str]:
    """Return the filter fields of an address as they were written; '' for missing fields."""
    return {name: fields.get(name, "") for name in _NAMES}
