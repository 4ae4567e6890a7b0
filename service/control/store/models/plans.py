# SPDX-License-Identifier: Apache-2.0
"""Plans with their groups, locked partitions, staged files, superseded files and charges."""

from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Text,
    UniqueConstraint,
)
from sqlalchemy.orm import Mapped, mapped_column

from lake.plan import LIVE_STATES, LockOwnerKind, PlanKind, PlanState, ProposalDecision
from service.control.store.models.columns import Base, Json, RowId, StepName, StepTimes, in_clause, partial_index

_IS_LIVE = in_clause("state", sorted(LIVE_STATES))
_IS_LOCKED_BY_PLAN = "holder_kind = 'plan'"
_IS_PROPOSED = "proposed_at_ms IS NOT NULL AND decision IS NULL AND state = 'requested'"


class PlanRow(Base):
    """A plan. When it leaves inflight, the lease is cleared and ``executor`` stays."""

    __tablename__ = "plan"
    __table_args__ = (
        CheckConstraint(in_clause("state", PlanState), name="state_known"),
        CheckConstraint(in_clause("kind", PlanKind), name="kind_known"),
        CheckConstraint(f"(finalized_at_ms IS NULL) = ({_IS_LIVE})", name="finalized_iff_not_live"),
        CheckConstraint("(lease_until_ms IS NOT NULL) = (state = 'inflight')", name="leased_iff_inflight"),
        CheckConstraint("state <> 'inflight' OR executor IS NOT NULL", name="inflight_has_executor"),
        CheckConstraint("(instant IS NOT NULL) = (state = 'completed')", name="instant_iff_completed"),
        CheckConstraint("epoch >= 0 AND attempts >= 0 AND attempts <= epoch", name="counters_sane"),
        CheckConstraint(
            "(cancel_requested_at_ms IS NULL) = (cancel_requested_by IS NULL)", name="cancel_asked_by_somebody"
        ),
        CheckConstraint(in_clause("decision", ProposalDecision), name="decision_known"),
        CheckConstraint("(decision IS NULL) = (decided_by IS NULL)", name="decided_by_somebody"),
        CheckConstraint("(decision IS NULL) = (decided_at_ms IS NULL)", name="decided_at_some_time"),
        CheckConstraint("decision IS NULL OR proposed_at_ms IS NOT NULL", name="decided_of_proposals"),
        CheckConstraint(
            "proposed_at_ms IS NULL OR state IN ('requested', 'cancelled') OR COALESCE(decision, '') = 'approved'",
            name="runs_once_approved",
        ),
        CheckConstraint("COALESCE(decision, '') <> 'declined' OR state = 'cancelled'", name="declined_iff_ended"),
        Index(None, "state", "id"),
        Index(None, "table_name", "id"),
        Index(None, "table_name", "state", "id"),
        partial_index("ix_plan_error", "error_class", "id", where="error_class IS NOT NULL"),
        partial_index("ix_plan_table_error", "table_name", "error_class", "id", where="error_class IS NOT NULL"),
        Index(None, "request_id"),
        # An adopted instant is executed by at most one plan at a time.
        partial_index(
            "ix_plan_live_adopted", "table_name", "adopted", where=f"adopted IS NOT NULL AND {_IS_LIVE}", unique=True
        ),
        partial_index("ix_plan_rank", "rank_ms", "id", where="state = 'requested'"),
        partial_index("ix_plan_proposed", "table_name", where=_IS_PROPOSED),
        partial_index("ix_plan_declined", "table_name", where="decision = 'declined'"),
        partial_index("ix_plan_used", "format", "engine", "finalized_at_ms", where="used_cpu_ms IS NOT NULL"),
        # All columns that figures() sums, so that it reads the index and not the wide rows.
        Index(
            "ix_plan_figures",
            "table_name",
            "kind",
            "state",
            "created_at_ms",
            "input_files",
            "input_bytes",
            "files_before",
            "bytes_before",
            "files_after",
            "bytes_after",
        ),
    )

    id: Mapped[str] = mapped_column(String, primary_key=True)
    table_name: Mapped[str] = mapped_column(ForeignKey("table_state.name"))
    format: Mapped[str] = mapped_column(String)
    location: Mapped[str] = mapped_column(String)
    #: the identity of the table at the time of planning
    identity: Mapped[str | None] = mapped_column(String)
    kind: Mapped[str] = mapped_column(String)
    state: Mapped[str] = mapped_column(String)
    snapshot_instant: Mapped[str] = mapped_column(String)
    options: Mapped[Any] = mapped_column(Json)
    estimate: Mapped[Any] = mapped_column(Json)
    request_id: Mapped[str | None] = mapped_column(ForeignKey("plan_request.id"))
    actor: Mapped[str] = mapped_column(String)
    group_count: Mapped[int] = mapped_column(BigInteger)
    partition_count: Mapped[int] = mapped_column(BigInteger)
    input_files: Mapped[int] = mapped_column(BigInteger)
    input_bytes: Mapped[int] = mapped_column(BigInteger)
    output_files: Mapped[int] = mapped_column(BigInteger)
    #: the engine setting, as in ``options``; None for plans of old releases, which made no predictions
    engine: Mapped[str | None] = mapped_column(String)
    predicted_cpu_ms: Mapped[int | None] = mapped_column(BigInteger)
    #: CPU time of the rewriting tasks of the last attempt, as they or Spark measured it; None if not measured
    rewrite_cpu_ms: Mapped[int | None] = mapped_column(BigInteger)
    #: for a completed plan: the CPU time of its rewrite and the time of its other steps
    used_cpu_ms: Mapped[int | None] = mapped_column(BigInteger)
    #: the instant on the table's timeline that another process scheduled and this plan executes
    adopted: Mapped[str | None] = mapped_column(String)
    #: W3C trace context of the plan's trace, if tracing is on
    traceparent: Mapped[str | None] = mapped_column(String)

    epoch: Mapped[int] = mapped_column(BigInteger, server_default="0")
    attempts: Mapped[int] = mapped_column(BigInteger, server_default="0")
    executor: Mapped[str | None] = mapped_column(String)
    lease_until_ms: Mapped[int | None] = mapped_column(BigInteger)
    #: within this time after the lease, the plan is taken over only if its executor is known to have ended
    grace_ms: Mapped[int] = mapped_column(BigInteger, server_default="0")
    heartbeat_at_ms: Mapped[int | None] = mapped_column(BigInteger)
    not_before_ms: Mapped[int] = mapped_column(BigInteger)
    #: the creation time minus the priority and the urgency; the plan with the smallest value runs first
    rank_ms: Mapped[int] = mapped_column(BigInteger, server_default="0")
    #: how much earlier the plan runs because its table misses an objective; included in ``rank_ms``
    urgency_ms: Mapped[int] = mapped_column(BigInteger, server_default="0")
    #: the last step that succeeded in the last attempt
    step: Mapped[str | None] = mapped_column(StepName)
    #: the time up to which ``milliseconds`` covers the last attempt; None before the first attempt
    step_at_ms: Mapped[int | None] = mapped_column(BigInteger)
    progress_bytes_done: Mapped[int] = mapped_column(BigInteger, server_default="0")
    progress_bytes_total: Mapped[int] = mapped_column(BigInteger, server_default="0")
    progress_rows_done: Mapped[int] = mapped_column(BigInteger, server_default="0")
    #: address of the executor's Spark UI in the last attempt, if it has one
    spark_ui: Mapped[str | None] = mapped_column(String)
    cancel_requested_by: Mapped[str | None] = mapped_column(String)
    cancel_requested_at_ms: Mapped[int | None] = mapped_column(BigInteger)
    cancel_reason: Mapped[str | None] = mapped_column(Text)
    error: Mapped[str | None] = mapped_column(Text)
    #: the class of the error (``ErrorClass``); None if a person cancelled the plan
    error_class: Mapped[str | None] = mapped_column(String)
    #: a digest of the settings with which the plan was made and runs; None for plans that no scan compares by settings
    settings: Mapped[str | None] = mapped_column(String)
    #: why a failed plan's slices are left alone under the same settings (``FailureKind``); None after a resume
    failure: Mapped[str | None] = mapped_column(String)

    #: when the plan was proposed; None for a plan that needs no approval
    proposed_at_ms: Mapped[int | None] = mapped_column(BigInteger)
    decided_by: Mapped[str | None] = mapped_column(String)
    decided_at_ms: Mapped[int | None] = mapped_column(BigInteger)
    #: the decision on a proposal (``ProposalDecision``); None until it is decided
    decision: Mapped[str | None] = mapped_column(String)
    #: when a scan last left files alone because the plan was declined, recorded once a day; None before the first time
    spared_at_ms: Mapped[int | None] = mapped_column(BigInteger)

    created_at_ms: Mapped[int] = mapped_column(BigInteger)
    claimed_at_ms: Mapped[int | None] = mapped_column(BigInteger)
    finalized_at_ms: Mapped[int | None] = mapped_column(BigInteger)
    #: the instant of the plan's commit
    instant: Mapped[str | None] = mapped_column(String)
    milliseconds: Mapped[Any] = mapped_column(StepTimes, server_default="{}")
    figures: Mapped[Any] = mapped_column(Json, server_default="[]")
    files_before: Mapped[int] = mapped_column(BigInteger, server_default="0")
    bytes_before: Mapped[int] = mapped_column(BigInteger, server_default="0")
    files_after: Mapped[int] = mapped_column(BigInteger, server_default="0")
    bytes_after: Mapped[int] = mapped_column(BigInteger, server_default="0")


class PlanTotalRow(Base):
    """The sums of the pruned plans of one table, kind and state."""

    __tablename__ = "plan_total"

    table_name: Mapped[str] = mapped_column(ForeignKey("table_state.name"), primary_key=True)
    kind: Mapped[str] = mapped_column(String, primary_key=True)
    state: Mapped[str] = mapped_column(String, primary_key=True)
    plans: Mapped[int] = mapped_column(BigInteger)
    oldest_created_at_ms: Mapped[int] = mapped_column(BigInteger)
    input_files: Mapped[int] = mapped_column(BigInteger)
    input_bytes: Mapped[int] = mapped_column(BigInteger)
    files_before: Mapped[int] = mapped_column(BigInteger)
    bytes_before: Mapped[int] = mapped_column(BigInteger)
    files_after: Mapped[int] = mapped_column(BigInteger)
    bytes_after: Mapped[int] = mapped_column(BigInteger)


class GroupRow(Base):
    """A group of a plan; ``files`` is its list of slices (``service.control.store.rows.pack_slices``)."""

    __tablename__ = "plan_group"
    __table_args__ = (CheckConstraint("number >= 0 AND input_bytes >= 0", name="figures_sane"),)

    plan_id: Mapped[str] = mapped_column(ForeignKey("plan.id"), primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    partition_path: Mapped[str] = mapped_column(String)
    slices: Mapped[int] = mapped_column(BigInteger)
    input_files: Mapped[int] = mapped_column(BigInteger)
    input_bytes: Mapped[int] = mapped_column(BigInteger)
    output_files: Mapped[int] = mapped_column(BigInteger)
    files: Mapped[bytes] = mapped_column(LargeBinary)
    left_out: Mapped[str | None] = mapped_column(Text)


class LivePartitionRow(Base):
    """A locked partition and its holder: a live plan, or for some minutes a ``lake.plan.LockOwner`` (``keeper``).

    A partition of a plan may have a second owner, ``guest``: for some minutes the sweep, or the cleaner if no executor
    runs the plan yet. Once the plan's commit has begun, ``guest`` is the id of the plan itself.
    """

    __tablename__ = "live_partition"
    __table_args__ = (
        CheckConstraint(in_clause("holder_kind", ("plan", *LockOwnerKind)), name="holder_known"),
        CheckConstraint(f"({_IS_LOCKED_BY_PLAN}) = (plan_id IS NOT NULL)", name="plan_held_by_it"),
        CheckConstraint(f"({_IS_LOCKED_BY_PLAN}) = (keeper IS NULL)", name="keeper_named"),
        CheckConstraint(f"({_IS_LOCKED_BY_PLAN}) = (expires_at_ms IS NULL)", name="keeper_expires"),
        Index(None, "plan_id"),
    )

    table_name: Mapped[str] = mapped_column(ForeignKey("table_state.name"), primary_key=True)
    partition_path: Mapped[str] = mapped_column(String, primary_key=True)
    holder_kind: Mapped[str] = mapped_column(String)
    plan_id: Mapped[str | None] = mapped_column(ForeignKey("plan.id"))
    keeper: Mapped[str | None] = mapped_column(String)
    expires_at_ms: Mapped[int | None] = mapped_column(BigInteger)
    guest: Mapped[str | None] = mapped_column(String)
    guest_until_ms: Mapped[int | None] = mapped_column(BigInteger)


class StagedRow(Base):
    """The files that an attempt at a plan stages. The row is written before the first of these files exists.

    ``cleared_at_ms`` is set once the files are part of the table, or once no file exists and none can appear.
    """

    __tablename__ = "staged"
    __table_args__ = (partial_index("ix_staged_left", "table_name", where="cleared_at_ms IS NULL"),)

    plan_id: Mapped[str] = mapped_column(ForeignKey("plan.id"), primary_key=True)
    token: Mapped[str] = mapped_column(String, primary_key=True)
    table_name: Mapped[str] = mapped_column(ForeignKey("table_state.name"))
    epoch: Mapped[int] = mapped_column(BigInteger)
    paths: Mapped[Any] = mapped_column(Json)
    staged_at_ms: Mapped[int] = mapped_column(BigInteger)
    cleared_at_ms: Mapped[int | None] = mapped_column(BigInteger)


class EventRow(Base):
    """An event of a plan. It never changes, and is deleted only with its plan."""

    __tablename__ = "plan_event"
    __table_args__ = (
        CheckConstraint(in_clause("to_state", PlanState), name="to_state_known"),
        CheckConstraint(f"from_state IS NULL OR {in_clause('from_state', PlanState)}", name="from_state_known"),
        Index(None, "plan_id", "id"),
    )

    id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    plan_id: Mapped[str] = mapped_column(ForeignKey("plan.id"))
    at_ms: Mapped[int] = mapped_column(BigInteger)
    from_state: Mapped[str | None] = mapped_column(String)
    to_state: Mapped[str] = mapped_column(String)
    epoch: Mapped[int] = mapped_column(BigInteger)
    actor: Mapped[str] = mapped_column(String)
    reason: Mapped[str] = mapped_column(Text)


class SupersededRow(Base):
    """A file that a completed plan replaced. The row remains after the deletion of the file.

    If the row has a ``closed_reason``, it no longer waits since ``deleted_at_ms``, and lakefold did not delete the
    file.
    """

    __tablename__ = "superseded_version"
    __table_args__ = (
        CheckConstraint("bytes >= 0", name="bytes_not_negative"),
        UniqueConstraint("plan_id", "path"),
        Index(None, "plan_id", "partition_path"),
        partial_index(
            "ix_superseded_version_waiting",
            "table_name",
            "superseded_at_ms",
            "id",
            "bytes",
            where="deleted_at_ms IS NULL",
        ),
        partial_index("ix_superseded_version_waiting_path", "path", where="deleted_at_ms IS NULL"),
    )

    id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    plan_id: Mapped[str] = mapped_column(ForeignKey("plan.id"))
    table_name: Mapped[str] = mapped_column(ForeignKey("table_state.name"))
    partition_path: Mapped[str] = mapped_column(String)
    path: Mapped[str] = mapped_column(String)
    bytes: Mapped[int] = mapped_column(BigInteger)
    instant: Mapped[str] = mapped_column(String)
    #: when the file was written; None if it was not recorded, or if the format never reuses a file name
    modified_at_ms: Mapped[int | None] = mapped_column(BigInteger)
    superseded_at_ms: Mapped[int] = mapped_column(BigInteger)
    #: set before the first attempt to delete the file, and kept if the attempt fails
    deleting_at_ms: Mapped[int | None] = mapped_column(BigInteger)
    deleted_at_ms: Mapped[int | None] = mapped_column(BigInteger)
    closed_reason: Mapped[str | None] = mapped_column(Text)


class ChargeRow(Base):
    """A charge for an attempt at a plan: the predicted cost at its start, or the excess over it at its end."""

    __tablename__ = "charge"
    __table_args__ = (
        CheckConstraint("bytes >= 0 AND cpu_ms >= 0", name="not_negative"),
        Index(None, "at_ms"),
    )

    id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    plan_id: Mapped[str] = mapped_column(String)
    table_name: Mapped[str] = mapped_column(String)
    at_ms: Mapped[int] = mapped_column(BigInteger)
    bytes: Mapped[int] = mapped_column(BigInteger)
    cpu_ms: Mapped[int] = mapped_column(BigInteger)
