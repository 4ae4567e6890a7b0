# SPDX-License-Identifier: Apache-2.0
"""The documents of a table's history: its actions, newest first."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lake.actions import FileChanges, TableAction
    from service.control.planning.table_history import TableActions


def action_documents(found: "TableActions") -> list[dict[str, Any]]:
    """Return the actions of a page. ``actor`` requested the plan of the action, as far as the database knows it."""
    return [_action(found, action) for action in found.page.actions]


def _action(found: "TableActions", action: "TableAction") -> dict[str, Any]:
    plan = found.plans.get(action.plan_id or "")
    return {
        "key": action.key,
        "instant": action.instant,
        "action": action.action,
        "operation": action.operation,
        "state": action.state,
        "is_rewrite": action.is_rewrite,
        "began_at": action.began_at,
        "completed_at": action.completed_at,
        "by": action.by,
        "plan_id": action.plan_id,
        "epoch": action.epoch,
        "actor": plan.actor if plan is not None else None,
        "partitions": action.partitions,
        "added": _changes(action.added),
        "removed": _changes(action.removed),
        "notes": action.notes,
    }


def _changes(changes: "FileChanges") -> dict[str, Any]:
    return {
        "count": changes.count,
        "bytes": changes.bytes,
        "files": [
            {"partition": file.partition, "file_id": file.file_id, "path": file.path, "bytes": file.bytes}
            for file in changes.files
        ],
    }
