# SPDX-License-Identifier: Apache-2.0
"""Columns for adopted plans of other processes, for the conflict rule of a table, and for the kind of a request."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_LIVE_ADOPTED = "adopted IS NOT NULL AND state IN ('inflight', 'requested')"
_UNFINISHED = "instants <> '[]'"


def upgrade() -> None:
    """Apply."""
    op.add_column("table_state", sa.Column("on_conflict", sa.String(), nullable=True))
    op.add_column("plan", sa.Column("adopted", sa.String(), nullable=True))
    op.add_column("plan_request", sa.Column("kind", sa.String(), nullable=True))
    op.create_index(
        "ix_plan_live_adopted",
        "plan",
        ["table_name", "adopted"],
        unique=True,
        sqlite_where=sa.text(_LIVE_ADOPTED),
        postgresql_where=sa.text(_LIVE_ADOPTED),
    )
    # No query reads the unfinished instants of a table since this release.
    op.drop_index("ix_plan_unfinished_instants", table_name="plan")


def downgrade() -> None:
    """Revert; adopted plans are then indistinguishable from other plans."""
    op.create_index(
        "ix_plan_unfinished_instants",
        "plan",
        ["table_name"],
        sqlite_where=sa.text(_UNFINISHED),
        postgresql_where=sa.text(_UNFINISHED),
    )
    op.drop_index("ix_plan_live_adopted", table_name="plan")
    op.drop_column("plan_request", "kind")
    op.drop_column("plan", "adopted")
    op.drop_column("table_state", "on_conflict")
