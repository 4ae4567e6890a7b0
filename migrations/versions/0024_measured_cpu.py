# SPDX-License-Identifier: Apache-2.0
"""The CPU time of a rewrite's tasks; null if the tasks do not count it."""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column("plan", sa.Column("rewrite_cpu_ms", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    """Revert."""
    op.drop_column("plan", "rewrite_cpu_ms")
