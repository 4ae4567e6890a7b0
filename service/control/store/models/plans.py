# SPDX-License-Identifier: Apache-2.0
"""Plans, what they are made of, what they hold and what they have replaced."""

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
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from lake.plan import LIVE_STATES, LockOwnerKind, PlanKind, PlanState, ProposalDecision
from service.control.store.models.columns import Base, Json, RowId, in_clause

_IS_LIVE = in_clause("state", sorted(LIVE_STATES))
_IS_LOCKED_BY_PLAN = "holder_kind = 'plan'"
_IS_PROPOSED = "proposed_at_ms IS NOT NULL AND decision IS NULL AND state = 'requested'"


class PlanRow(Base):
    """A plan. ``executor`` stays as the last one after the plan has left inflight; its lease does not."""

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
        Index(
            "ix_plan_error",
            "error_class",
            "id",
            sqlite_where=text("error_class IS NOT NULL"),
            postgresql_where=text("error_class IS NOT NULL"),
        ),
        Index(
            "ix_plan_table_error",
            "table_name",
            "error_class",
            "id",
            sqlite_where=text("error_class IS NOT NULL"),
            postgresql_where=text("error_class IS NOT NULL"),
        ),
        Index(None, "request_id"),
        # An instant of somebody else's is executed by at most one plan at a time.
        Index(
            "ix_plan_live_adopted",
            "table_name",
            "adopted",
            unique=True,
            sqlite_where=text(f"adopted IS NOT NULL AND {_IS_LIVE}"),
            postgresql_where=text(f"adopted IS NOT NULL AND {_IS_LIVE}"),
        ),
        Index(
            "ix_plan_rank",
            "rank_ms",
            "id",
            sqlite_where=text("state = 'requested'"),
            postgresql_where=text("state = 'requested'"),
        ),
        Index("ix_plan_proposed", "table_name", sqlite_where=text(_IS_PROPOSED), postgresql_where=text(_IS_PROPOSED)),
        Index(
            "ix_plan_declined",
            "table_name",
            sqlite_where=text("decision = 'declined'"),
            postgresql_where=text("decision = 'declined'"),
        ),
        Index(
            "ix_plan_used",
            "format",
            "engine",
            "finalized_at_ms",
            sqlite_where=text("used_cpu_ms IS NOT NULL"),
            postgresql_where=text("used_cpu_ms IS NOT NULL"),
        ),
        # Everything figures() sums, so that it reads an index and not the wide rows.
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
    #: of the table that the plan was made for
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
    #: the engine of the policy, which ``options`` have as well; None of plans from before predictions were made
    engine: Mapped[str | None] = mapped_column(String)
    predicted_cpu_ms: Mapped[int | None] = mapped_column(BigInteger)
    #: what the tasks that rewrote have used in the last attempt, as they or Spark count; None where nobody did
    rewrite_cpu_ms: Mapped[int | None] = mapped_column(BigInteger)
    #: of a completed plan: that, and the time of its other steps
    used_cpu_ms: Mapped[int | None] = mapped_column(BigInteger)
    #: the instant on the table's timeline that another process scheduled and this plan executes
    adopted: Mapped[str | None] = mapped_column(String)
    #: W3C trace context of the plan's trace, where tracing is on
    traceparent: Mapped[str | None] = mapped_column(String)

    epoch: Mapped[int] = mapped_column(BigInteger, server_default="0")
    attempts: Mapped[int] = mapped_column(BigInteger, server_default="0")
    executor: Mapped[str | None] = mapped_column(String)
    lease_until_ms: Mapped[int | None] = mapped_column(BigInteger)
    #: how long past its lease it is taken over only from an executor that is known to be gone
    grace_ms: Mapped[int] = mapped_column(BigInteger, server_default="0")
    heartbeat_at_ms: Mapped[int | None] = mapped_column(BigInteger)
    not_before_ms: Mapped[int] = mapped_column(BigInteger)
    #: when it counts as made: the plan with the least goes first
    rank_ms: Mapped[int] = mapped_column(BigInteger, server_default="0")
    #: how much of that is for an objective that its table misses
    urgency_ms: Mapped[int] = mapped_column(BigInteger, server_default="0")
    #: the last step of the last attempt that ended
    step: Mapped[str | None] = mapped_column(String)
    #: since when that attempt's time is in no step of ``milliseconds`` yet; None before the first one
    step_at_ms: Mapped[int | None] = mapped_column(BigInteger)
    progress_bytes_done: Mapped[int] = mapped_column(BigInteger, server_default="0")
    progress_bytes_total: Mapped[int] = mapped_column(BigInteger, server_default="0")
    progress_rows_done: Mapped[int] = mapped_column(BigInteger, server_default="0")
    #: address of the Spark UI of the last attempt's executor, where it has one
    spark_ui: Mapped[str | None] = mapped_column(String)
    cancel_requested_by: Mapped[str | None] = mapped_column(String)
    cancel_requested_at_ms: Mapped[int | None] = mapped_column(BigInteger)
    cancel_reason: Mapped[str | None] = mapped_column(Text)
    error: Mapped[str | None] = mapped_column(Text)
    #: which outcome the error was (``ErrorClass``); none of what a person cancelled
    error_class: Mapped[str | None] = mapped_column(String)
    #: a digest of what decided how the plan was made and would be run; None where nobody is to compare it
    settings: Mapped[str | None] = mapped_column(String)
    #: why its slices are left alone under the same settings (``Failure``); None unless it failed, and after a resume
    failure: Mapped[str | None] = mapped_column(String)

    #: when it was stored to wait for approval; None of a plan that never had to
    proposed_at_ms: Mapped[int | None] = mapped_column(BigInteger)
    decided_by: Mapped[str | None] = mapped_column(String)
    decided_at_ms: Mapped[int | None] = mapped_column(BigInteger)
    #: what became of a proposal (``Decision``); None until somebody says so
    decision: Mapped[str | None] = mapped_column(String)
    #: when a scan last left files alone because it was declined, to the day; None of a plan that ended since
    spared_at_ms: Mapped[int | None] = mapped_column(BigInteger)

    created_at_ms: Mapped[int] = mapped_column(BigInteger)
    claimed_at_ms: Mapped[int | None] = mapped_column(BigInteger)
    finalized_at_ms: Mapped[int | None] = mapped_column(BigInteger)
    #: the completed instant that holds the plan's result
    instant: Mapped[str | None] = mapped_column(String)
    milliseconds: Mapped[Any] = mapped_column(Json, server_default="{}")
    figures: Mapped[Any] = mapped_column(Json, server_default="[]")
    files_before: Mapped[int] = mapped_column(BigInteger, server_default="0")
    bytes_before: Mapped[int] = mapped_column(BigInteger, server_default="0")
    files_after: Mapped[int] = mapped_column(BigInteger, server_default="0")
    bytes_after: Mapped[int] = mapped_column(BigInteger, server_default="0")


class PlanTotalRow(Base):
    """What the pruned plans of one table, kind and state add up to."""

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
    """A group of a plan; ``files`` is its list of slices (``blobs.py``)."""

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
    """A partition and its one holder: a plan for as long as it lives, or for some minutes a ``lake.plan.LockOwner``.

    ``guest`` is who may change something there beside the plan that holds it: a round of the sweep, or of the cleaner
    where nobody runs the plan yet, for some minutes, or the plan itself, by its id, from its commit on.
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
    """What an attempt at a plan staged, or was about to: written before the first file of it exists.

    ``cleared_at_ms`` is set once it is the table's, or nothing of it is left and nothing will come.
    """

    __tablename__ = "staged"
    __table_args__ = (
        Index(
            "ix_staged_left",
            "table_name",
            sqlite_where=text("cleared_at_ms IS NULL"),
            postgresql_where=text("cleared_at_ms IS NULL"),
        ),
    )

    plan_id: Mapped[str] = mapped_column(ForeignKey("plan.id"), primary_key=True)
    token: Mapped[str] = mapped_column(String, primary_key=True)
    table_name: Mapped[str] = mapped_column(ForeignKey("table_state.name"))
    epoch: Mapped[int] = mapped_column(BigInteger)
    paths: Mapped[Any] = mapped_column(Json)
    staged_at_ms: Mapped[int] = mapped_column(BigInteger)
    cleared_at_ms: Mapped[int | None] = mapped_column(BigInteger)


class EventRow(Base):
    """What happened to a plan: never changed, only added to."""

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
    """A file that a completed plan replaced, until and after its deletion.

    With a ``closed_reason`` it was not lakefold that deleted it, if anybody did, and ``deleted_at_ms`` is when that was
    seen.
    """

    __tablename__ = "superseded_version"
    __table_args__ = (
        CheckConstraint("bytes >= 0", name="bytes_not_negative"),
        UniqueConstraint("plan_id", "path"),
        Index(
            "ix_superseded_version_waiting",
            "table_name",
            "superseded_at_ms",
            "id",
            "bytes",
            sqlite_where=text("deleted_at_ms IS NULL"),
            postgresql_where=text("deleted_at_ms IS NULL"),
        ),
    )

    id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    plan_id: Mapped[str] = mapped_column(ForeignKey("plan.id"))
    table_name: Mapped[str] = mapped_column(ForeignKey("table_state.name"))
    partition_path: Mapped[str] = mapped_column(String)
    path: Mapped[str] = mapped_column(String)
    bytes: Mapped[int] = mapped_column(BigInteger)
    instant: Mapped[str] = mapped_column(String)
    #: when the file was written; None where the format never uses a name twice, or where nobody recorded it
    modified_at_ms: Mapped[int | None] = mapped_column(BigInteger)
    superseded_at_ms: Mapped[int] = mapped_column(BigInteger)
    #: set before the first deletion of the file, and not taken back where that failed
    deleting_at_ms: Mapped[int | None] = mapped_column(BigInteger)
    deleted_at_ms: Mapped[int | None] = mapped_column(BigInteger)
    closed_reason: Mapped[str | None] = mapped_column(Text)


class ChargeRow(Base):
    """What an attempt at a plan was charged at a moment: its prediction when it began, at its end what went beyond."""

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
