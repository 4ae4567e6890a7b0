# SPDX-License-Identifier: Apache-2.0
"""The parts of an observation that the database stores: failed scans, halted partitions, and a table's identity."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from lake import capabilities
from lake.errors import one_line
from lake.model import Snapshot
from service.control.config.table_settings import ConfiguredTable
from service.control.planning.missing_directory import is_gone
from service.control.store.views import ScanRecord, TableState

if TYPE_CHECKING:
    from service.control.store import Store

logger = logging.getLogger(__name__)


def record_failed_scan(store: "Store", table: ConfiguredTable, error: Exception, seconds: float = 0.0) -> None:
    """Record ``error`` as the outcome of the table's last scan."""
    store.record_scan(
        ScanRecord(
            table=table.name,
            taken_at=datetime.now(UTC),
            seconds=seconds,
            outcome="error",
            error=one_line(error),
            is_gone=is_gone(table.ref, error),
        )
    )


def exclude_halted_partitions(snapshot: Snapshot, halted: Mapping[str, str]) -> Snapshot:
    """Return ``snapshot`` with the slices of ``halted`` partitions marked busy, with the reason of the halt."""
    if not halted:
        return snapshot
    slices, name = snapshot.slices, snapshot.table.name
    names = sorted(halted)
    words = [f"halted: {halted[one]}; once the cause is removed: lakefold resume {name}" for one in names]
    index = pc.index_in(slices["partition"].cast(pa.string()), value_set=pa.array(names, pa.string()))
    reasons = pa.array(words, pa.string()).take(index.combine_chunks())
    busy = pc.coalesce(reasons, slices["busy_reason"].cast(pa.string()))
    column_index, field = slices.schema.get_field_index("busy_reason"), slices.schema.field("busy_reason")
    return replace(snapshot, slices=slices.set_column(column_index, field, busy.cast(field.type)))


def with_current_identity(
    store: "Store", table: ConfiguredTable, snapshot: Snapshot, state: TableState
) -> ConfiguredTable:
    """Return ``table`` with the identity in the snapshot; register it if the table was dropped and created again."""
    found = snapshot.table
    if found.identity != state.ref.identity:
        store.register_table(found, table.mode, table.owner, table.tags, table.resource_group)
        another = capabilities.recreated_reason(found, state.ref.identity)
        if another is not None:
            logger.warning("%s", another)
    return replace(table, ref=found)
