# SPDX-License-Identifier: Apache-2.0
"""The aliases: keys of Hudi, Flink and Spark's auto-merge patch, and former names of lakefold's own settings.

Each known key either sets a field of ``planner.policy.policy.SizingPolicy`` or is accepted with a note that explains
why it has no effect. Sizes under these keys follow Hudi's documentation, where 300 MB is 300 × 1024 × 1024 bytes.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from planner.policy.parsing import (
    parse_binary_size,
    parse_bool,
    parse_mebibytes,
    parse_seconds,
    parse_size,
    strip_comment,
)

DFS_BLOCK_BYTES = 128 << 20  # HDFS' default for dfs.blocksize


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """Another key that sets ``field_name``. ``parse`` parses its value; None: the field's own parser."""

    field_name: str
    parse: Callable[[Any], Any] | None = None
    note: str = ""


def _parse_filter_mode(value: Any) -> str:
    modes = {
        "none": "all",
        "recent_days": "recent_days",
        "selected_partitions": "selected",
        "day_rolling": "day_rolling",
    }
    mode = modes.get(str(value).strip().lower())
    if mode is None:
        raise ValueError(f"{value!r} is not one of {', '.join(modes).upper()}")
    return mode


def _parse_layout(value: Any) -> str:
    return re.sub(r"[-_]", "", str(value).strip().lower())


_STRATEGY_ALIASES = {
    "small.file.limit": Alias(field_name="small_file_limit_bytes", parse=parse_binary_size),
    "target.file.max.bytes": Alias(field_name="target_file_max_bytes", parse=parse_binary_size),
    "max.bytes.per.group": Alias(field_name="max_bytes_per_group", parse=parse_binary_size),
    "max.num.groups": Alias(field_name="max_num_groups"),
    "sort.columns": Alias(field_name="sort_columns"),
    "file.slices.sort.by": Alias(field_name="file_slices_sort_by", note="used with strategy = hudi only"),
    "daybased.lookback.partitions": Alias(field_name="recent_partitions"),
    "daybased.skipfromlatest.partitions": Alias(field_name="skip_latest_partitions"),
    "cluster.begin.partition": Alias(field_name="partition_begin"),
    "cluster.end.partition": Alias(field_name="partition_end"),
    "partition.selected": Alias(field_name="partition_selected"),
    "partition.regex.pattern": Alias(field_name="partition_regex"),
}
_SUFFICIENT_NOTE = "this trigger suffices by itself here, unlike in Hudi"
_OLDEST_LOG_NOTE = "counted for each slice from its oldest log, not from the table's last compaction"
_MISSING_BASE_NOTE = "a write-time setting; only strategy = hudi reads it, as the size of a slice without a base file"

FORMER_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "receipt": "verification",
        "weight": "priority_weight",
        "missing_base": "log_only_slice_size",
        "missing_base_bytes": "log_only_slice_size",
    }
)
"""Former names of lakefold's own settings, with the present names; accepted for one release."""


def _former(name: str, field_name: str, parse: Callable[[Any], Any] | None = None) -> dict[str, Alias]:
    note = f"the setting was renamed to {FORMER_NAMES[name]}; the next release will not accept the old name"
    return {name: Alias(field_name=field_name, parse=parse, note=note)}


ALIASES: Mapping[str, Alias] = MappingProxyType(
    {
        **_former("receipt", "verification"),
        **_former("weight", "priority_weight"),
        **_former("missing_base", "log_only_slice_size_bytes", parse_size),
        **_former("missing_base_bytes", "log_only_slice_size_bytes"),
        **{f"hoodie.clustering.plan.strategy.{key}": alias for key, alias in _STRATEGY_ALIASES.items()},
        **{f"clustering.plan.strategy.{key}": alias for key, alias in _STRATEGY_ALIASES.items()},
        # the only key whose unit differs between Hudi and Flink: Flink's is a bare number of MiB
        "clustering.plan.strategy.small.file.limit": Alias(field_name="small_file_limit_bytes", parse=parse_mebibytes),
        "hoodie.clustering.plan.partition.filter.mode": Alias(field_name="partition_filter", parse=_parse_filter_mode),
        "clustering.plan.partition.filter.mode": Alias(field_name="partition_filter", parse=_parse_filter_mode),
        "hoodie.layout.optimize.strategy": Alias(field_name="layout", parse=_parse_layout),
        "hoodie.parquet.compression.codec": Alias(field_name="compression"),
        "hoodie.parquet.max.file.size": Alias(
            field_name="log_only_slice_size_bytes", parse=parse_binary_size, note=_MISSING_BASE_NOTE
        ),
        "write.parquet.max.file.size": Alias(
            field_name="log_only_slice_size_bytes", parse=parse_mebibytes, note=_MISSING_BASE_NOTE
        ),
        "spark.hive.automerge.least.filenum": Alias(field_name="min_input_files"),
        "hoodie.compact.inline.max.delta.commits": Alias(field_name="compact_delta_commits"),
        "hoodie.compact.inline.max.delta.seconds": Alias(
            field_name="compact_age", parse=parse_seconds, note=_OLDEST_LOG_NOTE
        ),
        "compaction.delta_commits": Alias(field_name="compact_delta_commits"),
        "compaction.delta_seconds": Alias(field_name="compact_age", parse=parse_seconds, note=_OLDEST_LOG_NOTE),
        "hoodie.compaction.logfile.num.threshold": Alias(field_name="compact_log_files", note=_SUFFICIENT_NOTE),
        "hoodie.compaction.logfile.size.threshold": Alias(
            field_name="compact_log_bytes", parse=parse_binary_size, note=_SUFFICIENT_NOTE
        ),
    }
)
"""Other keys that set a field."""

_WRITE_TIME_NOTE = "it sizes files while they are written; lakefold sizes them afterwards"
_CLUSTERING_NOTE = "lakefold schedules and runs clustering itself; turn this off at the writer or both will plan"
_COMPACTION_NOTE = "lakefold schedules and runs compaction itself; turn this off at the writer or both will plan"
_EXECUTION_NOTE = "lakefold chooses how a plan is executed; see engine and strategy"

IGNORED_KEYS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(
            [
                "hoodie.parquet.small.file.limit",
                "hoodie.parquet.block.size",
                "hoodie.parquet.page.size",
                "hoodie.parquet.compression.ratio",
                "hoodie.copyonwrite.insert.split.size",
                "hoodie.copyonwrite.insert.auto.split",
                "hoodie.copyonwrite.record.size.estimate",
                "hoodie.record.size.estimation.threshold",
                "hoodie.merge.small.file.group.candidates.limit",
                "hoodie.logfile.max.size",
                "hoodie.logfile.data.block.max.size",
                "hoodie.logfile.to.parquet.compression.ratio",
                "write.parquet.block.size",
                "write.parquet.page.size",
                "write.log.max.size",
                "write.log_block.size",
            ],
            _WRITE_TIME_NOTE,
        ),
        **dict.fromkeys(
            [
                "hoodie.clustering.inline",
                "hoodie.clustering.inline.max.commits",
                "hoodie.clustering.async.enabled",
                "hoodie.clustering.async.max.commits",
                "hoodie.clustering.schedule.inline",
                "hoodie.datasource.clustering.inline.enable",
                "hoodie.datasource.clustering.async.enable",
                "clustering.schedule.enabled",
                "clustering.async.enabled",
                "clustering.delta_commits",
                "clustering.tasks",
            ],
            _CLUSTERING_NOTE,
        ),
        **dict.fromkeys(
            [
                "hoodie.compact.inline",
                "hoodie.compact.schedule.inline",
                "hoodie.datasource.compaction.async.enable",
                "compaction.schedule.enabled",
                "compaction.async.enabled",
            ],
            _COMPACTION_NOTE,
        ),
        "hoodie.compaction.strategy": "lakefold chooses the slices itself; see the compact_* settings",
        **dict.fromkeys(
            [
                "hoodie.clustering.plan.strategy.class",
                "hoodie.clustering.execution.strategy.class",
                "clustering.plan.strategy.class",
                "hoodie.clustering.max.parallelism",
                "hoodie.clustering.group.read.parallelism",
                "hoodie.clustering.plan.generation.use.local.engine.context",
                "hoodie.clustering.plan.strategy.binary.copy.schema.evolution.enable",
                "hoodie.layout.optimize.enable",
                "hoodie.layout.optimize.curve.build.method",
                "hoodie.layout.optimize.build.curve.sample.size",
            ],
            _EXECUTION_NOTE,
        ),
        "spark.hive.automerge.shuffle.enabled": (
            "a group's rows are divided evenly among its output files, without a shuffle"
        ),
        **dict.fromkeys(
            [
                "hoodie.clustering.updates.strategy",
                "hoodie.clustering.rollback.pending.replacecommit.on.conflict",
                "hoodie.clustering.enable.expirations",
                "hoodie.clustering.expiration.threshold.mins",
                "hoodie.clustering.fail.on.pending.ingestion.during.conflict.resolution",
                "hoodie.clustering.preserve.commit.metadata",
            ],
            "it belongs in the table's write options, not in its policy",
        ),
        **dict.fromkeys(
            [
                "hoodie.clustering.plan.strategy.single.group.clustering.enabled",
                "clustering.plan.strategy.single.group.clustering.enabled",
            ],
            "a file that would stay one file is never rewritten, whatever the value",
        ),
        "hoodie.clustering.plan.strategy.earliest.commit.to.cluster": "every latest slice is considered",
    }
)
"""Foreign keys that are accepted without effect, with the reasons."""

_NOT_SIZING_NOTE = "it says nothing about file sizes"
IGNORED_PREFIXES: Mapping[str, str] = MappingProxyType(
    {
        f"hoodie.{family}.": _NOT_SIZING_NOTE
        for family in (
            "archive", "bloom", "bulkinsert", "clean", "cleaner", "cleanup", "client", "commits", "compact",
            "compaction", "consistency", "database", "datasource", "deltastreamer", "embed", "fail", "finalize",
            "index", "insert", "keep", "log", "memory", "metadata", "meta", "metrics", "optimistic", "partition",
            "record", "rollback", "simple", "spark", "streamer", "table", "upsert", "write",
        )
    }
)  # fmt: skip
"""Prefixes of other Hudi keys that a pasted writer configuration may contain, with the reasons."""


TRIGGER_STRATEGY_KEYS = frozenset({"hoodie.compact.inline.trigger.strategy", "compaction.trigger.strategy"})
"""Keys with an ignored prefix that ``translate_dependent_keys`` needs, since they change the meaning of other keys."""
#: the compaction triggers that Hudi's trigger strategies use: delta commits, time
_TRIGGERS_BY_STRATEGY: Mapping[str, tuple[bool, bool]] = MappingProxyType(
    {
        "num_commits": (True, False),
        "num_commits_after_last_request": (True, False),
        "time_elapsed": (False, True),
        "num_and_time": (True, True),
        "num_or_time": (True, True),
    }
)


#: the key of Spark's Hive auto-merge that sets no field: false means mode ``off``, true does not change the mode
AUTOMERGE_ENABLED_KEY = "spark.hive.automerge.enabled"


def is_disabled_by_automerge(value: Any) -> bool:
    """True if the value of ``AUTOMERGE_ENABLED_KEY`` turns a table off. Raises ValueError with the key."""
    try:
        return not parse_bool(strip_comment(value))
    except ValueError as error:
        raise ValueError(f"{AUTOMERGE_ENABLED_KEY}: {error}") from None


def translate_dependent_keys(
    remaining: dict[str, Any], values: Mapping[str, Any], origins: Mapping[str, str], notes: list[str]
) -> Iterator[tuple[str, Any, str]]:
    """Translate keys that depend on each other and yield (field, value, key). Removes known keys from ``remaining``.

    ``values`` are the fields set so far, ``origins`` the keys that set them. Lines for people are added to ``notes``.
    Raises ValueError with a message of one line.
    """
    yield from _translate_automerge_keys(remaining, origins, notes)
    mode = values.get("partition_filter", "all")
    commits, seconds = _pop_compaction_triggers(remaining, notes)
    ineffective = {
        "skip_latest_partitions": (mode != "recent_days", 0, "filter mode RECENT_DAYS"),
        "partition_begin": (mode != "selected", None, "filter mode SELECTED_PARTITIONS"),
        "partition_end": (mode != "selected", None, "filter mode SELECTED_PARTITIONS"),
        "compact_delta_commits": (not commits, 0, "trigger strategy NUM_COMMITS"),
        "compact_age": (not seconds, 0, "trigger strategy TIME_ELAPSED"),
    }
    for knob, (unused, default, needed) in ineffective.items():
        key = origins.get(knob, "")
        if unused and key in ALIASES and values[knob] != default:
            notes.append(f"{key} = {values[knob]} is not used: like in Hudi it needs the {needed}")
            yield knob, default, key


def _pop_compaction_triggers(remaining: dict[str, Any], notes: list[str]) -> tuple[bool, bool]:
    """Return whether Hudi's trigger strategy uses delta commits, and time; an unknown strategy uses both."""
    chosen = "num_commits"
    for key in sorted(TRIGGER_STRATEGY_KEYS & remaining.keys()):
        chosen = str(remaining.pop(key)).strip().lower()
        if chosen == "num_and_time":
            notes.append(f"{key} = {chosen}: commits or time alone suffices here")
        elif chosen not in _TRIGGERS_BY_STRATEGY:
            notes.append(f"{key} = {chosen} is not used: it is not one of {', '.join(_TRIGGERS_BY_STRATEGY)}")
    return _TRIGGERS_BY_STRATEGY.get(chosen, (True, True))


def _translate_automerge_keys(
    remaining: dict[str, Any], origins: Mapping[str, str], notes: list[str]
) -> Iterator[tuple[str, Any, str]]:
    """Translate ``spark.hive.automerge.*``: the ideal file is a share of a DFS block; smaller files are merged."""
    prefix = "spark.hive.automerge."
    enabled = remaining.pop(AUTOMERGE_ENABLED_KEY, None)
    if enabled is not None and is_disabled_by_automerge(enabled):
        notes.append(
            f"{AUTOMERGE_ENABLED_KEY} = {enabled} sets mode = off; a mode in the same section, or in a later section "
            "or rule, takes precedence"
        )
    elif enabled is not None:
        notes.append(f"{AUTOMERGE_ENABLED_KEY} = {enabled} is not used: a table's mode, compact or observe, decides")
    block = remaining.pop("dfs.blocksize", None)
    percent_key = f"{prefix}block.percent"
    if percent_key not in remaining:
        if block is not None:
            notes.append(f"dfs.blocksize = {block} is not used: it only scales {percent_key}")
        return
    percent = remaining.pop(percent_key)
    try:
        ideal = int(float(percent) * (DFS_BLOCK_BYTES if block is None else parse_binary_size(block)))
    except (TypeError, ValueError):
        ideal = -1
    if ideal <= 0:
        # the field's parser refuses this value and names the key
        yield "target_file_max_bytes", f"{percent} of dfs.blocksize {block or DFS_BLOCK_BYTES}", percent_key
        return
    for knob in ("target_file_max_bytes", "small_file_limit_bytes"):
        if knob in origins:
            notes.append(f"{percent_key} = {percent} does not override {origins[knob]}")
        else:
            yield knob, ideal, percent_key
