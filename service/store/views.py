# SPDX-License-Identifier: Apache-2.0
"""What the store hands out and takes in besides the nouns of ``lake``: frozen, timezone-aware, units in names."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Any, TypedDict

from lake.model import CatalogRef, TableRef
from lake.plan import PartitionFigures, PlanKind, PlanState
from service.store.reach import EVERYTHING, Reach


class Failure(StrEnum):
    """How a plan failed that is not to be made again as it was."""

    REJECTED = "rejected"  #: it can't be served, or what was written differed
    ATTEMPTS = "attempts"  #: all its attempts failed


class ErrorClass(StrEnum):
    """Which of the outcomes in ``lake.errors`` a plan's error was; none for what a person cancelled."""

    TRANSIENT = "transient"  #: tried again, until the attempts are used up
    CONFLICT = "conflict"  #: a writer was faster
    COMMIT_UNKNOWN = "commit_unknown"  #: nobody could tell whether it committed, so it stays inflight
    REJECTED = "rejected"  #: it can't be served
    INTEGRITY = "integrity"  #: what was written differed from what was read


class PlanTerms(TypedDict, total=False):
    """Which plans are meant; all of them where nothing is said.

    ``name`` is a part of the table's name in any case, ``since`` and ``until`` are when plans were made.
    """

    table: str | None
    name: str | None
    state: PlanState | None
    error_class: ErrorClass | None
    since: datetime | None
    until: datetime | None
    request_id: str | None


#: states of a table, the ones that need somebody first
TABLE_STATES = ("halted", "paused", "compact", "observe", "off")


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


class TableTerms(TypedDict, total=False):
    """Which tables are meant; all of them where nothing is said.

    ``name`` is a part of the name in any case, ``database`` what it has before its last dot. A ``state`` is one of
    ``TABLE_STATES``, or ``unreadable`` where the last scan failed.
    """

    name: str | None
    database: str | None
    state: str | None
    format: str | None
    mode: str | None
    owner: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePage:
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
class StoreSettings:
    """The policy knobs that the store itself obeys; the defaults are the documented ones."""

    lease: timedelta = timedelta(seconds=60)
    max_attempts: int = 5
    backoff: timedelta = timedelta(seconds=30)
    backoff_max: timedelta = timedelta(minutes=30)
    max_inflight_per_table: int = 1
    #: scans remembered for each table; a day of them at the default interval
    scans_kept: int = 288
    #: events of which a webhook is told; without one none
    notify_events: frozenset[str] = frozenset()


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
class TableState:
    """A registered table. ``quarantined`` maps paths of files to why they are left alone."""

    ref: TableRef
    mode: str
    pause: Pause | None
    halted_reason: str | None
    halted_at: datetime | None
    quarantined: Mapping[str, str]
    registered_at: datetime
    #: of superseded files that the cleaner deleted
    freed_bytes: int = 0

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
    ``overlap`` is the last of them in words. ``not_planned`` is why a table in mode compact was only scanned, by its
    configuration. ``outcome`` is 'ok', or 'error' with ``error`` and no layout.
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
class PartitionLayout:
    """The partitions of a table at one moment, sorted by path: a ``pyarrow.Table`` of ``PARTITION_SCHEMA``."""

    table: str
    taken_at: datetime
    partitions: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A person's or program's wish for plans; ``answer`` is None until the scheduler has answered it."""

    request_id: str
    table: str
    partitions: tuple[str, ...] | None
    overrides: Mapping[str, Any]
    dry_run: bool
    kind: PlanKind | None
    idempotency_key: str | None
    actor: str
    created_at: datetime
    answered_at: datetime | None
    plan_ids: tuple[str, ...]
    answer: Mapping[str, Any] | None
    #: W3C trace context of whoever asked, where somebody traces
    traceparent: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenPartition:
    """A partition that a writer reports as written; ``partition`` is None where it named none.

    ``report`` tells the newest report from those before it.
    """

    table: str
    partition: str | None
    reported_at: datetime
    reported_by: str
    due_at: datetime
    report: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkAction:
    """Something done to many plans at once; ``answer`` is None until it is done to all of ``plan_ids``."""

    action_id: str
    action: str
    terms: Mapping[str, Any]
    plan_ids: tuple[str, ...]
    actor: str
    reason: str
    created_at: datetime
    answer: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """One group of a plan without its list of files; ``left_out`` says why it is not part of the commit."""

    number: int
    partition: str
    slices: int
    input_files: int
    input_bytes: int
    output_files: int
    left_out: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanView:
    """A plan as people see it.

    ``groups``, ``partitions`` and ``figures`` are filled by ``plan()``; a listing leaves them empty and has the counts.
    ``instants`` are those published on the table's timeline, the committed one last; ``instant`` is the committed one;
    ``adopted`` is the instant that another process scheduled, None for a plan of our own; ``spark_ui`` the address of
    the Spark UI that shows the jobs of an inflight plan, where its executor has one.
    """

    plan_id: str
    table: str
    format: str
    location: str
    kind: PlanKind
    state: PlanState
    snapshot_instant: str
    request_id: str | None
    actor: str
    options: Mapping[str, Any]
    estimate: Mapping[str, Any]
    group_count: int
    partition_count: int
    input_files: int
    input_bytes: int
    output_files: int
    adopted: str | None
    epoch: int
    attempts: int
    executor: str | None
    lease_until: datetime | None
    heartbeat_at: datetime | None
    not_before: datetime
    step: str | None
    progress_bytes_done: int
    progress_bytes_total: int
    progress_rows_done: int
    spark_ui: str | None
    cancel_requested_by: str | None
    cancel_reason: str | None
    error: str | None
    error_class: ErrorClass | None
    created_at: datetime
    claimed_at: datetime | None
    finalized_at: datetime | None
    instant: str | None
    instants: tuple[str, ...]
    milliseconds: Mapping[str, int]
    files_before: int
    bytes_before: int
    files_after: int
    bytes_after: int
    groups: tuple[GroupView, ...] = ()
    partitions: tuple[str, ...] = ()
    figures: tuple[PartitionFigures, ...] = ()

    @property
    def left_out(self) -> tuple[GroupView, ...]:
        """The groups that are not part of the commit, with their reasons."""
        return tuple(group for group in self.groups if group.left_out is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """Of the newest plans of a table that have ``ended``, those ``lost`` to its writers."""

    lost: int
    ended: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanEvent:
    """What happened to a plan: a transition where the states differ, its birth where ``from_state`` is None."""

    plan_id: str
    at: datetime
    from_state: PlanState | None
    to_state: PlanState
    epoch: int
    actor: str
    reason: str


class NotificationState(StrEnum):
    """Where a message to the webhook is: still to be delivered, accepted by the receiver, or given up."""

    WAITING = "waiting"
    DELIVERED = "delivered"
    DEAD = "dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """A message to the webhook. ``body`` is what is sent, but for its link; ``error`` is of the last failed attempt."""

    number: int
    event: str
    body: Mapping[str, Any]
    created_at: datetime
    attempts: int
    not_before: datetime
    delivered_at: datetime | None
    dead_at: datetime | None
    error: str | None

    @property
    def state(self) -> NotificationState:
        """Where it is."""
        if self.dead_at is not None:
            return NotificationState.DEAD
        return NotificationState.WAITING if self.delivered_at is None else NotificationState.DELIVERED


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """Who holds a singleton role. ``live`` compares the expiry with the database's clock."""

    role: str
    holder: str
    acquired_at: datetime
    expires_at: datetime
    live: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFacts:
    """What a process says of itself. ``spark`` is none, starting, running, or broken, then ``problem`` says why."""

    name: str
    role: str
    host: str
    version: str
    slots: int
    spark: str = "none"
    spark_ui: str | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessView(ProcessFacts):
    """A process as others see it. ``live`` compares its expiry with the database's clock."""

    started_at: datetime
    seen_at: datetime
    live: bool

    @property
    def executes(self) -> bool:
        """Whether it lives and runs plans."""
        return self.live and self.role in ("all", "executor")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bearer:
    """Who comes with a token in force: its name, what it may do, the tables it may see, and of whose sign-in it is."""

    name: str
    scope: str
    reach: Reach = EVERYTHING
    person: str | None = None


class Door(StrEnum):
    """Where somebody came in who asked for something."""

    CLI = "cli"
    HTTP = "http"
    PAGE = "page"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """Somebody who asked for something: ``subject`` is the plan, request, token or message that it was about."""

    number: int
    at: datetime
    actor: str
    door: Door
    action: str
    table: str | None
    subject: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A bearer token as people see it. ``in_force`` says that it is neither revoked nor expired.

    ``tables`` are patterns of the tables that it may see, None for all; ``person`` is who signed in with it.
    """

    name: str
    scope: str
    tables: tuple[str, ...] | None
    person: str | None
    in_force: bool
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFigures:
    """Plans of one table, kind and state; before and after are zero unless completed."""

    table: str
    format: str
    kind: PlanKind
    state: PlanState
    plans: int
    input_files: int
    input_bytes: int
    files_before: int
    bytes_before: int
    files_after: int
    bytes_after: int
    oldest_created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class SupersededFigures:
    """Files of one table that completed plans replaced and that are not deleted yet."""

    table: str
    format: str
    files: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionDay:
    """Files of one table whose retention ends on ``day`` in UTC."""

    table: str
    day: date
    files: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The database in numbers, for metrics and the status line. ``taken_at`` is the database's clock."""

    taken_at: datetime
    plans: tuple[PlanFigures, ...]
    superseded: tuple[SupersededFigures, ...]
    tables: tuple[TableState, ...]
    pause: Pause | None
    notifications_waiting: int = 0
    notifications_dead: int = 0

    @property
    def paused(self) -> bool:
        """Whether the whole service is paused."""
        return self.pause is not None

    def within(self, reach: Reach) -> "Figures":
        """The figures of the tables within ``reach``, and of nothing that is of no table."""
        return replace(
            self,
            plans=tuple(entry for entry in self.plans if reach.sees(entry.table)),
            superseded=tuple(entry for entry in self.superseded if reach.sees(entry.table)),
            tables=tuple(table for table in self.tables if reach.sees(table.name)),
            notifications_waiting=0,
            notifications_dead=0,
        )

    def _sum(self, name: str, *states: PlanState) -> int:
        return sum(getattr(figures, name) for figures in self.plans if figures.state in states)

    def count(self, *states: PlanState) -> int:
        """Plans in any of ``states``."""
        return self._sum("plans", *states)

    @property
    def backlog_bytes(self) -> int:
        """Input bytes of all requested and inflight plans."""
        return self._sum("input_bytes", PlanState.REQUESTED, PlanState.INFLIGHT)

    @property
    def oldest_requested_at(self) -> datetime | None:
        """When the oldest requested plan was stored; None when none is requested."""
        return min((f.oldest_created_at for f in self.plans if f.state is PlanState.REQUESTED), default=None)

    @property
    def halted(self) -> tuple[str, ...]:
        """Names of the halted tables."""
        return tuple(table.name for table in self.tables if table.halted)

    @property
    def files_removed(self) -> int:
        """Files fewer, over all completed plans."""
        return self._sum("files_before", PlanState.COMPLETED) - self._sum("files_after", PlanState.COMPLETED)

    @property
    def bytes_rewritten(self) -> int:
        """Bytes written by all completed plans."""
        return self._sum("bytes_after", PlanState.COMPLETED)
