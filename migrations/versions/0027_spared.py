# SPDX-License-Identifier: Apache-2.0
"""The last time when a scan left files alone because of a declined plan: the plan's retention begins then."""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column("plan", sa.Column("spared_at_ms", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    """Revert."""
    op.drop_column("plan", "spared_at_ms")
