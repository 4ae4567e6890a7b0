# SPDX-License-Identifier: Apache-2.0
"""A plan that ended without a commit completes where its table turns out to hold one; late cancels leave no trace."""

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
    """Take back; the triggers are always those of the code that runs."""
    _create_triggers_anew()


def _create_triggers_anew() -> None:
    dialect = op.get_bind().dialect.name
    for statement in (*schema.drop_trigger_statements(dialect), *schema.create_trigger_statements(dialect)):
        op.execute(statement)
