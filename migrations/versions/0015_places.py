# SPDX-License-Identifier: Apache-2.0
"""The previous locations of relocated partitions, and the late files that are copied from them."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "place_move",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("table_name", sa.String(), nullable=False),
        sa.Column("partition_path", sa.String(), nullable=False),
        sa.Column("token", sa.String(), nullable=False),
        sa.Column("plan_id", sa.String(), nullable=False),
        sa.Column("left_place", sa.String(), nullable=False),
        sa.Column("place", sa.String(), nullable=False),
        sa.Column("files", sa.Text(), nullable=False),
        sa.Column("left_files", sa.Text(), nullable=False),
        sa.Column("partition_made_at", sa.BigInteger(), nullable=False),
        sa.Column("begun_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("made_at_ms", sa.BigInteger(), nullable=True),
        sa.Column("unsettled_since_ms", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["table_name"], ["table_state.name"], name="fk_place_move_table_name_table_state"),
        sa.PrimaryKeyConstraint("id", name="pk_place_move"),
        sa.UniqueConstraint(
            "table_name", "partition_path", "token", name="uq_place_move_table_name_partition_path_token"
        ),
    )
    op.create_table(
        "carry",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("table_name", sa.String(), nullable=False),
        sa.Column("partition_path", sa.String(), nullable=False),
        sa.Column("source", sa.String(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("modified_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("target", sa.String(), nullable=False),
        sa.Column("begun_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("done_at_ms", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["table_name"], ["table_state.name"], name="fk_carry_table_name_table_state"),
        sa.PrimaryKeyConstraint("id", name="pk_carry"),
        sa.UniqueConstraint(
            *("table_name", "source", "bytes", "modified_at_ms"), name="uq_carry_table_name_source_bytes_modified_at_ms"
        ),
    )


def downgrade() -> None:
    """Revert; previous locations are no longer searched for late files."""
    op.drop_table("carry")
    op.drop_table("place_move")
