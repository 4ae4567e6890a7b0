# SPDX-License-Identifier: Apache-2.0
"""Which plans a request means, from its query: the same for ``/v1/plans`` and for the page."""

from typing import Annotated

from fastapi import Depends, Query

from lake.plan import PlanState
from service.api.bodies import TimeOrAge
from service.store import ErrorClass, PlanFilter


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
    """Those that say something."""
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
