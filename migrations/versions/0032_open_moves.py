# SPDX-License-Identifier: Apache-2.0
"""Indexes for the sweep, which reads only the unfinished and the recent relocations and copies of a table."""

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None

_IS_OPEN = sa.text("made_at_ms IS NULL OR unsettled_since_ms IS NOT NULL")
_NOT_DONE = sa.text("done_at_ms IS NULL")


def upgrade() -> None:
    """Apply."""
    op.create_index("ix_place_move_begun", "place_move", ["begun_at_ms", "table_name", "partition_path"])
    columns = ["table_name", "partition_path"]
    op.create_index("ix_place_move_open", "place_move", columns, sqlite_where=_IS_OPEN, postgresql_where=_IS_OPEN)
    op.create_index("ix_carry_open", "carry", columns, sqlite_where=_NOT_DONE, postgresql_where=_NOT_DONE)


def downgrade() -> None:
    """Revert."""
    op.drop_index("ix_carry_open", table_name="carry")
    op.drop_index("ix_place_move_open", table_name="place_move")
    op.drop_index("ix_place_move_begun", table_name="place_move")
