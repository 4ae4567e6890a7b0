# SPDX-License-Identifier: Apache-2.0
"""Scans that report foreign files among a table's data; an earlier lakefold does not accept these fields."""

import json

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None

_BATCH = 2_000


def upgrade() -> None:
    """Apply: no change is needed, because a scan without these fields found no foreign files."""


def downgrade() -> None:
    """Revert."""
    connection, last = op.get_bind(), 0
    some = sa.text("SELECT id, record FROM scan_history WHERE id > :last ORDER BY id LIMIT :most")
    while rows := connection.execute(some, {"last": last, "most": _BATCH}).all():
        changed = []
        for row in rows:
            record = json.loads(row.record)
            for word in ("foreign_files", "foreign_file"):
                record.pop(word, None)
            changed.append({"id": row.id, "record": json.dumps(record, separators=(",", ":"), sort_keys=True)})
        connection.execute(sa.text("UPDATE scan_history SET record = :record WHERE id = :id"), changed)
        last = rows[-1].id
