# SPDX-License-Identifier: Apache-2.0
"""The sweep of a table: makes table and database agree on ended plans, and withdraws or deletes uncommitted work."""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from executors.context import RunContext
from executors.partition_locks import PartitionLock
from executors.relocation.search import RelocationSearch
from executors.relocation.sweep import sweep_partitions
from executors.relocation.watch import PartitionWatch
from executors.unrecorded_commits import record_discovered_relocations, record_unrecorded_commits
from lake.capabilities import FindsStaged, FindsStragglers, RemovesStragglers, pending_actions, pending_instants
from lake.model import TableRef
from lake.plan import LIVE_STATES, LockOwnerKind, PlanKind, PlanState, StagedWork
from lake.plan_store import OrphanedStaging, PlanStore
from lake.ports import SparkProvider, TableFormat
from lake.relocation.capabilities import RelocatesPartitions

log = logging.getLogger(__name__)


def sweep_table(
    table: TableRef,
    context: RunContext,
    *,
    format: TableFormat,
    halted: bool = False,
    is_off: bool = False,
    watch: PartitionWatch | None = None,
    search: RelocationSearch | None = None,
) -> int:
    """Make table and database agree on plans that ended. Returns the number of instants that were withdrawn.

    Commits of plans that ended cancelled or failed are recorded. Pending instants of ended plans are withdrawn, such as
    an instant that an executor published after losing its lease. Clusterings of waiting plans are withdrawn as well,
    since a pending clustering makes writes fail. An instant that has to be executed (``PendingAction.must_execute``) is
    left to a plan that adopts it. Instants of plans unknown to this database belong to another lakefold and are not
    touched. But files that were written for any lakefold plan after its instant had ended are deleted.

    Late files in previous locations are copied to their partitions' locations even if another step fails. On a
    ``halted`` table only pending instants are withdrawn, and nothing else is deleted, so that a person can examine the
    table's state. The instants must not stay: writers may execute them, and an instant whose commit was rolled back
    names files that are no longer current. An instant that is being rolled back (``PendingAction.is_rolled_back``)
    waits for the end of that rollback. On a table that ``is_off``, pending instants stay as well. With a ``watch`` only
    the partitions that the watch chooses are swept. Relocations that only the table has recorded are added to the
    database; with a ``search`` only if the table is due.
    Raises the format's errors.
    """
    store, spark = context.store, context.spark
    if (halted or is_off) and not isinstance(format, RelocatesPartitions):
        abandoned = {} if is_off else _abandoned_instants(table, format, store, halted=True)
        return _withdraw_instants(table, abandoned, format, spark)
    withdrawn, failed = 0, None
    try:
        if search is None or search.is_due(table):
            discovered = record_discovered_relocations(table, format=format, store=store)
            if search is not None:
                search.mark_searched(table, discovered)
        record_unrecorded_commits(table, format=format, store=store)
        if not (halted or is_off):
            withdrawn = _withdraw_orphaned_stagings(table, format, store, spark)
            withdrawn += _withdraw_instants(table, _abandoned_instants(table, format, store), format, spark)
            _remove_stragglers(table, format, spark)
    except Exception as error:
        failed = error
    if isinstance(format, RelocatesPartitions):
        _sweep_relocated_partitions(table, format, context, watch)
    if failed is not None:
        raise failed
    return withdrawn


def _sweep_relocated_partitions(
    table: TableRef, format_: TableFormat, context: RunContext, watch: PartitionWatch | None
) -> None:
    chosen = None if watch is None else watch.choose_partitions(table, format_, context.relocations)
    report = sweep_partitions(table, context, format=format_, partitions=chosen)
    if watch is not None:
        watch.mark_swept(table, report.deferred)


def _withdraw_instants(
    table: TableRef, abandoned: Mapping[str, Sequence[str]], format_: TableFormat, spark: SparkProvider
) -> int:
    if not abandoned:
        return 0
    withdrawn = 0
    with format_.writer(table, spark) as writer:
        for plan_id, instants in abandoned.items():
            done = writer.withdraw(plan_id, instants)
            withdrawn += done
            if done:
                log.warning("plan %s of %s does not run: withdrew %s", plan_id, table.name, ", ".join(instants))
    return withdrawn


def _withdraw_orphaned_stagings(table: TableRef, format_: TableFormat, store: PlanStore, spark: SparkProvider) -> int:
    """Withdraw uncommitted work of ended attempts on a table that does not record it; clear expired stagings.

    Partitions of a live plan are skipped: a run of that plan withdraws its earlier attempts' work, and the work of
    other plans waits until that plan has ended. Files that a plan has replaced were part of the table, even if the
    table no longer has a record of their commit; they are not withdrawn, and await deletion. The same holds for files
    that were written for an earlier table of this name: it may have been renamed, and still have them.
    """
    if not isinstance(format_, FindsStaged):
        return 0
    by_identity: dict[str | None, list[OrphanedStaging]] = defaultdict(list)
    for entry in store.orphaned_stagings(table):
        by_identity[entry.table_identity].append(entry)
    withdrawn = 0
    for identity, known in by_identity.items():
        planned = table if identity is None else replace(table, identity=identity)
        left = frozenset(format_.remaining_staged(planned, [entry.staged for entry in known]))
        withdrawn += _withdraw_stagings(planned, known, left, format_, store, spark)
    return withdrawn


def _withdraw_stagings(
    table: TableRef,
    known: Sequence[OrphanedStaging],
    left: AbstractSet[str],
    format_: TableFormat,
    store: PlanStore,
    spark: SparkProvider,
) -> int:
    """Withdraw those of ``known`` that are ``left``, and clear expired ones. Returns the number of withdrawn ones."""
    withdrawn = 0
    if left:
        replaced = [due.version.path for due in store.awaiting_deletion(table)]
        left -= {
            one.staged.token for one in known if one.staged.token in left and _has_replaced_file(one.staged, replaced)
        }
    if left:
        lock = PartitionLock(LockOwnerKind.SWEEP, table, format_, store)
        try:
            with format_.writer(table, spark) as writer:
                for entry in known:
                    if entry.staged.token in left and lock.lock(entry.partitions) >= set(entry.partitions):
                        log.warning("plan %s of %s left %s: withdrawn", entry.plan_id, table.name, entry.staged.token)
                        withdrawn += writer.withdraw(entry.plan_id, (entry.staged.token,), staged=(entry.staged,))
        finally:
            lock.release()
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
            "table %s: deleted %d files that were written after their instant had ended", table.name, len(removed)
        )


def _abandoned_instants(
    table: TableRef, format_: TableFormat, store: PlanStore, *, halted: bool = False
) -> dict[str, list[str]]:
    """Return pending instants by plan: instants of plans that do not run, and instants that no run can use.

    On a ``halted`` table, instants that a process may be rolling back now are left out: the owner of the
    table may follow the reason of the halt and roll a commit back, and a withdrawal meanwhile would make the rollback
    fail.
    """
    if not any(
        store.plan_state(plan_id) is not PlanState.INFLIGHT for plan_id in pending_instants(format_, table).values()
    ):
        return {}
    found: dict[str, list[str]] = defaultdict(list)
    for entry in pending_actions(format_, table):
        if entry.plan_id is None or (entry.must_execute and not entry.is_begun) or (halted and entry.is_rolled_back):
            continue
        # Read after the timeline: an instant of a plan that waits now belongs to an earlier attempt.
        state = store.plan_state(entry.plan_id)
        waits = state is PlanState.REQUESTED and entry.kind is PlanKind.CLUSTERING
        if waits or (state is not None and state not in LIVE_STATES):
            found[entry.plan_id].append(entry.instant)
    return found
