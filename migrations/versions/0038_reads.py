# SPDX-License-Identifier: Apache-2.0
"""Observed reads of tables by day, and how far each log of queries was read."""

import sqlalchemy as sa
from alembic import op

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "table_read",
        sa.Column("table_name", sa.String(), nullable=False),
        sa.Column("day_ms", sa.BigInteger(), nullable=False),
        sa.Column("source", sa.String(), nullable=False),
        sa.Column("reads", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("table_name", "day_ms", "source", name=op.f("pk_table_read")),
    )
    op.create_table(
        "read_log",
        sa.Column("log", sa.String(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("seen_at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("log", name=op.f("pk_read_log")),
    )


def downgrade() -> None:
    """Revert: tables have the configured rate again."""
    op.drop_table("read_log")
    op.drop_table("table_read")
