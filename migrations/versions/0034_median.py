# SPDX-License-Identifier: Apache-2.0
"""Scans with the median file size and other new fields, which an earlier lakefold does not accept."""

import json

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None

_BATCH = 2_000
_NEW_FIELDS = ("median_bytes", "waiting_seconds", "is_gone")


def upgrade() -> None:
    """Apply: remove earlier medians, which are estimates; the next scan of each table stores the median."""
    op.execute("UPDATE table_state SET good_median_bytes = NULL")


def downgrade() -> None:
    """Revert."""
    connection, last = op.get_bind(), 0
    some = sa.text("SELECT id, record FROM scan_history WHERE id > :last ORDER BY id LIMIT :most")
    while rows := connection.execute(some, {"last": last, "most": _BATCH}).all():
        changed = []
        for row in rows:
            record = json.loads(row.record)
            for field in _NEW_FIELDS:
                record.pop(field, None)
            changed.append({"id": row.id, "record": json.dumps(record, separators=(",", ":"), sort_keys=True)})
        connection.execute(sa.text("UPDATE scan_history SET record = :record WHERE id = :id"), changed)
        last = rows[-1].id
