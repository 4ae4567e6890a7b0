# SPDX-License-Identifier: Apache-2.0
"""The rank of a plan, a time: plans start in the order of their ranks. The rank of earlier plans is their creation."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

_WAITS = sa.text("state = 'requested'")


def upgrade() -> None:
    """Apply."""
    op.add_column("plan", sa.Column("rank_ms", sa.BigInteger(), server_default="0", nullable=False))
    op.execute("UPDATE plan SET rank_ms = created_at_ms")
    op.create_index("ix_plan_rank", "plan", ["rank_ms", "id"], sqlite_where=_WAITS, postgresql_where=_WAITS)


def downgrade() -> None:
    """Revert; the oldest plan starts first again."""
    op.drop_index("ix_plan_rank", table_name="plan")
    op.drop_column("plan", "rank_ms")
