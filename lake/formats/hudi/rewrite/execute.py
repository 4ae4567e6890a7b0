# SPDX-License-Identifier: Apache-2.0
"""Runs a published plan through Hudi's write client, in two steps so that verification precedes the commit.

``write_files`` lets the client or an engine write the data files and collects their statistics; ``commit_rewrite``
commits them. Between the two only the data files and their markers exist. No reader sees them, and a rollback removes
them.

Failpoints: ``in_commit`` before the last check of the lock, ``after_last_look`` between this check and Hudi's commit.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from lake.errors import (
    CancelRequested,
    CommitUnknown,
    Conflict,
    EngineUnavailable,
    Integrity,
    LakefoldError,
    Transient,
)
from lake.failpoints import failpoint
from lake.formats.hudi.client.client import HudiClient
from lake.formats.hudi.files.names import relative_path
from lake.formats.hudi.inputs.unreadable import find_unreadable_groups
from lake.formats.hudi.jvm.errors import (
    can_have_committed,
    is_disk_full,
    is_unanswered,
    java_cause_chain,
    translate_error,
)
from lake.formats.hudi.pending.late_files import (
    InstantRecord,
    list_files_of_instant,
    list_late_files,
    read_instant_record,
    record_commit,
    without_files_of_others,
)
from lake.formats.hudi.pending.rollback_guard import write_rollback_guard
from lake.formats.hudi.plans import compaction
from lake.formats.hudi.plans.adoption import ACTION_OF_KIND, check_adopted_inputs
from lake.formats.hudi.plans.cleaning import await_passing_clean, hold_back_archival
from lake.formats.hudi.plans.clustering import check_clustering_inputs
from lake.formats.hudi.plans.input_checks import input_paths, require_outputs, require_pending
from lake.formats.hudi.plans.lock_loss import verify_commit
from lake.formats.hudi.plans.preconditions import OwnInstant, check_preconditions
from lake.formats.hudi.plans.schema_changes import refuse_stale_schema, require_fitting_files
from lake.formats.hudi.plans.withdrawal import remove_data_files
from lake.formats.hudi.read.superseded import find_change_data
from lake.formats.hudi.rewrite.columnar_read import write_from_batches
from lake.formats.hudi.rewrite.copy_markers import marked_copies
from lake.formats.hudi.rewrite.progress import ProgressReporter, tagged_jobs
from lake.formats.hudi.rewrite.sorted_write import sort_inputs
from lake.formats.hudi.timeline.timeline import EPOCH_KEY, PLAN_KEY, InstantState, Timeline
from lake.plan import AUTO, Commit, OutputFile, PlanKind, SupersededVersion
from lake.ports import PreparedPlan, ProgressCallback, Rewrite

log = logging.getLogger(__name__)
#: Hudi's key of the table's schema in the metadata of a commit
_SCHEMA_KEY = "schema"
#: how long tasks of a failed job may take to end
_TASKS_END_SECONDS = 10.0
_TAKEOVER_POLL_SECONDS = 0.5
#: if another process took an instant over, its commit is awaited for this time, to see which files it names
FOREIGN_COMMIT_TIMEOUT = timedelta(minutes=10)
_FOREIGN_COMMIT_POLL_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class WrittenRewrite:
    """Data files on disk that no commit names yet, with Hudi's write metadata for the commit."""

    rewrite: Rewrite
    write_metadata: Any


def write_files(
    client: HudiClient,
    prepared: PreparedPlan,
    tag: str,
    report: ProgressCallback,
    cancelled: threading.Event,
    *,
    adopted_write: Any = None,
) -> WrittenRewrite:
    """Write the data files of a published plan and collect their statistics.

    ``adopted_write`` is Hudi's write of an adopted plan. Raises the outcomes of ``lake.errors`` and CancelRequested. If
    inputs can't be read, the second argument of the Conflict is a tuple of ``SkippedGroup``.
    """
    plan = prepared.plan
    if cancelled.is_set():
        raise CancelRequested(f"{plan.table.name}: cancelled before the rewrite")
    total = sum(plan.groups[index].bytes for index in prepared.live_groups)
    try:
        with (
            client.own_session(),
            tagged_jobs(client.spark, tag),
            ProgressReporter(client.spark, tag, total, report) as progress,
        ):
            with (
                _stopping(client, prepared, tag, cancelled) as stopped,
                marked_copies(client, prepared),
            ):
                java = _begin_rewrite(client, prepared) if adopted_write is None else adopted_write
                if adopted_write is None:
                    _replace_write(client, prepared, java, progress.add_engine, stopped)
                elif client.sorts_after_begin:
                    java.setWriteStatuses(sort_inputs(client, prepared.instant))
                stats = _run_write(client, java)
            _refuse_taken_over(client, prepared)
            rows = sum(stat.getNumWrites() for stat in stats)
            progress.finish(rows)
    except Exception as error:
        if not is_unanswered(error):
            # The next withdrawal of the instant lists its files: no file may appear after that.
            _wait_for_tasks(client)
            if not cancelled.is_set():
                _refuse_shared_time(prepared, client.read_timeline())
            if is_disk_full(error) or client.is_taken_over(prepared.instant):
                _delete_unowned(client, prepared, cancelled)
                _refuse_taken_over(client, prepared)
        raise _classify_failure(client, prepared, error, cancelled) from error
    if cancelled.is_set():
        raise CancelRequested(f"{plan.table.name}: cancelled during the rewrite")
    outputs = tuple(
        OutputFile(
            partition=str(stat.getPartitionPath() or ""),
            path=str(stat.getPath()),
            bytes=int(stat.getFileSizeInBytes()),
            rows=int(stat.getNumWrites()),
        )
        for stat in stats
    )
    return WrittenRewrite(rewrite=Rewrite(prepared=prepared, outputs=outputs), write_metadata=java)


def _begin_rewrite(client: HudiClient, prepared: PreparedPlan) -> Any:
    """Make the plan inflight. Returns Hudi's write of the plan, a job that has not run yet."""
    action = ACTION_OF_KIND[prepared.plan.kind]
    with client.locked("beginning a rewrite", writes_metadata_table=False):

        def check(timeline: Timeline) -> None:
            instant = require_pending(client, prepared, action).find(prepared.instant, action=action)
            if instant is None or instant.state is not InstantState.REQUESTED:
                raise _taken_over_error(prepared)
            _refuse_shared_time(prepared, timeline)
            refuse_stale_schema(client, client.read_schema())

        reads = input_paths(prepared.plan, prepared.live_groups)
        check_preconditions(
            client,
            "beginning a rewrite",
            own=OwnInstant(time=prepared.instant, is_pending=True, inputs=reads),
            check=check,
        )
        return client.begin_rewrite(prepared.plan.kind, prepared.instant)


def _refuse_shared_time(prepared: PreparedPlan, timeline: Timeline) -> None:
    """Raise Transient if a writer's commit, completed or not, has the time of the plan's instant.

    Hudi's commit of either one deletes the other's files, as far as these have markers.
    """
    for other in timeline.find_other_commits(prepared.instant, ACTION_OF_KIND[prepared.plan.kind]):
        raise Transient(
            f"{prepared.plan.table.name}: a writer has begun {other.kind} {other.time} at the same millisecond as the "
            "plan, so the files of the two can't be told apart; the plan is tried again"
        )


def _replace_write(
    client: HudiClient,
    prepared: PreparedPlan,
    java: Any,
    report: ProgressCallback,
    stopped: threading.Event,
) -> None:
    """Let an engine, or faster reads of the inputs, provide the write statuses in ``java`` (Hudi's write of a plan).

    If Hudi's row writer is used, its inputs are read in column batches if possible. If an engine can't run here, the
    row writer takes over, unless the plan requires the engine; the commit removes files that the engine wrote.
    """
    plan = prepared.plan
    if plan.kind is not PlanKind.CLUSTERING or client.engine.is_copy:
        return
    if (writer := client.writers.get(client.engine.name)) is not None:
        try:
            java.setWriteStatuses(writer.write(client, prepared, report, stopped))
            return
        except EngineUnavailable as error:
            if plan.options.engine != AUTO:
                raise
            log.warning("%s: Hudi's row writer rewrites plan %s: %s", plan.table.name, plan.plan_id, error)
    statuses = write_from_batches(client, prepared.instant, [plan.groups[index] for index in prepared.live_groups])
    if statuses is None and client.sorts_after_begin:
        statuses = sort_inputs(client, prepared.instant)
    if statuses is not None:
        java.setWriteStatuses(statuses)


def _run_write(client: HudiClient, write_metadata: Any) -> list[Any]:
    """Run the write exactly once and return its statistics."""
    stats = client.bundle.run_write(client.write_client, write_metadata)
    failed = sum(stat.getTotalWriteErrors() for stat in stats)
    if failed:
        raise Integrity(f"{client.table.name}: Hudi could not write {failed} rows of the plan")
    return stats


def _delete_unowned(client: HudiClient, prepared: PreparedPlan, cancelled: threading.Event) -> None:
    """Delete unused files written under a lakefold instant, see ``_delete_unowned_now``.

    If another process took the instant over, files written before that process began the instant are deleted at once.
    Before it deletes other files, this function waits for the commit of that process, at most
    ``FOREIGN_COMMIT_TIMEOUT``. After that commit
    every file of the instant counts as committed and is visible to every reader, even if the commit does not name it.
    Only the commit itself shows which files it names.
    """
    if client.is_taken_over(prepared.instant):
        _delete_unowned_now(client, prepared)
    deadline = time.monotonic() + FOREIGN_COMMIT_TIMEOUT.total_seconds()
    while client.is_taken_over(prepared.instant) and any(
        i.time == prepared.instant for i in client.read_timeline().pending
    ):
        if time.monotonic() >= deadline or cancelled.wait(_FOREIGN_COMMIT_POLL_SECONDS):
            log.warning(
                "%s: another process executes %s and has not committed yet; the sweep deletes the unused files",
                client.table.name,
                prepared.instant,
            )
            return
    _delete_unowned_now(client, prepared)


def _delete_unowned_now(client: HudiClient, prepared: PreparedPlan) -> None:
    """Delete unused files written under a lakefold instant, and no file that another process wrote.

    Without the deletion a full disk would leave no space for the withdrawal.
    """
    partitions = {prepared.plan.groups[index].partition for index in prepared.live_groups}
    with client.lakefold_locked("deleting unused files"):
        # The files are listed before their owner is determined, so they include no later files of another process.
        files = list_files_of_instant(client.storage, prepared.instant, partitions)
        timeline = client.read_timeline()
        action = ACTION_OF_KIND[prepared.plan.kind]
        instant = timeline.find(prepared.instant, action=action)
        files = without_files_of_others(timeline, prepared.instant, action, files)
        own_file = client.inflight_file
        if instant is None or not instant.pending or own_file is None or not own_file.is_unchanged():
            # The instant is executed or was completed by another process, or was withdrawn, or the table was dropped.
            # The timeline of a later table at this location begins after the instant: its readers would consider these
            # files committed and archived.
            known = read_instant_record(client.storage, prepared.instant)
            record = known or InstantRecord(instant=prepared.instant, partitions=tuple(sorted(partitions)))
            files = list_late_files(client.table, client.storage, timeline, record, is_of_earlier_table=known is None)
        for path in files:
            client.remove_file(path)


def _wait_for_tasks(client: HudiClient) -> None:
    """Wait for the tasks of a failed job: an open file keeps its space, and a running task writes more."""
    tracker = client.spark.sparkContext._jsc.sc().statusTracker()
    deadline = time.monotonic() + _TASKS_END_SECONDS
    while any(info.numRunningTasks() for info in tracker.getExecutorInfos()) and time.monotonic() < deadline:
        time.sleep(0.1)


@contextlib.contextmanager
def _stopping(
    client: HudiClient, prepared: PreparedPlan, tag: str, cancelled: threading.Event
) -> Iterator[threading.Event]:
    """During the block, cancel jobs of ``tag`` if the plan's instant is taken over, or a writer's commit has its time.

    Readers would soon see the jobs' files: a commit makes all files with its time visible. The event stops the engine
    of the rewrite, in that case and once ``cancelled`` is set.
    """
    block_ended, stopped = threading.Event(), threading.Event()

    def watch() -> None:
        while not block_ended.wait(_TAKEOVER_POLL_SECONDS):
            # Errors of the check, or of the cancellation of a job that has ended, are ignored.
            with contextlib.suppress(Exception):
                if cancelled.is_set():
                    stopped.set()
                if client.is_taken_over(prepared.instant) or _shares_time(client, prepared):
                    stopped.set()
                    client.spark.sparkContext.cancelJobsWithTag(tag)

    thread = threading.Thread(target=watch, name=f"watch {tag}", daemon=True)
    thread.start()
    try:
        yield stopped
    finally:
        block_ended.set()
        thread.join()


def _shares_time(client: HudiClient, prepared: PreparedPlan) -> bool:
    """True if a writer's commit has the time of the plan's instant; only writers of layout 1 choose times unlocked."""
    if client.properties.get("hoodie.timeline.layout.version") != "1":
        return False
    return bool(client.read_timeline().find_other_commits(prepared.instant, ACTION_OF_KIND[prepared.plan.kind]))


def _refuse_taken_over(client: HudiClient, prepared: PreparedPlan) -> None:
    """Raise Conflict if another process has taken over the instant."""
    if client.is_taken_over(prepared.instant):
        raise _taken_over_error(prepared)


def _taken_over_error(prepared: PreparedPlan) -> Conflict:
    return Conflict(
        f"{prepared.plan.table.name}: another process took over {prepared.instant}, or rolled back its "
        "files; the instant begun here is no longer pending"
    )


def _classify_failure(
    client: HudiClient, prepared: PreparedPlan, error: Exception, cancelled: threading.Event
) -> LakefoldError:
    """Return the outcome of a failed rewrite: cancelled, an unreadable input, or the translated error."""
    name = client.table.name
    if cancelled.is_set():
        return CancelRequested(f"{name}: cancelled during the rewrite")
    outcome = translate_error(error, client.table, "rewriting")
    if not isinstance(outcome, Transient) or is_unanswered(error):
        return outcome
    complaint = " ".join([str(error), *(message for _, message in java_cause_chain(error))])
    left_out = find_unreadable_groups(client.storage, prepared.plan, prepared.live_groups, complaint)
    if left_out:
        return Conflict(f"{name}: {left_out[0].reason}", left_out)
    return outcome


def check_inputs(client: HudiClient, prepared: PreparedPlan) -> None:
    """Raise Conflict or Transient if the table's columns or the plan's inputs have changed since the rewrite began."""
    with client.locked("checking the inputs of a rewrite", writes_metadata_table=False):
        _refuse_taken_over(client, prepared)
        require_fitting_files(client, prepared, client.read_schema())
        _check_inputs(client, prepared)


def commit_rewrite(client: HudiClient, written: WrittenRewrite, fence: Callable[[], None] = lambda: None) -> Commit:
    """Commit the files of ``write_files``, with plan id and epoch in the commit's metadata.

    The table's lock is held from the last check of the inputs to the end of the commit. If the lock may have been lost,
    the commit is verified afterwards. ``fence`` is the last check that the plan still belongs to this executor.
    """
    prepared = written.rewrite.prepared
    plan, instant = prepared.plan, prepared.instant
    # Sizes are taken now: after the commit a cleaner of another process may delete the files.
    commit = Commit(
        plan_id=plan.plan_id,
        instant=instant,
        outputs=written.rewrite.outputs,
        superseded=_superseded_versions(client, prepared),
        epoch=prepared.epoch,
    )
    compacts = plan.kind is PlanKind.COMPACTION
    inflight = (
        client.meta.getInstantGenerator().getCompactionInflightInstant(instant)
        if compacts
        else client.bundle.inflight_clustering(client.meta, instant)
    )
    called = is_lock_held = False
    try:
        if not compacts:
            await_passing_clean(client, instant)
        with client.locked("committing", owner=inflight):
            _refuse_taken_over(client, prepared)
            metadata = written.write_metadata.getCommitMetadata().get()
            metadata.addMetadata(PLAN_KEY, plan.plan_id)
            metadata.addMetadata(EPOCH_KEY, str(prepared.epoch))

            def final_fence() -> None:
                fence()
                _prepare_table(client, written.rewrite)
                failpoint("in_commit")

            table: Any = None

            def prepare() -> None:
                nonlocal table
                table = client.jvm.org.apache.hudi.table.HoodieSparkTable.create(client.write_config, client.context)
                client.bundle.prepare_commit(client.write_client)
                schema = client.read_schema()
                require_fitting_files(client, prepared, schema)
                # Hudi's commit names the schema of the begin, and the previous round another one if it has changed.
                metadata.addMetadata(_SCHEMA_KEY, schema)
                _refuse_taken_over(client, prepared)

            check = partial(_check_commit, client, written.rewrite)
            reads = input_paths(plan, prepared.live_groups)
            check_preconditions(
                client,
                "committing",
                own=OwnInstant(time=instant, is_pending=True, inputs=reads),
                check=check,
                prepare=prepare,
                fence=final_fence,
            )
            failpoint("after_last_look")
            called = True
            if compacts:
                client.bundle.commit_compaction(client.write_client, written.write_metadata, table, instant)
            else:
                client.bundle.commit_clustering(client.write_client, written.write_metadata, table, instant)
            is_lock_held = client.lock_loss_reason() is None
            if client.optimistic and client.has_metadata_table:
                write_rollback_guard(client.storage, instant)
    except Exception as error:
        lost = not called and not is_unanswered(error) and client.is_taken_over(instant)
        if lost and client.storage.sizes([output.path for output in commit.outputs]):
            _delete_unowned_now(client, prepared)
        outcome = translate_error(error, plan.table, "committing", committing=called and can_have_committed(error))
        if called and _is_committed(client, instant, ACTION_OF_KIND[plan.kind]):
            log.warning("%s: commit %s completed although Hudi reported: %s", plan.table.name, instant, outcome)
        else:
            raise outcome from error
    if not is_lock_held and client.optimistic:
        verify_commit(client, prepared, ACTION_OF_KIND[plan.kind])
    record_commit(client.storage, instant)
    return commit


def _check_commit(client: HudiClient, rewrite: Rewrite, timeline: Timeline) -> None:
    """Raise Conflict or Transient if ``rewrite`` can't be committed on the table's current state."""
    prepared = rewrite.prepared
    _refuse_shared_time(prepared, timeline)
    _check_inputs(client, prepared)
    require_outputs(client, rewrite)
    if prepared.plan.kind is not PlanKind.COMPACTION:
        client.resolve_conflicts(_replaced_file_ids(prepared))


def _check_inputs(client: HudiClient, prepared: PreparedPlan) -> None:
    """Raise Conflict if the instant is no longer pending or an input changed; under the lock."""
    if prepared.plan.adopted_instant is not None:
        check_adopted_inputs(client, prepared)
    elif prepared.plan.kind is PlanKind.COMPACTION:
        compaction.check_begun_compaction(client, prepared)
    else:
        check_clustering_inputs(client, prepared)


def _prepare_table(client: HudiClient, rewrite: Rewrite) -> None:
    """Make the changes of the table that precede the commit, after ``fence`` has confirmed this executor."""
    prepared = rewrite.prepared
    plan = prepared.plan
    client.assert_lock_held("committing")
    if client.engine.is_copy:
        # Hudi's commit finds the files of repeated tasks by their markers, but a copy of row groups may lack a marker.
        remove_data_files(
            client, prepared.instant, plan.partitions, excluded={output.path for output in rewrite.outputs}
        )
    if plan.kind is not PlanKind.COMPACTION:
        hold_back_archival(client, client.read_timeline(), prepared.instant, min(plan.partitions))


def _replaced_file_ids(prepared: PreparedPlan) -> dict[str, list[str]]:
    file_ids: dict[str, list[str]] = {}
    for index in prepared.live_groups:
        for slice_ in prepared.plan.groups[index].slices:
            file_ids.setdefault(slice_.partition, []).append(slice_.file_id)
    return file_ids


def _is_committed(client: HudiClient, instant: str, action: str) -> bool:
    """True if the table's timeline, read without a JVM, shows ``instant`` as completed."""
    try:
        found = client.read_timeline().find(instant, action=action)
    except (LakefoldError, OSError) as error:
        raise CommitUnknown(
            f"{client.table.name}: can't determine whether {instant} was committed ({error})"
        ) from error
    return found is not None and not found.pending


def _superseded_versions(client: HudiClient, prepared: PreparedPlan) -> tuple[SupersededVersion, ...]:
    slices = [slice_ for index in prepared.live_groups for slice_ in prepared.plan.groups[index].slices]
    logs = client.storage.sizes(
        [relative_path(slice_.partition, name) for slice_ in slices for name in slice_.log_files]
    )
    bases = [slice_.path for slice_ in slices if slice_.path]
    change_data = find_change_data(client.storage, client.properties, bases)
    versions = []
    for slice_ in slices:
        files = [(slice_.path, slice_.bytes), *change_data.get(slice_.path, {}).items()] if slice_.path else []
        for name in slice_.log_files:
            path = relative_path(slice_.partition, name)
            files.append((path, logs.get(path, 0)))
        versions += [
            SupersededVersion(partition=slice_.partition, path=path, bytes=size, instant=prepared.instant)
            for path, size in files
        ]
    return tuple(versions)
