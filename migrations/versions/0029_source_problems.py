# SPDX-License-Identifier: Apache-2.0
"""The parts of sources that the last search for tables could not read, so that every process can show them."""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "source_problem",
        sa.Column("position", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("problem", sa.Text(), nullable=False),
        sa.Column("since_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("position", name="pk_source_problem"),
    )


def downgrade() -> None:
    """Revert."""
    op.drop_table("source_problem")
