# SPDX-License-Identifier: Apache-2.0
"""Copies of one late file for several partitions that left the same directory.

Before each batch of a deletion, the cleaner asks which partitions left the directories: an index answers this.
"""

from alembic import op

revision = "0043"
down_revision = "0042"
branch_labels = None
depends_on = None

_BEFORE = ("table_name", "source", "bytes", "modified_at_ms")
_AFTER = ("table_name", "partition_path", "source", "bytes", "modified_at_ms")
_INDEX = "ix_place_move_left_place"


def upgrade() -> None:
    """Apply."""
    _replace(_BEFORE, _AFTER)
    op.create_index(_INDEX, "place_move", ["table_name", "left_place"])


def downgrade() -> None:
    """Revert; of the copies of one late file, only the first stays on record."""
    op.drop_index(_INDEX, table_name="place_move")
    columns = ", ".join(_BEFORE)
    op.execute(f"DELETE FROM carry WHERE id NOT IN (SELECT min(id) FROM carry GROUP BY {columns})")
    _replace(_AFTER, _BEFORE)


def _replace(before: tuple[str, ...], after: tuple[str, ...]) -> None:
    with op.batch_alter_table("carry") as carry:
        carry.drop_constraint(f"uq_carry_{'_'.join(before)}", type_="unique")
        carry.create_unique_constraint(op.f(f"uq_carry_{'_'.join(after)}"), list(after))
