# SPDX-License-Identifier: Apache-2.0
"""The observation of a table: its check, its identity, and its latest slices; failed observations are recorded."""

import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from lake import capabilities
from lake.errors import LakefoldError, Rejected, one_line
from lake.model import Snapshot
from planner.policy.compatibility import unsupported_settings
from service import problems
from service.control.config.table_settings import ConfiguredTable
from service.control.planning.missing_directory import is_gone, naming_missing_directory, refuse_missing_directory
from service.control.store.views import ScanRecord, TableState
from service.problems import ProblemError
from service.text import did_you_mean

if TYPE_CHECKING:
    from service.control.store import Store

logger = logging.getLogger(__name__)


def observe_table(
    store: "Store",
    table: ConfiguredTable,
    *,
    record_failure: bool = False,
    partitions: Collection[str] | None = None,
) -> Snapshot:
    """Return the latest slices of ``table``, or of ``partitions``; slices of halted partitions are busy.

    Raises the outcomes of ``lake.errors`` if the table can't be read; with ``record_failure``, this failure is recorded
    as the table's last scan.
    """
    began = time.monotonic()
    try:
        snapshot = list_table(table, partitions)
    except (LakefoldError, OSError) as error:
        if record_failure:
            record_failed_scan(store, table, error, time.monotonic() - began)
        raise
    return _exclude_halted_partitions(snapshot, store.halted_partitions(table.ref))


def list_table(table: ConfiguredTable, partitions: Collection[str] | None = None) -> Snapshot:
    """Return the table's latest slices, listed now.

    Raises Rejected if the table can't be used, and the errors of reading it.
    """
    with naming_missing_directory(table.ref):
        table.adapter.check(table.ref)
    for problem in unsupported_settings(table.policy, table.adapter):
        raise Rejected(f"{table.name}: {problem}")
    # Read the identity first: if the table is recreated in between, the plans are refused instead of run on it.
    with naming_missing_directory(table.ref):
        snapshot = table.adapter.snapshot(capabilities.with_identity(table.adapter, table.ref), partitions)
    if partitions is None and snapshot.slices.num_rows == 0:
        refuse_missing_directory(table.ref)
    return snapshot


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


def _exclude_halted_partitions(snapshot: Snapshot, halted: Mapping[str, str]) -> Snapshot:
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


def snapshot_partitions(snapshot: Snapshot) -> set[str]:
    """Return the partitions in the snapshot."""
    column = snapshot.slices["partition"].unify_dictionaries()
    return set(column.unique().to_pylist())


def requested_partitions(snapshot: Snapshot, wanted: Collection[str] | None) -> list[str] | None:
    """Return the partitions that a request names, without slashes at their ends; None for all of them.

    Raises ProblemError if the table has no such partition.
    """
    if wanted is None:
        return None
    known = snapshot_partitions(snapshot)
    requested = [name.strip("/") for name in wanted]
    for name in requested:
        if name not in known:
            hint = did_you_mean(name, sorted(known)) or f"; it has {len(known)}"
            raise ProblemError(
                problems.NOT_FOUND, f"{snapshot.table.name} has no partition {name!r}{hint}", partition=name
            )
    return requested
