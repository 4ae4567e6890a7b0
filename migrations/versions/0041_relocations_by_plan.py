# SPDX-License-Identifier: Apache-2.0
"""An index of relocations by their plans.

A plan is not pruned while a relocation of a partition by it is recorded.
"""

from alembic import op

revision = "0041"
down_revision = "0040"
branch_labels = None
depends_on = None

_NAME = "ix_place_move_plan_id"


def upgrade() -> None:
    """Apply."""
    op.create_index(_NAME, "place_move", ["plan_id"])


def downgrade() -> None:
    """Revert."""
    op.drop_index(_NAME, table_name="place_move")
