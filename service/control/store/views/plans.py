# SPDX-License-Identifier: Apache-2.0
"""Plans for people: filters, states, decisions and errors."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, TypedDict, cast

from lake.model import FileSlice
from lake.plan import PartitionFigures, PlanKind, PlanState, ProposalDecision


class FailureKind(StrEnum):
    """The kind of failure of a plan that must not be repeated unchanged."""

    REJECTED = "rejected"  #: the table can't be used as configured, or the output differed from the input
    ATTEMPTS = "attempts"  #: all its attempts failed


class ErrorClass(StrEnum):
    """The class of a plan's error in ``lake.errors``. A plan that a person cancelled has none."""

    TRANSIENT = "transient"  #: tried again, until the attempts are used up
    CONFLICT = "conflict"  #: a writer changed the files first
    COMMIT_UNKNOWN = "commit_unknown"  #: it is not known whether the plan was committed; it stays inflight
    REJECTED = "rejected"  #: the table can't be used as configured
    INTEGRITY = "integrity"  #: the output differed from the input


class PlanFilter(TypedDict, total=False):
    """A filter of plans; an empty one matches all.

    ``name`` is a part of the table's name, in upper or lower case. ``since`` and ``until`` are creation times.
    ``proposed`` is True for plans that wait for approval, False for all other plans.
    """

    table: str | None
    name: str | None
    state: PlanState | None
    proposed: bool | None
    error_class: ErrorClass | None
    since: datetime | None
    until: datetime | None
    request_id: str | None


def build_plan_filter(**fields: Any) -> PlanFilter:
    """Return the filter with the fields that are set. Requests call the field ``error_class`` ``error``."""
    chosen = {name: value for name, value in fields.items() if value is not None and value != ""}
    return cast(PlanFilter, {"error_class" if name == "error" else name: value for name, value in chosen.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestPlan:
    """The newest plan of a table; ``at`` is the time of its end, or of the creation of a live plan."""

    plan_id: str
    state: PlanState
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryingPlan:
    """A live plan that has failed at least once; ``attempt`` is the number of its last failed attempt.

    ``next_attempt_at`` is None for an inflight plan.
    """

    plan_id: str
    attempt: int
    max_attempts: int
    error: str
    next_attempt_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """One group of a plan without its list of files; ``left_out`` is the reason why it is not part of the commit."""

    number: int
    partition: str
    slices: int
    input_files: int
    input_bytes: int
    output_files: int
    left_out: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanView:
    """A plan as people see it.

    Only ``Store.plan`` fills ``groups``, ``partitions`` and ``figures``; in lists they are empty. ``instants`` are the
    plan's instants on the table's timeline, the committed one last; ``instant`` is the committed one. ``adopted`` is
    the instant that another process scheduled; None if lakefold planned the work itself. ``spark_ui`` is the address
    of the Spark UI that shows the jobs of an inflight plan, if its executor has one. ``used_cpu_seconds`` is the cost
    of a completed plan; ``cpu_measured`` is True if the CPU time of its rewriting tasks was measured. ``proposed_at``
    is the time of its proposal; None for a plan that needs no approval.
    """

    plan_id: str
    table: str
    format: str
    location: str
    kind: PlanKind
    state: PlanState
    snapshot_instant: str
    request_id: str | None
    actor: str
    options: Mapping[str, Any]
    estimate: Mapping[str, Any]
    group_count: int
    partition_count: int
    input_files: int
    input_bytes: int
    output_files: int
    used_cpu_seconds: float | None
    cpu_measured: bool
    adopted: str | None
    epoch: int
    attempts: int
    executor: str | None
    lease_until: datetime | None
    heartbeat_at: datetime | None
    not_before: datetime
    step: str | None
    progress_bytes_done: int
    progress_bytes_total: int
    progress_rows_done: int
    spark_ui: str | None
    cancel_requested_by: str | None
    cancel_reason: str | None
    error: str | None
    error_class: ErrorClass | None
    proposed_at: datetime | None
    decision: ProposalDecision | None
    decided_by: str | None
    decided_at: datetime | None
    created_at: datetime
    claimed_at: datetime | None
    finalized_at: datetime | None
    instant: str | None
    instants: tuple[str, ...]
    milliseconds: Mapping[str, int]
    files_before: int
    bytes_before: int
    files_after: int
    bytes_after: int
    groups: tuple[GroupView, ...] = ()
    partitions: tuple[str, ...] = ()
    figures: tuple[PartitionFigures, ...] = ()

    @property
    def waits_for_approval(self) -> bool:
        """True if no executor can claim the plan until a person approves it."""
        return self.proposed_at is not None and self.decision is None and self.state is PlanState.REQUESTED

    @property
    def took_milliseconds(self) -> int | None:
        """The duration of the last attempt, from its claim to the plan's end; for a live plan, of its steps so far.

        It is the sum of the steps' times and ``other_milliseconds``. None before the first step.
        """
        return sum(self.milliseconds.values()) + self.other_milliseconds if self.milliseconds else None

    @property
    def other_milliseconds(self) -> int:
        """The time of the last attempt outside of its steps; 0 for a live plan."""
        if self.finalized_at is None or self.claimed_at is None:
            return 0
        took = (self.finalized_at - self.claimed_at) // timedelta(milliseconds=1)
        return max(0, took - sum(self.milliseconds.values()))

    @property
    def left_out(self) -> tuple[GroupView, ...]:
        """The groups that are not part of the commit, with their reasons."""
        return tuple(group for group in self.groups if group.left_out is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A plan that waits for approval; ``settings`` is its settings digest, None if it ``adopted`` an instant."""

    plan_id: str
    settings: str | None
    adopted: str | None
    slices: tuple[FileSlice, ...]

    @property
    def partitions(self) -> frozenset[str]:
        """The partitions that the proposal holds."""
        return frozenset(item.partition for item in self.slices)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConflictCount:
    """The number of the plans of a table that ended lately, and how many of them conflicted with a writer."""

    conflicts: int
    ended: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanEvent:
    """An event of a plan: a transition if the states differ, its creation if ``from_state`` is None."""

    plan_id: str
    at: datetime
    from_state: PlanState | None
    to_state: PlanState
    epoch: int
    actor: str
    reason: str
