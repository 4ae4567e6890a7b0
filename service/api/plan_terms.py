# SPDX-License-Identifier: Apache-2.0
"""Which plans a request means, from its query: the same for ``/v1/plans`` and for the page."""

from typing import Annotated

from fastapi import Depends, Query

from lake.plan import PlanState
from service.api.bodies import Moment
from service.store import ErrorClass, PlanTerms


def _terms(
    table: Annotated[str | None, Query(description="Only this table's.")] = None,
    name: Annotated[str | None, Query(max_length=1024, description="Only of tables whose name contains this.")] = None,
    state: Annotated[PlanState | None, Query(description="Only plans in this state.")] = None,
    proposed: Annotated[
        bool | None, Query(description="Only plans that wait for approval (mode `propose`), or only others.")
    ] = None,
    error: Annotated[ErrorClass | None, Query(description="Only plans with this kind of error.")] = None,
    since: Annotated[Moment, Query(description="Created then or later: a date, a time, or how long ago.")] = None,
    until: Annotated[Moment, Query(description="Created before then.")] = None,
) -> PlanTerms:
    return terms_of(table=table, name=name, state=state, proposed=proposed, error=error, since=since, until=until)


def terms_of(
    *,
    table: str | None,
    name: str | None,
    state: PlanState | None,
    proposed: bool | None,
    error: ErrorClass | None,
    since: Moment,
    until: Moment,
) -> PlanTerms:
    """Those that say something."""
    terms: PlanTerms = {}
    if table:
        terms["table"] = table
    if name:
        terms["name"] = name
    if state is not None:
        terms["state"] = state
    if proposed is not None:
        terms["proposed"] = proposed
    if error is not None:
        terms["error_class"] = error
    if since is not None:
        terms["since"] = since
    if until is not None:
        terms["until"] = until
    return terms


Terms = Annotated[PlanTerms, Depends(_terms)]
