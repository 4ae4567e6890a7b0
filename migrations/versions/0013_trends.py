# SPDX-License-Identifier: Apache-2.0
"""The trend of each table and of the lake over the last 30 days, and the total of freed bytes."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

_FIGURES = ("files", "bytes", "small_files", "reducible_files", "rewritten_bytes", "freed_bytes")


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "trend",
        sa.Column("table_name", sa.String(), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in _FIGURES),
        sa.CheckConstraint("files >= 0 AND bytes >= 0", name=op.f("ck_trend_figures_sane")),
        sa.PrimaryKeyConstraint("table_name", "at_ms", name="pk_trend"),
    )
    op.add_column("table_state", sa.Column("freed_bytes", sa.BigInteger(), server_default="0", nullable=False))
    op.execute(
        "UPDATE table_state SET freed_bytes = (SELECT coalesce(sum(bytes), 0) FROM superseded_version "
        "WHERE table_name = table_state.name AND deleted_at_ms IS NOT NULL AND closed_reason IS NULL)"
    )


def downgrade() -> None:
    """Revert."""
    op.drop_column("table_state", "freed_bytes")
    op.drop_table("trend")
