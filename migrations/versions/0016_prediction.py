# SPDX-License-Identifier: Apache-2.0
"""The predicted and the used CPU time of a plan, and its requested engine.

Both times are null for earlier plans, so predictions begin with the constants.
"""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

_USED = sa.text("used_cpu_ms IS NOT NULL")


def upgrade() -> None:
    """Apply."""
    op.add_column("plan", sa.Column("engine", sa.String(), nullable=True))
    op.add_column("plan", sa.Column("predicted_cpu_ms", sa.BigInteger(), nullable=True))
    op.add_column("plan", sa.Column("used_cpu_ms", sa.BigInteger(), nullable=True))
    newest = ["format", "engine", "finalized_at_ms"]
    op.create_index("ix_plan_used", "plan", newest, sqlite_where=_USED, postgresql_where=_USED)


def downgrade() -> None:
    """Revert."""
    op.drop_index("ix_plan_used", table_name="plan")
    for column in ("used_cpu_ms", "predicted_cpu_ms", "engine"):
        op.drop_column("plan", column)
