# SPDX-License-Identifier: Apache-2.0
"""The bulk actions approve and decline."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

_BEFORE = "action IN ('cancel', 'retry')"
_AFTER = "action IN ('cancel', 'retry', 'approve', 'decline')"


def upgrade() -> None:
    """Apply."""
    _replace(_BEFORE, _AFTER)


def downgrade() -> None:
    """Revert; the bulk decisions are deleted, but not the decisions on their plans."""
    op.execute("DELETE FROM bulk_action WHERE action IN ('approve', 'decline')")
    _replace(_AFTER, _BEFORE)


def _replace(before: str, after: str) -> None:
    connection = op.get_bind()
    if connection.dialect.name == "postgresql":
        op.drop_constraint("ck_bulk_action_action_known", "bulk_action")
        op.create_check_constraint(op.f("ck_bulk_action_action_known"), "bulk_action", after)
        return
    # SQLite can change a check only by an update of the stored table definition (sqlite.org/lang_altertable.html).
    version = connection.execute(sa.text("PRAGMA schema_version")).scalar_one()
    op.execute("PRAGMA writable_schema = ON")
    change = sa.text("UPDATE sqlite_master SET sql = replace(sql, :before, :after) WHERE name = 'bulk_action'")
    connection.execute(change, {"before": before, "after": after})
    op.execute(f"PRAGMA schema_version = {version + 1}")
    op.execute("PRAGMA writable_schema = OFF")
