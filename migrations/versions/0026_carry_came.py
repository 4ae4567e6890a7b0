# SPDX-License-Identifier: Apache-2.0
"""The arrival time of a late file. It is stored because a second name that lakefold gives the file would change it."""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column("carry", sa.Column("came_at_ms", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    """Revert."""
    op.drop_column("carry", "came_at_ms")
