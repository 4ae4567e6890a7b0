# SPDX-License-Identifier: Apache-2.0
"""Whom a table belongs to, as the configuration says; the next scan of it tells."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column("table_state", sa.Column("owner", sa.String(), nullable=True))


def downgrade() -> None:
    """Take back."""
    op.drop_column("table_state", "owner")
