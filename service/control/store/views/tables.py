# SPDX-License-Identifier: Apache-2.0
"""Tables in the database: filters, orders, states, and results of scans."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Any, TypedDict

from lake.model import CatalogRef, TableRef

#: states of a table; the states that a person must end come first
TABLE_STATES = ("halted", "paused", "compact", "propose", "observe", "off")


#: further values of the filter ``state``
EXTRA_STATE_FILTERS = ("unreadable", "objective_missed")


class TableOrder(StrEnum):
    """The orders of a list of tables; figures are of the last good scan."""

    ATTENTION = "attention"  #: halted tables, then paused and compacted ones, then others; each by bytes to rewrite
    NAME = "name"
    STATE = "state"
    FORMAT = "format"
    MODE = "mode"
    OWNER = "owner"
    FILES = "files"
    REDUCIBLE = "reducible"  #: the share of files
    MEDIAN = "median_bytes"
    BYTES = "bytes"
    REWRITE = "rewrite_bytes"  #: bytes that plans would read
    PLAN = "last_plan"  #: when the newest plan was created
    SCANNED = "last_scan"
    BUDGET = "error_budget"  #: the smallest remaining error budget, for tables with objectives


class TableFilter(TypedDict, total=False):
    """A filter of tables; an empty one matches all.

    ``name`` is a part of the table's name, in upper or lower case. ``database`` is the part before its last dot.
    ``tag`` is one of its tags. ``state`` is one of ``TABLE_STATES``, ``unreadable`` if the last scan failed, or
    ``objective_missed`` if the table missed an objective at the last good scan.
    """

    name: str | None
    database: str | None
    state: str | None
    format: str | None
    mode: str | None
    owner: str | None
    tag: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableNamesPage:
    """One page of a list of ``total`` tables: its ``number`` and its names. ``next`` is the cursor of the next page."""

    names: tuple[str, ...]
    total: int
    number: int
    next: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableTotals:
    """One table in a report: its labels, and the figures of its last good scan, which are 0 before the first scan."""

    table: str
    owner: str | None
    tags: tuple[str, ...]
    is_halted: bool
    files: int
    bytes: int
    reducible_files: int
    reducible_bytes: int
    freed_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseSum:
    """The sums over the tables of a database."""

    database: str
    tables: int
    halted: int
    files: int
    bytes: int
    reducible_files: int
    reducible_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """The actor, time and reason of a pause of a table or of the service. ``reason`` may be empty."""

    by: str
    at: datetime
    reason: str

    @property
    def words(self) -> str:
        """Actor and reason, for a sentence."""
        return f"by {self.by}: {self.reason}" if self.reason else f"by {self.by}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Halt:
    """The reason and the time of a halt, which lasts until a person resumes the table or partition."""

    reason: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """A registered table. ``quarantined`` maps paths of files to the reasons why they are left alone.

    ``quarantined_bytes`` has the known sizes of these files; a file of another size is not quarantined.
    ``halted_partitions`` are the partitions with a halt of their own, even if the table is halted too.
    """

    ref: TableRef
    mode: str
    pause: Pause | None
    halted_reason: str | None
    halted_at: datetime | None
    quarantined: Mapping[str, str]
    quarantined_bytes: Mapping[str, int] = field(default_factory=dict)
    #: bytes of superseded files that the cleaner deleted
    freed_bytes: int = 0
    halted_partitions: Mapping[str, Halt] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The table's unique name."""
        return self.ref.name

    @property
    def format(self) -> str:
        """The name of the table's format."""
        return self.ref.format

    @property
    def location(self) -> str:
        """Path or URI of the table."""
        return self.ref.location

    @property
    def catalog(self) -> CatalogRef | None:
        """The catalog of the table."""
        return self.ref.catalog

    @property
    def paused(self) -> bool:
        """True if a person paused the table."""
        return self.pause is not None

    @property
    def halted(self) -> bool:
        """True if the table is neither rewritten nor cleaned until ``resume``."""
        return self.halted_at is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanRecord:
    """The result of one scan of a table: its layout, the reasons why slices were not chosen, and its reducible files.

    ``histogram`` has the counts of ``lake.model.SizeHistogram``. ``skipped`` maps the code of a reason to the number of
    slices, ``skipped_bytes`` to their bytes. ``reducible_files`` is the number of small files that plans take, now or
    once they no longer have to wait; ``reducible_bytes`` is the input of all these plans. Both are None if the scan
    failed or was made by an old release. ``median_bytes`` is the median size of the files; None if there are no files,
    or if an old release made the scan.

    ``overlaps`` counts the commits of other processes that ended within a day and overlapped with a plan of a
    single_writer table; ``overlap`` describes the last of them. ``foreign_files`` counts foreign files among the
    table's data; ``foreign_file`` is the path of the first. ``not_planned`` is the reason why a table in mode propose
    or compact is only scanned: the configuration, or another name of the table that is in use. ``waiting_seconds`` is
    the time from the scan to the end of the quiet period of the youngest reducible file if nothing else could be
    planned, else None. ``outcome`` is 'ok', or 'error' with ``error`` and no layout. ``is_gone`` is True if the table
    or its directory no longer exists.
    """

    table: str
    taken_at: datetime
    seconds: float = 0.0
    instant: str = ""
    files: int = 0
    bytes: int = 0
    small_files: int = 0
    small_bytes: int = 0
    partitions: int = 0
    median_bytes: int | None = None
    histogram: tuple[int, ...] = ()
    log_files: int = 0
    log_bytes: int = 0
    skipped: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    skipped_bytes: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    reducible_files: int | None = None
    reducible_bytes: int | None = None
    overlaps: int = 0
    overlap: str | None = None
    foreign_files: int = 0
    foreign_file: str | None = None
    not_planned: str | None = None
    waiting_seconds: int | None = None
    outcome: str = "ok"
    error: str | None = None
    is_gone: bool = False

    @property
    def waiting_until(self) -> datetime | None:
        """The time until which the table waits for its quiet period; None if it does not wait for it."""
        return None if self.waiting_seconds is None else self.taken_at + timedelta(seconds=self.waiting_seconds)

    @property
    def damaged(self) -> int:
        """Slices left alone because their files do not match the table's commits."""
        return self.skipped.get("damaged", 0)

    @property
    def over_budget(self) -> int:
        """Slices that no plan can take because their groups are larger than a whole budget."""
        return self.skipped.get("over_budget", 0)

    @property
    def residual_files(self) -> int | None:
        """Small files that are not worth a plan."""
        return None if self.reducible_files is None else self.small_files - self.reducible_files


@dataclass(frozen=True, slots=True, kw_only=True)
class TableScans:
    """The newest, the newest successful and the oldest successful scan of one table; None if there is none."""

    latest: ScanRecord | None
    latest_ok: ScanRecord | None
    first_ok: ScanRecord | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceScans:
    """The newest, the newest successful and the oldest successful scan of each table, by the table's name."""

    latest: Mapping[str, ScanRecord]
    latest_ok: Mapping[str, ScanRecord]
    first_ok: Mapping[str, ScanRecord]

    def of(self, name: str) -> TableScans:
        """Return the scans of one table."""
        return TableScans(
            latest=self.latest.get(name), latest_ok=self.latest_ok.get(name), first_ok=self.first_ok.get(name)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherName:
    """Another registered name of a table, under which ``owner`` has locked ``partition``.

    ``plan_id`` is the owner if it is a live plan.
    """

    name: str
    partition: str
    owner: str
    plan_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLayout:
    """The partitions of a table at one moment, sorted by path: a ``pyarrow.Table`` of ``PARTITION_SCHEMA``."""

    table: str
    taken_at: datetime
    partitions: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteReport:
    """A partition that a writer reported as written; ``partition`` is None if the writer named none.

    ``report_ms`` distinguishes the newest report of the partition from earlier ones.
    """

    table: str
    partition: str | None
    reported_by: str
    due_at: datetime
    report_ms: int
