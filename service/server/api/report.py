# SPDX-License-Identifier: Apache-2.0
"""The route ``/v1/report``: tables and savings by owner, tag or database."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from service.control import serializers
from service.server.api.context import ContextDep
from service.server.api.filters import TableFilterQuery
from service.server.api.responses import LIST_RESPONSES, list_response

router = APIRouter(tags=["service"])


@router.get("/report", responses=LIST_RESPONSES)
def report(
    context: ContextDep,
    request: Request,
    table_filter: TableFilterQuery,
    by: Annotated[Literal["owner", "tag", "database"], Query(description="The grouping.")] = "owner",
) -> Response:
    """Tables and savings by owner, tag or database, the `group` with the most rewritten bytes first.

    The group `null` has the tables without owner, tag or database. Files are those of the last good scans; completed
    plans, removed files, rewritten and freed bytes are totals since the beginning. A table with several tags counts in
    each of them.
    """
    figures = context.lake_cache.get(fresh=True).figures
    return list_response(request, serializers.report(by, context.store.table_totals(**table_filter), figures))
