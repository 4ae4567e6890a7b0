# SPDX-License-Identifier: Apache-2.0
"""Plans over all files that a format lists: one that is made without the planner, one that splits each file."""

from collections.abc import Collection
from datetime import timedelta
from typing import Any

import pyarrow.compute as pc

from lake.model import FileSlice, TableRef
from lake.plan import ClusteringGroup, Plan, PlanKind, RewriteOptions, VerificationLevel
from lake.ports import TableFormat
from planner.planner import plan_table
from planner.policy.policy import SizingPolicy

_SLICE = ("partition", "file_id", "path", "bytes", "rows", "log_bytes")


def plan_all(
    format_: TableFormat,
    table: TableRef,
    plan_id: str,
    *,
    receipt: VerificationLevel = VerificationLevel.HASH,
    partitions: Collection[str] | None = None,
    **options: Any,
) -> Plan:
    """Return a plan over all live files, with one group for each partition."""
    snapshot = format_.snapshot(table, partitions)
    groups: dict[str, list[FileSlice]] = {}
    for row in snapshot.slices.to_pylist():
        groups.setdefault(row["partition"], []).append(
            FileSlice(**{name: row[name] for name in _SLICE}, log_files=tuple(row["log_files"]))
        )
    return Plan(
        plan_id=plan_id,
        table=table,
        kind=PlanKind.CLUSTERING,
        groups=tuple(
            ClusteringGroup(partition=p, slices=tuple(slices), output_files=1) for p, slices in sorted(groups.items())
        ),
        options=RewriteOptions(target_file_max_bytes=1 << 30, verification=receipt, **options),
        snapshot_instant=snapshot.instant,
    )


def plan_split(format_: TableFormat, table: TableRef, plan_id: str) -> Plan:
    """Return the planner's plan for files that are all at least twice as large as the target."""
    snapshot = format_.snapshot(table)
    target = pc.min(snapshot.slices["bytes"]).as_py() // 2
    policy = SizingPolicy(
        small_file_limit_bytes=1,
        target_file_max_bytes=target,
        split_file_limit_bytes=2 * target,
        quiet_period=timedelta(),
    )
    plan = plan_table(snapshot, policy, now=snapshot.taken_at, plan_id=plan_id).plan
    assert plan is not None
    return plan
