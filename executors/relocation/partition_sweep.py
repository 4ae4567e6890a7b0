# SPDX-License-Identifier: Apache-2.0
"""One round of the sweep in one partition: locks it, decides about its previous locations and executes the decision.

Late copies and relocations back are recorded in the database before they are made, and each step can be repeated. So
the next round continues after a round that crashed at any point. A partition is changed only while it is locked, which
excludes the cleaner, other rounds, and commits of plans. Files that are copied while a plan rewrites the partition are
handled at the plan's commit like files that any writer adds.
"""

import logging
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Protocol

from executors.partition_locks import PartitionLock
from executors.relocation.directory_commits import reason_to_keep_files_for_other_tables
from executors.unrecorded_commits import record_discovered_relocations, record_unrecorded_commits
from lake.capabilities import Fenced
from lake.errors import CommitUnknown, Conflict, Integrity, LeaseLost, one_line
from lake.failpoints import failpoint
from lake.model import TableRef, partition_label
from lake.plan import RELOCATED_BACK, LocatedFile, Relocation
from lake.ports import TableFormat
from lake.relocation.capabilities import CopiesLateFiles, RelocatesPartitions
from lake.relocation.catalog_changes import replaced_files_to_archive, reverted_by_writer
from lake.relocation.decide import RelocationAction, RelocationDecision
from lake.relocation.evidence import abandoned_copies, location_label, unrecorded_growth
from lake.relocation.model import LateCopy, PartitionState, PreviousLocation, RelocatedPartition
from lake.relocation_store import RelocationStore

log = logging.getLogger(__name__)

DecisionFunction = Callable[[RelocatedPartition, PartitionState, timedelta], RelocationDecision]
"""Returns the decision about a partition from its record, its state, and how long the sweep has waited for a writer."""


@dataclass(slots=True, kw_only=True)
class SweepReport:
    """The result of a sweep: files copied or superseded, partitions relocated back, waiting or undecided.

    ``halt_reasons`` are the partitions that a person has to decide about, each with the reason.
    """

    copied: int = 0
    superseded: int = 0
    relocated_back: int = 0
    waiting: int = 0
    halt_reasons: dict[str, str] = field(default_factory=dict)
    #: partitions to sweep again: locked by a plan's commit or the cleaner, or just changed by other processes
    deferred: list[str] = field(default_factory=list, compare=False)

    def add(self, other: "SweepReport") -> None:
        """Add the result for other partitions."""
        self.copied += other.copied
        self.superseded += other.superseded
        self.relocated_back += other.relocated_back
        self.waiting += other.waiting
        self.halt_reasons |= other.halt_reasons
        self.deferred += other.deferred

    @property
    def first_halt_reason(self) -> str | None:
        """The first reason to halt a partition; None if there is none."""
        return next(iter(self.halt_reasons.values()), None)


class RelocatingFormat(TableFormat, RelocatesPartitions, Protocol):
    """A format that relocates partitions, and so leaves previous locations."""


class PartitionSweep:
    """One round of the sweep in one partition, which is locked during the round."""

    def __init__(
        self,
        table: TableRef,
        format_: RelocatingFormat,
        store: RelocationStore,
        writer: CopiesLateFiles,
        partition: str,
        decide: DecisionFunction,
        lock: PartitionLock,
    ) -> None:
        self._table, self._format, self._store, self._writer = table, format_, store, writer
        self._partition, self._decide, self._lock = partition, decide, lock
        self._report = SweepReport()
        #: the store for records of the partition's locations: it writes only while the partition is locked
        self._fenced_store = lock.fenced_store(store, partition)
        #: a part of the names of this round's copies: a suspended round must not touch the copies of later rounds
        self._nonce = uuid.uuid4().hex[:12]
        #: location and token that a writer has written back, by the last inspection
        self._reverted_to: tuple[str, str | None] | None = None
        #: the name whose catalog entry this round updates, by the last inspection; None if the partition was renamed
        #: and a later relocation has moved it under its new name, so the sweep of that name updates the entry
        self._catalog_name: str | None = partition
        #: the partition and, if it was renamed, its present name and the one under which it was relocated later
        self._locked = {partition}
        self._renewals = ExitStack()

    def run(self) -> SweepReport:
        """Lock and sweep the partition. If another process has locked it or changes it, the report defers it."""
        if not self._lock.lock({self._partition}):
            self._report.deferred.append(self._partition)
            return self._report
        if isinstance(self._writer, Fenced):
            self._writer.fence = self.fence
        try:
            with self._renewals:
                self._renewals.enter_context(self._lock.renewing(self._partition))
                self.sweep()
        except CommitUnknown:
            # The catalog may still execute the call: the lock is not released; it outlasts the call and then expires.
            raise
        except (Conflict, LeaseLost) as error:
            log.info("table %s, partition %s: %s; swept again", self._table.name, self._partition, one_line(error))
            self._report.deferred.append(self._partition)
            self._lock.release()
        except Integrity as error:
            self._halt(one_line(error))
            self._lock.release()
        except BaseException:
            self._lock.release()
            raise
        else:
            self._lock.release()
        return self._report

    def fence(self) -> None:
        """Renew the lock. Raises LeaseLost if another owner may have had the partition since it was locked."""
        self._lock.renew(self._locked)

    def sweep(self) -> None:
        """Finish the work of an earlier round, then decide and execute the decision."""
        record, state = self._inspect()
        begun = next((relocation for relocation in record.begun_relocations if relocation.token == state.token), None)
        if begun is not None:
            self._fenced_store.end_relocation(self._table, begun)
            record, state = self._inspect()
        elif record.begun_relocations or state.token not in (None, record.latest.token):
            # In a database that was restored from a backup, a later relocation may show that a begun one was applied.
            discovered = record_discovered_relocations(self._table, format=self._format, store=self._store)
            record_unrecorded_commits(self._table, format=self._format, store=self._store)
            record, state = self._inspect()
            if state.token in (*discovered.left_to_executors, *discovered.left_to_plans):
                raise Conflict(f"the commit {state.token} is not recorded yet; its plan is inflight")
        if record.begun_relocations:
            # The lock of the round that began them has expired, and so has that round's wait for the catalog. If the
            # catalog still executes the call, a later sweep sets the location of the latest relocation again.
            for relocation in record.begun_relocations:
                self._writer.discard_relocation(relocation)
            self._fenced_store.discard_relocations(self._table, record.begun_relocations)
            record, state = self._inspect()
        if hidden := abandoned_copies(record, state):
            # Before this round decides: a suspended round may still exchange the name of such a copy.
            self._writer.remove_hidden_copies(hidden, frozenset(record.recorded_files), state.arrived_ms.keys())
        if replaced_files := replaced_files_to_archive(record, state):
            directories = {file.directory for file in replaced_files}
            reason = reason_to_keep_files_for_other_tables(
                self._table, directories, format=self._format, store=self._store
            )
            if reason is not None:
                raise Conflict(reason)
            self._archive_files(record, replaced_files)
            record, state = self._inspect()
        if modified_files := unrecorded_growth(record, state):
            for previous, files in modified_files:
                self._fenced_store.supersede_files(self._table, self._partition, previous, files)
            record, state = self._inspect()
        # If a writer has written the partition back, its copies are at the latest location, which is then set again.
        if self._reverted_to or (state.location, state.token) == (record.latest.location, record.latest.token):
            if self._record_unknown_copies(record, state):
                record, state = self._inspect()
            if self._finish_copied(record, state):
                record, state = self._inspect()
        decision = self._decide(record, state, timedelta())
        if decision.action is RelocationAction.RECORD_EMPTIED:
            record, state, decision = self._record_emptied()
        if decision.action is RelocationAction.REPLACE_COPIES:
            self._replace_copies(record, decision)
            record, state = self._inspect()
            decision = self._decide(record, state, timedelta())
        if record.is_waiting or decision.action is RelocationAction.WAIT:
            waited = self._fenced_store.update_waiting(self._table, record, decision.action is RelocationAction.WAIT)
            decision = self._decide(record, state, waited)
        if decision.action is RelocationAction.HALT:
            self._halt(decision.reason, of_table=decision.concerns_table)
        elif decision.action in (
            RelocationAction.WAIT,
            RelocationAction.REPLACE_COPIES,
            RelocationAction.RECORD_EMPTIED,
        ):  # the writer is still at work
            self._report.waiting += 1
        else:
            self._record_removed_files(record, state, decision.emptied_locations)
            self._release_locations(record, decision.released_locations)
            visible_copies = self._remove_stale_copies(record, state, decision)
            if decision.action is RelocationAction.RELOCATE_BACK:
                self._relocate_back(record, state, decision)
            elif decision.action is RelocationAction.REAPPLY:
                self._writer.update_catalog(record.latest, reverted_to=self._reverted_to)
            else:
                self._copy_late_files(record, state, decision.files_to_copy)
                self._supersede_files(record, decision.superseded_files)
                self._record_removed_files(record, state, [previous.location for previous in record.previous_locations])
            needless_copies = [
                late_copy
                for late_copy in record.late_copies
                if not (late_copy.is_done or late_copy.source in decision.files_to_copy)
            ]
            if decision.action is RelocationAction.REAPPLY:
                # Readers no longer read the location of the visible copies. Their records stay, so that the next
                # round removes these copies.
                needless_copies = [one for one in needless_copies if one.target not in visible_copies]
            self._end_needless_copies(needless_copies, state)
            if decision.action is not RelocationAction.NOTHING or decision.superseded_files:
                log.warning("table %s, partition %s: %s", self._table.name, self._partition, _decision_text(decision))

    def _end_needless_copies(self, late_copies: Collection[LateCopy], state: PartitionState) -> None:
        """End the records of late copies that are not needed. A record without source and target is deleted.

        Another sweep may still publish such a missing source: it may be a copy that the other sweep makes for the
        partition's former name. Without a record, the source is then a late file like any other.
        """
        there = {file.path for location in state.locations.values() for file in location.files}
        ended, gone = list[tuple[LateCopy, PreviousLocation | None]](), list[LateCopy]()
        for late_copy in late_copies:
            paths = {late_copy.source.path, late_copy.target}
            is_inspected = {path.rpartition("/")[0] for path in paths} <= state.locations.keys()
            if is_inspected and paths.isdisjoint(there):
                gone.append(late_copy)
            else:
                ended.append((late_copy, None))
        if gone:
            self._fenced_store.discard_late_copies(self._table, gone)
        self._fenced_store.end_late_copies(self._table, ended)

    def _halt(self, reason: str, *, of_table: bool = False) -> None:
        self._report.halt_reasons[self._partition] = reason
        # If the partition is halted already, that halt explains this reason, and other partitions are not affected.
        if of_table := of_table and self._partition not in self._store.halted_partitions(self._table):
            is_new = self._store.halt_table(self._table, reason)
        else:
            is_new = self._store.halt_partition(self._table, self._partition, reason)
        if is_new:
            what = "the table" if of_table else partition_label(self._partition)
            log.error("table %s: rewriting of %s is halted: %s", self._table.name, what, reason)

    def _inspect(self) -> tuple[RelocatedPartition, PartitionState]:
        self.fence()
        (record,) = self._store.relocated_partitions(self._table, [self._partition])
        state = self._format.inspect_locations(self._table, [record])[self._partition]
        self._reverted_to = reverted_by_writer(record, state)
        self._catalog_name = None if state.has_left_location else state.renamed_to or self._partition
        # Plans and sweeps of these names also change the catalog's entry of the partition, or the copies.
        names = {name for name in (state.renamed_to, state.relocated_as) if name is not None} - self._locked
        for name in sorted(names):
            if not self._lock.lock({name}):
                raise Conflict(f"{partition_label(name)} is locked")
            self._locked.add(name)
            self._renewals.enter_context(self._lock.renewing(name))
        return self._inspect() if names else (record, state)

    def _record_unknown_copies(self, record: RelocatedPartition, state: PartitionState) -> bool:
        """Record copies that readers see and the database does not have. True if there are any.

        The database was restored from a backup that is older than the round that made the copies. Without the record
        their sources would be copied once more.
        """
        there = [file.path for file in state.locations[record.latest.location].files]
        # If a copy had begun when the backup was made, a later round may have made another copy of the same source.
        known = {one.source for one in record.late_copies if one.is_done or one.target in there}.union(
            *((*one.expected_files, *one.possible_files) for one in record.previous_locations)
        )
        pairs = []
        for previous in record.previous_locations:
            for source in state.locations[previous.location].files.keys() - known:
                # The copy's name identifies its source, independent of the round that made it.
                head, tail = self._writer.target_path(source, record.latest.location, self._nonce).split(self._nonce)
                copies = [path for path in there if path.startswith(head) and path.endswith(tail)]
                pairs += [(source, path) for path in copies[:1]]
        if pairs:
            self._begin_late_copies(record, state, pairs)
        return bool(pairs)

    def _finish_copied(self, record: RelocatedPartition, state: PartitionState) -> bool:
        """End late copies that are in the partition's location. True if there were any that could be ended.

        If an overwrite was in progress and would have removed a copy, the copy is removed.
        """
        there = {file.path for file in state.locations[record.latest.location].files}
        copied = [late_copy for late_copy in record.late_copies if not late_copy.is_done and late_copy.target in there]
        if not copied:
            return False
        decision = self._decide(record, state, timedelta())
        if decision.action in (RelocationAction.WAIT, RelocationAction.HALT):
            return False
        self._writer.remove_copies(decision.copies_to_remove, decision.copies_to_remove)
        self._complete_copies(
            record, [late_copy for late_copy in copied if late_copy.target not in decision.copies_to_remove]
        )
        return True

    def _remove_stale_copies(
        self, record: RelocatedPartition, state: PartitionState, decision: RelocationDecision
    ) -> Collection[str]:
        """Remove unfinished copies of this and earlier rounds. Copies that readers see stay; returns their paths.

        Otherwise readers would see the copies as soon as the partition is at their location again. If a partition was
        dropped and recreated, its copies are removed as well, since the files of the old partition were dropped with
        it. Files that still have to be copied get new names, since a suspended round may remove a copy with the old
        name.
        """
        is_the_same = state.token == record.latest.token or self._reverted_to is not None
        read = {record.latest.location, *([state.location] if is_the_same else [])} - {decision.target_location}
        begun = {late_copy.target for late_copy in record.late_copies if not late_copy.is_done}
        published = {
            location: begun & {file.path for file in there.files} for location, there in state.locations.items()
        }
        seen_by_readers = {target for location, targets in published.items() if location in read for target in targets}
        # Copies in locations that were not inspected may be published.
        elsewhere = {target for target in begun if target.rpartition("/")[0] not in state.locations}
        self._writer.remove_copies(sorted(begun - seen_by_readers), elsewhere.union(*published.values()))
        return seen_by_readers

    def _begin_late_copies(
        self, record: RelocatedPartition, state: PartitionState, pairs: Sequence[tuple[LocatedFile, str]]
    ) -> None:
        names = {*record.former_names, *self._locked} - {self._partition}
        self._fenced_store.begin_late_copies(self._table, self._partition, pairs, state.arrived_ms, former_names=names)

    def _copy_late_files(self, record: RelocatedPartition, state: PartitionState, files: Sequence[LocatedFile]) -> None:
        pairs = [(file, self._writer.target_path(file, record.latest.location, self._nonce)) for file in files]
        if pairs:
            self._begin_late_copies(record, state, pairs)
            failpoint("carry_recorded")
            gone = self._writer.copy_hidden(pairs)
            copies = [(file, target) for file, target in pairs if file not in gone]
            # During the copy a writer may have overwritten the files to which the copies would be added.
            record, state = self._inspect()
            self._fenced_store.end_late_copies(
                self._table, [(one, None) for one in record.late_copies if one.source in gone]
            )
            new_decision = self._decide(record, state, timedelta())
            if not {file for file, _ in copies} <= (
                set(new_decision.files_to_copy) if new_decision.action is RelocationAction.COPY_LATE_FILES else set()
            ):
                self._remove_stale_copies(record, state, new_decision)
                raise Conflict("another writer changed the partition meanwhile")
            # If the copies are not published, the next sweep ends their records, since the sources are missing.
            self._record_arrivals(record, state, copies)
            self._writer.publish_copies(copies)
            failpoint("carry_copied")
            # An overwrite may also have listed the files to remove just before the copies were published.
            record, state = self._inspect()
            if copies and (
                not self._finish_copied(record, state) or self._decide(record, state, timedelta()).copies_to_remove
            ):
                raise Conflict("another writer changed the partition meanwhile")

    def _record_arrivals(
        self, record: RelocatedPartition, state: PartitionState, copies: Sequence[tuple[LocatedFile, str]]
    ) -> None:
        """Record when the sources of ``copies`` arrived; the copies are late files under the partition's new name.

        The file system only has the times of the copies. An overwrite may have happened between the two times.
        """
        name = state.relocated_as
        # The store accepts the record only while the name is locked, so no sweep of that name has seen the copies yet.
        if name is None or name == self._partition:
            return
        arrived = {one.source: one.arrived_ms for one in record.late_copies if one.arrived_ms is not None}
        published = {replace(source, path=target): arrived[source] for source, target in copies if source in arrived}
        pairs = [(copy, self._writer.target_path(copy, record.latest.location, self._nonce)) for copy in published]
        self._lock.fenced_store(self._store, name).begin_late_copies(self._table, name, pairs, published)

    def _record_emptied(self) -> tuple[RelocatedPartition, PartitionState, RelocationDecision]:
        """Record that the partition's location was emptied before its late files arrived. Returns the next decision."""
        # Listed again: a late file may have arrived after its location was listed, and before the other was emptied.
        record, state = self._inspect()
        decision = self._decide(record, state, timedelta())
        emptied_ms = state.locations[record.latest.location].emptied_ms
        if decision.action is RelocationAction.RECORD_EMPTIED and emptied_ms is not None:
            self._writer.record_emptied(record.latest, emptied_ms)
            log.warning("table %s, partition %s: %s", self._table.name, self._partition, decision.reason)
            record, state = self._inspect()
            decision = self._decide(record, state, timedelta())
        return record, state, decision

    def _replace_copies(self, record: RelocatedPartition, decision: RelocationDecision) -> None:
        """Replace the copies of files that grew by their present content, and update the records."""
        previous = {one.location: one for one in record.previous_locations}
        done = []
        for one in decision.modified_files:
            copy = self._writer.replace_copy(one.current, one.copy_path, one.recorded)
            done.append((one, previous[one.recorded.directory], copy))
        failpoint("copy_replaced")
        self._update_counts(record)
        self._fenced_store.record_modified_files(self._table, record.latest, done)
        self._report.copied += len(done)
        log.warning("table %s, partition %s: %s", self._table.name, self._partition, decision.reason)

    def _complete_copies(self, record: RelocatedPartition, late_copies: Sequence[LateCopy]) -> None:
        """Update the counts in the catalog by the copied files, and record that the copies are done."""
        if not late_copies:
            return
        self._update_counts(record)
        failpoint("carry_told")
        previous = {one.location: one for one in record.previous_locations}
        ended = [(late_copy, previous.get(late_copy.source.directory)) for late_copy in late_copies]
        self._fenced_store.end_late_copies(self._table, ended)
        self._report.copied += len(late_copies)

    def _update_counts(self, record: RelocatedPartition) -> None:
        if self._catalog_name is not None:
            self._writer.update_catalog(record.latest, reverted_to=self._reverted_to, name=self._catalog_name)

    def _relocate_back(self, record: RelocatedPartition, state: PartitionState, decision: RelocationDecision) -> None:
        """Relocate back to a previous location, and copy the late files that it lacks to it.

        The files of the present location then await their deletion. If another writer changes the partition meanwhile,
        the copies are removed from the previous location, so that they are never read.
        """
        try:
            self._try_relocate_back(record, state, decision)
        except Conflict:
            record, state = self._inspect()
            self._remove_stale_copies(record, state, self._decide(record, state, timedelta()))
            raise

    def _try_relocate_back(
        self, record: RelocatedPartition, state: PartitionState, decision: RelocationDecision
    ) -> None:
        location = decision.target_location
        assert location is not None
        copies = [(file, self._writer.target_path(file, location, self._nonce)) for file in decision.files_to_copy]
        if copies:
            self._begin_late_copies(record, state, copies)
            failpoint("carry_recorded")
            self._writer.create_location(location, record.latest.location)
            if self._writer.copy_hidden(copies):
                raise Conflict("files to be carried along are missing")
            # From here on, another reader of the location would see the copies.
            self._confirm(decision)
            self._writer.publish_copies(copies)
            failpoint("carry_copied")
        record, state = self._confirm(decision)
        relocation = Relocation(
            partition=self._partition,
            token=f"{RELOCATED_BACK}{uuid.uuid4().hex}",
            previous_location=record.latest.location,
            location=location,
            files=tuple(state.locations[location].files),
            partition_created_at=record.latest.partition_created_at,
        )
        other_locations = {one.location: one for one in record.previous_locations if one.location != location}
        # Files that an overwrite of the vacated location removed earlier are not expected there.
        published = [file for file in record.latest.files if file in state.locations[record.latest.location].files]
        copied_or_superseded = [
            file
            for file in (*decision.files_to_copy, *decision.superseded_files)
            if file.directory not in other_locations
        ]
        self._fenced_store.begin_relocation(
            self._table, relocation, record.plan_id, list(dict.fromkeys([*published, *copied_or_superseded]))
        )
        failpoint("move_recorded")
        self._writer.update_catalog(record.latest, relocation, reverted_to=self._reverted_to)
        failpoint("move_told")
        self._fenced_store.end_relocation(self._table, relocation)
        self._supersede_files(record, [file for file in decision.superseded_files if file.directory in other_locations])
        self._end_accompanying_copies(copies, other_locations)
        self._report.relocated_back += 1

    def _confirm(self, decision: RelocationDecision) -> tuple[RelocatedPartition, PartitionState]:
        """Decide again about relocating back. Raises Conflict if the decision is another one now."""
        record, state = self._inspect()
        new_decision = self._decide(record, state, timedelta())
        if (new_decision.action, new_decision.target_location, new_decision.files_to_copy) != (
            decision.action,
            decision.target_location,
            decision.files_to_copy,
        ):
            raise Conflict("another writer changed the partition meanwhile")
        return record, state

    def _end_accompanying_copies(
        self, copies: Iterable[tuple[LocatedFile, str]], other_locations: Mapping[str, PreviousLocation]
    ) -> None:
        """End the records of the copies that were made for a relocation back.

        ``copies`` are pairs of source and copy, ``other_locations`` the previous locations except the
        target of the relocation.
        """
        sources = {source for source, _ in copies}
        (record,) = self._store.relocated_partitions(self._table, [self._partition])
        ended: list[tuple[LateCopy, PreviousLocation | None]] = [
            (late_copy, other_locations.get(late_copy.source.directory))
            for late_copy in record.late_copies
            if late_copy.source in sources
        ]
        self._fenced_store.end_late_copies(self._table, ended)

    def _archive_files(self, record: RelocatedPartition, files: Sequence[LocatedFile]) -> None:
        moved = self._writer.archive_files(files)
        failpoint("aside_moved")
        self._fenced_store.record_archived_files(self._table, self._partition, moved)
        directories = {file.directory for file in files}
        for previous in record.previous_locations:
            if previous.location in directories:
                # Files that another program has removed are not expected to reappear.
                self._fenced_store.record_removed_files(
                    self._table, previous, [file for file in files if file not in moved]
                )
        self._report.superseded += len(moved)
        log.warning(
            "table %s, partition %s was dropped: %d replaced files of its directory were moved aside, since readers "
            "see them there once the partition is added again",
            self._table.name,
            self._partition,
            len(moved),
        )

    def _supersede_files(self, record: RelocatedPartition, files: Sequence[LocatedFile]) -> None:
        by_location: dict[str, list[LocatedFile]] = defaultdict(list)
        for file in files:
            by_location[file.directory].append(file)
        for previous in record.previous_locations:
            if by_location[previous.location]:
                self._fenced_store.supersede_files(
                    self._table, self._partition, previous, by_location[previous.location]
                )
        self._report.superseded += len(files)

    def _release_locations(self, record: RelocatedPartition, locations: Collection[str]) -> None:
        """Record that the late files in these locations are not the partition's: its owner had moved it away."""
        if not locations:
            return
        released = [one for one in record.previous_locations if one.location in locations]
        self._fenced_store.release_locations(self._table, self._partition, released)
        for one in released:
            log.warning(
                "table %s, partition %s: the files in %s, from which its owner had moved it away, are not its rows",
                self._table.name,
                self._partition,
                location_label(one.location),
            )

    def _record_removed_files(
        self, record: RelocatedPartition, state: PartitionState, locations: Collection[str]
    ) -> None:
        """Record that an overwrite removed files of previous locations, once the decision about its rows is made."""
        if (state.location, state.token) != (record.latest.location, record.latest.token):
            return
        for previous in record.previous_locations:
            gone = [file for file in previous.files_in_place if file not in state.locations[previous.location].files]
            if gone and previous.location in locations:
                self._fenced_store.record_removed_files(self._table, previous, gone)


def _decision_text(decision: RelocationDecision) -> str:
    kept = (
        ""
        if not decision.superseded_files
        else f"; {len(decision.superseded_files)} older files are kept aside: {decision.superseded_files[0].path}"
    )
    return f"{decision.reason}: {decision.action}, {len(decision.files_to_copy)} files copied{kept}"
