# SPDX-License-Identifier: Apache-2.0
"""The processes, with their role and the state of Spark, so that people see which of them work."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "process",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("version", sa.String(), nullable=False),
        sa.Column("slots", sa.BigInteger(), nullable=False),
        sa.Column("spark", sa.String(), nullable=False),
        sa.Column("spark_ui", sa.String(), nullable=True),
        sa.Column("problem", sa.Text(), nullable=True),
        sa.Column("started_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("seen_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("expires_at_ms", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("role IN ('all', 'scheduler', 'executor', 'api')", name=op.f("ck_process_role_known")),
        sa.CheckConstraint("spark IN ('none', 'starting', 'running', 'broken')", name=op.f("ck_process_spark_known")),
        sa.CheckConstraint("(spark = 'broken') = (problem IS NOT NULL)", name=op.f("ck_process_broken_with_reason")),
        sa.PrimaryKeyConstraint("name", name="pk_process"),
    )


def downgrade() -> None:
    """Revert."""
    op.drop_table("process")
