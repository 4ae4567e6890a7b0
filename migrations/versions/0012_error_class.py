# SPDX-License-Identifier: Apache-2.0
"""The error class of a plan, as a filter of plans, and the bulk actions.

The error class of earlier plans is derived from their other columns and events.
"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_ERRORS = sa.text("error_class IS NOT NULL")
_OF_EARLIER_PLANS = """
UPDATE plan SET error_class = CASE
    WHEN state = 'cancelled' THEN 'conflict'
    WHEN state <> 'failed' THEN 'transient'
    WHEN EXISTS (SELECT 1 FROM table_state WHERE name = plan.table_name
                 AND halted_reason LIKE 'plan ' || plan.id || ':%') THEN 'integrity'
    WHEN failure = 'attempts' OR EXISTS (SELECT 1 FROM plan_event WHERE plan_id = plan.id
                 AND to_state = 'failed' AND reason LIKE 'attempt % (max_attempts): %') THEN 'transient'
    ELSE 'rejected' END
WHERE error IS NOT NULL AND state <> 'completed' AND NOT (state = 'cancelled' AND cancel_requested_by IS NOT NULL)
"""


def upgrade() -> None:
    """Apply."""
    op.add_column("plan", sa.Column("error_class", sa.String(), nullable=True))
    op.execute(_OF_EARLIER_PLANS)
    op.create_index("ix_plan_error", "plan", ["error_class", "id"], sqlite_where=_ERRORS, postgresql_where=_ERRORS)
    of_table = ["table_name", "error_class", "id"]
    op.create_index("ix_plan_table_error", "plan", of_table, sqlite_where=_ERRORS, postgresql_where=_ERRORS)
    op.create_index("ix_plan_table_name_state_id", "plan", ["table_name", "state", "id"])
    op.create_table(
        "bulk_action",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("terms", sa.Text(), nullable=False),
        sa.Column("plan_ids", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.String(), nullable=True),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("answer", sa.Text(), nullable=True),
        sa.CheckConstraint("action IN ('cancel', 'retry')", name=op.f("ck_bulk_action_action_known")),
        sa.PrimaryKeyConstraint("id", name="pk_bulk_action"),
        sa.UniqueConstraint("idempotency_key", name="uq_bulk_action_idempotency_key"),
    )


def downgrade() -> None:
    """Revert."""
    op.drop_table("bulk_action")
    op.drop_index("ix_plan_table_name_state_id", table_name="plan")
    op.drop_index("ix_plan_table_error", table_name="plan")
    op.drop_index("ix_plan_error", table_name="plan")
    op.drop_column("plan", "error_class")
