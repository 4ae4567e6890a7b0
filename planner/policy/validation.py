# SPDX-License-Identifier: Apache-2.0
"""The rules for a policy's settings; each violated rule gives one line for people."""

import math
import re
import sys
from collections.abc import Iterator, Mapping
from datetime import timedelta

from lake.engines import BYTES_PER_SECOND
from lake.formats import FORMATS
from lake.plan import VerificationLevel
from lake.units import GIB, MIB, format_bytes, format_duration
from planner.policy.enums import (
    BALANCED,
    COMPRESSIONS,
    LAYOUTS,
    SORT_FIELDS,
    PartitionFilter,
    RewriteFirst,
)
from planner.policy.fields import PolicySettings
from planner.windows import RunSchedule

#: fields with the unit in their setting's name, like ``max_bytes_per_plan``
_UNIT_IN_NAME = frozenset({"compact_log_bytes"})


def setting_name(field_name: str) -> str:
    """Return the name of a field's setting: its name without the unit (``small_file_limit_bytes`` → ``…limit``)."""
    return field_name if field_name in _UNIT_IN_NAME else field_name.removesuffix("_bytes")


def validation_errors(policy: PolicySettings) -> Iterator[str]:
    """Yield one line for each violated rule: value, rule, and the setting to change."""
    for knob in ("small_file_limit_bytes", "target_file_max_bytes", "max_bytes_per_group", "max_bytes_per_plan"):
        if getattr(policy, knob) <= 0:
            yield f"{setting_name(knob)} is {getattr(policy, knob)} B but must be above 0; set {setting_name(knob)}"
    for low, high in (
        ("small_file_limit_bytes", "target_file_max_bytes"),
        ("target_file_max_bytes", "max_bytes_per_group"),
        ("max_bytes_per_group", "max_bytes_per_plan"),
    ):
        if getattr(policy, low) > getattr(policy, high):
            names = setting_name(low), setting_name(high)
            sizes = _format_exact_size(getattr(policy, low)), _format_exact_size(getattr(policy, high))
            yield (
                f"{names[0]} {sizes[0]} is above {names[1]} {sizes[1]} "
                f"but must not be; lower {names[0]} or raise {names[1]}"
            )
    for knob, least in (
        ("min_input_files", 1),
        ("max_files_per_group", 2),
        ("max_num_groups", 1),
        ("max_attempts", 1),
        ("max_inflight_per_table", 1),
        ("recent_partitions", 0),
        ("skip_latest_partitions", 0),
        ("split_file_limit_bytes", 0),
        ("log_only_slice_size_bytes", 0),
        ("reads_per_day", 0),
        ("budget_bytes_per_hour", 0),
        ("budget_bytes_per_day", 0),
        ("budget_cpu_hours_per_hour", 0),
        ("budget_cpu_hours_per_day", 0),
        ("compact_log_files", 0),
        ("compact_delete_files", 0),
        ("compact_log_bytes", 0),
        ("compact_log_ratio", 0),
        ("compact_delta_commits", 0),
        ("max_slices_per_compaction", 1),
    ):
        if not getattr(policy, knob) >= least:
            name = setting_name(knob)
            yield f"{name} is {getattr(policy, knob)} but must be at least {least}; set {name}"
    yield from _split_errors(policy)
    if policy.min_input_files > policy.max_files_per_group:
        yield (
            f"min_input_files {policy.min_input_files} is above max_files_per_group {policy.max_files_per_group}, "
            "so no group could ever form; lower min_input_files or raise max_files_per_group"
        )
    if not 0 <= policy.compact_delete_ratio <= 1:
        yield (
            f"compact_delete_ratio is {policy.compact_delete_ratio:g} but must be a share from 0 to 1 "
            "(30% is 0.3; 0: off); set compact_delete_ratio"
        )
    if not policy.priority_weight > 0:
        yield f"priority_weight is {policy.priority_weight:g} but must be above 0; set priority_weight"
    yield from _duration_errors(policy)
    yield from _objective_errors(policy)
    yield from _choice_errors(policy)


def validation_warnings(policy: PolicySettings) -> Iterator[str]:
    """Yield one line for each value that is allowed but seldom intended, with its consequence."""
    if policy.retention < _SHORT_RETENTION:
        yield (
            f"retention is {format_duration(policy.retention)}: a replaced file may be deleted while a query that "
            "began before still reads it"
        )
    if policy.small_file_limit_bytes < _TINY_LIMIT_BYTES:
        yield f"small_file_limit is {format_bytes(policy.small_file_limit_bytes)}: larger files are left alone"
    least = GIB / policy.small_file_limit_bytes
    if 0 < policy.slo_files_per_gib < least:
        yield (
            f"slo_files_per_gib is {policy.slo_files_per_gib:g}: files of small_file_limit "
            f"{format_bytes(policy.small_file_limit_bytes)} are left alone, and {least:.1f} of them make a GiB"
        )


#: below these values a policy gets a warning: long queries take longer than the retention, and few files are small
_SHORT_RETENTION, _TINY_LIMIT_BYTES = timedelta(hours=1), MIB
#: ``split_file_limit`` is at least this many times ``target_file_max``, so that no new file is split again, even if its
#: real size differs from the planned one
_SPLIT_FACTOR = 2
#: the shortest and the longest window of an objective; its history is dropped after the longest
_SLO_WINDOW_BOUNDS = timedelta(days=1), timedelta(days=90)
_POSITIVE_DURATIONS = (
    "scan_interval",
    "sweep_interval",
    "table_services_interval",
    "lease",
    "heartbeat",
    "backoff",
    "backoff_max",
)


def _split_errors(policy: PolicySettings) -> Iterator[str]:
    limit, least = policy.split_file_limit_bytes, _SPLIT_FACTOR * policy.target_file_max_bytes
    if 0 < limit < least:
        yield (
            f"split_file_limit {_format_exact_size(limit)} is below {_format_exact_size(least)}, twice "
            "target_file_max, but must not be; raise split_file_limit or lower target_file_max"
        )
    if limit > 0 and policy.strategy != BALANCED:
        yield (
            f"split_file_limit has no effect with strategy {policy.strategy}, which never splits files; set strategy = "
            f"{BALANCED} or split_file_limit = 0"
        )


def _duration_errors(policy: PolicySettings) -> Iterator[str]:
    for knob in ("quiet_period", "retention", "compact_age", "payback", "slo_oldest_small_file"):
        if getattr(policy, knob) < timedelta(0):
            yield f"{knob} is {getattr(policy, knob).total_seconds():g} s but must not be negative; set {knob}"
    try:
        RunSchedule.parse(policy.run_windows, policy.run_time_zone)
    except ValueError as error:
        yield f"{error}; set run_windows and run_time_zone"
    for knob in _POSITIVE_DURATIONS:
        if getattr(policy, knob) <= timedelta(0):
            yield f"{knob} is {getattr(policy, knob).total_seconds():g} s but must be above 0; set {knob}"
    if policy.heartbeat >= policy.lease:
        yield (
            f"heartbeat {format_duration(policy.heartbeat)} must be shorter than lease "
            f"{format_duration(policy.lease)}, or a running executor loses its plan; lower heartbeat or raise lease"
        )
    if policy.backoff > policy.backoff_max:
        yield (
            f"backoff {format_duration(policy.backoff)} is above backoff_max {format_duration(policy.backoff_max)} "
            "but must not be; lower backoff or raise backoff_max"
        )


def _objective_errors(policy: PolicySettings) -> Iterator[str]:
    for knob, low, high, words in (
        ("slo_small_file_share", 0, 1, "at least 0 and below 1 (5% is 0.05; 0: no objective)"),
        ("slo_files_per_gib", 0, math.inf, "a number from 0 (no objective)"),
        ("slo_goal", sys.float_info.min, 1, "above 0 and below 1 (99% is 0.99)"),
    ):
        if not low <= getattr(policy, knob) < high:
            yield f"{knob} is {getattr(policy, knob):g} but must be {words}; set {knob}"
    if timedelta(0) < policy.slo_oldest_small_file <= policy.quiet_period:
        yield (
            f"slo_oldest_small_file {format_duration(policy.slo_oldest_small_file)} must be longer than quiet_period "
            f"{format_duration(policy.quiet_period)}, during which no file is touched; raise slo_oldest_small_file or "
            "lower quiet_period"
        )
    if not _SLO_WINDOW_BOUNDS[0] <= policy.slo_window <= _SLO_WINDOW_BOUNDS[1]:
        bounds = " and ".join(map(format_duration, _SLO_WINDOW_BOUNDS))
        yield f"slo_window is {format_duration(policy.slo_window)} but must be between {bounds}; set slo_window"


def _choice_errors(policy: PolicySettings) -> Iterator[str]:
    kinds: Mapping[str, tuple[str, ...]] = {
        "strategy": (BALANCED, *FORMATS),
        "rewrite_first": tuple(RewriteFirst),
        "partition_filter": tuple(PartitionFilter),
        "verification": tuple(VerificationLevel),
        "engine": tuple(BYTES_PER_SECOND),
        "layout": LAYOUTS,
        "compression": COMPRESSIONS,
    }
    for knob, known in kinds.items():
        value = getattr(policy, knob)
        if value not in known and not (knob == "compression" and value is None):
            yield f"{knob} is {str(value)!r} but must be one of {', '.join(known)}; set {knob}"
    if not policy.file_slices_sort_by or not set(policy.file_slices_sort_by) <= set(SORT_FIELDS):
        given = ",".join(policy.file_slices_sort_by)
        yield f"file_slices_sort_by is {given!r} but must list {' or '.join(SORT_FIELDS)}; set file_slices_sort_by"
    if policy.layout != "linear" and not policy.sort_columns:
        yield f"layout {policy.layout} needs the columns to cluster by but sort_columns is empty; set sort_columns"
    bounds = (policy.partition_begin, policy.partition_end)
    if policy.partition_filter == PartitionFilter.SELECTED:
        if not policy.partition_selected and bounds == (None, None):
            yield (
                "partition_filter selected names no partition; set partition_selected, or partition_begin and "
                "partition_end"
            )
    elif bounds != (None, None):
        yield (
            f"partition_begin and partition_end have no effect with partition_filter {policy.partition_filter}; "
            "set partition_filter = selected"
        )
    if None not in bounds and str(bounds[0]) > str(bounds[1]):
        yield f"partition_begin {bounds[0]!r} sorts after partition_end {bounds[1]!r}; set partition_begin"
    if policy.partition_filter == PartitionFilter.REGEX and policy.partition_regex is None:
        yield "partition_filter regex has no pattern; set partition_regex"
    if policy.partition_regex is not None:
        try:
            re.compile(policy.partition_regex)
        except re.error as error:
            yield f"partition_regex {policy.partition_regex!r} is not a regular expression ({error})"


def _format_exact_size(count: int) -> str:
    """Return a size rounded and exact, since rounding may make different sizes look alike."""
    return f"{format_bytes(count)} ({count} B)"
