# SPDX-License-Identifier: Apache-2.0
"""The routes ``/v1/events``: writers report commits, Trino reports queries. Reported partitions are scanned at once."""

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.responses import Response

from service.control.config.table_settings import ConfiguredTable
from service.control.planning.observed_reads import record_trino_reads
from service.modes import PLANNED_MODES
from service.server.api.context import Context, ContextDep
from service.server.api.request_types import Partitions, RequestBody, TableName
from service.server.api.responses import json_response
from service.server.api.security import Caller, require
from service.server.api.table_lookup import find_table_by_name_or_location

router = APIRouter(prefix="/events", tags=["events"])


class CommitReport(RequestBody):
    """A commit to a table (its name or location): to `partitions` or, without them, to an unknown part of the table."""

    table: TableName
    partitions: Partitions | None = None


@router.post("/commit", status_code=202)
def table_written(context: ContextDep, caller: Annotated[Caller, require("write")], commit: CommitReport) -> Response:
    """Report a writer's commit: its partitions are scanned now and planned as at a regular scan.

    Partitions that do not exist are not an error. A burst of reports causes one scan.
    """
    table = find_table_by_name_or_location(context, commit.table)
    return report_written(context, table, commit.partitions, caller)


class TrinoInput(BaseModel):
    """A table that a query read."""

    schema_name: str = Field(alias="schema", max_length=1024)
    table: str = Field(max_length=1024)


class TrinoInputs(BaseModel):
    """The tables that a query read and wrote."""

    inputs: list[TrinoInput] = Field(default_factory=list, max_length=10_000)


class TrinoMetadata(BaseModel):
    """The identity of a query."""

    query_id: str = Field(alias="queryId", min_length=1, max_length=256)


class TrinoQuery(BaseModel):
    """The parts of Trino's `QueryCompletedEvent` that are used; all others are ignored."""

    metadata: TrinoMetadata
    io: TrinoInputs = Field(alias="ioMetadata")


@router.post("/trino", status_code=202)
def trino_query(context: ContextDep, caller: Annotated[Caller, require("write")], query: TrinoQuery) -> Response:
    """Report a completed query, as Trino's HTTP event listener does. It counts as one read of each table that it read.

    A query that is delivered again within a day, by `queryId`, counts once. Tables that are not served here are
    ignored. `reads` has the tables that were counted.
    """
    tables = ((one.schema_name, one.table) for one in query.io.inputs)
    counted = record_trino_reads(context.store, query.metadata.query_id, tables)
    response = json_response({"reads": counted})
    response.status_code = 202
    return response


def report_written(
    context: Context, table: ConfiguredTable, partitions: list[str] | None, caller: Caller, **facts: Any
) -> Response:
    """Store a report. It is not accepted if the table's mode is neither propose nor compact."""
    named = None if partitions is None else sorted({partition.strip("/") for partition in partitions})
    accepted = table.mode in PLANNED_MODES
    if accepted:
        delay = context.config.daemon.report_delay
        context.store.report_written(table.name, named, reporter=caller.actor, delay=delay)
    reason = None if accepted else f"{table.name} is in mode {table.mode}"
    response = json_response({"table": table.name, "partitions": named, "accepted": accepted, "reason": reason} | facts)
    response.status_code = 202
    return response
