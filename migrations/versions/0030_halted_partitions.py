# SPDX-License-Identifier: Apache-2.0
"""Partitions that are halted while the rest of their table is not."""

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column("table_state", sa.Column("halted_partitions", sa.Text(), server_default="{}", nullable=False))


def downgrade() -> None:
    """Revert."""
    op.drop_column("table_state", "halted_partitions")
