# SPDX-License-Identifier: Apache-2.0
"""When a scan last left files alone for what was declined: it is not forgotten until that is long ago."""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column("plan", sa.Column("spared_at_ms", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    """Take back."""
    op.drop_column("plan", "spared_at_ms")
