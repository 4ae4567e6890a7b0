# SPDX-License-Identifier: Apache-2.0
"""The route ``/v1/tables/{table}/history``: the actions on a table, newest first."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from service.control.planning.table_history import DEFAULT_FILES, MAX_ACTIONS, MAX_FILES, load_actions
from service.control.serializers import action_documents
from service.server.api.context import ContextDep
from service.server.api.request_slots import RequestSlots
from service.server.api.responses import LIST_RESPONSES, list_response
from service.server.api.table_lookup import find_table

router = APIRouter(prefix="/tables", tags=["tables"])

#: concurrent readings of histories: each reads the table's records or, in some formats, lists the table's files
HISTORY_SLOTS = RequestSlots(2, refusal="other histories are being read", retry_seconds=2)
Files = Annotated[
    int, Query(ge=0, le=MAX_FILES, description="At most this many added and this many removed files of each action.")
]
MAX_KEY_LENGTH = 200


@router.get("/{table}/history", responses=LIST_RESPONSES)
def list_actions(
    context: ContextDep,
    request: Request,
    table: str,
    limit: Annotated[int, Query(ge=1, le=MAX_ACTIONS, description="At most this many actions.")] = 50,
    after: Annotated[
        str | None, Query(max_length=MAX_KEY_LENGTH, description="Continue after the action with this `key`.")
    ] = None,
    files: Files = DEFAULT_FILES,
) -> Response:
    """The actions on a table, newest first: when, by whom, and which files were added and removed.

    The answering process reads the table itself, without Spark: depending on the format, it reads the records of the
    page's actions or lists the table's files. `notes` describe gaps in the history. 422 for a format whose tables show
    no actions, 429 while two other histories are being read.
    """
    found_table = find_table(context, table)
    with HISTORY_SLOTS.taken():
        found = load_actions(context.store, found_table, limit=limit, max_files=files, before=after)
    return list_response(
        request, action_documents(found), found.page.next_key, table=found.table, notes=found.page.notes
    )
