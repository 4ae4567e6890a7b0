# SPDX-License-Identifier: Apache-2.0
"""Planted defects: each is a deliberate bug in the real code, or in the simulated port that replaces it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import executors.commit_status
import executors.run
import executors.sweep
from executors.uncommitted_work import UncommittedWork
from lake.errors import LeaseLost
from lake.plan import Commit, PlanState
from simulation.daemons import Daemon
from simulation.port import ModelFormat
from simulation.records import Row
from simulation.shapes.locations.port import LocationsFormat, LocationsWriter
from simulation.shapes.locations.table import LocationsTable
from simulation.shapes.staged import StagedFormat, StagedWriter
from simulation.shapes.timeline.port import TimelineFormat, TimelineWriter
from simulation.shapes.timeline.table import FIRST_TIME, TableLock, TimelineTable
from simulation.shapes.versions.port import VersionsWriter
from simulation.shapes.versions.table import VersionsTable
from simulation.store import ModelStore
from simulation.table import Table

Planted = Callable[[], AbstractContextManager[Any]]


def replaced(owner: Any, name: str, by: Any) -> Planted:
    """A defect that replaces one attribute."""
    return lambda: patch.object(owner, name, by)


# The record of a clean for the archiver.


def _earliest_of_completed(writer: TimelineWriter, victims: tuple[str, ...]) -> str:
    groups = {file.group for path, file in writer.table.files.items() if path not in victims}
    done = [i for i in writer.table.timeline.values() if i.completed]
    return min((i.time for i in done if any(group in groups for _, group in i.replaces)), default="")


def _text_order(table: TimelineTable, number: int) -> str:
    return str(number - FIRST_TIME + 9_000)


def _retained_as_archived(writer: TimelineWriter, versions: Any) -> str:
    return writer.earliest([version.path for version in versions])


# Exclusion.


def _lock_of_the_process(writer: TimelineWriter) -> TableLock:
    current = writer.world.scheduler.current
    assert current is not None
    return current.process.locks.setdefault(writer.table.name, TableLock())


# The database.


def _unfenced(store: ModelStore, claim: Any) -> Row:
    row = store.plans.get(claim.plan.plan_id)
    if row is None or row.state is not PlanState.INFLIGHT:
        raise LeaseLost("moved on")
    return row


def _host_says_it_is_over(store: ModelStore, row: Row) -> bool:
    assert store.world.scheduler.current is not None
    return row.lease_until <= store.now() + store.world.scheduler.current.process.skew


def _hosts_clock(store: ModelStore) -> float:
    assert store.world.scheduler.current is not None
    return store.now() + store.world.scheduler.current.process.skew


@contextmanager
def _cancel_before_asking() -> Iterator[None]:
    expired = ModelStore.take_over_expired

    def cancelled_at_once(store: ModelStore, executor: str) -> Any:
        claim = expired(store, executor)
        if claim is not None and store.plans[claim.plan.plan_id].cancel_asked:
            store.cancel(claim, "asked to", actor=executor)
            return None
        return claim

    with patch.object(ModelStore, "take_over_expired", cancelled_at_once):
        yield


def _twice_held(store: ModelStore, table: str, partitions: Any) -> dict[str, str]:
    return {}


# The executor.


def _withdraw_whatever_there_is(left: Any, writer: TimelineWriter, instants: object) -> int:
    return int(writer.withdraw(left._plan_id, None))


def _no(*_: object) -> bool:
    return False


def _yes(*_: object) -> bool:
    return True


def _is_not_halted(daemon: Daemon, table: Table) -> bool:
    return daemon.store.tables[table.name].halted is None


def _of_todays_name(format_: LocationsFormat, table: LocationsTable, partition: str) -> set[str]:
    return {one.location for one in table.earlier if one.partition == partition and one.table == table.name}


def _nothing(*_: object) -> None:
    """Replaces a check."""


@contextmanager
def _asked_once() -> Iterator[None]:
    never = property(_no, lambda landing, value: None)
    with patch.object(executors.commit_status.CommitStatus, "is_commit_possible", never, create=True):
        yield


@contextmanager
def _without_receipt() -> Iterator[None]:
    with patch.object(executors.run, "verify_rewrite", lambda *args, **kwargs: None):
        yield


# The adapter.


def _any_instant(writer: TimelineWriter, plan_id: str, instants: Any) -> list[Any]:
    every = writer.table.timeline.values()
    return [i for i in every if i.plan_id == plan_id and (instants is None or i.time in instants)]


@contextmanager
def _own_instant_is_foreign() -> Iterator[None]:
    """The instant of a dead executor is taken for a writer's: it is not withdrawn, nor recognized by its plan."""
    known = TimelineWriter.withdrawable

    def of_the_living(writer: TimelineWriter, plan_id: str, instants: Any) -> list[Any]:
        return [i for i in known(writer, plan_id, instants) if i.owner is None or not i.owner.dead]

    withdrawable = patch.object(TimelineWriter, "withdrawable", of_the_living)
    with withdrawable, patch.object(TimelineWriter, "is_pending", _no):
        yield


@contextmanager
def _asks_nobody() -> Iterator[None]:
    closes_nothing = patch.object(ModelFormat, "obsolete_deletions", lambda format_, table, versions: {})
    patched = [patch.object(format_, "reasons_to_keep", _all_deletable) for format_ in (TimelineFormat, StagedFormat)]
    with closes_nothing, patched[0], patched[1]:
        yield


def _all_deletable(format_: ModelFormat, table: Table, versions: Any) -> dict[str, None]:
    return dict.fromkeys((version.path for version in versions), None)


def _nothing_replaced(store: ModelStore, commit: Commit) -> tuple[()]:
    return ()


DEFECTS: MappingProxyType[str, Planted] = MappingProxyType(
    {
        "clean-forgets-pending": replaced(TimelineWriter, "earliest", _earliest_of_completed),
        "lock-of-one-process": replaced(TimelineWriter, "own_lock", _lock_of_the_process),
        "unknown-stays-pending": replaced(TimelineWriter, "may_roll_back", lambda writer, instant: False),
        "table-asked-once": _asked_once,
        "concurrency-of-the-planning": replaced(
            ModelStore, "concurrency_of", lambda store, row: row.plan.table.concurrency
        ),
        "damage-goes-unseen": replaced(ModelFormat, "damaged", lambda format_, table, group: False),
        "order-by-text": replaced(TimelineTable, "time_of", _text_order),
        "no-epochs": replaced(ModelStore, "hold", _unfenced),
        "cancel-before-asking": _cancel_before_asking,
        "discard-takes-commits": replaced(TimelineWriter, "withdrawable", _any_instant),
        "lease-by-the-hosts-clock": replaced(ModelStore, "lease_is_over", _host_says_it_is_over),
        "retention-by-the-hosts-clock": replaced(ModelStore, "retention_now", _hosts_clock),
        "no-second-look": replaced(TimelineWriter, "look_again", lambda writer, prepared: None),
        "sweep-takes-live-work": replaced(executors.sweep, "LIVE_STATES", frozenset()),
        "superseded-not-recorded": replaced(ModelStore, "replaced", _nothing_replaced),
        "cleaner-asks-nobody": _asks_nobody,
        "partitions-held-twice": replaced(ModelStore, "taken", _twice_held),
        "sleeper-withdraws-its-successor": replaced(UncommittedWork, "withdraw", _withdraw_whatever_there_is),
        "no-receipt": _without_receipt,
        "late-files-forgotten": replaced(TimelineFormat, "instants_with_stragglers", lambda format_, table: ()),
        "savepoints-forgotten": replaced(ModelFormat, "saved", lambda format_, table: set()),
        "own-instant-counted-as-foreign": _own_instant_is_foreign,
        "pending-groups-planned": replaced(TimelineWriter, "pending_groups", lambda writer: {}),
        "staging-not-journalled": replaced(StagedWriter, "tell", lambda writer, staged: None),
        "journal-not-swept": replaced(executors.sweep, "_withdraw_orphaned_stagings", lambda *round_: 0),
        "commits-found-by-nothing": replaced(StagedFormat, "found", lambda format_, ref, plan_ids: {}),
        "evidence-ignored": replaced(LocationsWriter, "look_again", lambda writer, evidence: None),
        "call-sent-however-late": replaced(LocationsWriter, "is_too_late", _no),
        "call-under-way-forgotten": replaced(ModelStore, "lasts", lambda store, at_least: 0.0),
        "no-compare-and-set": replaced(VersionsTable, "is_taken", _no),
        "withdrawn-without-a-version": replaced(VersionsWriter, "withdraw_tokens", lambda writer, wanted: ()),
        "left-by-the-log-alone": replaced(VersionsTable, "needed", lambda table: set()),
        "clock-behind-the-table": replaced(TimelineWriter, "is_behind", _no),
        "clock-ahead-of-the-storage": replaced(TimelineWriter, "is_ahead", _no),
        "pending-restore-unseen": replaced(TimelineWriter, "look_at_owner", _nothing),
        "lock-not-confirmed": replaced(TimelineWriter, "confirm", _nothing),
        "no-second-look-after-the-fence": replaced(TimelineWriter, "has_moved", _no),
        "lock-given-back-without-proof": replaced(TimelineWriter, "keeps_locks", _no),
        "index-as-it-was-at-the-opening": replaced(TimelineWriter, "look_at_properties", _nothing),
        "clean-promises-too-much": replaced(TimelineWriter, "retained_from", _retained_as_archived),
        "services-trust-the-database": replaced(TimelineWriter, "kept_by_timeline", lambda writer: set()),
        "old-cleans-run-without-a-look": replaced(TimelineWriter, "is_of_use", _yes),
        "one-table-looked-at": replaced(LocationsFormat, "of_other_tables", lambda format_, table: ()),
        "pointed-back-taken-for-its-owners-move": replaced(LocationsFormat, "is_pointed_back", _no),
        "halt-ends-the-duty": replaced(Daemon, "may_put_back", _is_not_halted),
        "moves-known-by-name": replaced(LocationsFormat, "earlier_locations", _of_todays_name),
        "unfinished-file-carried": replaced(LocationsFormat, "unfinished", lambda format_, table, partition: ()),
        "first-retention-counts": replaced(ModelStore, "close_replaced_again", _no),
    }
)
"""Name → what plants it."""
