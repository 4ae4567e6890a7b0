# SPDX-License-Identifier: Apache-2.0
"""What the store hands out and takes in besides the nouns of ``lake``: frozen, timezone-aware, units in names."""

from service.store.views.figures import DeletionDay, Figures, PlanFigures, SupersededFigures
from service.store.views.people import (
    AuditEntry,
    Bearer,
    BulkAction,
    Door,
    Leader,
    Notification,
    NotificationState,
    ProcessFacts,
    ProcessView,
    Request,
    Token,
)
from service.store.views.plans import Contest, ErrorClass, Failure, GroupView, PlanEvent, PlanTerms, PlanView
from service.store.views.settings import StoreSettings
from service.store.views.tables import (
    TABLE_STATES,
    DatabaseSum,
    PartitionLayout,
    Pause,
    PointedScans,
    ScanRecord,
    TableOrder,
    TablePage,
    TableState,
    TableTerms,
    WrittenPartition,
)

__all__ = [
    "TABLE_STATES",
    "AuditEntry",
    "Bearer",
    "BulkAction",
    "Contest",
    "DatabaseSum",
    "DeletionDay",
    "Door",
    "ErrorClass",
    "Failure",
    "Figures",
    "GroupView",
    "Leader",
    "Notification",
    "NotificationState",
    "PartitionLayout",
    "Pause",
    "PlanEvent",
    "PlanFigures",
    "PlanTerms",
    "PlanView",
    "PointedScans",
    "ProcessFacts",
    "ProcessView",
    "Request",
    "ScanRecord",
    "StoreSettings",
    "SupersededFigures",
    "TableOrder",
    "TablePage",
    "TableState",
    "TableTerms",
    "Token",
    "WrittenPartition",
]
