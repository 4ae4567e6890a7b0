# SPDX-License-Identifier: Apache-2.0
"""Tokens that are limited to tables, tokens of signed-in people, and the audit trail."""

import json

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_BATCH = 2_000


def upgrade() -> None:
    """Apply."""
    op.add_column("api_token", sa.Column("tables", sa.Text(), nullable=True))
    op.add_column("api_token", sa.Column("person", sa.String(), nullable=True))
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("door", sa.String(), nullable=False),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("table_name", sa.String(), nullable=True),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.CheckConstraint("door IN ('cli', 'http', 'page')", name=op.f("ck_audit_door_known")),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
    )
    op.create_index("ix_audit_at_ms", "audit", ["at_ms"])
    op.create_index("ix_audit_table_name_id", "audit", ["table_name", "id"])


def downgrade() -> None:
    """Revert."""
    op.drop_table("audit")
    op.drop_column("api_token", "person")
    op.drop_column("api_token", "tables")
    _forget_overlaps()


def _forget_overlaps() -> None:
    """Remove the fields about commits that overlapped plans: an earlier lakefold does not accept them."""
    connection, last = op.get_bind(), 0
    some = sa.text("SELECT id, record FROM scan_history WHERE id > :last ORDER BY id LIMIT :most")
    while rows := connection.execute(some, {"last": last, "most": _BATCH}).all():
        records = {row.id: json.loads(row.record) for row in rows}
        for record in records.values():
            for word in ("overlaps", "overlap", "not_planned"):
                record.pop(word, None)
        changed = [
            {"id": id_, "record": json.dumps(record, separators=(",", ":"), sort_keys=True)}
            for id_, record in records.items()
        ]
        connection.execute(sa.text("UPDATE scan_history SET record = :record WHERE id = :id"), changed)
        last = rows[-1].id
