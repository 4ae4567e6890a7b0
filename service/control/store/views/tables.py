# SPDX-License-Identifier: Apache-2.0
"""Tables as the database knows them: which are meant, their state, and what scans found."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, TypedDict

from lake.model import CatalogRef, TableRef

#: states of a table, the ones that need somebody first
TABLE_STATES = ("halted", "paused", "compact", "propose", "observe", "off")


#: what else tables are looked for by in place of their state
EXTRA_STATE_FILTERS = ("unreadable", "missed")


class TableOrder(StrEnum):
    """What a list of tables can be ordered by; figures are of the last good scan."""

    WORST = "worst"  #: halted ones first, then those that are served, with most to rewrite
    NAME = "name"
    STATE = "state"
    FORMAT = "format"
    MODE = "mode"
    OWNER = "owner"
    FILES = "files"
    REDUCIBLE = "reducible"  #: the share of files
    MEDIAN = "median"
    BYTES = "bytes"
    REWRITE = "rewrite"  #: bytes that plans would read
    PLAN = "plan"  #: when the newest plan was made
    SCANNED = "scanned"
    BUDGET = "budget"  #: least left of an error budget, of the tables that are held to anything


class TableFilter(TypedDict, total=False):
    """Which tables are meant; all of them where nothing is said.

    ``name`` is a part of the name in any case, ``database`` what it has before its last dot. A ``state`` is one of
    ``TABLE_STATES``, or ``unreadable`` where the last scan failed, or ``missed`` where the last good one found that the
    table misses an objective.
    """

    name: str | None
    database: str | None
    state: str | None
    format: str | None
    mode: str | None
    owner: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableNamesPage:
    """Names on the page with this ``number`` of a list of so many in ``total``; ``next`` continues it."""

    names: tuple[str, ...]
    total: int
    number: int
    next: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseSum:
    """What the tables of a database add up to."""

    database: str
    tables: int
    halted: int
    files: int
    bytes: int
    reducible_files: int
    reducible_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Who paused a table or the service, when, and why; ``reason`` is empty where nobody said."""

    by: str
    at: datetime
    reason: str

    @property
    def words(self) -> str:
        """By whom and why, for a sentence."""
        return f"by {self.by}: {self.reason}" if self.reason else f"by {self.by}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Halt:
    """Why rewriting was halted until a person resumes it, and when."""

    reason: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """A registered table. ``quarantined`` maps paths of files to why they are left alone.

    ``quarantined_bytes`` are their sizes, of those of which they are known; a file of another size is another one.
    ``halted_partitions`` are halted by themselves, whether the table is halted or not.
    """

    ref: TableRef
    mode: str
    pause: Pause | None
    halted_reason: str | None
    halted_at: datetime | None
    quarantined: Mapping[str, str]
    quarantined_bytes: Mapping[str, int] = field(default_factory=dict)
    #: of superseded files that the cleaner deleted
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
        """The catalog that the table is found through."""
        return self.ref.catalog

    @property
    def paused(self) -> bool:
        """Whether a person stopped the table until ``resume``."""
        return self.pause is not None

    @property
    def halted(self) -> bool:
        """Whether an integrity error stopped the table until ``resume``."""
        return self.halted_at is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanRecord:
    """What one scan of a table found: its layout, what was not chosen and why, and what is worth a plan.

    ``histogram`` has the counts of ``lake.model.SizeHistogram``; ``skipped`` and ``skipped_bytes`` map a reason's
    code to slices and their bytes. ``reducible_files`` are those small files that plans take, now or once what they
    wait for is over, ``reducible_bytes`` what plans would read for all there is to do; None where the scan failed, or
    is of a lakefold that did not tell them from the others. ``overlaps`` are commits of
    other processes that ended within a day and were under way while a plan was, where nobody else may write meanwhile;
    ``overlap`` is the last of them in words. ``foreign_files`` are files of others among the table's data,
    ``foreign_file`` the path of the first of them. ``not_planned`` is why a table in mode propose or compact was only
    scanned, by its configuration. ``outcome`` is 'ok', or 'error' with ``error`` and no layout.
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
    outcome: str = "ok"
    error: str | None = None

    @property
    def damaged(self) -> int:
        """Slices left alone because their files are not what the table's commits say."""
        return self.skipped.get("damaged", 0)

    @property
    def residual_files(self) -> int | None:
        """Small files that no plan is worth."""
        return None if self.reducible_files is None else self.small_files - self.reducible_files


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceScans:
    """The newest scan of each table, the newest and the oldest that succeeded, by the table's name."""

    latest: Mapping[str, ScanRecord]
    latest_ok: Mapping[str, ScanRecord]
    first_ok: Mapping[str, ScanRecord]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLayout:
    """The partitions of a table at one moment, sorted by path: a ``pyarrow.Table`` of ``PARTITION_SCHEMA``."""

    table: str
    taken_at: datetime
    partitions: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteReport:
    """A partition that a writer reports as written; ``partition`` is None where it named none.

    ``report`` tells the newest report from those before it.
    """

    table: str
    partition: str | None
    reported_by: str
    due_at: datetime
    report_ms: int
