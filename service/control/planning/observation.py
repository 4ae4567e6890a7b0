# SPDX-License-Identifier: Apache-2.0
"""The observation of a table: its check, its identity, and its latest slices; failed observations are recorded."""

import time
from collections.abc import Collection
from typing import TYPE_CHECKING

from lake import capabilities
from lake.errors import LakefoldError, Rejected
from lake.model import Snapshot
from planner.policy.compatibility import unsupported_settings
from service import problems
from service.control.config.table_settings import ConfiguredTable
from service.control.planning.missing_directory import naming_missing_directory, refuse_missing_directory
from service.control.planning.observed_state import exclude_halted_partitions, record_failed_scan
from service.problems import ProblemError
from service.text import did_you_mean

if TYPE_CHECKING:
    from service.control.store import Store


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
    return exclude_halted_partitions(snapshot, store.halted_partitions(table.ref))


def list_table(table: ConfiguredTable, partitions: Collection[str] | None = None) -> Snapshot:
    """Return the table's latest slices, listed now.

    Raises Rejected if the table can't be used, and the errors of reading it.
    """
    for problem in unsupported_settings(table.policy, table.adapter):
        raise Rejected(f"{table.name}: {problem}")
    with naming_missing_directory(table.ref):
        table.adapter.check(table.ref)
        # Read the identity first: if the table is recreated in between, the plans are refused instead of run on it.
        snapshot = table.adapter.snapshot(capabilities.with_identity(table.adapter, table.ref), partitions)
    if partitions is None and snapshot.slices.num_rows == 0:
        refuse_missing_directory(table.ref)
    return snapshot


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
