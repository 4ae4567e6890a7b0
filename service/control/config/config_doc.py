# SPDX-License-Identifier: Apache-2.0
"""Renews the tables of docs/configuration.md from the settings.

Run it with ``python -m service.control.config.config_doc``. A table stands between ``<!-- generated: SECTION -->``
and ``<!-- end -->``; everything else on the page is written by hand.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel

from lake.units import format_bytes, format_duration, parse_bytes
from planner.policy.fields import GLOBAL_FIELDS
from planner.policy.parsing import parse_byte_count
from planner.policy.policy import FIELD_PARSERS, SizingPolicy, setting_name
from service.control.config.loader import SECTIONS
from service.control.config.sections import SourceSettings, TableRule

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"

_NO_DEFAULT = "–"
_TABLE = re.compile(r"(?<=<!-- generated: )(?P<section>.*?)( -->\n).*?(?=<!-- end -->)", re.DOTALL)


class _SettingRow(NamedTuple):
    name: str
    default: str
    meaning: str


def _format_default(value: Any, *, size: bool) -> str:
    """Return a default as a person writes it; a dash if there is none, or if it is computed for each user."""
    if value is None or value in ("", ()):
        return _NO_DEFAULT
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, timedelta):
        return format_duration(value) if value else "0"
    if isinstance(value, tuple):
        return f"`{json.dumps(value)}`"
    if isinstance(value, str):
        return f"`{value}`"
    return format_bytes(value).replace(".0 ", " ") if size else f"{value:.12g}"


def _section_keys(model: type[BaseModel]) -> Iterator[_SettingRow]:
    for name, key in model.model_fields.items():
        size = any(getattr(rule, "func", None) is parse_bytes for rule in key.metadata)
        default = None if key.is_required() or key.default_factory else key.default
        yield _SettingRow(name, _format_default(default, size=size), key.description or "")


def _policy_keys() -> Iterator[_SettingRow]:
    for knob in fields(SizingPolicy):
        if knob.name in FIELD_PARSERS:
            default = _format_default(knob.default, size=FIELD_PARSERS[knob.name] is parse_byte_count)
            scope = "; not in `[[tables]]`" if knob.name in GLOBAL_FIELDS else ""
            yield _SettingRow(setting_name(knob.name), default, knob.metadata.get("meaning", "") + scope)


def _table(keys: Sequence[_SettingRow]) -> str:
    """Return a Markdown table, without the column of defaults if no key has a default."""
    if all(key.default == _NO_DEFAULT for key in keys):
        return "| key | meaning |\n|---|---|\n" + "".join(f"| `{key.name}` | {key.meaning} |\n" for key in keys)
    rows = "".join(f"| `{key.name}` | {key.default} | {key.meaning} |\n" for key in keys)
    return f"| key | default | meaning |\n|---|---|---|\n{rows}"


def section_tables() -> dict[str, str]:
    """Return the table of each section, by the section's name on the page.

    Raises ValueError for a key without a meaning.
    """
    keys = {f"[{name}]": [*_section_keys(model)] for name, model in SECTIONS.items()}
    keys |= {
        "[[sources]]": [*_section_keys(SourceSettings)],
        "[[tables]]": [*_section_keys(TableRule)],
        "[defaults]": [*_policy_keys()],
    }
    if silent := [f"{section} {key.name}" for section, of in keys.items() for key in of if not key.meaning]:
        raise ValueError(f"no description: {', '.join(silent)}")
    return {section: _table(of) for section, of in keys.items()}


def render(page: str) -> str:
    """Return ``page`` with every table renewed. Raises ValueError unless the page has one place for each section."""
    new = section_tables()
    sections = [match["section"] for match in _TABLE.finditer(page)]
    if sorted(sections) != sorted(new):
        raise ValueError(f"the page has places for {', '.join(sections)}; the sections are {', '.join(new)}")
    return _TABLE.sub(lambda match: f"{match['section']} -->\n\n{new[match['section']]}\n", page)


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
