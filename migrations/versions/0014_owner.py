# SPDX-License-Identifier: Apache-2.0
"""The owner of a table from the configuration; the next scan stores it."""

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
    """Revert."""
    op.drop_column("table_state", "owner")
