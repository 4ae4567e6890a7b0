# SPDX-License-Identifier: Apache-2.0
"""The route ``/v1/audit``: actions and their actors."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from service.control.serializers import audit_entry
from service.server.api.context import ContextDep
from service.server.api.request_types import MAX_ROW_NUMBER
from service.server.api.responses import LIST_RESPONSES, Limit, list_response

router = APIRouter(prefix="/audit", tags=["service"])


@router.get("", responses=LIST_RESPONSES)
def list_audit(
    context: ContextDep,
    request: Request,
    table: Annotated[str | None, Query(description="Only entries about this table.")] = None,
    actor: Annotated[str | None, Query(description="Only entries of this `actor`.")] = None,
    action: Annotated[str | None, Query(description="Only this action.")] = None,
    limit: Limit = 50,
    after: Annotated[int | None, Query(ge=0, le=MAX_ROW_NUMBER, description="Continue after this entry.")] = None,
) -> Response:
    """Actions and their actors, on the command line, over HTTP and on the page, newest first.

    A token that is limited to tables sees the entries about them.
    """
    found = context.store.audit_entries(table=table, actor=actor, action=action, limit=limit + 1, after=after)
    shown = found[:limit]
    following = str(shown[-1].number) if len(found) > limit else None
    return list_response(request, [audit_entry(entry) for entry in shown], following)
