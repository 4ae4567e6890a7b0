# SPDX-License-Identifier: Apache-2.0
"""Relocations by the location that they left, whatever their table is.

Before each batch of a deletion in a directory outside of its table, the cleaner asks which other tables left it.
"""

from alembic import op

revision = "0044"
down_revision = "0043"
branch_labels = None
depends_on = None

_INDEX = "ix_place_move_left_place"


def upgrade() -> None:
    """Apply."""
    op.drop_index(_INDEX, table_name="place_move")
    op.create_index(_INDEX, "place_move", ["left_place", "table_name"])


def downgrade() -> None:
    """Revert."""
    op.drop_index(_INDEX, table_name="place_move")
    op.create_index(_INDEX, "place_move", ["table_name", "left_place"])
