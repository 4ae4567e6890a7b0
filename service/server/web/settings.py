# SPDX-License-Identifier: Apache-2.0
"""The page of settings: every setting in force and its origin."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingLine:
    """One setting: its value as text, its raw value, and its origin."""

    setting: str
    value: str
    raw: str
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingGroup:
    """A group of settings."""

    name: str
    lines: tuple[SettingLine, ...]


def settings_page(settings: Sequence[Mapping[str, Any]], table: str, config: Config) -> PageContent:
    """Return the page of ``settings``, grouped by section in their own order."""
    groups: dict[str, list[SettingLine]] = {}
    for entry in settings:
        section = entry["setting"].partition(".")[0]
        name = _GROUPS.get(section, "Policy")
        line = SettingLine(
            setting=entry["setting"],
            value=entry["text"],
            raw=str(entry["value"]),
            origin=entry["origin"],
        )
        groups.setdefault(name, []).append(line)
    return PageContent(
        table=table,
        file=config.file_name if config.file else "",
        groups=tuple(SettingGroup(name=name, lines=tuple(lines)) for name, lines in groups.items()),
    )
