# SPDX-License-Identifier: Apache-2.0
"""The objectives of tables, the times for which they were met or missed, and the resulting urgency of plans."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

_WHOLE = ("judged_at_ms", "changed_at_ms", "holds_ms", "window_ms", "met_ms", "missed_ms")
_REAL = ("value", "bound", "goal", "share_met", "budget_left")


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "table_objective",
        sa.Column("table_name", sa.String(), nullable=False),
        sa.Column("objective", sa.String(), nullable=False),
        sa.Column("met", sa.Boolean(), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in _WHOLE),
        *(sa.Column(name, sa.Float(), nullable=False) for name in _REAL),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("burn", "past")),
        sa.CheckConstraint("goal > 0 AND goal < 1", name=op.f("ck_table_objective_goal_sane")),
        sa.CheckConstraint("met_ms >= 0 AND missed_ms >= 0", name=op.f("ck_table_objective_totals_sane")),
        sa.CheckConstraint("changed_at_ms <= judged_at_ms", name=op.f("ck_table_objective_changed_before_judged")),
        sa.ForeignKeyConstraint(["table_name"], ["table_state.name"], name="fk_table_objective_table_name_table_state"),
        sa.PrimaryKeyConstraint("table_name", "objective", name="pk_table_objective"),
    )
    op.add_column("plan", sa.Column("urgency_ms", sa.BigInteger(), server_default="0", nullable=False))


def downgrade() -> None:
    """Revert; plans keep their ranks."""
    op.drop_column("plan", "urgency_ms")
    op.drop_table("table_objective")
