# SPDX-License-Identifier: Apache-2.0
"""The data for formats without a timeline of their own.

Files are identified by more than their path, and a deletion is marked before it begins. Cleaner and sweep can hold
partitions, too. Each plan has its own grace, the time for which its lease is respected after its end. Uncommitted work
on a table is recorded before its first file exists.
"""

import json

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_WAITING = "deleted_at_ms IS NULL"
_BY_PLAN = "holder_kind = 'plan'"
#: the grace of an adopted plan, 30 minutes
_ADOPTED = 30 * 60 * 1000


def upgrade() -> None:
    """Apply."""
    op.add_column("superseded_version", sa.Column("modified_at_ms", sa.BigInteger(), nullable=True))
    op.add_column("superseded_version", sa.Column("deleting_at_ms", sa.BigInteger(), nullable=True))
    _index_waiting("table_name", "superseded_at_ms", "id", "bytes")
    op.add_column("plan", sa.Column("grace_ms", sa.BigInteger(), nullable=False, server_default="0"))
    op.execute(f"UPDATE plan SET grace_ms = {_ADOPTED} WHERE adopted IS NOT NULL AND state = 'inflight'")
    _live_partitions(
        sa.Column("holder_kind", sa.String(), nullable=False),
        sa.Column("plan_id", sa.String(), nullable=True),
        sa.Column("keeper", sa.String(), nullable=True),
        sa.Column("expires_at_ms", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("holder_kind IN ('plan', 'cleaner', 'sweep')", name=op.f("ck_live_partition_holder_known")),
        sa.CheckConstraint(f"({_BY_PLAN}) = (plan_id IS NOT NULL)", name=op.f("ck_live_partition_plan_held_by_it")),
        sa.CheckConstraint(f"({_BY_PLAN}) = (keeper IS NULL)", name=op.f("ck_live_partition_keeper_named")),
        sa.CheckConstraint(f"({_BY_PLAN}) = (expires_at_ms IS NULL)", name=op.f("ck_live_partition_keeper_expires")),
        columns="holder_kind, plan_id",
        values="'plan', plan_id",
    )
    op.create_table(
        "staged",
        sa.Column("plan_id", sa.String(), nullable=False),
        sa.Column("token", sa.String(), nullable=False),
        sa.Column("table_name", sa.String(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("paths", sa.Text(), nullable=False),
        sa.Column("staged_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("cleared_at_ms", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["plan_id"], ["plan.id"], name="fk_staged_plan_id_plan"),
        sa.ForeignKeyConstraint(["table_name"], ["table_state.name"], name="fk_staged_table_name_table_state"),
        sa.PrimaryKeyConstraint("plan_id", "token", name="pk_staged"),
    )
    op.create_index(
        "ix_staged_left",
        "staged",
        ["table_name"],
        sqlite_where=sa.text("cleared_at_ms IS NULL"),
        postgresql_where=sa.text("cleared_at_ms IS NULL"),
    )
    _instants_to_staged()
    op.drop_column("plan", "instants")


def downgrade() -> None:
    """Revert; partitions held by cleaner and sweep are released, and the paths of uncommitted work are deleted."""
    op.add_column("plan", sa.Column("instants", sa.Text(), nullable=False, server_default="[]"))
    _staged_to_instants()
    op.drop_table("staged")
    op.execute(f"DELETE FROM live_partition WHERE NOT ({_BY_PLAN})")
    _live_partitions(sa.Column("plan_id", sa.String(), nullable=False), columns="plan_id", values="plan_id")
    op.drop_column("plan", "grace_ms")
    _index_waiting("table_name", "instant", "id", "superseded_at_ms", "bytes")
    op.drop_column("superseded_version", "deleting_at_ms")
    op.drop_column("superseded_version", "modified_at_ms")


def _instants_to_staged() -> None:
    """Store each published instant of a plan, except its commit, as staged work; the position gives the epoch."""
    connection = op.get_bind()
    found = connection.execute(
        sa.text(
            "SELECT id, table_name, epoch, instants, created_at_ms, finalized_at_ms FROM plan WHERE instants <> '[]'"
        )
    )
    rows = [
        {
            "plan_id": row.id,
            "token": token,
            "table_name": row.table_name,
            "epoch": min(number, row.epoch),
            "at": row.created_at_ms + number,
            "cleared": row.finalized_at_ms,
        }
        for row in found
        for number, token in enumerate(json.loads(row.instants), 1)
    ]
    if rows:
        statement = (
            "INSERT INTO staged (plan_id, token, table_name, epoch, paths, staged_at_ms, cleared_at_ms)"
            " VALUES (:plan_id, :token, :table_name, :epoch, '[]', :at, :cleared)"
        )
        connection.execute(sa.text(statement), rows)


def _staged_to_instants() -> None:
    connection = op.get_bind()
    instants: dict[str, list[str]] = {}
    for row in connection.execute(
        sa.text(
            "SELECT plan_id, token FROM staged JOIN plan ON plan.id = plan_id WHERE instant IS NULL OR token <> instant"
            " ORDER BY staged.epoch, staged_at_ms, token"
        )
    ):
        instants.setdefault(row.plan_id, []).append(row.token)
    rows = [{"plan_id": key, "tokens": json.dumps(tokens)} for key, tokens in instants.items()]
    if rows:
        connection.execute(sa.text("UPDATE plan SET instants = :tokens WHERE id = :plan_id"), rows)


def _live_partitions(*items: sa.schema.SchemaItem, columns: str, values: str) -> None:
    """Create the table again with ``items``, because SQLite can't change a column, and copy its rows."""
    op.rename_table("live_partition", "live_partition_before")
    op.drop_index("ix_live_partition_plan_id", table_name="live_partition_before")
    # PostgreSQL's constraints keep their names when a table is renamed.
    if op.get_bind().dialect.name == "postgresql":
        for name in ("pk_live_partition", "fk_live_partition_plan_id_plan", "fk_live_partition_table_name_table_state"):
            op.execute(f"ALTER TABLE live_partition_before RENAME CONSTRAINT {name} TO {name}_before")
    op.create_table(
        "live_partition",
        sa.Column("table_name", sa.String(), nullable=False),
        sa.Column("partition_path", sa.String(), nullable=False),
        *items,
        sa.ForeignKeyConstraint(["plan_id"], ["plan.id"], name="fk_live_partition_plan_id_plan"),
        sa.ForeignKeyConstraint(["table_name"], ["table_state.name"], name="fk_live_partition_table_name_table_state"),
        sa.PrimaryKeyConstraint("table_name", "partition_path", name="pk_live_partition"),
    )
    op.execute(
        f"INSERT INTO live_partition (table_name, partition_path, {columns})"
        f" SELECT table_name, partition_path, {values} FROM live_partition_before"
    )
    op.drop_table("live_partition_before")
    op.create_index("ix_live_partition_plan_id", "live_partition", ["plan_id"])


def _index_waiting(*columns: str) -> None:
    op.drop_index("ix_superseded_version_waiting", table_name="superseded_version")
    op.create_index(
        "ix_superseded_version_waiting",
        "superseded_version",
        list(columns),
        sqlite_where=sa.text(_WAITING),
        postgresql_where=sa.text(_WAITING),
    )
