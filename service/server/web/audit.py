# SPDX-License-Identifier: Apache-2.0
"""The page of the audit trail: actions and their actors."""

from urllib.parse import urlencode

from service.control.store.audit import AuditTrail
from service.server.web.formatting import shell_command
from service.server.web.rendering import PageContent

ENTRIES_PER_PAGE = 100


def audit_page(store: AuditTrail, *, table: str, actor: str, after: int | None) -> PageContent:
    """Return the page of entries that follow the entry with the number ``after``."""
    found = store.audit_entries(table=table or None, actor=actor or None, limit=ENTRIES_PER_PAGE + 1, after=after)
    shown = found[:ENTRIES_PER_PAGE]
    chosen = {key: value for key, value in (("table", table), ("actor", actor)) if value}
    words = [word for key, value in chosen.items() for word in (f"--{key}", value)]
    return PageContent(
        entries=tuple(shown),
        table=table,
        actor=actor,
        first_url=_audit_path(chosen) if after is not None else "",
        next_url=_audit_path(chosen | {"after": str(shown[-1].number)}) if len(found) > len(shown) else "",
        command=shell_command("lakefold", "audit", *words),
    )


def _audit_path(query: dict[str, str]) -> str:
    return f"/audit?{urlencode(query)}" if query else "/audit"
