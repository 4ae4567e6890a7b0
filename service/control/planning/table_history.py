# SPDX-License-Identifier: Apache-2.0
"""A table's history for people: the actions on it, and the actors of lakefold's plans among them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lake.actions import ActionPage
from lake.capabilities import ListsActions
from lake.errors import Rejected
from service.control.config.table_settings import ConfiguredTable

if TYPE_CHECKING:
    from service.control.store import PlanView, Store

MAX_ACTIONS = 200
"""Maximum number of actions on a page."""
MAX_FILES = 1000
"""Maximum number of added files, and of removed files, that an action lists."""
DEFAULT_FILES = 10
"""The number of added and of removed files that an action lists by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableActions:
    """A page of a table's actions; ``plans`` are the plans among them that this database knows, by id."""

    table: str
    page: ActionPage
    plans: "Mapping[str, PlanView]"


def load_actions(
    store: "Store", table: ConfiguredTable, *, limit: int, max_files: int = DEFAULT_FILES, before: str | None = None
) -> TableActions:
    """Return a page of the actions on ``table``, newest first, as ``ListsActions.actions`` does.

    Raises Rejected for a format whose tables do not show their actions, and the errors of reading them.
    """
    adapter = table.adapter
    if not isinstance(adapter, ListsActions):
        raise Rejected(f"{table.name}: {adapter.name} tables do not show the actions on them, so there is no history")
    superseded = [due.version for due in store.awaiting_deletion(table.ref)]
    page = adapter.actions(table.ref, superseded, limit=limit, max_files=max_files, before=before)
    plan_ids = {action.plan_id for action in page.actions if action.plan_id is not None}
    return TableActions(table=table.name, page=page, plans=store.plans_by_id(plan_ids) if plan_ids else {})
