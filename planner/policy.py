# SPDX-License-Identifier: Apache-2.0
"""What "the right size" means for a table: every knob of planning, rewriting and cleaning, validated.

A policy is made from settings under lakefold's own names or under those of Hudi, Flink and Spark's Hive
auto-merge (``planner.aliases``), so that an existing configuration can be pasted in.
"""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Literal

from lake.plan import ReceiptLevel, RewriteOptions
from planner.aliases import ALIASES, IGNORED, IGNORED_PREFIXES, READ_TOGETHER, translate_rest
from planner.choices import PartitionFilter as PartitionFilter
from planner.choices import RewriteFirst as RewriteFirst
from planner.choices import Strategy as Strategy
from planner.rules import problems
from planner.rules import setting_name as setting_name
from planner.values import (
    read_bytes,
    read_count,
    read_duration,
    read_flag,
    read_lower_words,
    read_one_of,
    read_ratio,
    read_text,
    read_word,
    read_words,
)

MIB = 1 << 20
GIB = 1 << 30

Dialect = Literal["spark", "flink"]


class PolicyError(ValueError):
    """A setting can't be used; the text is one line with the rule, the value and the setting to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizingPolicy:
    """All knobs, with the defaults of a table nobody configured. Raises PolicyError when they contradict.

    Each knob's ``meaning`` is what docs/configuration.md says of it. ``notes`` are lines worth showing about the
    settings the policy was made from: keys that were accepted but have no effect here, and values that override each
    other. They take no part in comparisons.
    """

    # selection
    small_file_limit_bytes: int = field(default=300 * MIB, metadata={"meaning": "a base file strictly below is small"})
    target_file_max_bytes: int = field(default=GIB, metadata={"meaning": "no output is planned larger"})
    min_input_files: int = field(default=2, metadata={"meaning": "a group of fewer files is left alone"})
    quiet_period: timedelta = field(
        default=timedelta(minutes=15), metadata={"meaning": "files modified since are left alone"}
    )
    partition_filter: PartitionFilter = field(
        default=PartitionFilter.ALL, metadata={"meaning": "`all`, `recent_days`, `day_rolling`, `selected`, `regex`"}
    )
    recent_partitions: int = field(
        default=2, metadata={"meaning": "for `recent_days`: how many of the newest; 0 means all"}
    )
    skip_latest_partitions: int = field(default=0, metadata={"meaning": "the newest so many are left alone"})
    partition_selected: tuple[str, ...] = field(
        default=(), metadata={"meaning": "for `selected`: a list of partitions"}
    )
    partition_begin: str | None = field(
        default=None, metadata={"meaning": "for `selected`: the first partition of a range, included"}
    )
    partition_end: str | None = field(
        default=None, metadata={"meaning": "for `selected`: the last partition of that range, included"}
    )
    partition_regex: str | None = field(default=None, metadata={"meaning": "for `regex`: matches the whole path"})

    # grouping
    strategy: Strategy = field(
        default=Strategy.BALANCED,
        metadata={"meaning": "`balanced` fills outputs evenly; `hudi` groups exactly as Hudi does"},
    )
    max_bytes_per_group: int = field(default=2 * GIB, metadata={"meaning": "bytes of one group"})
    max_files_per_group: int = field(default=10_000, metadata={"meaning": "files of one group; not for `hudi`"})
    max_num_groups: int = field(default=30, metadata={"meaning": "groups of one plan"})
    max_bytes_per_plan: int = field(default=60 * GIB, metadata={"meaning": "bytes rewritten and carried by one plan"})
    max_carried_ratio: float = field(
        default=4.0, metadata={"meaning": "bytes carried along for each byte rewritten; hard links count 0"}
    )
    file_slices_sort_by: tuple[str, ...] = field(
        default=("size",), metadata={"meaning": "for `hudi`: `size`, `instant_time`"}
    )
    missing_base_bytes: int = field(
        default=120 * MIB, metadata={"meaning": "for `hudi`: what a slice of logs only counts as"}
    )

    # compaction: slices with logs (merge-on-read)
    compaction: bool = field(
        default=True, metadata={"meaning": "merge the logs of merge-on-read slices into new base files"}
    )
    compact_log_files: int = field(
        default=5,
        metadata={"meaning": "a slice with so many log files is due; any of these five suffices, 0 switches one off"},
    )
    compact_log_bytes: int = field(default=256 * MIB, metadata={"meaning": "… with so many bytes of logs"})
    compact_log_ratio: float = field(
        default=1.0, metadata={"meaning": "… with so many bytes of logs for each byte of its base file"}
    )
    compact_age: timedelta = field(
        default=timedelta(0), metadata={"meaning": "… whose oldest log was committed so long ago"}
    )
    compact_delta_commits: int = field(
        default=0,
        metadata={
            "meaning": "every slice with logs is due once the table had so many delta commits since its last compaction"
        },
    )
    max_slices_per_compaction: int = field(default=1_000, metadata={"meaning": "slices of one compaction plan"})
    rewrite_first: RewriteFirst = field(
        default=RewriteFirst.COMPACTION,
        metadata={
            "meaning": "which kind of plan goes first and gets a slice that both want: `compaction`, `clustering`"
        },
    )

    # rewriting
    engine: str = field(default="auto", metadata={"meaning": "which engine rewrites: `auto`, `stitch`, `spark`"})
    compression: str | None = field(
        default=None,
        metadata={"meaning": "`zstd`, `snappy`, `gzip`, `lz4`, `brotli`, `uncompressed`; unset: the table's own"},
    )
    sort_columns: tuple[str, ...] = field(default=(), metadata={"meaning": "order inside the new files"})
    layout: str = field(
        default="linear", metadata={"meaning": "how `sort_columns` order them: `linear`, `zorder`, `hilbert`"}
    )
    receipt: ReceiptLevel = field(
        default=ReceiptLevel.FOOTER,
        metadata={"meaning": "proof before a commit: rows, nulls, minima and maxima; `hash` adds every value"},
    )

    # table services
    adopt_pending: bool = field(
        default=False,
        metadata={"meaning": "execute clusterings and compactions that other processes scheduled on the table"},
    )
    table_services: tuple[str, ...] = field(
        default=(),
        metadata={"meaning": "of `clean`, `archive`, `rollback`: the table's own services, done after cleaning"},
    )
    table_services_interval: timedelta = field(
        default=timedelta(minutes=30), metadata={"meaning": "how often they are done"}
    )

    # running
    retention: timedelta = field(default=timedelta(days=7), metadata={"meaning": "how long replaced files stay"})
    scan_interval: timedelta = field(default=timedelta(minutes=5), metadata={"meaning": "how often a table is scanned"})
    sweep_interval: timedelta = field(
        default=timedelta(seconds=15), metadata={"meaning": "how often leftovers of silent executors are withdrawn"}
    )
    lease: timedelta = field(
        default=timedelta(seconds=60), metadata={"meaning": "how long a silent executor keeps its plan"}
    )
    heartbeat: timedelta = field(
        default=timedelta(seconds=15), metadata={"meaning": "how often a living executor says so"}
    )
    max_attempts: int = field(default=5, metadata={"meaning": "tries of a plan"})
    backoff: timedelta = field(
        default=timedelta(seconds=30), metadata={"meaning": "wait before the next try, doubling"}
    )
    backoff_max: timedelta = field(default=timedelta(minutes=30), metadata={"meaning": "the longest such wait"})
    max_inflight_per_table: int = field(default=1, metadata={"meaning": "plans of one table that run at once"})

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
        a nested mapping is read as dotted keys. Values may be numbers, ``"300MiB"``, ``"15min"``; what follows
        in parentheses is a comment. Where two keys set the same knob the later one wins, with a note. With
        ``dialect="flink"`` and no ``base``, what is not set has Flink's default (small files below 600 MiB).
        Raises PolicyError in one line.
        """
        if dialect not in ("spark", "flink"):
            raise PolicyError(f"dialect must be spark or flink, not {dialect!r}")
        values: dict[str, Any] = {} if base is None else {f.name: getattr(base, f.name) for f in fields(cls)}
        notes: list[str] = list(base.notes) if base else []
        if base is None and dialect == "flink":
            values["small_file_limit_bytes"] = 600 * MIB
        origins: dict[str, str] = {}
        leftover: dict[str, Any] = {}
        for key, raw in _flatten(settings):
            remark = _REMARK.fullmatch(raw) if isinstance(raw, str) else None
            value = remark.group(1).strip() if remark else raw
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
        for knob, value, origin in translate_rest(leftover, values, origins, notes):
            values[knob] = _parsed(origin, value, KNOBS[knob])
        for key in leftover:
            raise PolicyError(_unknown(key))
        return cls(**{**values, "notes": tuple(notes)})

    @property
    def options(self) -> RewriteOptions:
        """What an executor needs to know of this policy."""
        return RewriteOptions(
            target_file_max_bytes=self.target_file_max_bytes,
            engine=self.engine,
            compression=self.compression,
            sort_columns=self.sort_columns,
            layout=self.layout,
            receipt=self.receipt,
        )

    @property
    def compares_partitions(self) -> bool:
        """Whether a partition is chosen by its place among all of them, and not by its own path alone."""
        by_place = (PartitionFilter.RECENT_DAYS, PartitionFilter.DAY_ROLLING)
        return self.skip_latest_partitions > 0 or self.partition_filter in by_place

    def settings(self) -> dict[str, str]:
        """Every knob under its own name with a value as a person writes it; ``from_settings`` reads it back."""
        return {
            setting_name(f.name): _written(getattr(self, f.name)) if KNOBS[f.name] is not read_bytes
            else _bytes_written(getattr(self, f.name))
            for f in fields(self)
            if f.name in KNOBS and getattr(self, f.name) not in (None, ())
        }  # fmt: skip


#: a plain value with a remark behind it, as documents print them: ``125829120 ( 120MB )``
_REMARK = re.compile(r"\s*([0-9.]+\s*[a-zA-Z]*|true|false)\s*\([^()]*\)\s*")

_PARSERS_BY_TYPE: Mapping[Any, Callable[[Any], Any]] = {
    int: read_count,
    float: read_ratio,
    bool: read_flag,
    timedelta: read_duration,
    str: read_word,
    Strategy: read_one_of(Strategy),
    RewriteFirst: read_one_of(RewriteFirst),
    PartitionFilter: read_one_of(PartitionFilter),
    ReceiptLevel: read_one_of(ReceiptLevel),
    str | None: read_text,
    tuple[str, ...]: read_words,
}
_PARSERS_BY_NAME: Mapping[str, Callable[[Any], Any]] = {
    "max_bytes_per_group": read_bytes,
    "max_bytes_per_plan": read_bytes,
    "compression": read_word,
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


def _flatten(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _resolve(key: str) -> tuple[str | None, Callable[[Any], Any]]:
    """The knob that ``key`` sets and how its value is read; None for a key of another kind."""
    alias = ALIASES.get(key)
    if alias is not None:
        return alias.knob, alias.read or KNOBS[alias.knob]
    for knob in (key, f"{key}_bytes"):
        if knob in KNOBS:
            return knob, KNOBS[knob]
    return None, read_text


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
    return str(count)


DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {knob.name: knob.default for knob in fields(SizingPolicy) if knob.default is not MISSING and knob.name != "notes"}
)
"""The default of every knob."""
