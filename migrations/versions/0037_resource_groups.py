# SPDX-License-Identifier: Apache-2.0
"""The resource group of a table, and the groups that a process serves (null: every group)."""

import sqlalchemy as sa
from alembic import op

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column("table_state", sa.Column("resource_group", sa.String(), nullable=True))
    op.add_column("process", sa.Column("resource_groups", sa.String(), nullable=True))


def downgrade() -> None:
    """Revert: every executor takes the plans of all tables again."""
    op.drop_column("process", "resource_groups")
    op.drop_column("table_state", "resource_group")
