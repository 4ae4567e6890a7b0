# SPDX-License-Identifier: Apache-2.0
"""Plans that wait for approval, and the mode ``propose``.

A constraint of the database keeps a proposed plan requested until it is approved, or cancelled.
"""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

_MODES = "mode IN ('observe', 'compact', 'off')"
_WITH_PROPOSE = "mode IN ('observe', 'propose', 'compact', 'off')"
_DECISION = """
ALTER TABLE plan ADD COLUMN decision VARCHAR
CONSTRAINT ck_plan_decision_known CHECK (decision IN ('approved', 'declined'))
CONSTRAINT ck_plan_decided_by_somebody CHECK ((decision IS NULL) = (decided_by IS NULL))
CONSTRAINT ck_plan_decided_at_some_time CHECK ((decision IS NULL) = (decided_at_ms IS NULL))
CONSTRAINT ck_plan_decided_of_proposals CHECK (decision IS NULL OR proposed_at_ms IS NOT NULL)
CONSTRAINT ck_plan_runs_once_approved CHECK (
    proposed_at_ms IS NULL OR state IN ('requested', 'cancelled') OR COALESCE(decision, '') = 'approved')
CONSTRAINT ck_plan_declined_iff_ended CHECK (COALESCE(decision, '') <> 'declined' OR state = 'cancelled')
"""
_PROPOSED = sa.text("proposed_at_ms IS NOT NULL AND decision IS NULL AND state = 'requested'")
_DECLINED = sa.text("decision = 'declined'")


def upgrade() -> None:
    """Apply."""
    op.add_column("plan", sa.Column("proposed_at_ms", sa.BigInteger(), nullable=True))
    op.add_column("plan", sa.Column("decided_by", sa.String(), nullable=True))
    op.add_column("plan", sa.Column("decided_at_ms", sa.BigInteger(), nullable=True))
    # Both databases accept the checks of a new column only in the statement that adds the column.
    op.execute(_DECISION)
    op.create_index("ix_plan_proposed", "plan", ["table_name"], sqlite_where=_PROPOSED, postgresql_where=_PROPOSED)
    op.create_index("ix_plan_declined", "plan", ["table_name"], sqlite_where=_DECLINED, postgresql_where=_DECLINED)
    _replace_modes(_MODES, _WITH_PROPOSE)


def downgrade() -> None:
    """Revert; plans that wait for approval are cancelled, and tables in mode propose are observed."""
    op.execute("DELETE FROM live_partition WHERE plan_id IN (SELECT id FROM plan WHERE " + _PROPOSED.text + ")")
    now = "(SELECT MAX(created_at_ms) FROM plan)"
    op.execute(f"UPDATE plan SET state = 'cancelled', finalized_at_ms = {now} WHERE " + _PROPOSED.text)
    op.execute("UPDATE table_state SET mode = 'observe' WHERE mode = 'propose'")
    _replace_modes(_WITH_PROPOSE, _MODES)
    op.drop_index("ix_plan_declined", table_name="plan")
    op.drop_index("ix_plan_proposed", table_name="plan")
    for column in ("decision", "decided_at_ms", "decided_by", "proposed_at_ms"):
        op.drop_column("plan", column)


def _replace_modes(before: str, after: str) -> None:
    connection = op.get_bind()
    if connection.dialect.name == "postgresql":
        op.drop_constraint("ck_table_state_mode_known", "table_state")
        op.create_check_constraint(op.f("ck_table_state_mode_known"), "table_state", after)
        return
    # SQLite can change a check only by an update of the stored table definition (sqlite.org/lang_altertable.html).
    version = connection.execute(sa.text("PRAGMA schema_version")).scalar_one()
    op.execute("PRAGMA writable_schema = ON")
    change = sa.text("UPDATE sqlite_master SET sql = replace(sql, :before, :after) WHERE name = 'table_state'")
    connection.execute(change, {"before": before, "after": after})
    op.execute(f"PRAGMA schema_version = {version + 1}")
    op.execute("PRAGMA writable_schema = OFF")
