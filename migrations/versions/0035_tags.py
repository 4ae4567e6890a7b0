# SPDX-License-Identifier: Apache-2.0
"""The tags of a table from the configuration; the next scan stores them."""

import sqlalchemy as sa
from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column("table_state", sa.Column("tags", sa.String(), nullable=True))


def downgrade() -> None:
    """Revert."""
    op.drop_column("table_state", "tags")
