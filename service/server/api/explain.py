# SPDX-License-Identifier: Apache-2.0
"""The route ``/v1/tables/{table}/explain``: a new scan that explains the decision on every file of a table."""

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from lake.capabilities import likely_writers
from lake.errors import one_line
from service import problems
from service.control.planning import scan
from service.control.planning.decision_summary import explanation_document
from service.control.planning.observed_reads import with_observed_reads
from service.problems import ProblemError
from service.server.api.context import ContextDep
from service.server.api.request_slots import RequestSlots
from service.server.api.responses import json_response
from service.server.api.table_lookup import find_table

router = APIRouter(prefix="/tables", tags=["tables"])

#: concurrent listings: each may read much of a lake and keep a table's whole file list in memory
_MAX_CONCURRENT = 4
#: files in one answer; items per partition and reason have no limit
_MAX_FILES = 100_000
_LISTING_SLOTS = RequestSlots(
    _MAX_CONCURRENT, refusal=f"{_MAX_CONCURRENT} tables are being listed already", retry_seconds=2
)


@router.get("/{table}/explain")
def explain(
    context: ContextDep,
    table: str,
    partition: Annotated[str | None, Query(description="Only this partition.")] = None,
    files: Annotated[bool, Query(description="One item per file instead of one per partition and reason.")] = False,
) -> Response:
    """List the table's files now and explain each: chosen for a plan, or left alone, why, and by which setting.

    Nothing is stored. The answering process lists the files itself and needs the same access as the scheduler.
    """
    found = with_observed_reads(context.store, find_table(context, table))
    with _LISTING_SLOTS.taken():
        try:
            decided = scan.explain_table(context.store, found, None if partition is None else partition.strip("/"))
            writers = likely_writers(found.adapter, decided.snapshot)
        except OSError as error:
            why = f"{one_line(error)}; the process that serves HTTP needs the scheduler's access to the tables"
            raise ProblemError(problems.TRANSIENT, f"{found.name} can't be listed here: {why}") from error
    if files and decided.decisions.num_rows > _MAX_FILES:
        too_many = (
            f"{found.name} has {decided.decisions.num_rows} file slices, more than the {_MAX_FILES} of one answer"
        )
        raise ProblemError(problems.BAD_SETTING, f"{too_many}; name a partition, or leave out files")
    return json_response(
        explanation_document(found, decided, files=files, is_partial=partition is not None, writers=writers)
    )
