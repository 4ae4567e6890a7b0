# SPDX-License-Identifier: Apache-2.0
"""The page of the audit trail: actions and their actors."""

from dataclasses import dataclass
from urllib.parse import urlencode

from service.control.store import AuditEntry
from service.control.store.audit import AuditTrail
from service.server.web.formatting import shell_command

ENTRIES_PER_PAGE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditPage:
    """A page of entries, newest first; limited to ``table`` and ``actor`` unless they are ''."""

    entries: tuple[AuditEntry, ...]
    table: str
    actor: str
    first_url: str
    next_url: str
    command: str


def audit_page(store: AuditTrail, *, table: str, actor: str, after: int | None) -> AuditPage:
    """Return the page of entries that follow the entry with the number ``after``."""
    found = store.audit_entries(table=table or None, actor=actor or None, limit=ENTRIES_PER_PAGE + 1, after=after)
    shown = found[:ENTRIES_PER_PAGE]
    chosen = {key: value for key, value in (("table", table), ("actor", actor)) if value}
    words = [word for key, value in chosen.items() for word in (f"--{key}", value)]
    return AuditPage(
        entries=tuple(shown),
        table=table,
        actor=actor,
        first_url=_audit_path(chosen) if after is not None else "",
        next_url=_audit_path(chosen | {"after": str(shown[-1].number)}) if len(found) > len(shown) else "",
        command=shell_command("lakefold", "audit", *words),
    )


def _audit_path(query: dict[str, str]) -> str:
    return f"/audit?{urlencode(query)}" if query else "/audit"
