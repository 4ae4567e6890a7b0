# SPDX-License-Identifier: Apache-2.0
"""Every setting in force, with the place its value came from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.control.config.loader import Config

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
    """One setting: its value for people, as it is, and where it came from."""

    setting: str
    value: str
    raw: str
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingGroup:
    """Settings that belong together."""

    name: str
    lines: tuple[SettingLine, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsPage:
    """The settings of the service, or of one ``table``."""

    table: str
    file: str
    groups: tuple[SettingGroup, ...]


def settings_page(settings: Sequence[Mapping[str, Any]], table: str, config: Config) -> SettingsPage:
    """``settings`` as documents, by section and in their own order."""
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
    return SettingsPage(
        table=table,
        file=config.file_name if config.file else "",
        groups=tuple(SettingGroup(name=name, lines=tuple(lines)) for name, lines in groups.items()),
    )
