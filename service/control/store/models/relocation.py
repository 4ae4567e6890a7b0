# SPDX-License-Identifier: Apache-2.0
"""Where partitions were before commits moved them, and what late writers have left there."""

from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Index, String, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from service.control.store.models.columns import Base, Json, RowId

_IS_OPEN = "made_at_ms IS NULL OR unsettled_since_ms IS NOT NULL"


class RelocationRow(Base):
    """A partition's move; the last one that was made says where it is expected to be.

    It outlives its plan, whose row is pruned: a former place is looked at for as long as it is there. Where a writer
    makes one again that was forgotten a row stands for that place and for no move (``service.control.store.relocation.journal.RECREATED_PREFIX``).
    ``made_at_ms`` is None while nobody knows whether the catalog was told. ``files`` are those of the new place, kept
    for the last move only.
    """

    __tablename__ = "place_move"
    __table_args__ = (
        UniqueConstraint("table_name", "partition_path", "token"),
        Index("ix_place_move_begun", "begun_at_ms", "table_name", "partition_path"),
        Index(
            "ix_place_move_open",
            "table_name",
            "partition_path",
            sqlite_where=text(_IS_OPEN),
            postgresql_where=text(_IS_OPEN),
        ),
    )

    id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    table_name: Mapped[str] = mapped_column(ForeignKey("table_state.name"))
    partition_path: Mapped[str] = mapped_column(String)
    token: Mapped[str] = mapped_column(String)
    plan_id: Mapped[str] = mapped_column(String)
    left_place: Mapped[str] = mapped_column(String)
    place: Mapped[str] = mapped_column(String)
    files: Mapped[Any] = mapped_column(Json)
    #: of a move that no plan made, until it is made: what then waits for its deletion
    left_files: Mapped[Any] = mapped_column(Json)
    #: in seconds, as the catalog says
    partition_made_at: Mapped[int] = mapped_column(BigInteger)
    begun_at_ms: Mapped[int] = mapped_column(BigInteger)
    made_at_ms: Mapped[int | None] = mapped_column(BigInteger)
    #: since when the answer to what is there has been to wait
    unsettled_since_ms: Mapped[int | None] = mapped_column(BigInteger)


class LateCopyRow(Base):
    """A file of a late writer that is copied to where its partition is: written before the copy, and never twice."""

    __tablename__ = "carry"
    __table_args__ = (
        UniqueConstraint("table_name", "source", "bytes", "modified_at_ms"),
        Index(
            "ix_carry_open",
            "table_name",
            "partition_path",
            sqlite_where=text("done_at_ms IS NULL"),
            postgresql_where=text("done_at_ms IS NULL"),
        ),
    )

    id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    table_name: Mapped[str] = mapped_column(ForeignKey("table_state.name"))
    partition_path: Mapped[str] = mapped_column(String)
    source: Mapped[str] = mapped_column(String)
    bytes: Mapped[int] = mapped_column(BigInteger)
    modified_at_ms: Mapped[int] = mapped_column(BigInteger)
    #: when it had come under its name, as its file system said before it was copied; None of an earlier lakefold's
    came_at_ms: Mapped[int | None] = mapped_column(BigInteger)
    target: Mapped[str] = mapped_column(String)
    begun_at_ms: Mapped[int] = mapped_column(BigInteger)
    done_at_ms: Mapped[int | None] = mapped_column(BigInteger)
