# SPDX-License-Identifier: Apache-2.0
"""Sweeps the previous locations of relocated partitions and copies late files to the partitions' locations."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import cast

from executors.context import RunContext
from executors.partition_locks import PartitionLock
from executors.relocation.partition_sweep import DecisionFunction, PartitionSweep, RelocatingFormat, SweepReport
from lake.capabilities import recreated_reason, with_identity
from lake.errors import LakefoldError, TableGone, Transient, one_line
from lake.model import TableRef, partition_label
from lake.plan import LockOwnerKind
from lake.plan_store import PlanStore
from lake.ports import TableFormat
from lake.relocation.capabilities import CopiesLateFiles, RelocatesPartitions
from lake.relocation.catalog_changes import replaced_files_to_archive, reverted_by_writer
from lake.relocation.decide import (
    WRITER_GRACE,
    LocationChoice,
    RelocationAction,
    RelocationDecision,
    decide,
    decide_by_choice,
    decide_restore_location,
    deletion_blocker,
    relocation_blocker,
)
from lake.relocation.evidence import abandoned_copies, unrecorded_growth
from lake.relocation.model import PartitionState, RelocatedPartition, UnreadyReason
from lake.relocation_store import RelocationStore, relocation_store
from lake.stopwatch import Stopwatch
from lake.storage.locations import relative_path, resolve_path

log = logging.getLogger(__name__)

#: if one of 10,000 partitions can't be inspected, about 14 calls fail until it is found; without a metastore all fail
_MAX_FAILED_INSPECTIONS = 40

_SEARCH_INTERVAL_FACTOR = 3
"""The readers of directories are looked for again after this many times the duration of the last search."""


def partitions_awaiting_sweep(
    table: TableRef,
    *,
    format: TableFormat,
    store: PlanStore,
    partitions: Collection[str],
    before_deletion: bool = False,
) -> Mapping[str, str]:
    """Return the ``partitions`` that the sweep has to process first, each with the reason.

    The reasons are: a writer has changed a previous location, a round has begun there, a person has to decide on a
    writer's intent, or a late file is too recent to be compared with an overwrite or, ``before_deletion``, too recent
    to be copied. Until the sweep has processed these partitions, they are not planned, committed or cleaned.
    """
    if not isinstance(format, RelocatesPartitions):
        return {}
    relocations = relocation_store(store)
    known = _relocated_partitions(table, format, relocations, partitions)
    states = format.inspect_locations(table, known) if known else {}
    blocker = deletion_blocker if before_deletion else relocation_blocker
    found = {
        one.partition: _sweep_reason(one, states[one.partition]) or blocker(one, states[one.partition]) for one in known
    }
    found |= _former_name_reasons(table, format, relocations, known, states, partitions)
    # Read after the inspection, since a round may have halted a partition and changed its state in between.
    halted = relocations.halted_partitions(table)
    reasons = {one: f"{partition_label(one)} is halted: {halted[one]}" for one in partitions if one in halted}
    return {partition: reason for partition, reason in found.items() if reason is not None} | reasons


def _former_name_reasons(
    table: TableRef,
    format_: RelocatesPartitions,
    store: RelocationStore,
    known: Sequence[RelocatedPartition],
    states: Mapping[str, PartitionState],
    partitions: Collection[str],
) -> Mapping[str, str]:
    """Return the reasons why renamed ``partitions`` have to wait for the sweep of their former names.

    Late files of a former name's previous locations are rows of the renamed partition, and an overwrite of it may have
    replaced them. A halt of the former name does not delay the renamed partition.
    """
    names, former = set(partitions), list[RelocatedPartition]()
    wanted = _names_before_a_rename(table, format_, store, known, states, partitions)
    while wanted := (wanted | {name for one in known for name in one.former_names}) - names:
        names |= wanted
        known = _relocated_partitions(table, cast(TableFormat, format_), store, wanted)
        former += known
    states = format_.inspect_locations(table, former) if former else {}
    found: dict[str, str] = {}
    for one in former:
        state = states[one.partition]
        reason = _sweep_reason(one, state) or deletion_blocker(one, state)
        if reason is not None and not _needs_operator(one, state):
            found |= {
                name: reason
                for name in (state.renamed_to, state.relocated_as)
                if name is not None and name in partitions
            }
    return found


def _names_before_a_rename(
    table: TableRef,
    format_: RelocatesPartitions,
    store: RelocationStore,
    known: Sequence[RelocatedPartition],
    states: Mapping[str, PartitionState],
    partitions: Collection[str],
) -> frozenset[str]:
    """Return the former names of ``partitions`` that were renamed, and that lakefold has not moved since.

    The records have no relocation of such a partition under its present name. But the catalog still names the one that
    was made under the former name.
    """
    own_tokens = {(one.partition, one.latest.token) for one in known}
    unclear = {name for name in partitions if name not in states or (name, states[name].token) not in own_tokens}
    named = format_.named_relocations(table, unclear) if unclear else {}
    renamed = [one for name, one in named.items() if (name, one.token) not in own_tokens]
    elsewhere = [one for one in renamed if one.former_name is None]
    found = store.partitions_of_relocations(table, elsewhere) if elsewhere else frozenset[str]()
    return frozenset(found) | {one.former_name for one in renamed if one.former_name is not None}


def sweep_partitions(
    table: TableRef,
    context: RunContext,
    *,
    format: TableFormat,
    partitions: Collection[str] | None = None,
    grace: timedelta = WRITER_GRACE,
) -> SweepReport:
    """Sweep the previous locations of ``partitions``, or of all relocated partitions.

    Partitions locked by the cleaner, or by a plan at its commit, are left to the next round. A halted table is swept,
    and so is a halted partition, unless only a person can decide what to do there. Raises the errors of format and
    store; an error of one partition is raised after the other partitions have been swept.
    """
    if not isinstance(format, RelocatesPartitions):
        return SweepReport()
    known = _relocated_partitions(table, format, context.relocations, partitions)
    states, failed = inspect_each(table, format, known)
    known = [one for one in known if one.partition in states]
    if known:
        _quarantine_stalled_files(table, format, context.relocations, known, states)
    halted = context.relocations.halted_partitions(table) if known else {}
    swept = [one for one in known if one.is_waiting or _sweep_reason(one, states[one.partition]) is not None]
    due = [
        one.partition for one in swept if one.partition not in halted or not _needs_operator(one, states[one.partition])
    ]
    report = _sweep_each(table, format, context, due, partial(decide, grace=grace))
    # Deferred: when these files stop being recent, no directory time changes, so the watch would detect no change.
    report.deferred += [one.partition for one in known if has_recent_files(one, states[one.partition])]
    waiting = {one.partition for one in swept}.difference(due)
    report.halt_reasons |= {partition: halted[partition] for partition in sorted(waiting)}
    if failed is not None:
        raise failed
    return report


def resolve_partitions(
    table: TableRef,
    choice: LocationChoice,
    context: RunContext,
    *,
    format: TableFormat,
    partitions: Collection[str] | None = None,
) -> SweepReport:
    """Execute a person's choice for each partition whose files do not show what a late writer intended.

    ``partitions`` limits it to these partitions. Partitions locked by the sweep or a plan are deferred in the report.
    """
    if not isinstance(format, RelocatesPartitions):
        return SweepReport()
    known = _relocated_partitions(table, format, context.relocations, partitions)
    states = format.inspect_locations(table, known) if known else {}
    resolvable = (RelocationAction.WAIT, RelocationAction.HALT)
    due = [one.partition for one in known if decide(one, states[one.partition], timedelta()).action in resolvable]
    return _sweep_each(
        table, format, context, due, lambda record, state, waited: decide_by_choice(record, state, choice)
    )


def restore_original_locations(
    table: TableRef, context: RunContext, *, format: TableFormat, older_than: timedelta
) -> SweepReport:
    """Relocate partitions last relocated longer than ``older_than`` ago back into their own directories.

    The own directory of a partition is the one that the table's owner set last. Without further plans, the table
    becomes an ordinary table again. A partition whose own directory is not empty waits: replaced files there are
    deleted when their retention has passed. It also waits while another partition or table is read from that directory
    or from its present location, and while another partition, of this or of another table, has the directory as a
    previous location. Halted partitions are left out.
    """
    report = SweepReport()
    if not isinstance(format, RelocatesPartitions):
        return report
    known = [
        one
        for one in _relocated_partitions(table, format, context.relocations)
        if one.latest.location != one.owner_location and one.since_relocation >= older_than
    ]
    states = format.inspect_locations(table, known) if known else {}
    halted = context.relocations.halted_partitions(table) if known else {}
    known = [one for one in known if one.partition not in halted]
    directories = {
        one.partition: target
        for one in known
        if (target := _restore_target(decide_restore_location(one, states[one.partition]))) is not None
    }
    present = {one.partition: one.latest.location for one in known if one.partition in directories}
    decider = _RestoreDecider(table, cast(RelocatingFormat, format), context.relocations, directories, present)
    actions = {one.partition: decider.decide(one, states[one.partition], timedelta()).action for one in known}
    due = [partition for partition, action in actions.items() if action is RelocationAction.RELOCATE_BACK]
    report = _sweep_each(table, format, context, due, decider.decide, alongside_plans=False)
    report.waiting += sum(action is RelocationAction.WAIT for action in actions.values())
    return report


def _restore_target(decision: RelocationDecision) -> str | None:
    """Return the location to which a partition would move. None if it stays."""
    return decision.target_location if decision.action is RelocationAction.RELOCATE_BACK else None


class _ReaderSearch:
    """Looks for other readers of ``locations``, which has a location of each partition of a round.

    The readers are looked for again while the partitions are restored one after the other, since an owner may give a
    location to another partition meanwhile. Each search is for all partitions of the round, because it reads all
    partitions of the table.
    """

    def __init__(self, table: TableRef, format_: RelocatingFormat, locations: Mapping[str, str]) -> None:
        self._table, self._format, self._locations = table, format_, locations
        self._searched: Mapping[str, str] = {}
        self._readers: Mapping[str, str] = {}
        self._since_search, self._search_seconds = Stopwatch(), 0.0

    def find(self, partition: str, location: str) -> str | None:
        """Return a description of another reader of a partition's ``location``; None if there is none."""
        max_age = _SEARCH_INTERVAL_FACTOR * self._search_seconds
        if self._searched.get(partition) != location or self._since_search.elapsed_seconds > max_age:
            self._searched, self._since_search = {**self._locations, partition: location}, Stopwatch()
            self._readers = self._format.other_readers(self._table, self._searched)
            self._search_seconds = self._since_search.elapsed_seconds
        return self._readers.get(partition)


class _RestoreDecider:
    """Decides about restoring partitions, after a check of other readers of their own and of their present directories.

    Readers of the own directory would see the partition's rows. Readers of the present one would no longer see what is
    written to the partition. ``directories`` has the own directory of each partition, ``present`` its present one.
    """

    def __init__(
        self,
        table: TableRef,
        format_: RelocatingFormat,
        store: RelocationStore,
        directories: Mapping[str, str],
        present: Mapping[str, str],
    ) -> None:
        self._table, self._format, self._store = table, format_, store
        self._of_targets = _ReaderSearch(table, format_, directories)
        self._of_present = _ReaderSearch(table, format_, present)

    def decide(self, record: RelocatedPartition, state: PartitionState, waited: timedelta) -> RelocationDecision:
        """See ``decide_restore_location``. The partition waits while another one needs one of the two directories."""
        decision = decide_restore_location(record, state)
        if (target := _restore_target(decision)) is None:
            return decision
        present = record.latest.location
        readers = {
            target: self._of_targets.find(record.partition, target) or self._find_watching_partition(record, target),
            present: self._of_present.find(record.partition, present),
        }
        shared = {at: replace(state.locations[at], read_by=reader) for at, reader in readers.items() if reader}
        if not shared:
            return decision
        return decide_restore_location(record, replace(state, locations={**state.locations, **shared}))

    def _find_watching_partition(self, record: RelocatedPartition, location: str) -> str | None:
        """Return a description of another partition that left ``location`` too; None if there is none.

        Its late files may still arrive there, and it would take the restored partition's files for late files. It may
        be a partition of another table.
        """
        names = self._store.partitions_that_left(self._table, {location}) - {record.partition, *record.former_names}
        if (watcher := self._watching_partition(self._table, names, location)) is not None:
            return f"late files of {partition_label(watcher)} may arrive there"
        path = resolve_path(self._table.location, location)
        for table, names in self._store.other_tables_that_left(self._table, {location}):
            try:
                watcher = self._watching_partition(table, names, relative_path(table.location, path))
            except TableGone:
                continue
            except LakefoldError as error:  # partitions with other directories must not wait for this table
                return f"late files of table {table.name} may arrive there, which can't be inspected: {one_line(error)}"
            if watcher is not None:
                return f"late files of {partition_label(watcher)} of table {table.name} may arrive there"
        return None

    def _watching_partition(self, table: TableRef, names: Collection[str], location: str) -> str | None:
        """Return the first of these partitions of ``table`` that has ``location`` as a previous location in use."""
        others = _relocated_partitions(table, self._format, self._store, names) if names else ()
        states = self._format.inspect_locations(table, others) if others else {}
        for other in others:
            state = states[other.partition]
            is_watched = state.location == other.latest.location or reverted_by_writer(other, state) is not None
            if is_watched and not state.is_other_partition and location in _locations_in_use(other):
                return other.partition
        return None


def _relocated_partitions(
    table: TableRef,
    format_: TableFormat,
    store: RelocationStore,
    partitions: Collection[str] | None = None,
) -> Sequence[RelocatedPartition]:
    return only_of_current_table(table, format_, store.relocated_partitions(table, partitions))


def only_of_current_table(
    table: TableRef, format_: TableFormat, relocated: Sequence[RelocatedPartition]
) -> Sequence[RelocatedPartition]:
    """Return the relocated partitions that belong to the present table.

    Partitions of an earlier table of this name are left out. If the table was recreated, all files in its directories
    are part of the new table, even files that were replaced in the earlier table.
    """
    now = with_identity(format_, table) if relocated else table
    return [one for one in relocated if recreated_reason(now, one.table_identity) is None]


def inspect_each(
    table: TableRef, format_: RelocatesPartitions, relocated: Sequence[RelocatedPartition]
) -> tuple[Mapping[str, PartitionState], Transient | None]:
    """Return the state of each partition that can be inspected, and the error of the last one that can't.

    Raises Transient after ``_MAX_FAILED_INSPECTIONS`` failed calls.
    """
    states: dict[str, PartitionState] = {}
    failed: Transient | None = None
    parts, failures = [relocated] if relocated else [], 0
    while parts:
        part = parts.pop()
        try:
            states |= format_.inspect_locations(table, part)
        except Transient as error:
            failed, failures = error, failures + 1
            if failures >= _MAX_FAILED_INSPECTIONS:
                raise
            if len(part) > 1:
                parts += [part[: len(part) // 2], part[len(part) // 2 :]]
    return states, failed


def _sweep_each(
    table: TableRef,
    format_: RelocatesPartitions,
    context: RunContext,
    partitions: Sequence[str],
    decide: DecisionFunction,
    *,
    alongside_plans: bool = True,
) -> SweepReport:
    report = SweepReport()
    if not partitions:
        return report
    moving = cast(RelocatingFormat, format_)
    failed: Exception | None = None
    with moving.writer(table, context.spark) as writer:
        assert isinstance(writer, CopiesLateFiles)
        for partition in partitions:
            lock = PartitionLock(LockOwnerKind.SWEEP, table, moving, context.store, alongside_plans=alongside_plans)
            try:
                report.add(PartitionSweep(table, moving, context.relocations, writer, partition, decide, lock).run())
            except Exception as error:  # the other partitions must not wait for this one
                log.warning("table %s, %s was not swept: %s", table.name, partition_label(partition), one_line(error))
                failed = failed or error
    if failed is not None:
        raise failed
    return report


def _needs_operator(record: RelocatedPartition, state: PartitionState) -> bool:
    """True if a person has to decide what a writer intended before the partition can be swept."""
    is_at_rest = (
        not record.begun_relocations
        and all(late_copy.is_done for late_copy in record.late_copies)
        and not replaced_files_to_archive(record, state)
        and not unrecorded_growth(record, state)
        and not abandoned_copies(record, state)
    )
    decision = decide(record, state, timedelta())
    return is_at_rest and decision.action is RelocationAction.HALT and not decision.concerns_table


def has_recent_files(record: RelocatedPartition, state: PartitionState) -> bool:
    """True if a previous location has a file that was written too recently to be copied."""
    return any(
        UnreadyReason.RECENT in state.locations[previous.location].unready.values()
        for previous in record.previous_locations
    )


def _quarantine_stalled_files(
    table: TableRef,
    format_: TableFormat,
    store: RelocationStore,
    known: Sequence[RelocatedPartition],
    states: Mapping[str, PartitionState],
) -> None:
    """Record, for the table's status, files of previous locations that will not be copied as they are.

    Files in a location that the owner has given up may be those of another program. If another partition has left the
    same location as well, the sweep of that partition decides.
    """
    inspected = {
        location: states[one.partition].locations[location] for one in known for location in _locations_in_use(one)
    }
    locations = {previous.location for one in known for previous in one.previous_locations}
    if given_up := locations - inspected.keys():
        others = store.partitions_that_left(table, given_up) - {one.partition for one in known}
        used = [_locations_in_use(one) for one in _relocated_partitions(table, format_, store, others)]
        locations = locations.difference(*used)
    stalled = [
        file
        for there in inspected.values()
        if UnreadyReason.STALLED in there.unready.values()
        for file in there.files
        if there.unready.get(file.path) is UnreadyReason.STALLED
    ]
    store.quarantine_stalled_files(table, stalled, locations)


def _locations_in_use(record: RelocatedPartition) -> Collection[str]:
    """Return the previous locations that the owner has not given up: late files there are the partition's."""
    return {previous.location for previous in record.previous_locations if not previous.is_before_owner_move}


def _sweep_reason(record: RelocatedPartition, state: PartitionState) -> str | None:
    """Return why a round has to process a partition; None if nothing is to be done there."""
    if record.begun_relocations or any(not late_copy.is_done for late_copy in record.late_copies):
        return f"{partition_label(record.partition)}: a round of the sweep is not finished"
    if copies := abandoned_copies(record, state):
        return f"{partition_label(record.partition)}: a round of the sweep has left {copies[0]}"
    if replaced_files_to_archive(record, state):
        return f"{partition_label(record.partition)} was dropped, and replaced files are in its own directory"
    if unrecorded_growth(record, state):
        return f"{partition_label(record.partition)} has replaced files that have grown since they were recorded"
    decision = decide(record, state, timedelta())
    is_quiet = (
        decision.action is RelocationAction.NOTHING and not decision.superseded_files and not decision.emptied_locations
    )
    return None if is_quiet else decision.reason
