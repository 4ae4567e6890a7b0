# SPDX-License-Identifier: Apache-2.0
"""The charges of plans to budgets in the last 24 hours."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "charge",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("plan_id", sa.String(), nullable=False),
        sa.Column("table_name", sa.String(), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("cpu_ms", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("bytes >= 0 AND cpu_ms >= 0", name=op.f("ck_charge_not_negative")),
        sa.PrimaryKeyConstraint("id", name="pk_charge"),
    )
    op.create_index("ix_charge_at_ms", "charge", ["at_ms"])


def downgrade() -> None:
    """Revert; all budgets count as unused."""
    op.drop_table("charge")
