# SPDX-License-Identifier: Apache-2.0
"""Indexes for the sweep, which reads the replaced files and the late copies of a few partitions.

Without them, the database reads the replaced files of all partitions of a plan, and all late copies of a table.
"""

from alembic import op

revision = "0039"
down_revision = "0038"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_index("ix_superseded_version_plan_id_partition_path", "superseded_version", ["plan_id", "partition_path"])
    op.create_index("ix_carry_table_name_partition_path", "carry", ["table_name", "partition_path"])


def downgrade() -> None:
    """Revert."""
    op.drop_index("ix_carry_table_name_partition_path", table_name="carry")
    op.drop_index("ix_superseded_version_plan_id_partition_path", table_name="superseded_version")
