# SPDX-License-Identifier: Apache-2.0
"""The document of an audit entry."""

from typing import TYPE_CHECKING, Any

from service.former_names import both_names

if TYPE_CHECKING:
    from service.control.store import AuditEntry


def audit_entry(entry: "AuditEntry") -> dict[str, Any]:
    """Return an audit entry: the actor, the action, the time, and the access channel."""
    document = {
        "number": entry.number,
        "at": entry.at,
        "actor": entry.actor,
        "channel": entry.door,
        "action": entry.action,
        "table": entry.table,
        "subject": entry.subject,
        "detail": entry.detail,
    }
    return both_names("audit entry", document)
