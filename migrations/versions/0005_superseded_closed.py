# SPDX-License-Identifier: Apache-2.0
"""The reason why a superseded version no longer awaits deletion although lakefold did not delete it."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column("superseded_version", sa.Column("closed_reason", sa.Text(), nullable=True))


def downgrade() -> None:
    """Revert."""
    op.drop_column("superseded_version", "closed_reason")
