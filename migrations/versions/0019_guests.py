# SPDX-License-Identifier: Apache-2.0
"""The holder that may change a partition's location beside the plan that holds the partition."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column("live_partition", sa.Column("guest", sa.String(), nullable=True))
    op.add_column("live_partition", sa.Column("guest_until_ms", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    """Revert; partitions are held by their plans alone again."""
    op.drop_column("live_partition", "guest_until_ms")
    op.drop_column("live_partition", "guest")
