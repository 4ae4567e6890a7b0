# SPDX-License-Identifier: Apache-2.0
"""The outcome of a plan's run, as types and as text."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from lake.errors import Conflict
from lake.plan import Commit, PartitionFigures, Plan, SkippedGroup, Step, partition_milliseconds
from lake.units import format_bytes


class RunResult(StrEnum):
    """The state in which a run left its plan."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"
    REQUEUED = "requeued"
    INFLIGHT = "inflight"  #: the commit or the database could not be checked; a take-over checks again
    LEASE_LOST = "lost"  #: another executor owns the plan now


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """The end of a run. ``reason`` is the error's class name, ``milliseconds`` the time of each step."""

    result: RunResult
    reason: str = ""
    error: str = ""
    commit: Commit | None = None
    figures: tuple[PartitionFigures, ...] = ()
    milliseconds: dict[str, int] = field(default_factory=dict)


def partition_figures(plan: Plan, commit: Commit) -> tuple[PartitionFigures, ...]:
    """Return base files and their bytes before and after ``commit``, for each partition that it changed."""
    bases = {item.path: item.bytes for group in plan.groups for item in group.slices if item.path is not None}
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for version in commit.superseded:
        if version.path in bases:
            found[version.partition][0] += 1
            found[version.partition][1] += bases[version.path]
    for output in commit.outputs:
        found[output.partition][2] += 1
        found[output.partition][3] += output.bytes
    return tuple(
        PartitionFigures(partition=name, files_before=fb, bytes_before=bb, files_after=fa, bytes_after=ba)
        for name, (fb, bb, fa, ba) in sorted(found.items())
    )


def completion_message(
    plan: Plan, commit: Commit, figures: Sequence[PartitionFigures], milliseconds: Mapping[str, int]
) -> str:
    """Return the one log line of a completed plan."""
    partitions = "; ".join(
        f"{f.partition or '(unpartitioned)'} {f.files_before} -> {f.files_after} files, "
        f"{format_bytes(f.bytes_before)} -> {format_bytes(f.bytes_after)}, {took} ms"
        for f, took in zip(figures, partition_milliseconds(figures, sum(milliseconds.values())), strict=True)
    )
    spent = ", ".join(f"{step} {milliseconds[step]} ms" for step in Step if step in milliseconds)
    return f"plan {plan.plan_id} of {plan.table.name} completed as {commit.instant}: {partitions} [{spent}]"


def unreadable_groups(error: Conflict) -> tuple[SkippedGroup, ...]:
    """Return the groups that a Conflict names as unreadable, if any."""
    named = error.args[1] if len(error.args) > 1 else ()
    return tuple(item for item in named if isinstance(item, SkippedGroup))
