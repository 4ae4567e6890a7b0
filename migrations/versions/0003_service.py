# SPDX-License-Identifier: Apache-2.0
"""The data of the HTTP service: tokens, written partitions, layouts, notifications, trace contexts, pause reasons."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_WAITING = "delivered_at_ms IS NULL AND dead_at_ms IS NULL"


def upgrade() -> None:
    """Apply."""
    op.add_column("table_state", sa.Column("first_ok_scan_id", sa.BigInteger(), nullable=True))
    op.add_column("table_state", sa.Column("paused_reason", sa.Text(), nullable=True))
    # The oldest scan that is still stored stands for the first scan.
    op.execute(
        "UPDATE table_state SET first_ok_scan_id ="
        " (SELECT min(id) FROM scan_history WHERE table_name = table_state.name AND outcome = 'ok')"
    )
    op.add_column("plan", sa.Column("traceparent", sa.String(), nullable=True))
    op.add_column("plan", sa.Column("spark_ui", sa.String(), nullable=True))
    op.add_column("plan_request", sa.Column("traceparent", sa.String(), nullable=True))
    counted = (
        "plans",
        "oldest_created_at_ms",
        "input_files",
        "input_bytes",
        "files_before",
        "bytes_before",
        "files_after",
        "bytes_after",
    )
    op.create_table(
        "plan_total",
        sa.Column("table_name", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in counted),
        sa.ForeignKeyConstraint(["table_name"], ["table_state.name"], name="fk_plan_total_table_name_table_state"),
        sa.PrimaryKeyConstraint("table_name", "kind", "state", name="pk_plan_total"),
    )
    op.create_table(
        "partition_layout",
        sa.Column("table_name", sa.String(), nullable=False),
        sa.Column("taken_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("partitions", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["table_name"], ["table_state.name"], name="fk_partition_layout_table_name_table_state"
        ),
        sa.PrimaryKeyConstraint("table_name", name="pk_partition_layout"),
    )
    op.create_table(
        "written_partition",
        sa.Column("table_name", sa.String(), nullable=False),
        sa.Column("partition_path", sa.String(), nullable=False),
        sa.Column("reported_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("reported_by", sa.String(), nullable=False),
        sa.Column("due_at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("table_name", "partition_path", name="pk_written_partition"),
    )
    op.create_index("ix_written_partition_due_at_ms", "written_partition", ["due_at_ms"])
    op.create_table(
        "api_token",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("scope", sa.String(), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.String(), nullable=False),
        sa.Column("expires_at_ms", sa.BigInteger(), nullable=True),
        sa.Column("revoked_at_ms", sa.BigInteger(), nullable=True),
        sa.Column("last_used_at_ms", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("scope IN ('read', 'write')", name="scope_known"),
        sa.PrimaryKeyConstraint("name", name="pk_api_token"),
        sa.UniqueConstraint("digest", name="uq_api_token_digest"),
    )
    op.create_table(
        "notification",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("event", sa.String(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("attempts", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("not_before_ms", sa.BigInteger(), nullable=False),
        sa.Column("delivered_at_ms", sa.BigInteger(), nullable=True),
        sa.Column("dead_at_ms", sa.BigInteger(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.CheckConstraint("delivered_at_ms IS NULL OR dead_at_ms IS NULL", name="one_end"),
        sa.PrimaryKeyConstraint("id", name="pk_notification"),
    )
    op.create_index(
        "ix_notification_waiting",
        "notification",
        ["not_before_ms", "id"],
        sqlite_where=sa.text(_WAITING),
        postgresql_where=sa.text(_WAITING),
    )


def downgrade() -> None:
    """Revert."""
    op.drop_table("notification")
    op.drop_table("api_token")
    op.drop_table("written_partition")
    op.drop_table("partition_layout")
    op.drop_table("plan_total")
    op.drop_column("plan_request", "traceparent")
    op.drop_column("plan", "spark_ui")
    op.drop_column("plan", "traceparent")
    op.drop_column("table_state", "paused_reason")
    op.drop_column("table_state", "first_ok_scan_id")
