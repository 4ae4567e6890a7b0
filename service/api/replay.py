# SPDX-License-Identifier: Apache-2.0
"""``/v1/tables/{table}/replay`` and ``advice``: the table's own history under other policies, and of other writers."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from service import documents, problems
from service.api.context import Here
from service.api.paging import document
from service.api.problems import ProblemError
from service.api.table_lookup import named
from service.planning.replay import DAYS, LONGEST, advise_table, at_most, grid_of, replay_table

router = APIRouter(prefix="/tables", tags=["tables"])

#: each keeps a core busy for as long as it may take
_MOST_AT_ONCE = 1
_SECONDS = 30.0
_replaying = threading.BoundedSemaphore(_MOST_AT_ONCE)
Days = Annotated[float, Query(gt=0, le=LONGEST.days, description="How much of the past.")]


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Raise ProblemError where somebody else's table is being replayed."""
    if not _replaying.acquire(blocking=False):
        raise ProblemError(problems.TOO_MANY, "another table is being replayed", {"Retry-After": "5"})
    try:
        yield
    finally:
        _replaying.release()


@router.get("/{table}/replay")
def replay(
    here: Here,
    table: str,
    days: Days = DAYS,
    settings: Annotated[
        list[str] | None,
        Query(
            alias="set", max_length=20, description="A setting and the values to try, `target_file_max=256MiB,1GiB`."
        ),
    ] = None,
) -> Response:
    """What each combination of settings would have left of the table's last days, and what it would have cost.

    Stores nothing. The process that answers reads the table's history itself and needs the scheduler's access. 422
    where it asks for more than 24 policies or 100,000 commits, or takes longer than half a minute; 429 while another
    replay is under way. docs/planning.md says how each number comes about.
    """
    grid = grid_of(settings or [])
    found = named(here, table)
    with one_at_a_time():
        done = replay_table(here.config, here.store, found, days=days, grid=grid, check=at_most(_SECONDS))
    return document(documents.replay(done.table, done.history, done.comparison, done.rates))


@router.get("/{table}/advice")
def advice(here: Here, table: str, days: Days = DAYS) -> Response:
    """Which writes made the table's small files, and the one setting of its writer whose change would have saved most.

    `change` is null where nothing is worth it. Stores nothing. 422 and 429 as for a replay.
    """
    found = named(here, table)
    with one_at_a_time():
        history, advised = advise_table(here.store, found, days=days, check=at_most(_SECONDS))
    return document(documents.advice(found.name, history, advised))
