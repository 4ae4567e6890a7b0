# SPDX-License-Identifier: Apache-2.0
"""The route ``/v1/cleaning``: superseded bytes by the day of their deletion."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.control.serializers import queries
from service.server.api.context import ContextDep
from service.server.api.responses import LIST_RESPONSES, list_response

router = APIRouter(tags=["service"])


@router.get("/cleaning", responses=LIST_RESPONSES)
def cleaning(context: ContextDep, request: Request) -> Response:
    """Superseded bytes by the day (UTC) on which their retention ends, earliest first, one item per table and day.

    Days in the past are files that the cleaner has not deleted yet, or retains for a reason; `lakefold clean -n` shows
    the reasons.
    """
    return list_response(request, queries.load_deletion_days(context.store, context.configured_table))
