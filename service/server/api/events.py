# SPDX-License-Identifier: Apache-2.0
"""``/v1/events``: writers say what they have just written, and the scheduler looks at it at once."""

from typing import Annotated, Any

from fastapi import APIRouter
from starlette.responses import Response

from service.control.config.tables import ConfiguredTable
from service.modes import PLANNED_MODES
from service.server.api.context import Context, ContextDep
from service.server.api.request_types import Partitions, RequestBody, TableName
from service.server.api.responses import json_response
from service.server.api.security import Caller, require
from service.server.api.table_lookup import find_table_by_name_or_location

router = APIRouter(prefix="/events", tags=["events"])


class CommitReport(RequestBody):
    """A commit to a table (its name, or its location), to ``partitions`` or, without them, anywhere in it."""

    table: TableName
    partitions: Partitions | None = None


@router.post("/commit", status_code=202)
def table_written(context: ContextDep, caller: Annotated[Caller, require("write")], commit: CommitReport) -> Response:
    """A writer has committed to a table: these partitions are scanned now, and planned as at a regular scan.

    Partitions that do not exist are no error. Reports that come in a burst are one scan.
    """
    table = find_table_by_name_or_location(context, commit.table)
    return report_written(context, table, commit.partitions, caller)


def report_written(
    context: Context, table: ConfiguredTable, partitions: list[str] | None, caller: Caller, **facts: Any
) -> Response:
    """Store a report; a table that is not in mode propose or compact is not looked at before its next regular scan."""
    named = None if partitions is None else sorted({partition.strip("/") for partition in partitions})
    accepted = table.mode in PLANNED_MODES
    if accepted:
        delay = context.config.daemon.report_delay
        context.store.report_written(table.name, named, reporter=caller.actor, delay=delay)
    reason = None if accepted else f"{table.name} is in mode {table.mode}"
    response = json_response({"table": table.name, "partitions": named, "accepted": accepted, "reason": reason} | facts)
    response.status_code = 202
    return response
