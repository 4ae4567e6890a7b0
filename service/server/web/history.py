# SPDX-License-Identifier: Apache-2.0
"""The page of a table's history: the actions on it, newest first, with their files."""

from collections.abc import Mapping
from typing import Any

from lake.errors import LakefoldError
from service.control.config.table_settings import ConfiguredTable
from service.control.planning.table_history import DEFAULT_FILES, load_actions
from service.control.serializers import action_documents
from service.problems import describe_error
from service.server.api.context import Context
from service.server.api.history import HISTORY_SLOTS
from service.server.web.formatting import as_sentence, shell_command
from service.server.web.rendering import PageContent, query_path, table_path
from service.text import describe_file_changes

ACTIONS_PER_PAGE = 25


def history_page(context: Context, table: ConfiguredTable, after: str | None) -> PageContent:
    """Return a page of the actions on ``table`` that follow the key ``after``.

    The field ``error`` of the page is the reason why the table can't be read.
    """
    actions: list[dict[str, Any]] = []
    notes: tuple[str, ...] = ()
    following, message = None, ""
    try:
        with HISTORY_SLOTS.taken():
            found = load_actions(context.store, table, limit=ACTIONS_PER_PAGE, before=after)
        actions, notes, following = action_documents(found), found.page.notes, found.page.next_key
    except (LakefoldError, OSError) as error:
        message = describe_error(error)
    here = {"table": table.name}
    words = ("--after", after) if after is not None else ()
    return PageContent(
        table=table.name,
        path=table_path(table.name),
        actions=tuple(_with_texts(action) for action in actions),
        notes=notes,
        error=as_sentence(message),
        first_url=query_path("/history", here) if after is not None else "",
        next_url=query_path("/history", here, after=following) if following is not None else "",
        command=shell_command("lakefold", "tables", "history", table.name, *words, "--files", str(DEFAULT_FILES)),
    )


def _with_texts(action: Mapping[str, Any]) -> dict[str, Any]:
    texts = {f"{key}_text": describe_file_changes(action[key]) for key in ("added", "removed")}
    changes = [
        (sign, file["path"] or "/".join(part for part in (file["partition"], file["file_id"]) if part), file["bytes"])
        for sign, key in (("+", "added"), ("−", "removed"))
        for file in action[key]["files"]
    ]
    more = sum(action[key]["count"] - len(action[key]["files"]) for key in ("added", "removed"))
    return {**action, **texts, "changes": changes, "more": more}
