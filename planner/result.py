# SPDX-License-Identifier: Apache-2.0
"""The result of planning: the next plan of a table, the decision on every slice, and the plan's expected effect."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lake.model import FileSlice, Snapshot
from lake.plan import ClusteringGroup, Plan
from lake.units import format_until
from planner.budgets import PlanSizeLimit
from planner.candidates import Candidates, PlanningConstraints
from planner.cost import Benefit
from planner.groups import Groups
from planner.plan_selection import Selection
from planner.policy.fields import PlanningSettings
from planner.reasons import REASONS, Reason, reason_text
from planner.slice_columns import Ints, Mask


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The expected effect of a plan. Without a plan all fields but the small files are zero.

    ``bytes_to_move`` are the bytes to rewrite, logs included. ``small_files_*`` count the base files of the whole
    snapshot below the limit. They assume that a group's outputs are of equal size and that compaction keeps the size of
    a base file. ``input_files`` are file slices; a log-only slice counts as a file.
    """

    groups: int = 0
    input_files: int = 0
    output_files: int = 0
    bytes_to_move: int = 0
    small_files_before: int = 0
    small_files_after: int = 0

    @property
    def files_removed(self) -> int:
        """The number of files that the plan removes."""
        return self.input_files - self.output_files


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningResult:
    """The next plan of a table, or None, and the decision on every slice.

    ``decisions`` has one row per slice in the snapshot's order: partition, file_id, path, bytes, log_bytes, reason (a
    ``Reason``, dictionary-encoded), number (see ``reason_text``) and reducible. A slice is reducible if a plan takes it
    now, or would take it once an obstacle is gone: a quiet period, a live plan, a pending action on the table, a failed
    plan, a declined proposal, or a budget that is too small. Small slices that are not reducible are residual: no
    rewrite of them is worthwhile. ``budget`` is the budget that limits plans more than ``policy`` does; None if there
    is no such budget. ``benefit`` are the predicted cost and savings of the plan.
    """

    snapshot: Snapshot
    policy: PlanningSettings
    budget: PlanSizeLimit | None
    constraints: PlanningConstraints
    plan: Plan | None
    benefit: Benefit | None
    decisions: pa.Table
    estimate: Estimate

    @property
    def reducible_files(self) -> int:
        """Small base files that are reducible."""
        found = self.decisions.filter(self.decisions["reducible"])
        small = pc.and_(pc.is_valid(found["path"]), pc.less(found["bytes"], self.policy.small_file_limit_bytes))
        return int(pc.sum(small, min_count=0).as_py())

    @property
    def reducible_bytes(self) -> int:
        """The bytes that plans would read of the reducible slices: small files, and due base files and logs."""
        found = self.decisions.filter(self.decisions["reducible"])
        return int(pc.sum(pc.add(found["bytes"], found["log_bytes"]), min_count=0).as_py())

    @property
    def waiting_seconds(self) -> int | None:
        """The seconds until the quiet periods of all reducible slices are over.

        None if there is a plan, or if no reducible slice waits for the quiet period.
        """
        recent = pc.equal(self.decisions["reason"].cast(pa.string()), Reason.RECENT.value)
        least_age = pc.min(self.decisions["number"].filter(pc.and_(recent, self.decisions["reducible"]))).as_py()
        if self.plan is not None or least_age is None:
            return None
        return math.ceil(self.policy.quiet_period.total_seconds()) - int(least_age)

    @property
    def declines_in_effect(self) -> frozenset[str]:
        """The ids of the declined plans that keep slices out of planning."""
        if not self.constraints.declined:
            return frozenset()
        declined = pc.equal(self.decisions["reason"].cast(pa.string()), Reason.DECLINED.value)
        numbers = self.decisions["number"].filter(declined)
        return frozenset(self.constraints.declined[number].plan_id for number in numbers.unique().to_pylist())

    def setting(self, reason: Reason) -> str:
        """Return the setting that decides ``reason``, or the command to run against it; '' if there is neither."""
        if self.budget is not None and reason in (Reason.OVER_BUDGET, Reason.NEXT_PLAN_BYTES):
            return self.budget.setting
        return reason.setting

    def reason_text(self, row: int) -> str:
        """Return the text of the reason in row ``row`` of ``decisions``."""
        return self.reason_texts([row])[0]

    def reason_texts(self, rows: Iterable[int], numbers: Iterable[int] | None = None) -> list[str]:
        """Return the texts of the reasons in ``rows`` of ``decisions``; ``numbers`` replace the rows' own numbers."""
        index = pa.array(rows, type=pa.int64())
        taken = self.decisions.select(["partition", "reason", "number"]).take(index)
        reasons, given = taken["reason"].to_pylist(), taken["number"].to_pylist() if numbers is None else numbers
        busy = self.snapshot.slices["busy_reason"].take(index).to_pylist()
        held = (
            [self.constraints.locked_partitions.get(name, "") for name in taken["partition"].to_pylist()]
            if self.constraints.locked_partitions
            else [""] * len(index)
        )
        details = {Reason.BUSY.value: busy, Reason.HELD.value: held}
        for reason, column in ((Reason.ALONE, "group_key"), (Reason.FEW_LOGS, "delta_kind")):
            details[reason.value] = [word or "" for word in self.snapshot.slices[column].take(index).to_pylist()]

        bounds = self.policy if self.budget is None else self.budget.capped(self.policy)

        @cache
        def text(reason: str, number: int, detail: str) -> str:
            if reason == Reason.DAMAGED.value:
                detail = self.snapshot.damaged[number].text
            elif reason == Reason.NOT_CLUSTERED.value:
                detail = self.snapshot.clustering_refusal or ""
            elif reason == Reason.FAILED.value:
                detail = self.constraints.failed[number].text
            elif reason == Reason.DECLINED.value:
                detail = self.constraints.declined[number].text
            elif reason == Reason.RECENT.value:
                now = self.snapshot.taken_at
                detail = format_until(now + self.policy.quiet_period - timedelta(seconds=number), now)
            elif reason == Reason.OVER_BUDGET.value and self.budget is not None:
                detail = self.budget.text
            elif reason == Reason.NEXT_PLAN_BYTES.value:
                return reason_text(Reason(reason), number, bounds)
            return reason_text(Reason(reason), number, self.policy, detail)

        return [
            text(reason, number, details[reason][place] if reason in details else "")
            for place, (reason, number) in enumerate(zip(reasons, given, strict=True))
        ]


def selected_plan(
    selection: Selection, snapshot: Snapshot, candidates: Candidates, policy: PlanningSettings, plan_id: str
) -> Plan | None:
    """Return the plan of ``selection``, with the id ``plan_id``; None if no group was picked."""
    if not len(selection.picked):
        return None
    return Plan(
        plan_id=plan_id,
        table=snapshot.table,
        kind=selection.kind,
        groups=clustering_groups(snapshot, candidates, selection.groups, selection.picked),
        options=policy.rewrite_options,
        snapshot_instant=snapshot.instant,
    )


def estimate_effect(
    selection: Selection, snapshot: Snapshot, candidates: Candidates, policy: PlanningSettings
) -> Estimate:
    """Return the expected effect of the plan of ``selection``."""
    groups, picked = selection.groups, selection.picked
    small = int(np.count_nonzero(candidates.bytes < policy.small_file_limit_bytes))
    small -= int(snapshot.slices["path"].null_count)  # a slice without a base file counts 0 bytes
    return Estimate(
        groups=len(picked),
        input_files=int(groups.files[picked].sum()),
        output_files=int(groups.outputs[picked].sum()),
        bytes_to_move=int(groups.bytes[picked].sum()),
        small_files_before=small,
        small_files_after=small
        - _count_base_files(snapshot, groups, picked[~groups.is_split[picked]])
        + int(groups.small_outputs[picked].sum()),
    )


def _count_base_files(snapshot: Snapshot, groups: Groups, picked: Ints) -> int:
    """Count the base files among the slices of the picked groups."""
    files = int(groups.files[picked].sum())
    if not snapshot.slices["path"].null_count:
        return files
    return files - int(snapshot.slices["path"].take(pa.array(groups.rows_of(picked))).null_count)


def clustering_groups(
    snapshot: Snapshot, candidates: Candidates, groups: Groups, picked: Ints
) -> tuple[ClusteringGroup, ...]:
    """Return the picked groups as objects."""
    rows = groups.rows_of(picked)
    taken = snapshot.slices.select(["file_id", "path", "rows", "log_files"]).take(pa.array(rows))
    file_ids, paths = (_strings(taken[name]) for name in ("file_id", "path"))
    records = taken["rows"].to_pylist() if taken["rows"].null_count < len(rows) else [None] * len(rows)
    logs: dict[int, tuple[str, ...]] = {}
    with_logs = np.flatnonzero(np.asarray(pc.list_value_length(taken["log_files"]).to_numpy()) > 0)
    for index, names in zip(with_logs.tolist(), taken["log_files"].take(pa.array(with_logs)).to_pylist(), strict=True):
        logs[index] = tuple(names)
    sizes, log_sizes = candidates.bytes[rows].tolist(), candidates.log_bytes[rows].tolist()
    made = []
    at = 0
    for index in picked.tolist():
        partition = candidates.partitions[groups.partition[index]]
        upto = at + int(groups.files[index])
        slices = tuple(
            FileSlice(
                partition=partition,
                file_id=file_ids[i],
                path=paths[i],
                bytes=sizes[i],
                rows=records[i],
                log_files=logs.get(i, ()),
                log_bytes=log_sizes[i],
            )
            for i in range(at, upto)
        )
        made.append(ClusteringGroup(partition=partition, slices=slices, output_files=int(groups.outputs[index])))
        at = upto
    return tuple(made)


def _strings(column: pa.ChunkedArray) -> list[str]:
    values: list[str] = column.to_numpy(zero_copy_only=False).tolist()
    return values


def decision_table(snapshot: Snapshot, selection: Selection, reducible: Mask) -> pa.Table:
    """Return the reason of every slice with its number, and which slices are reducible."""
    slices = snapshot.slices
    words = pa.array([reason.value for reason in REASONS], type=pa.string())
    columns = {name: slices[name] for name in ("partition", "file_id", "path", "bytes", "log_bytes")}
    columns["reason"] = pa.DictionaryArray.from_arrays(pa.array(selection.reason_codes), words)
    columns["number"] = pa.array(selection.reason_numbers)
    columns["reducible"] = pa.array(reducible)
    return pa.table(columns)
