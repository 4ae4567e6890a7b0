# SPDX-License-Identifier: Apache-2.0
"""The channel of a message: the name of a channel for people, null for the webhook."""

import sqlalchemy as sa
from alembic import op

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column("notification", sa.Column("channel", sa.String(), nullable=True))


def downgrade() -> None:
    """Revert: an earlier lakefold would send messages of channels to the webhook."""
    op.execute("DELETE FROM notification WHERE channel IS NOT NULL")
    op.drop_column("notification", "channel")
