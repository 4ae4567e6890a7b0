# SPDX-License-Identifier: Apache-2.0
"""``/v1/audit``: who asked for what."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from service.api.bodies import LARGEST
from service.api.context import Here
from service.api.paging import LISTED, Limit, page
from service.documents import audit_entry

router = APIRouter(prefix="/audit", tags=["service"])


@router.get("", responses=LISTED)
def list_audit(
    here: Here,
    request: Request,
    table: Annotated[str | None, Query(description="Only what concerns this table.")] = None,
    actor: Annotated[str | None, Query(description="Only what this one asked for, as `actor` names it.")] = None,
    action: Annotated[str | None, Query(description="Only this action.")] = None,
    limit: Limit = 50,
    after: Annotated[int | None, Query(ge=0, le=LARGEST, description="Continue behind this entry.")] = None,
) -> Response:
    """Who asked for what by command, over HTTP or on the page, newest first; a token limited to tables sees theirs."""
    found = here.store.audit(table=table, actor=actor, action=action, limit=limit + 1, after=after)
    shown = found[:limit]
    following = str(shown[-1].number) if len(found) > limit else None
    return page(request, [audit_entry(entry) for entry in shown], following)
