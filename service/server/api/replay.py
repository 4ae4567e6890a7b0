# SPDX-License-Identifier: Apache-2.0
"""The routes ``/v1/tables/{table}/replay`` and ``advice``: a table's history under other policies or settings."""

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

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
from service.server.api.request_slots import RequestSlots
from service.server.api.responses import json_response
from service.server.api.table_lookup import find_table

router = APIRouter(prefix="/tables", tags=["tables"])

_MAX_SECONDS = 30.0
#: each replay uses a whole core, for up to ``_MAX_SECONDS``
REPLAY_SLOT = RequestSlots(1, refusal="another table is being replayed", retry_seconds=5)
Days = Annotated[float, Query(gt=0, le=MAX_PERIOD.days, description="The length of the replayed history, in days.")]


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
    """Replay the table's last days under each combination of settings: the resulting files, and the cost.

    Nothing is stored. The answering process reads the table's history itself and needs the scheduler's access. 422 for
    more than 24 policies or 100,000 commits, or if it takes longer than half a minute; 429 while another replay is
    running. docs/planning.md explains how each number is computed.
    """
    grid = parse_grid(settings or [])
    found = find_table(context, table)
    with REPLAY_SLOT.taken():
        done = replay_table(
            context.config, context.store, found, days=days, grid=grid, check=deadline_check(_MAX_SECONDS)
        )
    return json_response(serializers.replay(done.table, done.history, done.comparison, done.rates))


@router.get("/{table}/advice")
def advice(context: ContextDep, table: str, days: Days = DEFAULT_DAYS) -> Response:
    """The writes that made the table's small files, and the change of a writer's setting that would have saved most.

    `recommended_change` is null if no change is worth it. Nothing is stored. 422 and 429 as for a replay.
    """
    found = find_table(context, table)
    with REPLAY_SLOT.taken():
        history, advised = advise_table(context.store, found, days=days, check=deadline_check(_MAX_SECONDS))
    return json_response(serializers.advice(found.name, history, advised))
