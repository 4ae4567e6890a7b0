# SPDX-License-Identifier: Apache-2.0
"""Since when an attempt is at the step that it is at: what an executor that died has used counts, too."""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column("plan", sa.Column("step_at_ms", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    """Take back."""
    op.drop_column("plan", "step_at_ms")
