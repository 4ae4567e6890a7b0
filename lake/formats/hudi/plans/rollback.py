# SPDX-License-Identifier: Apache-2.0
"""Hudi's own rollback of the begun work of a pending clustering or compaction."""

import logging
from collections.abc import Collection
from typing import Any

from lake.errors import LakefoldError, Rejected, Transient
from lake.formats.hudi.client.client import HudiClient
from lake.formats.hudi.jvm.errors import translated_errors
from lake.formats.hudi.pending.late_files import (
    list_files_of_instant,
    record_withdrawal,
    without_files_of_others,
)
from lake.formats.hudi.pending.retries import record_failed_try
from lake.formats.hudi.pending.rollbacks import (
    OrphanedRollback,
    find_orphaned_rollbacks_of_lakefold,
    is_without_target,
)
from lake.formats.hudi.plans.preconditions import (
    check_preconditions,
    find_rolled_back,
    refuse_running_rollback,
)
from lake.formats.hudi.read.slices import is_listed_by_metadata_table, list_latest_slices
from lake.formats.hudi.timeline.timeline import Instant, Timeline
from lake.plan import PlanKind

log = logging.getLogger(__name__)
_FINISHING = "finishing a rollback"


def roll_back_rewrite(client: HudiClient, instant: Instant, kind: PlanKind, partitions: Collection[str]) -> None:
    """Roll an inflight rewrite back to requested by Hudi's own rollback; continues an interrupted rollback.

    The caller has checked that no writer is executing that rollback (``unchanged_instant_check``). If a completed write
    has the time of the rewrite, Hudi's rollback is not used (``roll_back_beside_commit``).
    """
    time = instant.time
    refuse_inflight_other(client, instant, "rolling back a rewrite")
    if client.read_timeline().find_other_commits(time, instant.action):
        roll_back_beside_commit(client, instant, partitions)
        return
    service = client.write_client.getTableServiceClient()
    table = client.jvm.org.apache.hudi.table.HoodieSparkTable.create(client.write_config, client.context)
    known = _constant_function(client, service.getPendingRollbackInfo(client.meta, time, False))
    if kind is PlanKind.CLUSTERING:
        inflight, method = client.bundle.inflight_clustering(client.meta, time), "rollbackInflightClustering"
    else:
        inflight = client.meta.getInstantGenerator().getCompactionInflightInstant(time)
        method = "rollbackInflightCompaction"
    client.bundle.roll_back_rewrite(service, getattr(table, method), inflight, known)
    client.meta.reloadActiveTimeline()


def refuse_inflight_other(client: HudiClient, instant: Instant, doing: str) -> None:
    """Raise Transient if an inflight write has the time of the begun rewrite ``instant``.

    Only after the end of that write its files can be distinguished from those of the rewrite.
    """
    for other in client.read_timeline().find_other_commits(instant.time, instant.action):
        if other.pending:
            raise Transient(
                f"{client.table.name}: {doing} waits for the end of {other.kind} {other.time}, which has the same time "
                "to the millisecond, so that the files of the two can't be told apart. If its writer is dead, the "
                "table's next write rolls it back"
            )


def roll_back_beside_commit(client: HudiClient, instant: Instant, partitions: Collection[str]) -> None:
    """Roll an inflight rewrite back to requested, without Hudi, if a completed write has the same time.

    Hudi's rollback would delete every file with that time in its name, those of the write included. Call it under the
    lock.
    """
    files = list_files_of_instant(client.storage, instant.time, partitions)
    timeline = client.read_timeline()
    for path in without_files_of_others(timeline, instant.time, instant.action, files):
        client.remove_file(path)
    client.remove_file(f"{timeline.directory}/{instant.inflight_file}")
    client.meta.reloadActiveTimeline()


def finish_orphaned_rollbacks(client: HudiClient) -> None:
    """Finish the rollbacks of lakefold's instants during which a process died; see ``pending.rollbacks``.

    Idempotent.

    Raises Transient if one can't be finished now; the next try is then delayed.
    """
    found = find_orphaned_rollbacks_of_lakefold(client.storage, client.read_timeline())
    if not found:
        return
    try:
        with translated_errors(client.table, _FINISHING), client.locked(_FINISHING):
            found = find_orphaned_rollbacks_of_lakefold(client.storage, client.read_timeline())
            for orphaned in found:
                finish_rollback(client, orphaned)
                log.warning("%s: finished rollback %s of %s", client.table.name, orphaned.instant.time, orphaned.target)
    except LakefoldError:
        for orphaned in found:
            record_failed_try(client.storage, orphaned.instant.time)
        raise


def finish_rollback(client: HudiClient, orphaned: OrphanedRollback) -> None:
    """Execute a pending rollback again, as Hudi does after a crash; call it under the lock.

    The process of the rollback has ended, since a rollback completes under the lock. ``orphaned`` was found under the
    lock, too. Raises Rejected if readers see a file that the rollback would delete: its target was committed, and the
    archive has lost it.
    """
    _refuse_live_files(client, orphaned)

    def check(now: Timeline) -> None:
        if not is_without_target(now, orphaned):
            raise Transient(f"{client.table.name}: rollback {orphaned.instant.time} changed while {_FINISHING}")

    refuse_running_rollback(client, client.read_timeline(), orphaned.target, _FINISHING)
    generator = client.meta.getInstantGenerator()
    target = {
        "clustering": generator.getClusteringCommitInflightInstant,
        "compaction": generator.getCompactionInflightInstant,
        "replacecommit": generator.getReplaceCommitInflightInstant,
    }[orphaned.action](orphaned.target)
    table = client.jvm.org.apache.hudi.table.HoodieSparkTable.create(client.write_config, client.context)
    check_preconditions(client, _FINISHING, is_withdrawal=True, check=check)
    table.rollback(client.context, orphaned.instant.time, target, False, True)
    client.meta.reloadActiveTimeline()
    record_withdrawal(client.storage, orphaned.target, removed=True)


def _refuse_live_files(client: HudiClient, orphaned: OrphanedRollback) -> None:
    timeline = client.read_timeline()
    plan = timeline.plan(orphaned.instant) or {}
    partitions = {request.get("partitionPath") or "" for request in plan.get("RollbackRequests") or ()}
    where = None if is_listed_by_metadata_table(timeline) else partitions
    live = [path for entry in list_latest_slices(client.storage, timeline, where) for path, _ in entry.sized_paths]
    if (path := find_rolled_back(plan, orphaned.target, live)) is not None:
        raise Rejected(
            f"{client.table.name}: rollback {orphaned.instant.time} must not be finished: it would delete {path}, "
            f"which readers see although {orphaned.action} {orphaned.target} is in neither timeline; if its commit was "
            "archived, put the archived timeline back from a backup"
        )


def _constant_function(client: HudiClient, value: Any) -> Any:
    """Return a ``java.util.function.Function`` that returns ``value``: Hudi gets an instant's rollback from it."""
    invoke, java_class = client.jvm.java.lang.invoke, client.jvm.java.lang.Class
    arguments = client.jvm.java.util.ArrayList()
    arguments.add(java_class.forName("java.lang.Object"))
    answer = invoke.MethodHandles.dropArguments(invoke.MethodHandles.constant(value.getClass(), value), 0, arguments)
    return invoke.MethodHandleProxies.asInterfaceInstance(java_class.forName("java.util.function.Function"), answer)
