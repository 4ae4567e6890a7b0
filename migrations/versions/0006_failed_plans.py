# SPDX-License-Identifier: Apache-2.0
"""The settings digest and the failure of a plan. A plan's concurrency is dropped: its table's registration has it."""

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
    """Revert."""
    op.add_column("plan", sa.Column("concurrency", sa.String(), nullable=False, server_default="single_writer"))
    op.drop_column("plan", "failure")
    op.drop_column("plan", "settings")
