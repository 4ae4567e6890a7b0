# SPDX-License-Identifier: Apache-2.0
"""Unrecorded commits: commits found in a table although the database does not have them as completed."""

import logging
from collections.abc import Mapping
from functools import partial

from executors.outcome import partition_figures
from lake.capabilities import with_identity
from lake.errors import CommitLost, one_line
from lake.model import TableRef
from lake.plan import Commit, PlanState
from lake.plan_store import PlanStore
from lake.ports import TableFormat
from lake.relocation.capabilities import RecordsRelocations, RelocatesPartitions
from lake.relocation.model import DiscoveryResult
from lake.relocation_store import relocation_store

log = logging.getLogger(__name__)


def record_discovered_relocations(table: TableRef, *, format: TableFormat, store: PlanStore) -> DiscoveryResult:
    """Record relocations of the table that only the table has recorded. Returns which commits are recorded.

    The database identifies a table by name, and the table may have been renamed; or another database has the records.
    """
    if not isinstance(format, RecordsRelocations):
        return DiscoveryResult()
    table, relocations = with_identity(format, table), relocation_store(store)
    found = format.find_relocations(table, relocations.known_relocation_tokens(table))
    if not found:
        return DiscoveryResult()
    discovered = relocations.add_discovered_relocations(table, found, partition_figures)
    if discovered.commits:
        log.warning(
            "table %s: %d commits were found that were not known under this name", table.name, discovered.commits
        )
    return discovered


def record_unrecorded_commits(table: TableRef, *, format: TableFormat, store: PlanStore) -> int:
    """Record commits of plans that ended cancelled or failed although their table has them. Returns their number.

    Such a plan was cancelled while its table was gone, or an earlier release ended it, or the database was restored
    from a backup. Without the record, the files that the commit replaced would never be deleted. If the table shows
    that the result of a commit is lost, its partitions are halted.
    """
    recorded = 0
    for plan_id, commit in _commits_of_ended_plans(table, format, store).items():
        if store.complete_unrecorded(commit, partial(partition_figures, commit=commit)):
            recorded += 1
            log.warning("plan %s of %s had ended, yet %s is its commit: recorded", plan_id, table.name, commit.instant)
    if isinstance(format, RelocatesPartitions):
        recorded += record_superseded_attempt_commits(table, format, store)
    return recorded


def _commits_of_ended_plans(table: TableRef, format_: TableFormat, store: PlanStore) -> Mapping[str, Commit]:
    """Return the commits of ended plans, by plan. Halts the partitions of commits whose result is lost."""
    # If the format records its commits in documents of the table, ``record_discovered_relocations`` has found those of
    # plans that a restored database shows as never claimed; to search for each of these plans would take long.
    uncommitted = set(store.ended_without_commit(table, claimed=isinstance(format_, RecordsRelocations)))
    while uncommitted:
        try:
            return format_.recent_commits(table, uncommitted)
        except CommitLost as lost:
            _halt_lost(table, store, lost)
            if lost.plan_id not in uncommitted:
                break
            uncommitted.remove(lost.plan_id)  # the other plans must not wait for this one
    return {}


def _halt_lost(table: TableRef, store: PlanStore, lost: CommitLost) -> None:
    why = one_line(lost)
    halted = [store.halt_partition(table, partition, why) for partition in lost.partitions]
    if any(halted or [store.halt_table(table, why)]):
        log.error("table %s: rewriting is halted: %s", table.name, why)


def record_superseded_attempt_commits(table: TableRef, format_: RelocatesPartitions, store: PlanStore) -> int:
    """Record commits of attempts that were made although a later attempt of their plan exists. Returns their number.

    There are two causes. A program undid the commit right after it was made, so that the check found no commit. Or the
    executor was suspended right before its commit call: the late call replaced the result of the later attempt, and
    partitions that the later attempt had left out.
    """
    left = store.orphaned_stagings(table)
    completed = [one.staged for one in left if store.plan_state(one.plan_id) is PlanState.COMPLETED]
    recorded = 0
    for commit in format_.applied_commits(table, completed) if completed else ():
        if relocation_store(store).add_relocations(table, commit):
            recorded += 1
            log.warning(
                "%s: %s, of an earlier attempt at plan %s, was made as well: recorded",
                table.name,
                commit.instant,
                commit.plan_id,
            )
    return recorded
