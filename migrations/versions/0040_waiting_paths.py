# SPDX-License-Identifier: Apache-2.0
"""An index of the files that wait for deletion by their paths.

A commit looks for the files that it replaces among those of all other tables: a partition of another table may have
been read from the same directory.
"""

import sqlalchemy as sa
from alembic import op

revision = "0040"
down_revision = "0039"
branch_labels = None
depends_on = None

_NAME = "ix_superseded_version_waiting_path"


def upgrade() -> None:
    """Apply."""
    waiting = sa.text("deleted_at_ms IS NULL")
    op.create_index(_NAME, "superseded_version", ["path"], sqlite_where=waiting, postgresql_where=waiting)


def downgrade() -> None:
    """Revert."""
    op.drop_index(_NAME, table_name="superseded_version")
