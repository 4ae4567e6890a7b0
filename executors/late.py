# SPDX-License-Identifier: Apache-2.0
"""Sweeps the former places of moved partitions and brings late writers' files in."""

import logging
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import cast

from executors.keeping import Keeping
from executors.late_round import Decide, LateReport, MovesPartitions, PartitionRound
from lake.errors import Transient, one_line
from lake.model import TableRef, words_of
from lake.moved import Moved, PartitionSeen, Unready
from lake.optional import CarriesLateFiles, LeavesPlaces, identified, made_anew
from lake.place_store import PlaceStore
from lake.places import WRITER_GRACE, Action, Take, decide, go_home, left_behind, resolve
from lake.plan import KeeperKind
from lake.plan_store import PlanStore
from lake.ports import SparkProvider, TableFormat

log = logging.getLogger(__name__)

#: one directory that can't be listed costs fourteen among ten thousand partitions; without a metastore all fail
_MOST_LOOKS_THAT_FAIL = 40


def awaiting_sweep(
    table: TableRef, *, format: TableFormat, store: PlanStore, partitions: Collection[str]
) -> Mapping[str, str]:
    """Those of ``partitions`` that the sweep has to see to first, each with why.

    Somebody has changed a former place, or a round has begun there, or a person has to say what a writer meant. Nothing
    is planned, committed or deleted in them before that has been seen to.
    """
    if not isinstance(format, LeavesPlaces):
        return {}
    known = _known(table, format, store, partitions)
    seen = format.standing(table, known) if known else {}
    found = {one.partition: _why_swept(one, seen[one.partition]) for one in known}
    # After the look: a round that halts a partition may also have ended what was seen there.
    halted = store.halted_partitions(table)
    reasons = {one: f"{words_of(one)} is halted: {halted[one]}" for one in partitions if one in halted}
    return {partition: reason for partition, reason in found.items() if reason is not None} | reasons


def sweep_places(
    table: TableRef,
    *,
    format: TableFormat,
    store: PlaceStore,
    spark: SparkProvider,
    partitions: Collection[str] | None = None,
    grace: timedelta = WRITER_GRACE,
) -> LateReport:
    """Look at the former places of ``partitions``, or of all that were moved; do what is to be done.

    What the cleaner holds, or a plan at its commit, is left for the next round. A halt, of the table or of a partition,
    ends nothing of this: it is about rewriting. Raises what format and store raise, where that concerns one partition
    after the others have been seen to.
    """
    if not isinstance(format, LeavesPlaces):
        return LateReport()
    known = _known(table, format, store, partitions)
    seen, failed = seen_of_each(table, format, known)
    known = [one for one in known if one.partition in seen]
    if known:
        _name_stalled(table, store, known, seen)
    halted = store.halted_partitions(table) if known else {}
    swept = [one for one in known if one.unsettled or _why_swept(one, seen[one.partition]) is not None]
    due = [
        one.partition
        for one in swept
        if one.partition not in halted or not _waits_for_a_person(one, seen[one.partition])
    ]
    report = _rounds(table, format, store, spark, due, partial(decide, grace=grace))
    # Nothing tells of it any more when it has settled: it changes no time of a directory, as a file that is made does.
    report.held += [one.partition for one in known if settles(one, seen[one.partition])]
    waiting = {one.partition for one in swept}.difference(due)
    report.halts |= {partition: halted[partition] for partition in sorted(waiting)}
    if failed is not None:
        raise failed
    return report


def resolve_places(
    table: TableRef,
    take: Take,
    *,
    format: TableFormat,
    store: PlaceStore,
    spark: SparkProvider,
    partitions: Collection[str] | None = None,
) -> LateReport:
    """Do what a person has said, of each partition of which the files do not tell what a late writer meant.

    Of ``partitions`` only, where they are named. What the sweep has just then, or a plan, is in the report as held.
    """
    if not isinstance(format, LeavesPlaces):
        return LateReport()
    known = _known(table, format, store, partitions)
    seen = format.standing(table, known) if known else {}
    asked = (Action.WAIT, Action.HALT)
    due = [one.partition for one in known if decide(one, seen[one.partition], timedelta()).action in asked]
    return _rounds(table, format, store, spark, due, lambda record, seen, waited: resolve(record, seen, take))


def bring_home(
    table: TableRef, *, format: TableFormat, store: PlaceStore, spark: SparkProvider, older_than: timedelta
) -> LateReport:
    """Move partitions that were last moved longer than that ago into the directories that were their own.

    So what is at rest is an ordinary table again. One whose own directory is not empty yet waits: what was replaced
    there is deleted when its retention has passed.
    """
    report = LateReport()
    if not isinstance(format, LeavesPlaces):
        return report
    known = [one for one in _known(table, format, store) if one.last.place != one.home and one.age >= older_than]
    seen = format.standing(table, known) if known else {}
    halted = store.halted_partitions(table) if known else {}
    actions = {one.partition: go_home(one, seen[one.partition]).action for one in known if one.partition not in halted}
    due = [partition for partition, action in actions.items() if action is Action.MOVE_BACK]
    report = _rounds(
        table, format, store, spark, due, lambda record, seen, waited: go_home(record, seen), beside_plans=False
    )
    report.waiting += sum(action is Action.WAIT for action in actions.values())
    return report


def _known(
    table: TableRef,
    format_: TableFormat,
    store: PlanStore,
    partitions: Collection[str] | None = None,
) -> Sequence[Moved]:
    return of_this_table(table, format_, store.moved(table, partitions))


def of_this_table(table: TableRef, format_: TableFormat, known: Sequence[Moved]) -> Sequence[Moved]:
    """Those of moved partitions that are of the table that there is.

    Of one that was made anew under its name they are not: what lies in its directories is what its owner wants to be
    read there, though it was replaced in the table before.
    """
    now = identified(format_, table) if known else table
    return [one for one in known if made_anew(now, one.identity) is None]


def seen_of_each(
    table: TableRef, format_: LeavesPlaces, known: Sequence[Moved]
) -> tuple[Mapping[str, PartitionSeen], Transient | None]:
    """What is there of each partition that can be looked at, and the error of the last one that can't be.

    Raises Transient where nothing can be looked at, or too much can't be.
    """
    seen: dict[str, PartitionSeen] = {}
    failed: Transient | None = None
    parts, failures = [known] if known else [], 0
    while parts:
        part = parts.pop()
        try:
            seen |= format_.standing(table, part)
        except Transient as error:
            failed, failures = error, failures + 1
            if failures >= _MOST_LOOKS_THAT_FAIL:
                raise
            if len(part) > 1:
                parts += [part[: len(part) // 2], part[len(part) // 2 :]]
    return seen, failed


def _rounds(
    table: TableRef,
    format_: LeavesPlaces,
    store: PlaceStore,
    spark: SparkProvider,
    partitions: Sequence[str],
    decide: Decide,
    *,
    beside_plans: bool = True,
) -> LateReport:
    report = LateReport()
    if not partitions:
        return report
    moving = cast(MovesPartitions, format_)
    failed: Exception | None = None
    with moving.writer(table, spark) as writer:
        assert isinstance(writer, CarriesLateFiles)
        for partition in partitions:
            keeping = Keeping(KeeperKind.SWEEP, table, moving, store, beside_plans=beside_plans)
            try:
                PartitionRound(table, moving, store, writer, partition, decide, report, keeping).run()
            except Exception as error:  # the other partitions must not wait for this one
                log.warning("table %s, %s was not swept: %s", table.name, words_of(partition), one_line(error))
                failed = failed or error
    if failed is not None:
        raise failed
    return report


def _waits_for_a_person(record: Moved, seen: PartitionSeen) -> bool:
    """Whether nothing can be done about a partition before a person has said what a writer meant."""
    is_at_rest = not record.begun and all(carry.done for carry in record.carries) and not left_behind(record, seen)
    decision = decide(record, seen, timedelta())
    return is_at_rest and decision.action is Action.HALT and not decision.of_table


def settles(record: Moved, seen: PartitionSeen) -> bool:
    """Whether a former place has a file that was written too short a while ago to be carried."""
    return any(Unready.SETTLING in seen.places[former.place].unready.values() for former in record.former)


def _name_stalled(
    table: TableRef, store: PlaceStore, known: Sequence[Moved], seen: Mapping[str, PartitionSeen]
) -> None:
    """Have the table's status name files of former places that will not be carried as they are."""
    looked = {former.place: seen[one.partition].places[former.place] for one in known for former in one.former}
    stalled = [
        file
        for there in looked.values()
        if Unready.STALLED in there.unready.values()
        for file in there.files
        if there.unready.get(file.path) is Unready.STALLED
    ]
    store.name_stalled(table, stalled, looked.keys())


def _why_swept(record: Moved, seen: PartitionSeen) -> str | None:
    """Why a round has to look at a partition; None where nothing is to be done there."""
    if record.begun or any(not carry.done for carry in record.carries):
        return f"{words_of(record.partition)}: a round of the sweep has begun to bring late files in"
    if left_behind(record, seen):
        return f"{words_of(record.partition)} was dropped, and replaced files are in its own directory"
    decision = decide(record, seen, timedelta())
    is_quiet = decision.action is Action.NOTHING and not decision.aside and not decision.cleared
    return None if is_quiet else decision.reason
