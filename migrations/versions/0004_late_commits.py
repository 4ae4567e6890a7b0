# SPDX-License-Identifier: Apache-2.0
"""Triggers that let an ended plan complete if its commit is found later; completed plans lose their cancel requests."""

from alembic import op

from service.control.store import schema

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    _create_triggers_anew()
    op.execute(
        "UPDATE plan SET cancel_requested_by = NULL, cancel_requested_at_ms = NULL, cancel_reason = NULL"
        " WHERE state = 'completed'"
    )


def downgrade() -> None:
    """Revert; the triggers are always those of the running code."""
    _create_triggers_anew()


def _create_triggers_anew() -> None:
    dialect = op.get_bind().dialect.name
    for statement in (*schema.drop_trigger_statements(dialect), *schema.create_trigger_statements(dialect)):
        op.execute(statement)
