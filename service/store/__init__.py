# SPDX-License-Identifier: Apache-2.0
"""The database of plans: SQLite or PostgreSQL, one ``Store`` for executors, scheduler and command line."""

import copy

from service.store import schema
from service.store.audit import Audit
from service.store.base import Known
from service.store.bulk import Bulk
from service.store.charges import Charges
from service.store.claims import Claims
from service.store.engine import Database, Watcher
from service.store.errors import (
    Ambiguous,
    ConstraintViolated,
    DatabaseUnreachable,
    IdempotencyMismatch,
    NotFound,
    PartitionsTaken,
    SchemaBehind,
    StoreError,
    WrongState,
)
from service.store.former import FormerPlaces
from service.store.found import Found
from service.store.halts import Halts
from service.store.holds import Holds
from service.store.layouts import PARTITION_SCHEMA, Layouts
from service.store.leaders import Leaders
from service.store.lifecycle import Lifecycle
from service.store.listing import Listing
from service.store.notifications import Notifications
from service.store.objectives import Objectives
from service.store.places import Places
from service.store.planning import Planning
from service.store.processes import Processes
from service.store.proposals import Proposals
from service.store.pruning import Pruning
from service.store.reach import EVERYTHING, Reach
from service.store.requests import Requests
from service.store.sources import Sources
from service.store.staged import StagedParts
from service.store.superseded import Superseded
from service.store.table_list import TableLists
from service.store.tables import Tables
from service.store.tokens import Tokens
from service.store.trends import TrendPoint, Trends
from service.store.views import (
    AuditEntry,
    Bearer,
    BulkAction,
    Contest,
    DatabaseSum,
    DeletionDay,
    Door,
    ErrorClass,
    Figures,
    GroupView,
    HeldPlan,
    Leader,
    NewestPlan,
    Notification,
    NotificationState,
    PartitionLayout,
    Pause,
    PlanEvent,
    PlanFigures,
    PlanTerms,
    PlanView,
    PointedScans,
    ProcessFacts,
    ProcessView,
    Proposal,
    ProposalFigures,
    Request,
    ScanRecord,
    SourceProblem,
    StoreSettings,
    SupersededFigures,
    TableObjective,
    TableOrder,
    TablePage,
    TableState,
    TableTerms,
    Token,
    WorkBudget,
    WrittenPartition,
)
from service.store.work import Work
from service.store.written import Written

__all__ = [
    "EVERYTHING",
    "PARTITION_SCHEMA",
    "Ambiguous",
    "AuditEntry",
    "Bearer",
    "BulkAction",
    "ConstraintViolated",
    "Contest",
    "DatabaseSum",
    "DatabaseUnreachable",
    "DeletionDay",
    "Door",
    "ErrorClass",
    "Figures",
    "GroupView",
    "HeldPlan",
    "IdempotencyMismatch",
    "Known",
    "Leader",
    "NewestPlan",
    "NotFound",
    "Notification",
    "NotificationState",
    "PartitionLayout",
    "PartitionsTaken",
    "Pause",
    "PlanEvent",
    "PlanFigures",
    "PlanTerms",
    "PlanView",
    "PointedScans",
    "ProcessFacts",
    "ProcessView",
    "Proposal",
    "ProposalFigures",
    "Reach",
    "Request",
    "ScanRecord",
    "SchemaBehind",
    "SourceProblem",
    "Store",
    "StoreError",
    "StoreSettings",
    "SupersededFigures",
    "TableObjective",
    "TableOrder",
    "TablePage",
    "TableState",
    "TableTerms",
    "Token",
    "TrendPoint",
    "Watcher",
    "WorkBudget",
    "WrittenPartition",
    "WrongState",
]


class Store(
    Claims,
    Charges,
    Lifecycle,
    StagedParts,
    Superseded,
    Places,
    FormerPlaces,
    Found,
    Planning,
    Proposals,
    Holds,
    Halts,
    Listing,
    Requests,
    Bulk,
    Written,
    Tables,
    TableLists,
    Layouts,
    Objectives,
    Leaders,
    Processes,
    Sources,
    Tokens,
    Audit,
    Notifications,
    Pruning,
    Trends,
    Work,
):
    """Implements ``lake.place_store.PlaceStore`` and everything the scheduler and the command line need. Thread-safe.

    Connects at the first use. Every method raises DatabaseUnreachable, or SchemaBehind, where the database can't
    be used. Leases, backoff, retention and leaders go by the database's clock.
    """

    def __init__(self, url: str, settings: StoreSettings | None = None) -> None:
        """``url`` is SQLAlchemy's, the setting ``database.url``. Raises StoreError where it is none of ours."""
        super().__init__(Database(url), settings or StoreSettings())

    @property
    def url(self) -> str:
        """The database's URL without anything secret."""
        return self._database.shown

    def within(self, reach: Reach) -> "Store":
        """The same store for whoever sees only the tables within ``reach``: all others are unknown."""
        limited = copy.copy(self)
        limited._reach = reach
        return limited

    def watch(self, watcher: Watcher) -> None:
        """Tell ``watcher`` from now on how every call to the database ends."""
        self._database.watcher = watcher

    def check(self) -> None:
        """Raise SchemaBehind unless the schema is this lakefold's, DatabaseUnreachable where nothing answers."""
        schema.check(self._database)

    def upgrade(self) -> None:
        """Create the schema or bring it up to this lakefold's; nothing happens where it is."""
        schema.upgrade(self._database)

    def close(self) -> None:
        """Close every idle connection."""
        self._database.close()
