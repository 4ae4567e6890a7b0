# SPDX-License-Identifier: Apache-2.0
"""An index of tables by their locations.

Before each new lock on a partition, other names of the same table are looked for.
"""

from alembic import op

revision = "0042"
down_revision = "0041"
branch_labels = None
depends_on = None

_NAME = "ix_table_state_location"


def upgrade() -> None:
    """Apply."""
    op.create_index(_NAME, "table_state", ["location"])


def downgrade() -> None:
    """Revert."""
    op.drop_index(_NAME, table_name="table_state")
