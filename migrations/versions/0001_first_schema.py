# SPDX-License-Identifier: Apache-2.0
"""The tables of the first release, and the triggers that allow only valid state changes of plans."""

import sqlalchemy as sa
from alembic import op

from service.control.store import schema

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    row_id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "leader",
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("holder", sa.String(), nullable=False),
        sa.Column("acquired_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("expires_at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("role", name="pk_leader"),
    )
    op.create_table(
        "plan_request",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("table_name", sa.String(), nullable=False),
        sa.Column("partitions", sa.Text(), nullable=True),
        sa.Column("overrides", sa.Text(), nullable=False),
        sa.Column("dry_run", sa.Boolean(), nullable=False),
        sa.Column("idempotency_key", sa.String(), nullable=True),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("answered_at_ms", sa.BigInteger(), nullable=True),
        sa.Column("plan_ids", sa.Text(), server_default="[]", nullable=False),
        sa.Column("answer", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "(answered_at_ms IS NULL) = (answer IS NULL)", name=op.f("ck_plan_request_answered_with_answer")
        ),
        sa.PrimaryKeyConstraint("id", name="pk_plan_request"),
        sa.UniqueConstraint("idempotency_key", name="uq_plan_request_idempotency_key"),
    )
    op.create_index(
        "ix_plan_request_open",
        "plan_request",
        ["id"],
        unique=False,
        sqlite_where=sa.text("answered_at_ms IS NULL"),
        postgresql_where=sa.text("answered_at_ms IS NULL"),
    )
    op.create_table(
        "table_state",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("format", sa.String(), nullable=False),
        sa.Column("location", sa.String(), nullable=False),
        sa.Column("concurrency", sa.String(), nullable=False),
        sa.Column("write_options", sa.Text(), nullable=False),
        sa.Column("mode", sa.String(), nullable=False),
        sa.Column("paused_by", sa.String(), nullable=True),
        sa.Column("paused_at_ms", sa.BigInteger(), nullable=True),
        sa.Column("halted_reason", sa.Text(), nullable=True),
        sa.Column("halted_at_ms", sa.BigInteger(), nullable=True),
        sa.Column("quarantined", sa.Text(), server_default="{}", nullable=False),
        sa.Column("registered_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("last_scan_id", sa.BigInteger(), nullable=True),
        sa.Column("last_ok_scan_id", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("mode IN ('observe', 'compact', 'off')", name=op.f("ck_table_state_mode_known")),
        sa.CheckConstraint(
            "(halted_at_ms IS NULL) = (halted_reason IS NULL)", name=op.f("ck_table_state_halted_with_reason")
        ),
        sa.CheckConstraint(
            "(paused_at_ms IS NULL) = (paused_by IS NULL)", name=op.f("ck_table_state_paused_by_somebody")
        ),
        sa.PrimaryKeyConstraint("name", name="pk_table_state"),
    )
    op.create_table(
        "plan",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("table_name", sa.String(), nullable=False),
        sa.Column("format", sa.String(), nullable=False),
        sa.Column("location", sa.String(), nullable=False),
        sa.Column("concurrency", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("snapshot_instant", sa.String(), nullable=False),
        sa.Column("options", sa.Text(), nullable=False),
        sa.Column("estimate", sa.Text(), nullable=False),
        sa.Column("request_id", sa.String(), nullable=True),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("group_count", sa.BigInteger(), nullable=False),
        sa.Column("partition_count", sa.BigInteger(), nullable=False),
        sa.Column("input_files", sa.BigInteger(), nullable=False),
        sa.Column("input_bytes", sa.BigInteger(), nullable=False),
        sa.Column("output_files", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("attempts", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("executor", sa.String(), nullable=True),
        sa.Column("lease_until_ms", sa.BigInteger(), nullable=True),
        sa.Column("heartbeat_at_ms", sa.BigInteger(), nullable=True),
        sa.Column("not_before_ms", sa.BigInteger(), nullable=False),
        sa.Column("step", sa.String(), nullable=True),
        sa.Column("progress_bytes_done", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("progress_bytes_total", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("progress_rows_done", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("cancel_requested_by", sa.String(), nullable=True),
        sa.Column("cancel_requested_at_ms", sa.BigInteger(), nullable=True),
        sa.Column("cancel_reason", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("claimed_at_ms", sa.BigInteger(), nullable=True),
        sa.Column("finalized_at_ms", sa.BigInteger(), nullable=True),
        sa.Column("instants", sa.Text(), server_default="[]", nullable=False),
        sa.Column("instant", sa.String(), nullable=True),
        sa.Column("milliseconds", sa.Text(), server_default="{}", nullable=False),
        sa.Column("figures", sa.Text(), server_default="[]", nullable=False),
        sa.Column("files_before", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("bytes_before", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("files_after", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("bytes_after", sa.BigInteger(), server_default="0", nullable=False),
        sa.CheckConstraint(
            "(finalized_at_ms IS NULL) = (state IN ('inflight', 'requested'))",
            name=op.f("ck_plan_finalized_iff_not_live"),
        ),
        sa.CheckConstraint("(instant IS NOT NULL) = (state = 'completed')", name=op.f("ck_plan_instant_iff_completed")),
        sa.CheckConstraint(
            "(lease_until_ms IS NOT NULL) = (state = 'inflight')", name=op.f("ck_plan_leased_iff_inflight")
        ),
        sa.CheckConstraint("kind IN ('clustering', 'compaction')", name=op.f("ck_plan_kind_known")),
        sa.CheckConstraint("state <> 'inflight' OR executor IS NOT NULL", name=op.f("ck_plan_inflight_has_executor")),
        sa.CheckConstraint(
            "state IN ('requested', 'inflight', 'completed', 'failed', 'cancelled')", name=op.f("ck_plan_state_known")
        ),
        sa.CheckConstraint(
            "(cancel_requested_at_ms IS NULL) = (cancel_requested_by IS NULL)",
            name=op.f("ck_plan_cancel_asked_by_somebody"),
        ),
        sa.CheckConstraint("epoch >= 0 AND attempts >= 0 AND attempts <= epoch", name=op.f("ck_plan_counters_sane")),
        sa.ForeignKeyConstraint(["request_id"], ["plan_request.id"], name="fk_plan_request_id_plan_request"),
        sa.ForeignKeyConstraint(["table_name"], ["table_state.name"], name="fk_plan_table_name_table_state"),
        sa.PrimaryKeyConstraint("id", name="pk_plan"),
    )
    op.create_index(
        "ix_plan_figures",
        "plan",
        [
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
        ],
        unique=False,
    )
    op.create_index("ix_plan_request_id", "plan", ["request_id"], unique=False)
    op.create_index("ix_plan_state_id", "plan", ["state", "id"], unique=False)
    op.create_index("ix_plan_table_name_id", "plan", ["table_name", "id"], unique=False)
    op.create_index(
        "ix_plan_unfinished_instants",
        "plan",
        ["table_name"],
        unique=False,
        sqlite_where=sa.text("instants <> '[]'"),
        postgresql_where=sa.text("instants <> '[]'"),
    )
    op.create_table(
        "scan_history",
        sa.Column("id", row_id, autoincrement=True, nullable=False),
        sa.Column("table_name", sa.String(), nullable=False),
        sa.Column("taken_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("record", sa.Text(), nullable=False),
        sa.CheckConstraint("(outcome = 'error') = (error IS NOT NULL)", name=op.f("ck_scan_history_error_told")),
        sa.CheckConstraint("outcome IN ('ok', 'error')", name=op.f("ck_scan_history_outcome_known")),
        sa.ForeignKeyConstraint(["table_name"], ["table_state.name"], name="fk_scan_history_table_name_table_state"),
        sa.PrimaryKeyConstraint("id", name="pk_scan_history"),
    )
    op.create_index("ix_scan_history_table_name_id", "scan_history", ["table_name", "id"], unique=False)
    op.create_table(
        "live_partition",
        sa.Column("table_name", sa.String(), nullable=False),
        sa.Column("partition_path", sa.String(), nullable=False),
        sa.Column("plan_id", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["plan_id"], ["plan.id"], name="fk_live_partition_plan_id_plan"),
        sa.ForeignKeyConstraint(["table_name"], ["table_state.name"], name="fk_live_partition_table_name_table_state"),
        sa.PrimaryKeyConstraint("table_name", "partition_path", name="pk_live_partition"),
    )
    op.create_index("ix_live_partition_plan_id", "live_partition", ["plan_id"], unique=False)
    op.create_table(
        "plan_event",
        sa.Column("id", row_id, autoincrement=True, nullable=False),
        sa.Column("plan_id", sa.String(), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("from_state", sa.String(), nullable=True),
        sa.Column("to_state", sa.String(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.CheckConstraint(
            "from_state IS NULL OR from_state IN ('requested', 'inflight', 'completed', 'failed', 'cancelled')",
            name=op.f("ck_plan_event_from_state_known"),
        ),
        sa.CheckConstraint(
            "to_state IN ('requested', 'inflight', 'completed', 'failed', 'cancelled')",
            name=op.f("ck_plan_event_to_state_known"),
        ),
        sa.ForeignKeyConstraint(["plan_id"], ["plan.id"], name="fk_plan_event_plan_id_plan"),
        sa.PrimaryKeyConstraint("id", name="pk_plan_event"),
    )
    op.create_index("ix_plan_event_plan_id_id", "plan_event", ["plan_id", "id"], unique=False)
    op.create_table(
        "plan_group",
        sa.Column("plan_id", sa.String(), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("partition_path", sa.String(), nullable=False),
        sa.Column("slices", sa.BigInteger(), nullable=False),
        sa.Column("input_files", sa.BigInteger(), nullable=False),
        sa.Column("input_bytes", sa.BigInteger(), nullable=False),
        sa.Column("output_files", sa.BigInteger(), nullable=False),
        sa.Column("files", sa.LargeBinary(), nullable=False),
        sa.Column("left_out", sa.Text(), nullable=True),
        sa.CheckConstraint("number >= 0 AND input_bytes >= 0", name=op.f("ck_plan_group_figures_sane")),
        sa.ForeignKeyConstraint(["plan_id"], ["plan.id"], name="fk_plan_group_plan_id_plan"),
        sa.PrimaryKeyConstraint("plan_id", "number", name="pk_plan_group"),
    )
    op.create_table(
        "superseded_version",
        sa.Column("id", row_id, autoincrement=True, nullable=False),
        sa.Column("plan_id", sa.String(), nullable=False),
        sa.Column("table_name", sa.String(), nullable=False),
        sa.Column("partition_path", sa.String(), nullable=False),
        sa.Column("path", sa.String(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("instant", sa.String(), nullable=False),
        sa.Column("superseded_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("deleted_at_ms", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("bytes >= 0", name=op.f("ck_superseded_version_bytes_not_negative")),
        sa.ForeignKeyConstraint(["plan_id"], ["plan.id"], name="fk_superseded_version_plan_id_plan"),
        sa.ForeignKeyConstraint(
            ["table_name"], ["table_state.name"], name="fk_superseded_version_table_name_table_state"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_superseded_version"),
        sa.UniqueConstraint("plan_id", "path", name="uq_superseded_version_plan_id_path"),
    )
    op.create_index(
        "ix_superseded_version_waiting",
        "superseded_version",
        ["table_name", "instant", "id", "superseded_at_ms", "bytes"],
        unique=False,
        sqlite_where=sa.text("deleted_at_ms IS NULL"),
        postgresql_where=sa.text("deleted_at_ms IS NULL"),
    )
    for statement in schema.create_trigger_statements(op.get_bind().dialect.name):
        op.execute(statement)


def downgrade() -> None:
    """Revert; all data is deleted."""
    for statement in schema.drop_trigger_statements(op.get_bind().dialect.name):
        op.execute(statement)
    for table in (
        "superseded_version",
        "plan_group",
        "plan_event",
        "live_partition",
        "scan_history",
        "plan",
        "table_state",
        "plan_request",
        "leader",
    ):
        op.drop_table(table)
