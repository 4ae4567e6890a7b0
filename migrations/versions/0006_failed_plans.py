# SPDX-License-Identifier: Apache-2.0
"""What a failed plan is remembered for; a plan has no concurrency of its own, its table's registration decides."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column("plan", sa.Column("settings", sa.String(), nullable=True))
    op.add_column("plan", sa.Column("failure", sa.String(), nullable=True))
    op.drop_column("plan", "concurrency")


def downgrade() -> None:
    """Take back."""
    op.add_column("plan", sa.Column("concurrency", sa.String(), nullable=False, server_default="single_writer"))
    op.drop_column("plan", "failure")
    op.drop_column("plan", "settings")
