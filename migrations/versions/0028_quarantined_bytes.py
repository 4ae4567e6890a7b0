# SPDX-License-Identifier: Apache-2.0
"""The sizes of quarantined files: a file of another size at the same path is not quarantined."""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column("table_state", sa.Column("quarantined_bytes", sa.Text(), server_default="{}", nullable=False))


def downgrade() -> None:
    """Revert."""
    op.drop_column("table_state", "quarantined_bytes")
