# SPDX-License-Identifier: Apache-2.0
"""The policy of a table: every setting of planning, rewriting and cleaning, validated.

A policy is built from settings under lakefold's own names or under the names of other tools
(``planner.policy.aliases``), so that an existing configuration can be pasted in.
"""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Literal

from lake.plan import VerificationLevel
from lake.units import GIB, MIB
from planner.policy.aliases import (
    ALIASES,
    IGNORED_KEYS,
    IGNORED_PREFIXES,
    TRIGGER_STRATEGY_KEYS,
    translate_dependent_keys,
)
from planner.policy.enums import BALANCED as BALANCED
from planner.policy.enums import PartitionFilter as PartitionFilter
from planner.policy.enums import RewriteFirst as RewriteFirst
from planner.policy.fields import PolicySettings
from planner.policy.parsing import (
    enum_parser,
    flatten_settings,
    parse_bool,
    parse_byte_count,
    parse_integer,
    parse_list,
    parse_lowercase,
    parse_lowercase_list,
    parse_number,
    parse_optional_text,
    parse_share,
    parse_size,
    parse_timedelta,
    strip_comment,
)
from planner.policy.validation import setting_name as setting_name
from planner.policy.validation import validation_errors

Dialect = Literal["spark", "flink"]


class PolicyError(ValueError):
    """Settings are invalid: each of ``problems`` is one line with the rule, the value and the setting to change."""

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


@dataclass(frozen=True, slots=True, kw_only=True)
class SizingPolicy(PolicySettings):
    """A consistent set of settings. Raises PolicyError if settings contradict each other.

    ``notes`` are lines to show about the settings from which the policy was built: accepted keys without effect here,
    and values that override each other. Comparisons ignore them.
    """

    notes: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        """Raise PolicyError with every violated rule."""
        if problems := tuple(validation_errors(self)):
            raise PolicyError(*problems)

    @classmethod
    def from_settings(
        cls,
        settings: Mapping[str, Any],
        *,
        dialect: Dialect = "spark",
        base: "SizingPolicy | None" = None,
    ) -> "SizingPolicy":
        """Build a policy from ``settings`` over ``base`` (default: the defaults).

        Keys are lakefold's own (``small_file_limit``, with or without ``_bytes``) or any of ``planner.policy.aliases``.
        A nested mapping is read as dotted keys, and a dot in one of lakefold's own keys as an underscore. Values may be
        numbers, ``"300MiB"``, ``"15min"``; a remark in parentheses is ignored. If two keys set the same field, the
        later key wins, with a note. With ``dialect="flink"`` and no ``base``, unset fields have Flink's default (small
        files below 600 MiB). Raises PolicyError with every problem.
        """
        if dialect not in ("spark", "flink"):
            raise PolicyError(f"dialect must be spark or flink, not {dialect!r}")
        values: dict[str, Any] = {} if base is None else {f.name: getattr(base, f.name) for f in fields(cls)}
        notes: list[str] = list(base.notes) if base else []
        if base is None and dialect == "flink":
            values["small_file_limit_bytes"] = 600 * MIB
        origins: dict[str, str] = {}
        leftover: dict[str, Any] = {}
        #: the problem of each key, and the fields without a usable value
        problems: dict[str, str] = {}
        unusable: set[str] = set()
        for key, raw in flatten_settings(settings):
            value = strip_comment(raw)
            knob, parse = _resolve_key(key)
            if knob is None:
                note = _reason_ignored(key)
                if note is None:
                    leftover[key] = value
                else:
                    notes.append(f"{key} = {value} is not used: {note}")
                continue
            if knob in origins:
                notes.append(f"{key} = {value} overrides {origins[knob]}")
            try:
                values[knob] = parse(value)
            except ValueError as error:
                problems[key] = f"{key}: {error}"
                unusable.add(setting_name(knob))
            origins[knob] = key
            if (alias := ALIASES.get(key)) is not None and alias.note:
                notes.append(f"{key} = {value}: {alias.note}")
        try:
            for knob, value, origin in list(translate_dependent_keys(leftover, values, origins, notes)):
                values[knob] = _parse_value(origin, value, FIELD_PARSERS[knob])
        except ValueError as error:
            problems[""] = str(error)
        else:
            problems |= {key: _unknown_key_text(key) for key in leftover}
        try:
            policy = cls(**{**values, "notes": tuple(notes)})
        except PolicyError as error:
            # A rule about a value that is not known yet may hold once the value is.
            others = (text for text in error.problems if unusable.isdisjoint(re.findall(r"\w+", text)))
            raise PolicyError(*problems.values(), *others) from None
        if problems:
            raise PolicyError(*problems.values())
        return policy

    def to_settings(self) -> dict[str, str]:
        """Return every field under its setting's name, with readable values that ``from_settings`` accepts."""
        return {
            setting_name(f.name): _format_value(getattr(self, f.name))
            if FIELD_PARSERS[f.name] is not parse_byte_count
            else _format_size(getattr(self, f.name))
            for f in fields(self)
            if f.name in FIELD_PARSERS and getattr(self, f.name) not in (None, ())
        }


_PARSERS_BY_TYPE: Mapping[Any, Callable[[Any], Any]] = {
    int: parse_integer,
    float: parse_number,
    bool: parse_bool,
    timedelta: parse_timedelta,
    str: parse_lowercase,
    RewriteFirst: enum_parser(RewriteFirst),
    PartitionFilter: enum_parser(PartitionFilter),
    VerificationLevel: enum_parser(VerificationLevel),
    str | None: parse_optional_text,
    tuple[str, ...]: parse_list,
}
_PARSERS_BY_NAME: Mapping[str, Callable[[Any], Any]] = {
    "max_bytes_per_group": parse_byte_count,
    "max_bytes_per_plan": parse_byte_count,
    "compact_delete_ratio": parse_share,
    "compression": parse_lowercase,
    "budget_bytes_per_hour": parse_byte_count,
    "budget_bytes_per_day": parse_byte_count,
    "run_time_zone": parse_optional_text,
    "slo_small_file_share": parse_share,
    "slo_goal": parse_share,
    "file_slices_sort_by": parse_lowercase_list,
    "table_services": parse_lowercase_list,
}


def _field_parsers() -> Iterator[tuple[str, Callable[[Any], Any]]]:
    for knob in fields(SizingPolicy):
        if knob.name != "notes":
            by_unit = parse_byte_count if knob.name.endswith("_bytes") else _PARSERS_BY_TYPE[knob.type]
            yield knob.name, _PARSERS_BY_NAME.get(knob.name, by_unit)


FIELD_PARSERS: Mapping[str, Callable[[Any], Any]] = MappingProxyType(dict(_field_parsers()))
"""The parser of every field of SizingPolicy; parsers raise ValueError."""


def field_name_of_key(key: str) -> str:
    """Return the field of a dotted key: ``slo_goal`` for ``slo.goal``."""
    return key.replace(".", "_")


def _resolve_key(key: str) -> tuple[str | None, Callable[[Any], Any]]:
    """Return the field that ``key`` sets and the parser of its value; None for a key that sets no field."""
    alias = ALIASES.get(key)
    if alias is not None:
        return alias.field_name, alias.parse or FIELD_PARSERS[alias.field_name]
    if key in FIELD_PARSERS:
        return key, FIELD_PARSERS[key]
    if (knob := f"{key}_bytes") in FIELD_PARSERS:
        return knob, parse_size
    knob = field_name_of_key(key)
    return (knob, FIELD_PARSERS[knob]) if knob in FIELD_PARSERS else (None, parse_optional_text)


def _parse_value(key: str, value: Any, parse: Callable[[Any], Any]) -> Any:
    try:
        return parse(value)
    except ValueError as error:
        raise PolicyError(f"{key}: {error}") from None


def _reason_ignored(key: str) -> str | None:
    if key in TRIGGER_STRATEGY_KEYS:
        return None
    if key in IGNORED_KEYS:
        return IGNORED_KEYS[key]
    return next((why for prefix, why in IGNORED_PREFIXES.items() if key.startswith(prefix)), None)


def _unknown_key_text(key: str) -> str:
    known = [*map(setting_name, FIELD_PARSERS), *ALIASES, *IGNORED_KEYS]
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    hint = f"; did you mean {close[0]}?" if close else "; `lakefold config show` lists the settings"
    return f"{key} is not a setting{hint}"


def _format_value(value: Any) -> str:
    if isinstance(value, timedelta):
        return f"{value.total_seconds():.6f}".rstrip("0").rstrip(".") + "s"
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _format_size(size_bytes: int) -> str:
    for size, unit in ((GIB, "GiB"), (MIB, "MiB"), (1024, "KiB")):
        if size_bytes and size_bytes % size == 0:
            return f"{size_bytes // size}{unit}"
    return f"{size_bytes}B"


DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {knob.name: knob.default for knob in fields(SizingPolicy) if knob.default is not MISSING and knob.name != "notes"}
)
"""The default of every field."""
