# SPDX-License-Identifier: Apache-2.0
"""How the configuration file of a process differs from the configuration in force."""

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column("process", sa.Column("config_problem", sa.Text()))


def downgrade() -> None:
    """Revert."""
    op.drop_column("process", "config_problem")
