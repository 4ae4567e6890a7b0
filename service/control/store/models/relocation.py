# SPDX-License-Identifier: Apache-2.0
"""Relocations of partitions, and copies of late files from their previous locations."""

from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Index, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from service.control.store.models.columns import Base, Json, RowId, partial_index

_IS_OPEN = "made_at_ms IS NULL OR unsettled_since_ms IS NOT NULL"


class RelocationRow(Base):
    """A relocation of a partition. The last applied relocation has the partition's expected location.

    A row remains as long as the location that the partition left exists, since late files may arrive there. Such files
    wait for deletion under the row's plan, so the plan is not pruned before the row. Earlier releases pruned the plan.
    If a writer recreates a pruned location, a row records the location without a relocation (``RECREATED_PREFIX`` in
    ``service.control.store.relocation.tokens``). A relocation that was begun and discarded becomes such a row.

    ``made_at_ms`` is None until it is known that the catalog has the new location. ``files`` are the files in the new
    location; only the last relocation of a partition keeps them.
    """

    __tablename__ = "place_move"
    __table_args__ = (
        UniqueConstraint("table_name", "partition_path", "token"),
        Index("ix_place_move_plan_id", "plan_id"),
        # The location first: it is also looked for in all tables.
        Index("ix_place_move_left_place", "left_place", "table_name"),
        Index("ix_place_move_begun", "begun_at_ms", "table_name", "partition_path"),
        partial_index("ix_place_move_open", "table_name", "partition_path", where=_IS_OPEN),
    )

    id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    table_name: Mapped[str] = mapped_column(ForeignKey("table_state.name"))
    partition_path: Mapped[str] = mapped_column(String)
    token: Mapped[str] = mapped_column(String)
    plan_id: Mapped[str] = mapped_column(String)
    left_place: Mapped[str] = mapped_column(String)
    place: Mapped[str] = mapped_column(String)
    files: Mapped[Any] = mapped_column(Json)
    #: the files that will wait for deletion once the relocation is applied; only for a relocation by the sweep, whose
    #: ``plan_id`` is the plan of the preceding relocation
    left_files: Mapped[Any] = mapped_column(Json)
    #: the creation time of the partition in the catalog, in seconds
    partition_made_at: Mapped[int] = mapped_column(BigInteger)
    begun_at_ms: Mapped[int] = mapped_column(BigInteger)
    made_at_ms: Mapped[int | None] = mapped_column(BigInteger)
    #: the time since which the sweep waits for files in the previous locations
    unsettled_since_ms: Mapped[int | None] = mapped_column(BigInteger)


class LateCopyRow(Base):
    """A late file that is copied to its partition's location. The row is written before the copy, once per file.

    If several partitions left the file's directory, each one has a row of its own.
    """

    __tablename__ = "carry"
    __table_args__ = (
        UniqueConstraint("table_name", "partition_path", "source", "bytes", "modified_at_ms"),
        Index(None, "table_name", "partition_path"),
        partial_index("ix_carry_open", "table_name", "partition_path", where="done_at_ms IS NULL"),
    )

    id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    table_name: Mapped[str] = mapped_column(ForeignKey("table_state.name"))
    partition_path: Mapped[str] = mapped_column(String)
    source: Mapped[str] = mapped_column(String)
    bytes: Mapped[int] = mapped_column(BigInteger)
    modified_at_ms: Mapped[int] = mapped_column(BigInteger)
    #: when the source got its name, by the clock of its file system; None in rows of earlier releases
    came_at_ms: Mapped[int | None] = mapped_column(BigInteger)
    target: Mapped[str] = mapped_column(String)
    begun_at_ms: Mapped[int] = mapped_column(BigInteger)
    done_at_ms: Mapped[int | None] = mapped_column(BigInteger)
