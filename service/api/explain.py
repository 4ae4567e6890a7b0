# SPDX-License-Identifier: Apache-2.0
"""``/v1/tables/{table}/explain``: a fresh account of every file of a table."""

import threading
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from lake.errors import one_line
from service import problems
from service.api.context import Here
from service.api.paging import document
from service.api.problems import ProblemError
from service.api.table_lookup import named
from service.planning import scan
from service.planning.account import explanation
from service.problems import CommandError

router = APIRouter(prefix="/tables", tags=["tables"])

#: listings at a time: each may read much of a lake and hold a table's whole list of files
_MOST_AT_ONCE = 4
#: files named in one answer; the lines by partition have no such limit
_MOST_FILES = 100_000
_listing = threading.BoundedSemaphore(_MOST_AT_ONCE)


@router.get("/{table}/explain")
def explain(
    here: Here,
    table: str,
    partition: Annotated[str | None, Query(description="Only this partition.")] = None,
    files: Annotated[bool, Query(description="One item per file instead of one per partition and reason.")] = False,
) -> Response:
    """List the table's files now and account for each: chosen for a plan, or left alone, why, and by which setting.

    Nothing is stored. The process that answers lists the files itself and needs the same access as the scheduler.
    """
    found = named(here, table)
    if not _listing.acquire(blocking=False):
        raise ProblemError(problems.TOO_MANY, f"{_MOST_AT_ONCE} tables are being listed already", {"Retry-After": "2"})
    try:
        decided = scan.explain(here.store, found, None if partition is None else partition.strip("/"))
        writers = scan.writers_of(decided)
    except OSError as error:
        why = f"{one_line(error)}; the process that serves HTTP needs the scheduler's access to the tables"
        raise CommandError(problems.TRANSIENT, f"{found.name} can't be listed here: {why}") from error
    finally:
        _listing.release()
    if files and decided.decisions.num_rows > _MOST_FILES:
        too_many = (
            f"{found.name} has {decided.decisions.num_rows} file slices, more than the {_MOST_FILES} of one answer"
        )
        raise CommandError(problems.SETTING, f"{too_many}; name a partition, or leave out files")
    return document(explanation(found, decided, files=files, part=partition is not None, writers=writers))
