# SPDX-License-Identifier: Apache-2.0
"""The document of an entry of the audit: who asked for what."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from service.control.store import AuditEntry


def audit_entry(entry: "AuditEntry") -> dict[str, Any]:
    """Who asked for what, when, and through which door."""
    return {
        "number": entry.number,
        "at": entry.at,
        "actor": entry.actor,
        "door": entry.door,
        "action": entry.action,
        "table": entry.table,
        "subject": entry.subject,
        "detail": entry.detail,
    }
