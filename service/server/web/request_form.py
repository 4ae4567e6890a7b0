# SPDX-License-Identifier: Apache-2.0
"""The form that requests plans, with settings for one request; it is filled in again if a setting is wrong."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from planner.policy.policy import FIELD_PARSERS, setting_name
from service.control import serializers
from service.control.config.loader import Config
from service.control.config.table_settings import ConfiguredTable, OverrideError, configure_table
from service.problems import describe_error
from service.server.web.rendering import table_path
from service.text import plural

#: settings with their own field, because people try them first
COMMON_SETTINGS = ("small_file_limit", "target_file_max", "quiet_period", "sort_columns")
MAX_OVERRIDES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingField:
    """A setting of the form; ``current`` is its value without the request."""

    key: str
    value: str
    current: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestForm:
    """The form that requests plans. ``others`` are pairs that the person added; ``error`` is the API's message."""

    kind: str
    common: tuple[SettingField, ...]
    others: tuple[SettingField, ...]
    keys: tuple[str, ...]
    error: str
    is_open: bool


def request_form(
    config: Config, table: ConfiguredTable, *, kind: str, keys: Sequence[str], values: Sequence[str]
) -> RequestForm:
    """Return the form of ``table``, filled in with ``keys`` and ``values`` as a person has sent them."""
    in_force = {row["setting"]: row["text"] for row in serializers.table_settings(table)}
    given = list(zip(keys, values, strict=False))
    message = ""
    try:
        overrides = checked_overrides(config, table, keys, values)
    except OverrideError as error:
        overrides, message = {}, describe_error(error)
    first = {key: value for key, value in reversed(given) if key in COMMON_SETTINGS}
    others = [pair for pair in given if pair[0] not in COMMON_SETTINGS and any(pair)]
    return RequestForm(
        kind=kind,
        common=tuple(SettingField(key=key, value=first.get(key, ""), current=in_force[key]) for key in COMMON_SETTINGS),
        others=tuple(SettingField(key=key, value=value, current="") for key, value in [*others, ("", "")]),
        keys=tuple(sorted(name for knob in FIELD_PARSERS if (name := setting_name(knob)) not in COMMON_SETTINGS)),
        error=message,
        is_open=bool(message or overrides),
    )


def checked_overrides(
    config: Config, table: ConfiguredTable, keys: Sequence[str], values: Sequence[str]
) -> dict[str, str]:
    """Return the settings that were filled in. Raises OverrideError for the first one that is not valid."""
    if len(keys) != len(values):
        raise OverrideError(f"{plural(len(keys), 'setting')} and {plural(len(values), 'value')} do not pair up")
    overrides: dict[str, str] = {}
    for key, value in _filled_in(keys, values):
        if not key:
            raise OverrideError(f"the value {value!r} has no setting")
        if key in overrides:
            raise OverrideError(f"{key} is set twice: {overrides[key]!r} and {value!r}")
        overrides[key] = value
    configure_table(config, table.ref, overrides)
    return overrides


def _filled_in(keys: Sequence[str], values: Sequence[str]) -> Iterator[tuple[str, str]]:
    for key, value in zip(map(str.strip, keys), map(str.strip, values), strict=True):
        # A common setting whose field is empty stays unchanged.
        if value or (key and key not in COMMON_SETTINGS):
            yield key, value


def overrides_as_text(overrides: Mapping[str, Any]) -> dict[str, str]:
    """Convert the settings of a request from JSON values to the text that a person writes."""

    def text(value: Any) -> str:
        if isinstance(value, bool):
            return str(value).lower()
        return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)

    return {key: text(value) for key, value in overrides.items()}


def request_form_path(table: str, partition: str | None, kind: str, overrides: Iterable[tuple[str, str]]) -> str:
    """Return the address of a table's form, filled in."""
    query = [("partition", partition)] if partition else []
    query += [("kind", kind)] if kind else []
    for key, value in overrides:
        query += [("key", key), ("value", value)]
    return f"{table_path(table)}?{urlencode(query)}#request" if query else f"{table_path(table)}#request"
