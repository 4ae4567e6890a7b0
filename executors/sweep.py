# SPDX-License-Identifier: Apache-2.0
"""The sweep of a table: make table and database agree on plans that ended, and withdraw or delete uncommitted work."""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence

from executors.partition_locks import PartitionLock
from executors.reconcile import record_discovered_relocations, record_unrecorded_commits
from executors.relocation.sweep import sweep_partitions
from executors.relocation.watch import PartitionWatch
from lake.capabilities import (
    FindsStaged,
    FindsStragglers,
    RelocatesPartitions,
    RemovesStragglers,
    pending_actions,
    pending_instants,
)
from lake.model import TableRef
from lake.plan import LIVE_STATES, LockOwnerKind, PlanKind, PlanState, StagedWork
from lake.plan_store import PlanStore
from lake.ports import SparkProvider, TableFormat
from lake.relocation_store import RelocationStore

log = logging.getLogger(__name__)


def sweep_table(
    table: TableRef,
    *,
    format: TableFormat,
    store: RelocationStore,
    spark: SparkProvider,
    halted: bool = False,
    watch: PartitionWatch | None = None,
    discovers_relocations: bool = True,
) -> int:
    """Make table and database agree on plans that ended; how many instants were withdrawn.

    A commit of a plan that ended cancelled or failed is recorded. Pending instants of ended plans are withdrawn, such
    as one published by an executor that had lost its lease, and so are clusterings, which refuse writers, of plans that
    wait. What has to be executed (``PendingAction.must_execute``) is left to a plan that adopts it. Instants of plans this
    database does not know belong to another lakefold and are left alone, but not what was written for any plan of a
    lakefold's after its instant was over: that is deleted. What writers left where partitions were is brought to where
    they are, whatever else fails; of a ``halted`` table nothing else is done, so that what a person has to look into
    stays as it is. With a ``watch`` only partitions that it chooses are looked at for that. With ``finds_moves`` the
    table is asked for moves that this database does not know under its name. Raises what the format raises.
    """
    if halted and not isinstance(format, RelocatesPartitions):
        return 0
    withdrawn, failed = 0, None
    try:
        if discovers_relocations:
            record_discovered_relocations(table, format=format, store=store)
        record_unrecorded_commits(table, format=format, store=store)
        if not halted:
            withdrawn = _withdraw_orphaned_stagings(table, format, store, spark)
            withdrawn += _withdraw_instants(table, _abandoned_instants(table, format, store), format, spark)
            _remove_stragglers(table, format, spark)
    except Exception as error:
        failed = error
    _sweep_relocated_partitions(table, format, store, spark, watch)
    if failed is not None:
        raise failed
    return withdrawn


def _sweep_relocated_partitions(
    table: TableRef, format_: TableFormat, store: RelocationStore, spark: SparkProvider, watch: PartitionWatch | None
) -> None:
    chosen = None if watch is None else watch.choose_partitions(table, format_, store)
    report = sweep_partitions(table, format=format_, store=store, spark=spark, partitions=chosen)
    if watch is not None:
        watch.mark_swept(table, report.deferred)


def _withdraw_instants(
    table: TableRef, nobodys: Mapping[str, Sequence[str]], format_: TableFormat, spark: SparkProvider
) -> int:
    if not nobodys:
        return 0
    withdrawn = 0
    with format_.writer(table, spark) as writer:
        for plan_id, instants in nobodys.items():
            done = writer.withdraw(plan_id, instants)
            withdrawn += done
            if done:
                log.warning("plan %s of %s does not run: withdrew %s", plan_id, table.name, ", ".join(instants))
    return withdrawn


def _withdraw_orphaned_stagings(table: TableRef, format_: TableFormat, store: PlanStore, spark: SparkProvider) -> int:
    """Withdraw what ended attempts left on a table that does not tell; forget what nobody is to write to by now.

    A partition that a live plan has is left alone: a run of that plan withdraws what its earlier attempts left, and
    what is left of others waits until it has ended. What a plan has replaced was the table's, even where that has
    forgotten how it became so, and waits for its retention.
    """
    if not isinstance(format_, FindsStaged):
        return 0
    known = store.orphaned_stagings(table)
    if not known:
        return 0
    left, withdrawn = frozenset(format_.remaining_staged(table, [entry.staged for entry in known])), 0
    if left:
        replaced = [due.version.path for due in store.awaiting_deletion(table)]
        left -= {
            one.staged.token for one in known if one.staged.token in left and _has_replaced_file(one.staged, replaced)
        }
    if left:
        keeping = PartitionLock(LockOwnerKind.SWEEP, table, format_, store)
        try:
            with format_.writer(table, spark) as writer:
                for entry in known:
                    if entry.staged.token in left and keeping.lock(entry.partitions) >= set(entry.partitions):
                        log.warning("plan %s of %s left %s: withdrawn", entry.plan_id, table.name, entry.staged.token)
                        withdrawn += writer.withdraw(entry.plan_id, (entry.staged.token,), staged=(entry.staged,))
        finally:
            keeping.release()
    store.clear_stagings([entry for entry in known if entry.is_expired and entry.staged.token not in left])
    return withdrawn


def _has_replaced_file(staged: StagedWork, paths: Sequence[str]) -> bool:
    return any(path.startswith(staged.paths) for path in paths)


def _remove_stragglers(table: TableRef, format_: TableFormat, spark: SparkProvider) -> None:
    instants = format_.instants_with_stragglers(table) if isinstance(format_, FindsStragglers) else ()
    if not instants:
        return
    with format_.writer(table, spark) as writer:
        removed = writer.remove_straggler_files(instants) if isinstance(writer, RemovesStragglers) else ()
    if removed:
        log.warning(
            "table %s: deleted %d files that were written when their instant was over", table.name, len(removed)
        )


def _abandoned_instants(table: TableRef, format_: TableFormat, store: PlanStore) -> dict[str, list[str]]:
    """Pending instants that no run of their plans works on, or can use, by plan."""
    if not any(
        store.plan_state(plan_id) is not PlanState.INFLIGHT for plan_id in pending_instants(format_, table).values()
    ):
        return {}
    found: dict[str, list[str]] = defaultdict(list)
    for entry in pending_actions(format_, table):
        if entry.plan_id is None or (entry.must_execute and not entry.is_begun):
            continue
        # Asked after the timeline was read: what it shows of a plan that waits now is an earlier attempt's.
        state = store.plan_state(entry.plan_id)
        waits = state is PlanState.REQUESTED and entry.kind is PlanKind.CLUSTERING
        if waits or (state is not None and state not in LIVE_STATES):
            found[entry.plan_id].append(entry.instant)
    return found
