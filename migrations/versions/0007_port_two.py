# SPDX-License-Identifier: Apache-2.0
"""What formats without a timeline of their own need: files known by more than their path, deletions marked begun."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_WAITING = "deleted_at_ms IS NULL"


def upgrade() -> None:
    """Apply."""
    op.add_column("superseded_version", sa.Column("modified_at_ms", sa.BigInteger(), nullable=True))
    op.add_column("superseded_version", sa.Column("deleting_at_ms", sa.BigInteger(), nullable=True))
    _index_waiting("table_name", "superseded_at_ms", "id", "bytes")


def downgrade() -> None:
    """Take back."""
    _index_waiting("table_name", "instant", "id", "superseded_at_ms", "bytes")
    op.drop_column("superseded_version", "deleting_at_ms")
    op.drop_column("superseded_version", "modified_at_ms")


def _index_waiting(*columns: str) -> None:
    op.drop_index("ix_superseded_version_waiting", table_name="superseded_version")
    op.create_index(
        "ix_superseded_version_waiting",
        "superseded_version",
        list(columns),
        sqlite_where=sa.text(_WAITING),
        postgresql_where=sa.text(_WAITING),
    )
