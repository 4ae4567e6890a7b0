# SPDX-License-Identifier: Apache-2.0
"""The page of settings: every setting in force and its origin; changed settings come first."""

from collections.abc import Mapping, Sequence
from typing import Any

from planner.policy.policy import FIELD_PARSERS, setting_name
from service.control.config.loader import Config
from service.server.web.rendering import PageContent

#: section of the configuration → the title of its group, where this is not the section's name with a capital
_TITLES = {
    "http": "HTTP",
    "oidc": "OpenID Connect",
    "openlineage": "OpenLineage",
    "opentelemetry": "OpenTelemetry",
    "notify": "Notifications",
    "sources": "Sources",
    "write_options": "Write options",
}

#: the origin of a setting that is not set
_DEFAULT = "default"


def settings_page(settings: Sequence[Mapping[str, Any]], table: str, search: str, config: Config) -> PageContent:
    """Return the page of ``settings``: first those that are set, then the defaults; each part is grouped by section.

    Only settings whose name, value or origin contains ``search``, regardless of case, are on the page. A search among
    the service's settings also names the tables' settings that contain ``search``.
    """
    found = [entry for entry in settings if _matches(entry, search.lower())]
    changed = [entry for entry in found if entry["origin"] != _DEFAULT]
    defaults = [entry for entry in found if entry["origin"] == _DEFAULT]
    return PageContent(
        table=table,
        search=search,
        file=config.file_name if config.file else "",
        total=len(settings),
        changed_count=len(changed),
        default_count=len(defaults),
        changed=_grouped(changed),
        defaults=_grouped(defaults),
        table_settings=_table_setting_names(search.lower()) if search and not table else (),
    )


def _table_setting_names(search: str) -> tuple[str, ...]:
    return tuple(name for knob in FIELD_PARSERS if search in (name := setting_name(knob)))


def _matches(entry: Mapping[str, Any], search: str) -> bool:
    return any(search in str(entry[field]).lower() for field in ("setting", "text", "origin"))


def _grouped(settings: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for entry in settings:
        section, dot, _ = entry["setting"].partition(".")
        title = _TITLES.get(section) or (section.capitalize() if dot else "Policy")
        groups.setdefault(title, []).append(entry)
    return groups
