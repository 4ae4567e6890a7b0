# SPDX-License-Identifier: Apache-2.0
"""Which plans a page means, from its address, where an empty field of a form says nothing."""

from collections.abc import Mapping
from typing import Annotated, Literal

from fastapi import Depends, Query

from lake.plan import PlanState
from service.api.bodies import Moment, TableName
from service.api.plan_terms import terms_of
from service.store import ErrorClass, PlanTerms

_NAMES = ("table", "name", "state", "proposed", "error", "since", "until")
Table = TableName | Literal[""]
State = PlanState | Literal[""]
Proposed = Literal["true", "false", ""]
Error = ErrorClass | Literal[""]


_ASKED: Mapping[Proposed, bool | None] = {"true": True, "false": False, "": None}


def _of_address(
    table: Annotated[Table, Query()] = "",
    name: Annotated[Table, Query()] = "",
    state: Annotated[State, Query()] = "",
    proposed: Annotated[Proposed, Query()] = "",
    error: Annotated[Error, Query()] = "",
    since: Annotated[Moment, Query()] = None,
    until: Annotated[Moment, Query()] = None,
) -> PlanTerms:
    return terms_of(
        table=table,
        name=name,
        state=state or None,
        proposed=_ASKED[proposed],
        error=error or None,
        since=since,
        until=until,
    )


AddressTerms = Annotated[PlanTerms, Depends(_of_address)]


def query_of(fields: Mapping[str, str]) -> dict[str, str]:
    """The part of an address that says which plans are meant, as it was written; '' for what it does not say."""
    return {name: fields.get(name, "") for name in _NAMES}
