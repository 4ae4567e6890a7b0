# SPDX-License-Identifier: Apache-2.0
"""The begin of an attempt's current step, so that the time that a dead executor used counts, too."""

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
    """Revert."""
    op.drop_column("plan", "step_at_ms")
