# SPDX-License-Identifier: Apache-2.0
"""The tables of the lake: registration, scans, trends, objectives, layouts and reports of writers."""

from typing import Any

from sqlalchemy import BigInteger, Boolean, CheckConstraint, Float, ForeignKey, Index, LargeBinary, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from service.control.store.models.columns import Base, Json, RowId, in_clause
from service.modes import MODES

#: the row of ``table_state`` whose pause applies to every table
ALL_TABLES = "*"
#: stands for a whole table in reports of written partitions
ALL_PARTITIONS = "*"


class TableRow(Base):
    """A registered table with its pause, halts and quarantine."""

    __tablename__ = "table_state"
    __table_args__ = (
        CheckConstraint(in_clause("mode", MODES), name="mode_known"),
        CheckConstraint("(halted_at_ms IS NULL) = (halted_reason IS NULL)", name="halted_with_reason"),
        CheckConstraint("(paused_at_ms IS NULL) = (paused_by IS NULL)", name="paused_by_somebody"),
        Index("ix_table_state_location", "location"),
    )

    name: Mapped[str] = mapped_column(String, primary_key=True)
    format: Mapped[str] = mapped_column(String)
    location: Mapped[str] = mapped_column(String)
    #: the fields of a ``CatalogRef``
    catalog: Mapped[Any] = mapped_column(Json, nullable=True)
    #: the identity of the table at the last scan
    identity: Mapped[str | None] = mapped_column(String)
    concurrency: Mapped[str] = mapped_column(String)
    on_conflict: Mapped[str | None] = mapped_column(String)
    write_options: Mapped[Any] = mapped_column(Json)
    mode: Mapped[str] = mapped_column(String)
    #: the owner in the configuration
    owner: Mapped[str | None] = mapped_column(String)
    #: the tags in the configuration, each between two blanks; None if there are no tags
    tags: Mapped[str | None] = mapped_column(String)
    #: the resource group in the configuration; None for the group ``default``
    resource_group: Mapped[str | None] = mapped_column(String)
    paused_by: Mapped[str | None] = mapped_column(String)
    paused_at_ms: Mapped[int | None] = mapped_column(BigInteger)
    paused_reason: Mapped[str | None] = mapped_column(Text)
    halted_reason: Mapped[str | None] = mapped_column(Text)
    halted_at_ms: Mapped[int | None] = mapped_column(BigInteger)
    #: partition → reason and time (``at_ms``) of its own halt
    halted_partitions: Mapped[Any] = mapped_column(Json, server_default="{}")
    quarantined: Mapped[Any] = mapped_column(Json, server_default="{}")
    #: the recorded sizes of the quarantined files: a file of another size at the same path is not quarantined
    quarantined_bytes: Mapped[Any] = mapped_column(Json, server_default="{}")
    registered_at_ms: Mapped[int] = mapped_column(BigInteger)
    #: bytes of superseded files that the cleaner deleted, including those of pruned plans
    freed_bytes: Mapped[int] = mapped_column(BigInteger, server_default="0")
    last_scan_id: Mapped[int | None] = mapped_column(BigInteger)
    last_ok_scan_id: Mapped[int | None] = mapped_column(BigInteger)
    #: the oldest successful scan, which shows the table before lakefold; it is never deleted
    first_ok_scan_id: Mapped[int | None] = mapped_column(BigInteger)
    #: figures of the last good scan, written with the pointer to it, so that lists need not open the scan
    good_scanned_at_ms: Mapped[int | None] = mapped_column(BigInteger)
    good_files: Mapped[int | None] = mapped_column(BigInteger)
    good_bytes: Mapped[int | None] = mapped_column(BigInteger)
    good_small_files: Mapped[int | None] = mapped_column(BigInteger)
    good_reducible_files: Mapped[int | None] = mapped_column(BigInteger)
    good_reducible_bytes: Mapped[int | None] = mapped_column(BigInteger)
    good_median_bytes: Mapped[int | None] = mapped_column(BigInteger)


class ScanRow(Base):
    """The result of a scan; the newest ``scans_kept`` of each table are kept."""

    __tablename__ = "scan_history"
    __table_args__ = (
        CheckConstraint(in_clause("outcome", ("ok", "error")), name="outcome_known"),
        CheckConstraint("(outcome = 'error') = (error IS NOT NULL)", name="error_told"),
        Index(None, "table_name", "id"),
    )

    id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    table_name: Mapped[str] = mapped_column(ForeignKey("table_state.name"))
    taken_at_ms: Mapped[int] = mapped_column(BigInteger)
    outcome: Mapped[str] = mapped_column(String)
    error: Mapped[str | None] = mapped_column(Text)
    record: Mapped[Any] = mapped_column(Json)


class TableReadRow(Base):
    """The reads of a table on one day in UTC that a source reported."""

    __tablename__ = "table_read"

    table_name: Mapped[str] = mapped_column(String, primary_key=True)
    day_ms: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    source: Mapped[str] = mapped_column(String, primary_key=True)
    reads: Mapped[int] = mapped_column(BigInteger)


class TrendRow(Base):
    """The figures of a table's last scan at one time. A row of ``ALL_TABLES`` has the sums over the planned tables."""

    __tablename__ = "trend"
    __table_args__ = (CheckConstraint("files >= 0 AND bytes >= 0", name="figures_sane"),)

    table_name: Mapped[str] = mapped_column(String, primary_key=True)
    at_ms: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    files: Mapped[int] = mapped_column(BigInteger)
    bytes: Mapped[int] = mapped_column(BigInteger)
    small_files: Mapped[int] = mapped_column(BigInteger)
    reducible_files: Mapped[int] = mapped_column(BigInteger)
    #: totals that never decrease; the difference of two totals is the work in between
    rewritten_bytes: Mapped[int] = mapped_column(BigInteger)
    freed_bytes: Mapped[int] = mapped_column(BigInteger)


class ObjectiveRow(Base):
    """An objective of a table at its last good scan, with its past (``planner.slo.error_budget.Compliance``)."""

    __tablename__ = "table_objective"
    __table_args__ = (
        CheckConstraint("goal > 0 AND goal < 1", name="goal_sane"),
        CheckConstraint("met_ms >= 0 AND missed_ms >= 0", name="totals_sane"),
        CheckConstraint("changed_at_ms <= judged_at_ms", name="changed_before_judged"),
    )

    table_name: Mapped[str] = mapped_column(ForeignKey("table_state.name"), primary_key=True)
    objective: Mapped[str] = mapped_column(String, primary_key=True)
    judged_at_ms: Mapped[int] = mapped_column(BigInteger)
    met: Mapped[bool] = mapped_column(Boolean)
    #: the time since which the objective is met, or missed
    changed_at_ms: Mapped[int] = mapped_column(BigInteger)
    #: how long the result is valid if no scan follows; 0: the objective is no longer in force
    holds_ms: Mapped[int] = mapped_column(BigInteger)
    value: Mapped[float] = mapped_column(Float)
    bound: Mapped[float] = mapped_column(Float)
    goal: Mapped[float] = mapped_column(Float)
    window_ms: Mapped[int] = mapped_column(BigInteger)
    #: totals that never decrease
    met_ms: Mapped[int] = mapped_column(BigInteger)
    missed_ms: Mapped[int] = mapped_column(BigInteger)
    #: shares within the window, and burn rates by their windows, at the last evaluation
    share_met: Mapped[float] = mapped_column(Float)
    budget_left: Mapped[float] = mapped_column(Float)
    burn: Mapped[Any] = mapped_column(Json)
    #: begin, step, met and missed of each bucket
    past: Mapped[Any] = mapped_column(Json)


class PartitionLayoutRow(Base):
    """The partitions of a table at its last full scan: a compressed columnar blob, which the next scan replaces."""

    __tablename__ = "partition_layout"

    table_name: Mapped[str] = mapped_column(ForeignKey("table_state.name"), primary_key=True)
    taken_at_ms: Mapped[int] = mapped_column(BigInteger)
    partitions: Mapped[bytes] = mapped_column(LargeBinary)


class WrittenPartitionRow(Base):
    """A partition that a writer reported as written and that waits for a scan. Repeated reports are one row."""

    __tablename__ = "written_partition"
    __table_args__ = (Index(None, "due_at_ms"),)

    table_name: Mapped[str] = mapped_column(String, primary_key=True)
    #: ``ALL_PARTITIONS`` if the writer named no partition
    partition_path: Mapped[str] = mapped_column(String, primary_key=True)
    reported_at_ms: Mapped[int] = mapped_column(BigInteger)
    reported_by: Mapped[str] = mapped_column(String)
    due_at_ms: Mapped[int] = mapped_column(BigInteger)
