# SPDX-License-Identifier: Apache-2.0
"""Sweeps the former places of moved partitions and brings late writers' files in."""

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import cast

from executors.keeping import Keeping
from executors.late_round import Decide, LateReport, MovesPartitions, PartitionRound
from lake.model import TableRef, words_of
from lake.moved import Moved, PartitionSeen
from lake.optional import CarriesLateFiles, LeavesPlaces, identified, made_anew
from lake.place_store import PlaceStore
from lake.places import WRITER_GRACE, Action, Take, decide, go_home, left_behind, resolve
from lake.plan import KeeperKind
from lake.plan_store import PlanStore
from lake.ports import SparkProvider, TableFormat


def awaiting_sweep(
    table: TableRef, *, format: TableFormat, store: PlanStore, partitions: Collection[str]
) -> Mapping[str, str]:
    """Those of ``partitions`` that the sweep has to see to first, each with why.

    Somebody has changed a former place, or a round has begun there. Nothing is planned, committed or deleted in them
    before the sweep has been.
    """
    if not isinstance(format, LeavesPlaces):
        return {}
    known = _known(table, format, store, partitions)
    seen = format.standing(table, known) if known else {}
    reasons = {one.partition: _why_swept(one, seen[one.partition]) for one in known}
    return {partition: reason for partition, reason in reasons.items() if reason is not None}


def sweep_places(
    table: TableRef,
    *,
    format: TableFormat,
    store: PlaceStore,
    spark: SparkProvider,
    partitions: Collection[str] | None = None,
    within: timedelta | None = None,
    grace: timedelta = WRITER_GRACE,
) -> LateReport:
    """Look at the former places of ``partitions``, or of those last moved ``within`` that time; do what is to be done.

    What the cleaner holds, or a plan at its commit, is left for the next round. Raises what format and store raise.
    """
    if not isinstance(format, LeavesPlaces):
        return LateReport()
    known = _known(table, format, store, partitions, within)
    seen = format.standing(table, known) if known else {}
    due = [one.partition for one in known if one.unsettled or _why_swept(one, seen[one.partition]) is not None]
    return _rounds(table, format, store, spark, due, partial(decide, grace=grace))


def resolve_places(
    table: TableRef, take: Take, *, format: TableFormat, store: PlaceStore, spark: SparkProvider
) -> LateReport:
    """Do what a person has said, of each partition of which the files do not tell what a late writer meant."""
    if not isinstance(format, LeavesPlaces):
        return LateReport()
    known = _known(table, format, store)
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
    actions = {one.partition: go_home(one, seen[one.partition]).action for one in known}
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
    within: timedelta | None = None,
) -> Sequence[Moved]:
    """The partitions that were moved, of the table that there is.

    Of one that was made anew under its name they are not: what lies in its directories is what its owner wants to be
    read there, though it was replaced in the table before.
    """
    known = store.moved(table, partitions, within=within)
    now = identified(format_, table) if known else table
    return [one for one in known if made_anew(now, one.identity) is None]


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
    with moving.writer(table, spark) as writer:
        assert isinstance(writer, CarriesLateFiles)
        for partition in partitions:
            if report.halted is None:
                keeping = Keeping(KeeperKind.SWEEP, table, moving, store, beside_plans=beside_plans)
                PartitionRound(table, moving, store, writer, partition, decide, report, keeping).run()
    return report


def _why_swept(record: Moved, seen: PartitionSeen) -> str | None:
    """Why a round has to look at a partition; None where nothing is to be done there."""
    if record.begun or any(not carry.done for carry in record.carries):
        return f"{words_of(record.partition)}: a round of the sweep has begun to bring late files in"
    if left_behind(record, seen):
        return f"{words_of(record.partition)} was dropped, and replaced files are in its own directory"
    decision = decide(record, seen, timedelta())
    is_quiet = decision.action is Action.NOTHING and not decision.aside and not decision.cleared
    return None if is_quiet else decision.reason
