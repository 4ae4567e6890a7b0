# SPDX-License-Identifier: Apache-2.0
"""Deletes superseded versions once the retention now in force has passed, and if the table allows it.

A plan's completion marks its superseded versions; this module only deletes marked ones. Each round checks the table
again, processes the versions in the order in which they were superseded, and records each deletion in the store before
and after it. So at most one deletion is repeated after a crash, and files that no longer exist count as deleted. A
process that was suspended between check and deletion detects that another process has deleted the files.
"""

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from executors.context import RunContext
from executors.partition_locks import PartitionLock
from executors.relocation.directory_commits import reason_to_keep_files
from executors.relocation.sweep import partitions_awaiting_sweep
from lake.capabilities import Fenced, UsesDatabaseClock, UsesRetention, recreated_reason, with_identity
from lake.errors import Conflict, LakefoldError, LeaseLost, TableGone, one_line
from lake.model import TableRef, partition_label
from lake.plan import LockOwnerKind, SupersededVersion
from lake.plan_store import SupersededRecord
from lake.ports import Capability, DeletionResult, TableFormat
from lake.relocation.capabilities import RelocatesPartitions
from lake.units import format_duration

log = logging.getLogger(__name__)

_PAGE = 10_000
#: superseded files per deletion; each deletion locks the table and takes seconds, for any number of files
_MAX_FILES_PER_DELETION = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptVersion:
    """A version that is not deleted, with the reason: it is due but must stay, or may no longer be deleted."""

    version: SupersededVersion
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanReport:
    """The result of a round for one table, or with ``dry_run`` its expected result.

    ``skip_reason`` is the reason why the table was not cleaned, or not cleaned further: ``deleted`` then has the
    deletions before a halt, a pause or a longer retention that began during the round. ``no_longer_awaiting`` are
    versions that lakefold stops tracking without a deletion. There are five reasons: their replacement was undone, they
    no longer exist, they belong to an earlier table at this location, another file has their path, or the table's own
    expiry will delete them. Only an attempt to delete shows the last two reasons. ``error`` is the one line of the
    error that ended the round early; ``deleted`` then has the deletions before the error.
    """

    table: str
    dry_run: bool = False
    deleted: tuple[SupersededVersion, ...] = ()
    bytes_freed: int = 0
    kept: tuple[KeptVersion, ...] = ()
    no_longer_awaiting: tuple[KeptVersion, ...] = ()
    skip_reason: str | None = None
    error: str | None = None

    @property
    def deleted_files(self) -> int:
        """The number of files that were deleted, or would be."""
        return len(self.deleted)


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanJob:
    """One table to clean. ``skip_reason`` is the reason why it is not cleaned, such as a halt or a pause.

    ``current`` returns the job as it would be made now. It is called right before each deletion, since a round of a
    large table takes long; the round ends if there is a ``skip_reason`` now, or if the retention is longer now.
    """

    table: TableRef
    retention: timedelta
    skip_reason: str | None = None
    current: "Callable[[], CleanJob] | None" = None


def clean_tables(jobs: Iterable[CleanJob], context: RunContext, *, dry_run: bool = False) -> list[CleanReport]:
    """Clean each table; the error of one table is in its report and never stops the other tables."""
    reports = []
    for job in jobs:
        try:
            report = clean_table(job, context, format=context.formats(job.table.format), dry_run=dry_run)
        except Exception as error:
            log.warning("table %s was not cleaned: %s", job.table.name, one_line(error))
            context.observer.clean_failed(job.table, type(error).__name__)
            report = CleanReport(table=job.table.name, dry_run=dry_run, error=one_line(error))
        reports.append(report)
    context.observer.clean_succeeded()
    return reports


def clean_table(job: CleanJob, context: RunContext, *, format: TableFormat, dry_run: bool = False) -> CleanReport:
    """Delete the versions of a table that were superseded more than its retention ago and that nothing needs.

    A table with a ``skip_reason`` is not touched. The database's clock decides which versions are due. An error during
    a deletion is in the report, with the deletions before it; other errors of the store and the format pass through.
    """
    if job.skip_reason is not None:
        return CleanReport(table=job.table.name, dry_run=dry_run, skip_reason=job.skip_reason)
    return _TableCleaning(job, format, context, dry_run).run()


class _TableCleaning:
    def __init__(self, job: CleanJob, format_: TableFormat, context: RunContext, dry_run: bool) -> None:
        self._table, self._retention, self._format, self._dry_run = job.table, job.retention, format_, dry_run
        self._job = job
        #: why the round may delete nothing any longer
        self._stop_reason: str | None = None
        self._store, self._spark, self._observer = context.store, context.spark, context.observer
        self._deleted: list[SupersededVersion] = []
        self._bytes_freed = 0
        self._kept: list[KeptVersion] = []
        self._no_longer_awaiting: list[KeptVersion] = []
        self._relocations = context.relocations if isinstance(format_, RelocatesPartitions) else None
        # If the format relocates partitions, a plan locks its partitions right before its commit (``begin_commit``). So
        # files may be deleted there while the plan waits for an executor. For other formats without a table lock, no
        # file is deleted in the partitions of a live plan.
        alone_at_commits = self._relocations is not None
        self._locks = PartitionLock(
            LockOwnerKind.CLEANER, job.table, format_, context.store, alongside_plans=alone_at_commits
        )
        #: partitions that the sweep has to process first, each with the reason; this round skips them
        self._unswept: dict[str, str] = {}
        #: processed rows that are still due: rows of kept versions, in a dry run all rows
        self._rows_still_due: set[int] = set()

    def run(self) -> CleanReport:
        error: Exception | None = None
        self._close_obsolete()
        while error is None and self._stop_reason is None:
            # Kept versions stay due, so the limit is raised by their number to reach the versions after them.
            due = self._store.due_for_deletion(self._table, self._retention, _PAGE + len(self._rows_still_due))
            due = [d for d in due if d.row_id not in self._rows_still_due]
            if not due:
                break
            reasons = self._format.deletion_blockers(self._table, [d.version for d in due], self._retention)
            reasons = {**reasons, **self._halt_reasons(due)}
            deletable = [d for d in due if reasons[d.version.path] is None]
            for d in due:
                self._record_kept(d, reasons[d.version.path])
            if self._dry_run:
                deletable = self._keep_unswept(deletable)
                self._rows_still_due.update(d.row_id for d in deletable)
                self._deleted += [d.version for d in deletable]
                self._bytes_freed += sum(d.version.bytes for d in deletable)
            elif deletable:
                error = self._delete(deletable)
        return CleanReport(
            table=self._table.name,
            dry_run=self._dry_run,
            deleted=tuple(self._deleted),
            bytes_freed=self._bytes_freed,
            kept=tuple(self._kept),
            no_longer_awaiting=tuple(self._no_longer_awaiting),
            skip_reason=self._stop_reason,
            error=one_line(error) if error else None,
        )

    def _halt_reasons(self, due: Sequence[SupersededRecord]) -> Mapping[str, str]:
        """Return, by path, why versions of halted partitions stay.

        A person may still choose the location whose rows are valid, and that choice may need these files.
        """
        halted = self._relocations.halted_partitions(self._table) if self._relocations else {}
        return {
            d.version.path: f"{partition_label(d.version.partition)} is halted: {halted[d.version.partition]}"
            for d in due
            if d.version.partition in halted
        }

    def _close_obsolete(self) -> None:
        """Stop tracking versions, due or not, that lakefold may no longer delete."""
        waiting = self._store.awaiting_deletion(self._table)
        if not waiting:
            return
        self._table = with_identity(self._format, self._table)
        foreign = {index: recreated_reason(self._table, d.table_identity) for index, d in enumerate(waiting)}
        obsolete = self._format.obsolete_deletions(self._table, [d.version for d in waiting])
        may_move = bool(obsolete) and self._relocations is not None
        try:
            if may_move:
                obsolete = self._confirmed_obsolete(waiting, obsolete)
            found = {**obsolete, **{index: reason for index, reason in foreign.items() if reason is not None}}
            reasons = {waiting[index].row_id: reason for index, reason in found.items()}
            self._no_longer_awaiting = [
                KeptVersion(version=waiting[index].version, reason=reason) for index, reason in found.items()
            ]
            if self._dry_run:
                self._rows_still_due.update(reasons)
            elif reasons:
                self._store.close_superseded(reasons)
                first = found[min(found)]
                log.info(
                    "table %s: %d superseded files no longer await deletion: %s", self._table.name, len(reasons), first
                )
        finally:
            if may_move:
                self._locks.release()

    def _confirmed_obsolete(self, waiting: Sequence[SupersededRecord], again: Mapping[int, str]) -> Mapping[int, str]:
        """Lock the partitions of the versions in ``again``, check these once more, and return the reasons that hold.

        Partitions that the sweep has to process first are left out.

        A replacement looks undone if a writer has written an earlier location back to the catalog. The sweep then
        relocates the partition again, and its versions still await deletion. The sweep may have done this right after
        the first check, so a second check follows under the lock.
        """
        partitions = {waiting[index].version.partition for index in again}
        held = partitions if self._dry_run else self._locks.lock(partitions)
        swept_partitions = held - self._awaiting_sweep(held).keys()
        indexes = [index for index in again if waiting[index].version.partition in swept_partitions]
        reasons = self._format.obsolete_deletions(self._table, [waiting[index].version for index in indexes])
        if not self._dry_run:
            try:
                self._locks.renew(held)
            except LeaseLost:
                return {}
        return {indexes[index]: reason for index, reason in reasons.items()}

    def _record_kept(self, due: SupersededRecord, reason: str | None) -> None:
        if reason is not None:
            self._rows_still_due.add(due.row_id)
            self._kept.append(KeptVersion(version=due.version, reason=reason))

    def _delete(self, deletable: Sequence[SupersededRecord]) -> Exception | None:
        """Delete versions in order, several plans in one batch. Returns the error that ended the deletion early."""
        try:
            with self._format.writer(self._table, self._spark) as writer:
                if isinstance(writer, UsesDatabaseClock):
                    writer.clock = self._store.clock
                if isinstance(writer, UsesRetention):
                    writer.retention = self._retention
                batches = deque(_batches(deletable))
                while batches:
                    batch = batches.popleft()
                    fence = partial(self._begin_deletion, batch)
                    if isinstance(writer, Fenced):
                        writer.fence = fence
                    try:
                        self._lock_partitions(batch)
                        fence()
                        self._record_deletion(batch, writer.delete([d.version for d in batch]))
                    # After the check a file became live, or part of a pending action or of a savepoint; or this
                    # process was suspended.
                    except (Conflict, LeaseLost) as conflict:
                        if self._stop_reason is not None:
                            log.warning("table %s: cleaning stopped: %s", self._table.name, self._stop_reason)
                            return None
                        plans = list(_by_plan(batch))
                        if len(plans) > 1:  # one plan's conflict must not delay the others: a batch for each plan
                            batches.extendleft(reversed(plans))
                            continue
                        for d in batch:
                            self._record_kept(d, one_line(conflict))
                    finally:
                        # The sweep then need not wait for the end of the round to find late files.
                        self._locks.release()
        except Exception as error:
            log.warning("table %s: cleaning ended early: %s", self._table.name, one_line(error))
            self._observer.clean_failed(self._table, type(error).__name__)
            return error
        return None

    def _lock_partitions(self, batch: Sequence[SupersededRecord]) -> None:
        """Lock the partitions of a batch. Raises Conflict if a plan or the sweep has locked one of them."""
        partitions = {d.version.partition for d in batch}
        if partitions.isdisjoint(self._unswept) and (others := partitions - self._locks.lock(partitions)):
            raise Conflict(f"partition {min(others)} is held by a plan or the sweep")

    def _begin_deletion(self, batch: Sequence[SupersededRecord]) -> None:
        """Record in the store that a deletion begins.

        Raises Conflict if the round has to stop, if the sweep has to process a partition first, or if another process
        deletes these files; LeaseLost if the lock on a partition had expired.
        """
        if (reason := self._find_stop_reason()) is not None:
            self._stop_reason = reason
            raise Conflict(reason)
        partitions = {d.version.partition for d in batch}
        if partitions.isdisjoint(self._unswept):
            self._locks.renew(partitions)
            self._unswept |= self._awaiting_sweep(partitions)
        if unswept := partitions & self._unswept.keys():
            raise Conflict(_sweep_first_message(self._unswept[min(unswept)]))
        if beside := self._unswept_sharing_directory(batch):
            raise Conflict(_sweep_first_message(beside[min(beside)]))
        if self._relocations is not None:
            directories = _directories_of(batch)
            reason = reason_to_keep_files(self._table, directories, format=self._format, store=self._relocations)
            if reason is not None:
                raise Conflict(reason)
        rows = [d.row_id for d in batch]
        if len(self._store.begin_deletion(rows)) < len(rows):
            raise Conflict("another process has deleted some of these files meanwhile")

    def _find_stop_reason(self) -> str | None:
        """Return why the round may not continue: the table was halted or paused, or its retention is longer now."""
        if self._job.current is None:
            return None
        now = self._job.current()
        if now.skip_reason is None and now.retention > self._retention:
            return f"its retention is longer now, {format_duration(now.retention)}; the next round uses it"
        return now.skip_reason

    def _keep_unswept(self, deletable: Sequence[SupersededRecord]) -> list[SupersededRecord]:
        """Keep the versions of plans whose partitions the sweep has to process first, and return the others."""
        unswept = self._awaiting_sweep({d.version.partition for d in deletable})
        is_any_beside = bool(unswept or self._unswept_sharing_directory(deletable))
        others: list[SupersededRecord] = []
        for plan in _by_plan(deletable):
            waiting = {name: unswept[name] for name in {d.version.partition for d in plan} & unswept.keys()}
            if not waiting and is_any_beside:
                waiting = dict(self._unswept_sharing_directory(plan))
            if not waiting:
                others += plan
                continue
            for d in plan:
                self._record_kept(d, _sweep_first_message(waiting[min(waiting)]))
        return others

    def _unswept_sharing_directory(self, batch: Sequence[SupersededRecord]) -> Mapping[str, str]:
        """Return the other partitions that left the directories of a batch and that the sweep has to process first.

        They may need late files there, and an overwrite there replaced their rows as well. They may be partitions of
        other tables.
        """
        if self._relocations is None:
            return {}
        partitions, directories = {d.version.partition for d in batch}, _directories_of(batch)
        others = self._relocations.partitions_that_left(self._table, directories) - partitions
        found = dict(self._awaiting_sweep(others)) if others else {}
        for table, names in self._relocations.other_tables_that_left(self._table, directories):
            try:
                waiting = partitions_awaiting_sweep(
                    table, format=self._format, store=self._store, partitions=names, before_deletion=True
                )
            except TableGone:
                continue
            except LakefoldError as error:  # files of other directories must not wait for this table
                waiting = dict.fromkeys(names, f"it can't be inspected: {one_line(error)}")
            found |= {f"{name} of {table.name}": f"table {table.name}: {waiting[name]}" for name in waiting}
        return found

    def _awaiting_sweep(self, partitions: Collection[str]) -> Mapping[str, str]:
        return partitions_awaiting_sweep(
            self._table, format=self._format, store=self._store, partitions=partitions, before_deletion=True
        )

    def _record_deletion(self, batch: Sequence[SupersededRecord], deletion: DeletionResult) -> None:
        left = {batch[index].row_id: reason for index, reason in deletion.retained.items()}
        deleted = [d for d in batch if d.row_id not in left]
        self._store.mark_deleted(sorted(d.row_id for d in deleted))
        if left:
            self._store.close_superseded(left)
            self._no_longer_awaiting += [
                KeptVersion(version=d.version, reason=left[d.row_id]) for d in batch if d.row_id in left
            ]
            first = next(iter(left.values()))
            routine = Capability.OWN_EXPIRY in self._format.capabilities
            level = logging.INFO if routine else logging.WARNING
            log.log(level, "table %s: %d superseded files stay: %s", self._table.name, len(left), first)
        self._deleted += [d.version for d in deleted]
        self._bytes_freed += deletion.bytes_freed
        self._observer.files_deleted(self._table, len(deleted), deletion.bytes_freed)


def _directories_of(batch: Sequence[SupersededRecord]) -> frozenset[str]:
    return frozenset(d.version.path.rpartition("/")[0] for d in batch)


def _sweep_first_message(reason: str) -> str:
    return f"the sweep comes first: {reason}"


def _by_plan(due: Sequence[SupersededRecord]) -> Iterator[list[SupersededRecord]]:
    """Yield the versions that each plan replaced, in order: they belong to one deletion."""
    plans: dict[str, list[SupersededRecord]] = {}
    for one in due:
        plans.setdefault(one.plan_id, []).append(one)
    yield from plans.values()


def _batches(due: Sequence[SupersededRecord]) -> Iterator[list[SupersededRecord]]:
    """Yield whole plans in the given order, together while they stay within ``_MAX_FILES_PER_DELETION``."""
    batch: list[SupersededRecord] = []
    for plan in _by_plan(due):
        if batch and len(batch) + len(plan) > _MAX_FILES_PER_DELETION:
            yield batch
            batch = []
        batch += plan
    if batch:
        yield batch
