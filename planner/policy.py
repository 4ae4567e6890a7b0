# SPDX-License-Identifier: Apache-2.0
"""What "the right size" means for a table: every knob of planning, rewriting and cleaning, validated.

A policy is made from settings under lakefold's own names or under those of other tools
(``planner.aliases``), so that an existing configuration can be pasted in.
"""

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Literal

from lake.plan import ReceiptLevel
from lake.units import GIB, MIB
from planner.aliases import ALIASES, IGNORED, IGNORED_PREFIXES, READ_TOGETHER, translate_rest
from planner.choices import BALANCED as BALANCED
from planner.choices import PartitionFilter as PartitionFilter
from planner.choices import RewriteFirst as RewriteFirst
from planner.knobs import Knobs
from planner.rules import problems
from planner.rules import setting_name as setting_name
from planner.values import (
    flattened,
    read_bytes,
    read_count,
    read_flag,
    read_lower_words,
    read_one_of,
    read_ratio,
    read_share,
    read_size,
    read_span,
    read_text,
    read_word,
    read_words,
    without_remark,
)

Dialect = Literal["spark", "flink"]


class PolicyError(ValueError):
    """A setting can't be used; the text is one line with the rule, the value and the setting to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizingPolicy(Knobs):
    """Knobs that agree with each other. Raises PolicyError when they contradict.

    ``notes`` are lines worth showing about the settings the policy was made from: keys that were accepted but have no
    effect here, and values that override each other. They take no part in comparisons.
    """

    notes: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        """Raise PolicyError for the first rule that does not hold."""
        for problem in problems(self):
            raise PolicyError(problem)

    @classmethod
    def from_settings(
        cls,
        settings: Mapping[str, Any],
        *,
        dialect: Dialect = "spark",
        base: "SizingPolicy | None" = None,
    ) -> "SizingPolicy":
        """A policy from ``settings`` over ``base`` (default: the defaults).

        Keys are lakefold's own (``small_file_limit``, with or without ``_bytes``) or any of ``planner.aliases``;
        a nested mapping is read as dotted keys, and a dot in a key of lakefold's own as an underscore. Values may be
        numbers, ``"300MiB"``, ``"15min"``; what follows in parentheses is a comment. Where two keys set the same
        knob the later one wins, with a note. With ``dialect="flink"`` and no ``base``, what is not set has Flink's
        default (small files below 600 MiB). Raises PolicyError in one line.
        """
        if dialect not in ("spark", "flink"):
            raise PolicyError(f"dialect must be spark or flink, not {dialect!r}")
        values: dict[str, Any] = {} if base is None else {f.name: getattr(base, f.name) for f in fields(cls)}
        notes: list[str] = list(base.notes) if base else []
        if base is None and dialect == "flink":
            values["small_file_limit_bytes"] = 600 * MIB
        origins: dict[str, str] = {}
        leftover: dict[str, Any] = {}
        for key, raw in flattened(settings):
            value = without_remark(raw)
            knob, parse = _resolve(key)
            if knob is None:
                note = _ignored(key)
                if note is None:
                    leftover[key] = value
                else:
                    notes.append(f"{key} = {value} is not used: {note}")
                continue
            if knob in origins:
                notes.append(f"{key} = {value} overrides {origins[knob]}")
            values[knob] = _parsed(key, value, parse)
            origins[knob] = key
            if (alias := ALIASES.get(key)) is not None and alias.note:
                notes.append(f"{key} = {value}: {alias.note}")
        try:
            together = list(translate_rest(leftover, values, origins, notes))
        except ValueError as error:
            raise PolicyError(str(error)) from None
        for knob, value, origin in together:
            values[knob] = _parsed(origin, value, KNOBS[knob])
        for key in leftover:
            raise PolicyError(_unknown(key))
        return cls(**{**values, "notes": tuple(notes)})

    def settings(self) -> dict[str, str]:
        """Every knob under its own name with a value as a person writes it; ``from_settings`` reads it back."""
        return {
            setting_name(f.name): _written(getattr(self, f.name))
            if KNOBS[f.name] is not read_bytes
            else _bytes_written(getattr(self, f.name))
            for f in fields(self)
            if f.name in KNOBS and getattr(self, f.name) not in (None, ())
        }


_PARSERS_BY_TYPE: Mapping[Any, Callable[[Any], Any]] = {
    int: read_count,
    float: read_ratio,
    bool: read_flag,
    timedelta: read_span,
    str: read_word,
    RewriteFirst: read_one_of(RewriteFirst),
    PartitionFilter: read_one_of(PartitionFilter),
    ReceiptLevel: read_one_of(ReceiptLevel),
    str | None: read_text,
    tuple[str, ...]: read_words,
}
_PARSERS_BY_NAME: Mapping[str, Callable[[Any], Any]] = {
    "max_bytes_per_group": read_bytes,
    "max_bytes_per_plan": read_bytes,
    "compact_delete_ratio": read_share,
    "compression": read_word,
    "budget_bytes_per_hour": read_bytes,
    "budget_bytes_per_day": read_bytes,
    "run_time_zone": read_text,
    "slo_small_file_share": read_share,
    "slo_goal": read_share,
    "file_slices_sort_by": read_lower_words,
    "table_services": read_lower_words,
}


def _parsers() -> Iterator[tuple[str, Callable[[Any], Any]]]:
    for knob in fields(SizingPolicy):
        if knob.name != "notes":
            by_unit = read_bytes if knob.name.endswith("_bytes") else _PARSERS_BY_TYPE[knob.type]
            yield knob.name, _PARSERS_BY_NAME.get(knob.name, by_unit)


KNOBS: Mapping[str, Callable[[Any], Any]] = MappingProxyType(dict(_parsers()))
"""Every knob (field of SizingPolicy) and how its value is read; a reader raises ValueError."""


def own_name(key: str) -> str:
    """The knob that a key of a nested table means: ``slo.goal`` is ``slo_goal``."""
    return key.replace(".", "_")


def _resolve(key: str) -> tuple[str | None, Callable[[Any], Any]]:
    """The knob that ``key`` sets and how its value is read; None for a key of another kind."""
    alias = ALIASES.get(key)
    if alias is not None:
        return alias.knob, alias.read or KNOBS[alias.knob]
    if key in KNOBS:
        return key, KNOBS[key]
    if (knob := f"{key}_bytes") in KNOBS:
        return knob, read_size
    knob = own_name(key)
    return (knob, KNOBS[knob]) if knob in KNOBS else (None, read_text)


def _parsed(key: str, value: Any, parse: Callable[[Any], Any]) -> Any:
    try:
        return parse(value)
    except ValueError as error:
        raise PolicyError(f"{key}: {error}") from None


def _ignored(key: str) -> str | None:
    if key in READ_TOGETHER:
        return None
    if key in IGNORED:
        return IGNORED[key]
    return next((why for prefix, why in IGNORED_PREFIXES.items() if key.startswith(prefix)), None)


def _unknown(key: str) -> str:
    known = [*map(setting_name, KNOBS), *ALIASES, *IGNORED]
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    hint = f"; did you mean {close[0]}?" if close else "; `lakefold config show` lists the settings"
    return f"{key} is not a setting{hint}"


def _written(value: Any) -> str:
    if isinstance(value, timedelta):
        return f"{value.total_seconds():.6f}".rstrip("0").rstrip(".") + "s"
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _bytes_written(count: int) -> str:
    for size, unit in ((GIB, "GiB"), (MIB, "MiB"), (1024, "KiB")):
        if count and count % size == 0:
            return f"{count // size}{unit}"
    return f"{count}B"


DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {knob.name: knob.default for knob in fields(SizingPolicy) if knob.default is not MISSING and knob.name != "notes"}
)
"""The default of every knob."""
