# SPDX-License-Identifier: Apache-2.0
"""The choice between the engines for a plan: Hudi's copy of row groups, ``hybrid``, ``arrow``, and Hudi's row writer.

The copy (Hudi's "stream copy", from 1.1 on) moves compressed row groups unchanged and writes a new footer, in about a
sixth of the row writer's time. It checks nothing: it writes one file per group, whatever was planned, with the schema
of the first input, and keeps every row group however small. So this module decides from the plan and the footers of its
inputs whether a copy is possible and useful. ``hybrid`` copies large row groups and merges small ones, into as many
files as planned. ``arrow`` decodes and encodes with pyarrow, mostly in less than half of the row writer's CPU time. A
plan has one engine, since Hudi uses one engine per clustering instant.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from lake.errors import Rejected
from lake.formats.hudi.inputs.footers import InputFooter
from lake.plan import AUTO, ClusteringGroup, Plan, PlanKind
from lake.units import format_bytes

#: A group whose row groups are smaller on average is decoded and encoded again. A scan of files stitched from row
#: groups of 1 MB took 1.29 s in Spark and 0.36 s in DuckDB; from row groups of 10 MB 0.90 s and 0.24 s. The limit is in
#: between.
HEALTHY_ROW_GROUP_BYTES = 4 << 20
#: below ``org.apache.hudi.``
COPY_STRATEGY = "client.clustering.run.strategy.SparkStreamCopyClusteringExecutionStrategy"

WRITERS = ("hybrid", "arrow")
"""The engines that write base files which Hudi commits, in the order of preference."""

_MERGED = "logs are merged row by row"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineChoice:
    """The engine of one plan, ``stitch``, one of ``WRITERS`` or ``spark``, and the reason for it."""

    name: str
    reason: str

    @property
    def is_copy(self) -> bool:
        """True if Hudi copies row groups."""
        return self.name == "stitch"

    def __str__(self) -> str:
        """Return the text for the log and the plan's history."""
        return f"engine {self.name}: {self.reason}"


def columns_read_as_text(properties: Mapping[str, str], schema_json: str) -> Collection[str]:
    """Return the partition columns that are text in a table's Spark schema because a key generator formats timestamps.

    Spark reads these columns as text, whatever the files hold, and ``UPDATE`` writes the text: afterwards the column is
    text in the table's schema, but has numbers in every file that was not updated.
    """
    names = (properties.get(f"hoodie.table.keygenerator.{key}", "").lower() for key in ("type", "class"))
    if not any("timestamp" in name or "custom" in name for name in names):
        return ()
    text = {field["name"] for field in json.loads(schema_json)["fields"] if field["type"] == "string"}
    return text.intersection(properties.get("hoodie.table.partition.fields", "").split(","))


def choose_engine(
    plan: Plan,
    read_footers: Callable[[], Mapping[str, InputFooter]],
    *,
    merge_on_read: bool,
    can_copy: bool,
    text_columns: Collection[str] = (),
    has_dates: bool = True,
    find_obstacle: Callable[[str], str | None],
) -> EngineChoice:
    """Choose the engine for ``plan`` by its ``engine`` setting; ``can_copy`` is True if the Hudi bundle has the copy.

    ``find_obstacle`` returns why one of ``WRITERS`` can't rewrite the plan; None if it can. ``read_footers`` returns
    the footers of the inputs by path, in the order of the plan. It is called only if the footers matter. Missing and
    damaged inputs have no footer: the publication or the rewrite reports them. Two kinds of inputs are always copied,
    whatever the size of their row groups: inputs with numbers in one of ``text_columns``, and inputs with dates or
    timestamps that Spark, unlike other readers, would rebase to the proleptic Gregorian calendar. Inputs of the
    second kind are searched for only if the table has columns of these types (``has_dates``).

    Raises Rejected if the setting can't be followed, or if only a copy is correct and no copy is possible.
    """
    for value_kept, how_to_rewrite in (
        (_find_numeric_text_column(read_footers, text_columns), "without UPDATE in Spark SQL"),
        (_find_rebased_values(read_footers) if has_dates else None, "in the proleptic Gregorian calendar"),
    ):
        if value_kept is not None:
            return _require_copy(
                plan, read_footers, value_kept, how_to_rewrite, merge_on_read=merge_on_read, can_copy=can_copy
            )
    if plan.kind is PlanKind.COMPACTION:
        return EngineChoice(name="spark", reason=_MERGED)
    wanted = plan.options.engine
    if wanted == "spark":
        return EngineChoice(name="spark", reason="as set")
    if wanted in WRITERS:
        obstacle = find_obstacle(wanted)
    else:
        obstacle = _copy_obstacle(plan, merge_on_read=merge_on_read, can_copy=can_copy)
    if wanted == "stitch":
        obstacle = obstacle or _find_difference(read_footers().values())
    if wanted in (*WRITERS, "stitch"):
        if obstacle:
            raise Rejected(
                f"{plan.table.name}: engine = {wanted} can't rewrite this plan: {obstacle}; or set engine = auto"
            )
        return EngineChoice(name=wanted, reason="as set")
    if obstacle is None:
        footers = read_footers()
        obstacle = _find_difference(footers.values()) or _find_small_row_groups(plan, footers)
    if obstacle is None:
        return EngineChoice(name="stitch", reason="one schema and healthy row groups in all inputs")
    reasons, obstacles = [f"no copy, {obstacle}"], dict[str, list[str]]()
    for name in WRITERS:
        if (found := find_obstacle(name)) is None:
            break
        obstacles.setdefault(found, []).append(name)
    else:
        name = "spark"
    reasons += [f"{' and '.join(names)} can't: {found}" for found, names in obstacles.items()]
    return EngineChoice(name=name, reason="; ".join(reasons))


def _find_numeric_text_column(
    read_footers: Callable[[], Mapping[str, InputFooter]], text_columns: Collection[str]
) -> str | None:
    """Describe the first input with numbers in one of ``text_columns``; None if there is none."""
    for footer in read_footers().values() if text_columns else ():
        for column in sorted(footer.numeric_columns.intersection(text_columns)):
            return f"{footer.path} has numbers in partition column {column}, which is text in the table's schema"
    return None


def _find_rebased_values(read_footers: Callable[[], Mapping[str, InputFooter]]) -> str | None:
    """Describe the first input with values that Spark would rebase to another calendar; None if there is none."""
    for footer in read_footers().values():
        for column in footer.rebased_columns:
            return f"{footer.path} has dates or timestamps in the hybrid Julian calendar in column {column}"
    return None


def _require_copy(
    plan: Plan,
    read_footers: Callable[[], Mapping[str, InputFooter]],
    value_kept: str,
    how_to_rewrite: str,
    *,
    merge_on_read: bool,
    can_copy: bool,
) -> EngineChoice:
    """Choose the copy, which alone keeps the values in ``value_kept``. Raises Rejected if it is impossible."""
    if plan.kind is PlanKind.COMPACTION:
        obstacle: str | None = _MERGED
    elif plan.options.engine not in {AUTO, "stitch"}:
        obstacle = f"engine = {plan.options.engine} is set; set engine = {AUTO}"
    else:
        obstacle = _copy_obstacle(plan, merge_on_read=merge_on_read, can_copy=can_copy)
        obstacle = obstacle or _find_difference(read_footers().values())
    if obstacle:
        raise Rejected(
            f"{plan.table.name}: {value_kept}, and only a copy keeps them, but {obstacle}; otherwise recreate the "
            f"table {how_to_rewrite}, or leave it out"
        )
    return EngineChoice(name="stitch", reason=f"{value_kept}, and only a copy keeps them")


def _copy_obstacle(plan: Plan, *, merge_on_read: bool, can_copy: bool) -> str | None:
    """Describe why the plan can't be copied, with the setting that changes it; None if it can."""
    if not can_copy:
        return "this Hudi bundle has no copy; use bundle 1.1 or newer"
    if merge_on_read:
        return "Hudi copies files of copy-on-write tables only, this one is merge-on-read"
    if plan.options.sort_columns:
        return f"a copy can't sort by {', '.join(plan.options.sort_columns)}; unset sort_columns"
    if plan.options.compression:
        return f"a copy can't change the compression to {plan.options.compression}; unset compression"
    for number, group in enumerate(plan.groups):
        if group.output_files != 1 or group.bytes > plan.options.target_file_max_bytes:
            return (
                f"a copy writes one file and group {number} is planned as {group.output_files} "
                f"({format_bytes(group.bytes)}); set max_bytes_per_group to target_file_max"
            )
    return None


def _find_difference(footers: Iterable[InputFooter]) -> str | None:
    """Describe the first two inputs that can't become one file; None if all inputs can."""
    first: InputFooter | None = None
    for other in footers:
        first = first or other
        if other.schema != first.schema:
            return f"{other.path} has another schema than {first.path}"
        if other.bloom_filter != first.bloom_filter:
            kinds = f"{other.bloom_filter or 'none'}, {first.path} has {first.bloom_filter or 'none'}"
            return f"{other.path} has a bloom filter of another type ({kinds})"
        if other.legacy_calendar_zone != first.legacy_calendar_zone:
            # All values of a file are read by one calendar.
            return f"{other.path} has dates and timestamps of another calendar than {first.path}, or of another zone"
    return None


def _find_small_row_groups(plan: Plan, footers: Mapping[str, InputFooter]) -> str | None:
    """Describe the first group whose row groups are too small on average to be kept; None if there is none."""

    def average(group: ClusteringGroup) -> int:
        of_group = [footers[s.path] for s in group.slices if s.path is not None and s.path in footers]
        return sum(f.data_bytes for f in of_group) // max(1, sum(f.row_groups for f in of_group))

    for number, group in enumerate(plan.groups):
        size = average(group)
        if size < HEALTHY_ROW_GROUP_BYTES:
            return (
                f"row groups of group {number} average {format_bytes(size)}, so a copy would keep them too small "
                f"(needs {format_bytes(HEALTHY_ROW_GROUP_BYTES)})"
            )
    return None
