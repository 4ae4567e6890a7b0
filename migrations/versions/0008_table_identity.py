# SPDX-License-Identifier: Apache-2.0
"""The identity of a table besides its name and location: its catalog, and the identity that the table itself has.

Earlier rows have null: their identity is not compared.
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column("table_state", sa.Column("catalog", sa.Text(), nullable=True))
    op.add_column("table_state", sa.Column("identity", sa.String(), nullable=True))
    op.add_column("plan", sa.Column("identity", sa.String(), nullable=True))


def downgrade() -> None:
    """Revert."""
    op.drop_column("plan", "identity")
    op.drop_column("table_state", "identity")
    op.drop_column("table_state", "catalog")
