# SPDX-License-Identifier: Apache-2.0
"""The route ``/v1/settings``: every setting in force, of the service or of one table."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from service.control import serializers
from service.control.planning.observed_reads import with_observed_reads
from service.server.api.context import ContextDep
from service.server.api.responses import LIST_RESPONSES, list_response
from service.server.api.security import Caller, require
from service.server.api.table_lookup import find_table

router = APIRouter(tags=["service"])


@router.get("/settings", responses=LIST_RESPONSES)
def settings(
    context: ContextDep,
    request: Request,
    caller: Annotated[Caller, require("read")],
    table: Annotated[str | None, Query(description="The settings of this table instead of the service's.")] = None,
) -> Response:
    """Every setting in force and its origin; secrets are hidden."""
    if table is None:
        caller.require_all_tables()
        return list_response(request, serializers.service_settings(context.config))
    found = with_observed_reads(context.store, find_table(context, table))
    return list_response(request, serializers.table_settings(found))
