# SPDX-License-Identifier: Apache-2.0
"""The database of plans: SQLite or PostgreSQL, one ``Store`` for executors, scheduler and command line."""

import copy

from service.control.store import schema, views
from service.control.store.approvals import Proposals
from service.control.store.audit import AuditTrail
from service.control.store.base import RowCache
from service.control.store.budget_ledger import BudgetLedger, CpuHistory
from service.control.store.bulk_actions import BulkActions
from service.control.store.claimed_plans import ClaimedPlans
from service.control.store.claims import Claims
from service.control.store.database import Database, DatabaseObserver
from service.control.store.errors import (
    AmbiguousId,
    ConstraintViolated,
    DatabaseReplaced,
    DatabaseUnreachable,
    IdempotencyMismatch,
    NotFound,
    PartitionsLocked,
    SchemaMismatch,
    StoreError,
    WrongState,
)
from service.control.store.halts import Halts
from service.control.store.lease_takeover import LeaseTakeover
from service.control.store.leases import Leases
from service.control.store.notifications import Notifications
from service.control.store.objectives import Objectives
from service.control.store.observed_reads import Reads
from service.control.store.other_names import OtherNames
from service.control.store.partition_layouts import PARTITION_SCHEMA, PartitionLayouts
from service.control.store.partition_locks import PartitionLocks
from service.control.store.pauses import Pauses
from service.control.store.plan_actions import PlanActions
from service.control.store.plan_creation import PlanCreation
from service.control.store.plan_history import PlanHistory
from service.control.store.plan_queries import PlanQueries
from service.control.store.planner_queries import PlannerQueries
from service.control.store.processes import Leaders, Processes
from service.control.store.pruning import Pruning
from service.control.store.relocation.discovered import DiscoveredRelocations
from service.control.store.relocation.journal import RelocationJournal
from service.control.store.relocation.previous_locations import PreviousLocations
from service.control.store.relocation.shared_directories import SharedDirectories
from service.control.store.requests import Requests
from service.control.store.scans import Scans
from service.control.store.staged_files import StagedJournal
from service.control.store.superseded_files import SupersededVersions
from service.control.store.table_list import SourceProblems, TableQueries
from service.control.store.table_scope import UNRESTRICTED, TableScope
from service.control.store.tables import Tables
from service.control.store.tokens import Tokens
from service.control.store.trends import TrendPoint, Trends
from service.control.store.views import *  # noqa: F403 - all of them, by their __all__
from service.control.store.write_reports import WriteReports

__all__ = [
    "PARTITION_SCHEMA",
    "UNRESTRICTED",
    "AmbiguousId",
    "ConstraintViolated",
    "DatabaseObserver",
    "DatabaseReplaced",
    "DatabaseUnreachable",
    "IdempotencyMismatch",
    "NotFound",
    "PartitionsLocked",
    "RowCache",
    "SchemaMismatch",
    "Store",
    "StoreError",
    "TableScope",
    "TrendPoint",
    "WrongState",
    *views.__all__,
]


class Store(
    Claims,
    Leases,
    LeaseTakeover,
    BudgetLedger,
    ClaimedPlans,
    StagedJournal,
    SupersededVersions,
    RelocationJournal,
    PreviousLocations,
    SharedDirectories,
    DiscoveredRelocations,
    PlanCreation,
    Proposals,
    PlanActions,
    PlannerQueries,
    PartitionLocks,
    Halts,
    PlanQueries,
    PlanHistory,
    Requests,
    BulkActions,
    WriteReports,
    Tables,
    OtherNames,
    Pauses,
    Scans,
    TableQueries,
    PartitionLayouts,
    Objectives,
    Leaders,
    Processes,
    SourceProblems,
    Tokens,
    AuditTrail,
    Notifications,
    Pruning,
    Trends,
    Reads,
    CpuHistory,
):
    """Implements ``lake.relocation_store.RelocationStore`` and the queries of scheduler and command line. Thread-safe.

    Connects at the first use. Every method raises DatabaseUnreachable or SchemaMismatch if the database can't be used.
    Leases, backoff, retention and leaders use the database's clock.
    """

    def __init__(self, url: str, settings: views.StoreSettings | None = None) -> None:
        """``url`` is a SQLAlchemy URL, the setting ``database.url``. Raises StoreError for an unsupported URL."""
        super().__init__(Database(url), settings or views.StoreSettings())

    @property
    def url(self) -> str:
        """The database's URL without secrets."""
        return self._database.display_url

    def limited_to(self, table_scope: TableScope) -> "Store":
        """Return the same store, limited to the tables in ``table_scope``: to its caller, other tables do not exist."""
        limited = copy.copy(self)
        limited._table_scope = table_scope
        return limited

    def set_observer(self, observer: DatabaseObserver) -> None:
        """Notify ``observer`` of the outcome of every database call from now on."""
        self._database.observer = observer

    def use_settings(self, settings: views.StoreSettings) -> None:
        """Use ``settings`` for all later calls."""
        self._settings = settings

    def check(self) -> None:
        """Raise SchemaMismatch if the schema has another revision, DatabaseUnreachable if the database is down."""
        schema.check(self._database)

    def check_writable(self) -> None:
        """Raise DatabaseUnreachable unless a transaction can write; stores nothing."""
        schema.check_writable(self._database)

    def file_problem(self) -> str | None:
        """Return why the SQLite file can no longer be used: it is gone or was replaced. None if it can. Cheap."""
        try:
            self._database.check_file()
        except StoreError as error:
            return str(error)
        return None

    def upgrade(self, *, creates_file: bool = True) -> None:
        """Create the schema, or upgrade it to the revision of this release. Does nothing if it is current.

        Without ``creates_file``, raises SchemaMismatch if the SQLite file is missing.
        """
        schema.upgrade(self._database, creates_file=creates_file)

    def close(self) -> None:
        """Close every idle connection."""
        self._database.close()
