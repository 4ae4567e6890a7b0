# SPDX-License-Identifier: Apache-2.0
"""The page of settings: every setting in force and its origin."""

from collections.abc import Mapping, Sequence
from typing import Any

from service.control.config.loader import Config
from service.server.web.rendering import PageContent

_GROUPS = {
    "database": "Database",
    "daemon": "Daemon",
    "http": "HTTP",
    "spark": "Spark",
    "sources": "Sources",
    "write_options": "Write options",
}


def settings_page(settings: Sequence[Mapping[str, Any]], table: str, config: Config) -> PageContent:
    """Return the page of ``settings``, grouped by section in their own order."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for entry in settings:
        section = entry["setting"].partition(".")[0]
        groups.setdefault(_GROUPS.get(section, "Policy"), []).append(entry)
    return PageContent(table=table, file=config.file_name if config.file else "", groups=groups)
