# SPDX-License-Identifier: Apache-2.0
"""Scan a table and plan it: one function for the scheduler's ticks, requests, dry runs and ``explain``."""

import logging
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from lake import capabilities
from lake.capabilities import PendingAction
from lake.errors import LakefoldError, Rejected, TableGone, Transient, one_line
from lake.model import Snapshot, TableRef
from lake.plan import Plan, PlanKind
from lake.ports import Capability
from lake.storage.locations import is_local
from lake.units import format_bytes
from planner.partitions import select_partitions
from planner.policy.compatibility import unsupported_settings
from planner.reasons import Reason
from planner.result import PlanningResult
from planner.slo.evaluate import evaluate_objectives
from service import problems
from service.control.config.loader import Config
from service.control.config.tables import ConfiguredTable, configure_table
from service.control.planning.adoption import adopt_pending_actions
from service.control.planning.decision_summary import make_scan_record
from service.control.planning.outdated_proposals import (
    OutdatedProposal,
    exclude_stale_actions,
    find_outdated_proposals,
    mark_all_outdated,
)
from service.control.planning.plan_request import PlanResponse, plan_document
from service.control.planning.refusals import (
    missing_required_rules,
    partitions_locked_error,
    planning_refusal,
)
from service.control.planning.session import (
    PlanningScope,
    PlanningSession,
    snapshot_partitions,
)
from service.control.store.errors import NotFound
from service.control.store.views import Request, ScanRecord, TableState
from service.modes import PLANNED_MODES
from service.problems import ProblemError
from service.text import did_you_mean

if TYPE_CHECKING:
    from service.control.store import Store

logger = logging.getLogger(__name__)

#: maximum number of plans of one request for a whole table; later scans plan the other files
MAX_PLANS_PER_REQUEST = 100
#: when to scan reported partitions again if the table has its maximum of live plans; such a scan is cheap
_SLOT_RETRY = timedelta(seconds=5)
_WAITING_FOR_SLOT = (
    Reason.CHOSEN,
    Reason.NEXT_PLAN_GROUPS,
    Reason.NEXT_PLAN_SLICES,
    Reason.NEXT_PLAN_BYTES,
    Reason.NEXT_PLAN_KIND,
)


def scan_and_plan(
    config: Config,
    store: "Store",
    table: ConfiguredTable,
    *,
    request: Request | None = None,
    actor: str,
    dry_run: bool = False,
    unfinished: Callable[[], Sequence[PendingAction]] | None = None,
) -> PlanResponse:
    """Scan ``table``, record the scan, and store the plans that policy and live plans leave room for.

    Without a ``request`` this is a tick. A table that may not be planned (``planning_refusal``) is only scanned. For
    other tables, no more plans are stored than executors can claim soon; in mode propose these plans wait for approval.

    A request plans all free partitions, including partitions that proposals hold, without approval. It raises
    ProblemError if the table may not be planned, a partition does not exist, or all partitions are held. A dry run
    stores no plan and raises the same errors, except that it plans a table that may not be planned. ``unfinished``
    returns the table's pending actions; without it they are read here.

    Raises OverrideError for bad overrides, Rejected for a kind of plan that the format does not have, and the outcomes
    of ``lake.errors`` if the table can't be read. That failure is recorded as the table's last scan, except for a
    request with overrides.
    """
    if request is not None and request.overrides:
        table = configure_table(config, table.ref, request.overrides)
    if request is not None and request.kind is PlanKind.COMPACTION:
        capabilities.require_capability(table.adapter, table.ref, Capability.COMPACTION)
    dry_run = dry_run or (request is not None and request.dry_run)
    state = _register_table(store, table, is_update=request is not None)
    # Read before the snapshot and again after it: files that a plan replaces in between are live in the snapshot.
    ending, proposals = store.locked_partitions(table.name), store.proposals(table.name)
    refused, not_planned = planning_refusal(config, store, table, state), missing_required_rules(config, table)
    if request is not None and refused is not None and not dry_run:
        raise refused
    snapshot = _read_snapshot(store, table, record_failure=request is None or not request.overrides)
    table = _with_current_identity(store, table, snapshot, state)
    requested = _requested_partitions(snapshot, request)
    pending: Sequence[PendingAction] = ()
    adopted: list[Plan] = []
    if refused is None and not dry_run:
        pending = unfinished() if unfinished else capabilities.pending_actions(table.adapter, table.ref)
        executable = [entry for entry in pending if table.policy.adopt_pending or entry.must_execute]
        if table.mode == "propose":
            executable = exclude_stale_actions(executable, snapshot)
        adopted = adopt_pending_actions(store, table, executable, snapshot_instant=snapshot.instant, actor=actor)
    if request is not None:
        old = mark_all_outdated(proposals, f"{request.actor} asked for plans")
    elif refused is None or table.mode != "propose":
        old = find_outdated_proposals(proposals, table, snapshot, pending)
    else:
        old = {}
    held = _without_outdated(store.locked_partitions(table.name), old)
    rounds = PlanningSession(
        store=store,
        table=table,
        state=state,
        snapshot=snapshot,
        scope=(
            PlanningScope(partitions=requested)
            if request is None
            else PlanningScope(partitions=requested, kind=request.kind, is_requested=True)
        ),
        locked_partitions=_without_outdated(ending, old) | held,
        outdated_proposals=old,
    )
    rounds.plan_documents += [plan_document(plan, {}) for plan in adopted]
    planning = rounds.plan()
    if request is None or not (request.overrides or request.partitions or request.kind):
        account = rounds.summarize(planning)
        seconds = (datetime.now(UTC) - snapshot.taken_at).total_seconds()
        scan = replace(make_scan_record(account, seconds), not_planned=not_planned)
        store.record_scan(scan, account.partition_table, evaluate_objectives(planning, table.policy))
        store.record_declines_in_effect(planning.declines_in_effect)
    if refused is not None and not dry_run:
        _withdraw_outdated(store, rounds, actor)
        return rounds.response(planning, "observed", refused.args[0])
    most = _free_slots(table, held) if request is None and not dry_run else MAX_PLANS_PER_REQUEST
    planning = rounds.plan_and_store(planning, most + len(adopted), dry_run=dry_run, request=request, actor=actor)
    if request is None and not dry_run:
        _withdraw_outdated(store, rounds, actor)
    if rounds.plan_documents:
        verb = "would create" if dry_run else "proposed" if rounds.needs_approval else "created"
        answer = rounds.response(
            planning, "dry_run" if dry_run else "planned", _plans_text(rounds.plan_documents, verb)
        )
        return replace(answer, refused="" if refused is None else refused.args[0])
    if request is not None and refused is None:
        holders = rounds.blocking_plans()
        if holders:
            raise partitions_locked_error(table.name, holders)
    if rounds.is_over_budget:
        return rounds.response(planning, "nothing", f"the budget of {table.name} is used up; later scans plan it")
    return rounds.response(planning, "nothing", f"nothing to do for {table.name}")


def explain_table(store: "Store", table: ConfiguredTable, partition: str | None = None) -> PlanningResult:
    """Return a fresh planning of ``table`` (or of one partition) with the decision for each slice; stores nothing.

    Raises the errors of a scan: a table that a scan refuses is refused here.
    """
    state = next(iter(store.table_states([table.name])), None)
    snapshot = _read_snapshot(store, table, record_failure=False, partitions=None if partition is None else [partition])
    if partition is not None and snapshot.slices.num_rows == 0:
        _requested_partitions(table.adapter.snapshot(table.ref), None, [partition])
    rounds = PlanningSession(
        store=store,
        table=table,
        state=state,
        snapshot=snapshot,
        scope=PlanningScope(),
        locked_partitions=store.locked_partitions(table.name),
    )
    return rounds.plan()


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenScan:
    """The result of scanning partitions that writers reported: stored plans, and when to scan which partition again.

    ``is_listed`` is False if nothing could be planned, so that the table was not listed.
    """

    is_listed: bool = False
    plan_ids: tuple[str, ...] = ()
    rescan_in: Mapping[str | None, timedelta] = field(default_factory=dict)


def scan_written_partitions(
    config: Config, store: "Store", table: ConfiguredTable, partitions: Collection[str], *, actor: str
) -> WrittenScan:
    """Run a tick for only the ``partitions`` that a writer reported. A deleted partition is not an error.

    The record of the last scan of the whole table stays. ``rescan_in`` has two kinds of partitions. For partitions
    whose files are only too young, it has the time until the quiet period of the youngest file ends. For partitions
    that could be planned as soon as a running plan ends, it has a short time. Raises the outcomes of ``lake.errors`` if
    the table can't be read.
    """
    if table.mode not in PLANNED_MODES or missing_required_rules(config, table) is not None:
        return WrittenScan()
    state = store.table_state(table.name)
    if planning_refusal(config, store, table, state) is not None:  # the reports are due again after the resume
        return WrittenScan(rescan_in=dict.fromkeys(partitions, timedelta()))
    held = store.locked_partitions(table.name)
    room = _free_slots(table, held)
    if not room:
        # Scan again soon only if plans fill the slots: plans end within minutes, but proposals may wait for days.
        soon = not _free_slots(table, store.locked_partitions(table.name, include_proposals=False))
        return WrittenScan(rescan_in=dict.fromkeys(partitions, _SLOT_RETRY) if soon else {})
    # Some filters depend on a partition's position among all partitions.
    narrow = None if table.policy.needs_all_partitions else sorted(partitions)
    snapshot = _read_snapshot(store, table, record_failure=False, partitions=narrow)
    table = _with_current_identity(store, table, snapshot, state)
    selected = select_partitions(snapshot_partitions(snapshot), table.policy, now=snapshot.taken_at)
    requested = [name for name in selected if name in partitions]
    rounds = PlanningSession(
        store=store,
        table=table,
        state=state,
        snapshot=snapshot,
        scope=PlanningScope(partitions=requested),
        locked_partitions=held,
    )
    last = rounds.plan_and_store(rounds.plan(), room, dry_run=False, request=None, actor=actor)
    plan_ids = tuple(plan["plan_id"] for plan in rounds.plan_documents)
    return WrittenScan(
        is_listed=True,
        plan_ids=plan_ids,
        rescan_in=_rescan_in(last, snapshot, is_within_budget=not rounds.is_over_budget),
    )


def _rescan_in(planning: PlanningResult, snapshot: Snapshot, *, is_within_budget: bool) -> dict[str | None, timedelta]:
    """Return when to scan again the partitions whose slices wait only for time or for room for another plan.

    Slices that do not fit into the table's budget are left to scans of the whole table, since their wait may take
    hours.
    """
    rows = pa.table(
        {
            "partition": planning.decisions["partition"].cast(pa.string()),
            "reason": planning.decisions["reason"].cast(pa.string()),
            "modified_at": snapshot.slices["modified_at"],
        }
    )
    waiting = [Reason.RECENT, *(_WAITING_FOR_SLOT if planning.plan is not None and is_within_budget else ())]
    rows = rows.filter(pc.is_in(rows["reason"], pa.array([reason.value for reason in waiting])))
    youngest = rows.group_by(["partition", "reason"]).aggregate([("modified_at", "max")]).to_pylist()
    rescan_after: dict[str | None, timedelta] = {}
    for row in youngest:
        wait = _SLOT_RETRY
        if row["reason"] == Reason.RECENT:
            wait = max(timedelta(), row["modified_at_max"] + planning.policy.quiet_period - snapshot.taken_at)
        rescan_after[row["partition"]] = min(wait, rescan_after.get(row["partition"], wait))
    return rescan_after


def _register_table(store: "Store", table: ConfiguredTable, *, is_update: bool) -> TableState:
    """Return the state of ``table``, registered if it is new; with ``is_update`` its registration is updated.

    The scheduler updates it before a tick, under the lock of its configuration.
    """
    if not is_update:
        with suppress(NotFound):
            return store.table_state(table.name)
    store.register_table(table.ref, table.mode, table.owner, table.tags, table.resource_group)
    return store.table_state(table.name)


def _with_current_identity(
    store: "Store", table: ConfiguredTable, snapshot: Snapshot, state: TableState
) -> ConfiguredTable:
    """Return ``table`` with the identity in the snapshot; register it if the table was dropped and created again."""
    found = snapshot.table
    if found.identity != state.ref.identity:
        store.register_table(found, table.mode, table.owner, table.tags, table.resource_group)
        another = capabilities.recreated_reason(found, state.ref.identity)
        if another is not None:
            logger.warning("%s", another)
    return replace(table, ref=found)


def _without_outdated(locked_partitions: Mapping[str, str], outdated: Mapping[str, OutdatedProposal]) -> dict[str, str]:
    """Return ``locked_partitions`` without the partitions that outdated proposals hold."""
    return {partition: plan_id for partition, plan_id in locked_partitions.items() if plan_id not in outdated}


def _withdraw_outdated(store: "Store", session: PlanningSession, actor: str) -> None:
    """Withdraw the outdated proposals that no new plan has replaced."""
    reasons = {plan_id: f"withdrawn: {proposal.reason}" for plan_id, proposal in session.outdated_proposals.items()}
    store.withdraw_proposals(reasons, actor=actor)


def _free_slots(table: ConfiguredTable, locked_partitions: Mapping[str, str]) -> int:
    """Return the number of plans of the table that executors can claim soon, besides the live ones."""
    return max(0, table.policy.max_inflight_per_table + 1 - len(set(locked_partitions.values())))


def _read_snapshot(
    store: "Store", table: ConfiguredTable, *, record_failure: bool, partitions: Collection[str] | None = None
) -> Snapshot:
    began = time.monotonic()
    try:
        snapshot = list_table(table, partitions)
    except (LakefoldError, OSError) as error:
        if record_failure:
            record_failed_scan(store, table, error, time.monotonic() - began)
        raise
    return _exclude_halted_partitions(snapshot, store.halted_partitions(table.ref))


def _exclude_halted_partitions(snapshot: Snapshot, halted: Mapping[str, str]) -> Snapshot:
    """Return ``snapshot`` with the slices of ``halted`` partitions marked busy, with the reason of the halt."""
    if not halted:
        return snapshot
    slices, name = snapshot.slices, snapshot.table.name
    names = sorted(halted)
    words = [f"halted: {halted[one]}; once the cause is removed: lakefold resume {name}" for one in names]
    index = pc.index_in(slices["partition"].cast(pa.string()), value_set=pa.array(names, pa.string()))
    reasons = pa.array(words, pa.string()).take(index.combine_chunks())
    busy = pc.coalesce(reasons, slices["busy_reason"].cast(pa.string()))
    column_index, field = slices.schema.get_field_index("busy_reason"), slices.schema.field("busy_reason")
    return replace(snapshot, slices=slices.set_column(column_index, field, busy.cast(field.type)))


def list_table(table: ConfiguredTable, partitions: Collection[str] | None = None) -> Snapshot:
    """Return the table's latest slices, listed now.

    Raises Rejected if the table can't be used, and the errors of reading it.
    """
    with naming_missing_directory(table.ref):
        table.adapter.check(table.ref)
    for problem in unsupported_settings(table.policy, table.adapter):
        raise Rejected(f"{table.name}: {problem}")
    # Read the identity first: if the table is recreated in between, the plans are refused instead of run on it.
    with naming_missing_directory(table.ref):
        snapshot = table.adapter.snapshot(capabilities.with_identity(table.adapter, table.ref), partitions)
    if partitions is None and snapshot.slices.num_rows == 0:
        refuse_missing_directory(table.ref)
    return snapshot


def refuse_missing_directory(table: TableRef) -> None:
    """Raise Rejected if the local directory of a table, in which no file was found, does not exist.

    Catalogs and readers take such a table for an empty one.
    """
    if _lacks_directory(table):
        raise Rejected(missing_directory_text(table))


def _lacks_directory(table: TableRef) -> bool:
    return is_local(table.location) and not os.path.isdir(table.location)


@contextmanager
def naming_missing_directory(table: TableRef) -> Iterator[None]:
    """If the directory of a local table does not exist, replace any error of reading the table by that fact."""
    try:
        yield
    except (LakefoldError, OSError) as error:
        if not _lacks_directory(table):
            raise
        kind = next((kind for kind in (TableGone, Transient) if isinstance(error, kind)), Rejected)
        raise kind(missing_directory_text(table)) from error


def missing_directory_text(table: TableRef) -> str:
    """Return the line about a table whose local directory does not exist."""
    return f"{table.name}: its directory {table.location} does not exist"


def is_gone(table: TableRef, error: Exception) -> bool:
    """Return True if ``error`` of a scan means that the table or its directory no longer exists."""
    return isinstance(error, TableGone) or str(error) == missing_directory_text(table)


def _requested_partitions(
    snapshot: Snapshot, request: Request | None, partitions: Collection[str] | None = None
) -> list[str] | None:
    """Return the partitions that a request names, checked against the table; None for all of them."""
    wanted = request.partitions if request is not None else partitions
    if wanted is None:
        return None
    known = snapshot_partitions(snapshot)
    requested = [name.strip("/") for name in wanted]
    for name in requested:
        if name not in known:
            hint = did_you_mean(name, sorted(known)) or f"; it has {len(known)}"
            raise ProblemError(
                problems.NOT_FOUND, f"{snapshot.table.name} has no partition {name!r}{hint}", partition=name
            )
    return requested


def _plans_text(plans: list[Mapping[str, Any]], verb: str) -> str:
    clusterings = [plan for plan in plans if plan["kind"] != PlanKind.COMPACTION]
    files = sum(plan["input_files"] for plan in clusterings)
    after = sum(plan["output_files"] for plan in clusterings)
    slices = sum(plan["output_files"] for plan in plans) - after
    done = [f"{files:,} files → {after:,}"] if clusterings else []
    done += [f"the logs of {slices:,} slice{'s' if slices != 1 else ''} into new base files"] if slices else []
    count = f"{len(plans)} plan" + ("s" if len(plans) != 1 else "")
    size = format_bytes(sum(plan["input_bytes"] for plan in plans))
    return f"{verb} {count}: {', '.join(done)} ({size} to rewrite)"


def record_failed_scan(store: "Store", table: ConfiguredTable, error: Exception, seconds: float = 0.0) -> None:
    """Record ``error`` as the outcome of the table's last scan."""
    store.record_scan(
        ScanRecord(
            table=table.name,
            taken_at=datetime.now(UTC),
            seconds=seconds,
            outcome="error",
            error=one_line(error),
            is_gone=is_gone(table.ref, error),
        )
    )
