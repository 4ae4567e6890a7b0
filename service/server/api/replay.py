# SPDX-License-Identifier: Apache-2.0
"""``/v1/tables/{table}/replay`` and ``advice``: the table's own history under other policies, and of other writers."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from service import problems
from service.control import serializers
from service.control.planning.replay import (
    DEFAULT_DAYS,
    MAX_PERIOD,
    advise_table,
    deadline_check,
    parse_grid,
    replay_table,
)
from service.server.api.context import ContextDep
from service.server.api.problems import HttpProblemError
from service.server.api.responses import json_response
from service.server.api.table_lookup import find_table

router = APIRouter(prefix="/tables", tags=["tables"])

#: each keeps a core busy for as long as it may take
_MAX_CONCURRENT = 1
_MAX_SECONDS = 30.0
_replay_slots = threading.BoundedSemaphore(_MAX_CONCURRENT)
Days = Annotated[float, Query(gt=0, le=MAX_PERIOD.days, description="How much of the past.")]


@contextmanager
def replay_slot() -> Iterator[None]:
    """Raise ProblemError where somebody else's table is being replayed."""
    if not _replay_slots.acquire(blocking=False):
        raise HttpProblemError(problems.TOO_MANY_REQUESTS, "another table is being replayed", {"Retry-After": "5"})
    try:
        yield
    finally:
        _replay_slots.release()


@router.get("/{table}/replay")
def replay(
    context: ContextDep,
    table: str,
    days: Days = DEFAULT_DAYS,
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
    grid = parse_grid(settings or [])
    found = find_table(context, table)
    with replay_slot():
        done = replay_table(
            context.config, context.store, found, days=days, grid=grid, check=deadline_check(_MAX_SECONDS)
        )
    return json_response(serializers.replay(done.table, done.history, done.comparison, done.rates))


@router.get("/{table}/advice")
def advice(context: ContextDep, table: str, days: Days = DEFAULT_DAYS) -> Response:
    """Which writes made the table's small files, and the one setting of its writer whose change would have saved most.

    `change` is null where nothing is worth it. Stores nothing. 422 and 429 as for a replay.
    """
    found = find_table(context, table)
    with replay_slot():
        history, advised = advise_table(context.store, found, days=days, check=deadline_check(_MAX_SECONDS))
    return json_response(serializers.advice(found.name, history, advised))
