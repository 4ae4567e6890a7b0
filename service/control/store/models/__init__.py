# SPDX-License-Identifier: Apache-2.0
"""The tables of the database. An invariant is a key or a CHECK here, or a trigger in ``service.control.store.schema``.

Times are integers, milliseconds since 1970 in UTC, so that SQLite and PostgreSQL compute with them alike. They come
from the database's own clock (``service.control.store.database.db_now``).
"""

from service.control.store.models.columns import Base
from service.control.store.models.operations import (
    AuditRow,
    BulkActionRow,
    LeaderRow,
    NotificationRow,
    ProcessRow,
    ReadLogRow,
    RequestRow,
    SourceProblemRow,
    TokenRow,
)
from service.control.store.models.plans import (
    ChargeRow,
    EventRow,
    GroupRow,
    LivePartitionRow,
    PlanRow,
    PlanTotalRow,
    StagedRow,
    SupersededRow,
)
from service.control.store.models.relocation import LateCopyRow, RelocationRow
from service.control.store.models.tables import (
    ALL_PARTITIONS,
    ALL_TABLES,
    ObjectiveRow,
    PartitionLayoutRow,
    ScanRow,
    TableReadRow,
    TableRow,
    TrendRow,
    WrittenPartitionRow,
)
