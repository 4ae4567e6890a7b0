# SPDX-License-Identifier: Apache-2.0
"""Listings made by hand for tests of the planner."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from lake.model import SLICES_SCHEMA, DeltaKind, Snapshot, TableRef
from planner.candidates import PlanningConstraints
from planner.planner import plan_table
from planner.policy.policy import SizingPolicy
from planner.reasons import Reason
from planner.result import PlanningResult

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
TABLE = TableRef(name="trips", format="hudi", location="/lake/trips")


@dataclass(frozen=True, kw_only=True)
class File:
    """One slice, an hour old and in partition ``p`` unless it says otherwise."""

    id: str
    bytes: int
    partition: str = "p"
    age: timedelta = timedelta(hours=1)
    log_age: timedelta | None = None  #: of its oldest log, where that differs from ``age``
    log_bytes: int = 0
    logs_only: bool = False
    busy: str | None = None
    rows: int | None = None
    logs: Sequence[str] = field(default=())
    written: int | None = None
    key: str | None = None
    delta_kind: DeltaKind | None = None
    deleted_rows: int | None = None

    @property
    def base_bytes(self) -> int:
        return 0 if self.logs_only else self.bytes

    @property
    def path(self) -> str | None:
        return None if self.logs_only else f"{self.partition}/{self.id}.parquet"


def snapshot(files: Iterable[File], *, chunks: int = 1, delta_commits: int = 0) -> Snapshot:
    """A listing of ``files`` in their order, as a table of ``chunks`` chunks with dictionaries of their own."""
    rows = [
        {
            "partition": f.partition,
            "file_id": f.id,
            "path": f.path,
            "bytes": f.base_bytes,
            "rows": f.rows,
            "log_files": list(f.logs) if f.logs else ([f".{f.id}.log.1"] if f.log_bytes else []),
            "log_bytes": f.log_bytes,
            "oldest_log_at": NOW - (f.age if f.log_age is None else f.log_age) if f.logs or f.log_bytes else None,
            "modified_at": NOW - f.age,
            "written_order": f.written,
            "group_key": f.key,
            "delta_kind": f.delta_kind,
            "deleted_rows": f.deleted_rows,
            "busy_reason": f.busy,
        }
        for f in files
    ]
    size = max(1, -(-len(rows) // chunks))
    parts = [pa.Table.from_pylist(rows[at : at + size], schema=SLICES_SCHEMA) for at in range(0, len(rows), size)]
    slices = pa.concat_tables(parts) if parts else SLICES_SCHEMA.empty_table()
    return Snapshot(table=TABLE, instant="20260301", taken_at=NOW, slices=slices, uncompacted_commits=delta_commits)


def plan(
    files: Iterable[File],
    settings: Mapping[str, Any] | SizingPolicy | None = None,
    *,
    delta_commits: int = 0,
    clustering_refusal: str | None = None,
    **more: Any,
) -> PlanningResult:
    """Plan ``files`` under ``settings`` at ``NOW``."""
    policy = settings if isinstance(settings, SizingPolicy) else SizingPolicy.from_settings(settings or {})
    limits = {one.name: more.pop(one.name) for one in fields(PlanningConstraints) if one.name in more}
    given = {"now": NOW, "plan_id": "plan-1", "constraints": PlanningConstraints(**limits), **more}
    seen = replace(snapshot(files, delta_commits=delta_commits), clustering_refusal=clustering_refusal)
    return plan_table(seen, policy, **given)


def reasons(planning: PlanningResult) -> dict[str, str]:
    """Each slice's reason by its file id."""
    rows = planning.decisions.select(["file_id", "reason"]).to_pylist()
    return {row["file_id"]: row["reason"] for row in rows}


def texts(planning: PlanningResult) -> dict[str, str]:
    """Each slice's reason as a person reads it, by its file id."""
    ids = planning.decisions["file_id"].to_pylist()
    return dict(zip(ids, planning.reason_texts(range(len(ids))), strict=True))


def groups(planning: PlanningResult) -> list[list[str]]:
    """File ids of each group of the plan, in the plan's order."""
    if planning.plan is None:
        return []
    return [[s.file_id for s in group.slices] for group in planning.plan.groups]


def outputs(planning: PlanningResult) -> list[int]:
    """Output files asked of each group."""
    return [group.output_files for group in planning.plan.groups] if planning.plan else []


CHOSEN = Reason.CHOSEN.value
