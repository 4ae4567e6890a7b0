# SPDX-License-Identifier: Apache-2.0
"""Settings for one request: the fields of the form that asks for plans, filled in again where one is wrong."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from planner.policy import KNOBS, setting_name
from service import documents
from service.config.loader import Config
from service.config.tables import ConfiguredTable, OverrideError, configure
from service.problems import in_words
from service.text import plural
from service.web.rendering import table_path

#: settings with a field of their own: what people try out first
OFFERED = ("small_file_limit", "target_file_max", "quiet_period", "sort_columns")
MOST_OVERRIDES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A setting of the form; ``in_force`` is what it is without the request."""

    key: str
    value: str
    in_force: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestForm:
    """The form that asks for plans. ``others`` are pairs that the person named; ``wrong`` is what the API says."""

    kind: str
    offered: tuple[Field, ...]
    others: tuple[Field, ...]
    keys: tuple[str, ...]
    wrong: str
    opened: bool


def request_form(
    config: Config, table: ConfiguredTable, *, kind: str, keys: Sequence[str], values: Sequence[str]
) -> RequestForm:
    """The form of ``table``, with ``keys`` and their ``values`` as a person has sent it."""
    in_force = {row["setting"]: row["text"] for row in documents.table_settings(table)}
    given = list(zip(keys, values, strict=False))
    wrong = ""
    try:
        overrides = checked_overrides(config, table, keys, values)
    except OverrideError as error:
        overrides, wrong = {}, in_words(error)
    first = {key: value for key, value in reversed(given) if key in OFFERED}
    others = [pair for pair in given if pair[0] not in OFFERED and any(pair)]
    return RequestForm(
        kind=kind,
        offered=tuple(Field(key=key, value=first.get(key, ""), in_force=in_force[key]) for key in OFFERED),
        others=tuple(Field(key=key, value=value, in_force="") for key, value in [*others, ("", "")]),
        keys=tuple(sorted(name for knob in KNOBS if (name := setting_name(knob)) not in OFFERED)),
        wrong=wrong,
        opened=bool(wrong or overrides),
    )


def checked_overrides(
    config: Config, table: ConfiguredTable, keys: Sequence[str], values: Sequence[str]
) -> dict[str, str]:
    """The settings that were filled in. Raises OverrideError for the first that can't be used."""
    if len(keys) != len(values):
        raise OverrideError(f"{plural(len(keys), 'setting')} and {plural(len(values), 'value')} do not pair up")
    overrides: dict[str, str] = {}
    for key, value in _filled_in(keys, values):
        if not key:
            raise OverrideError(f"{value!r} is the value of which setting?")
        if key in overrides:
            raise OverrideError(f"{key} is set twice: {overrides[key]!r} and {value!r}")
        overrides[key] = value
    configure(config, table.ref, overrides)
    return overrides


def _filled_in(keys: Sequence[str], values: Sequence[str]) -> Iterator[tuple[str, str]]:
    for key, value in zip(map(str.strip, keys), map(str.strip, values), strict=True):
        if value or (key and key not in OFFERED):  # a field of its own that is empty leaves the setting as it is
            yield key, value


def as_text(overrides: Mapping[str, Any]) -> dict[str, str]:
    """Settings of a request, which HTTP may bring as JSON has them, as a person writes them."""

    def text(value: Any) -> str:
        if isinstance(value, bool):
            return str(value).lower()
        return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)

    return {key: text(value) for key, value in overrides.items()}


def form_path(table: str, partition: str | None, kind: str, overrides: Iterable[tuple[str, str]]) -> str:
    """The form of a table, filled in."""
    query = [("partition", partition)] if partition else []
    query += [("kind", kind)] if kind else []
    for key, value in overrides:
        query += [("key", key), ("value", value)]
    return f"{table_path(table)}?{urlencode(query)}#request" if query else f"{table_path(table)}#request"
