# SPDX-License-Identifier: Apache-2.0
"""Scan a table and plan it: one function for the scheduler's ticks, requests, dry runs and ``explain``."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from lake import capabilities
from lake.capabilities import PendingAction
from lake.model import Snapshot
from lake.plan import PlanKind
from lake.ports import Capability
from planner.partition_selection import select_partitions
from planner.reasons import Reason
from planner.result import PlanningResult
from planner.slo.evaluate import evaluate_objectives
from service.control.config.loader import Config
from service.control.config.table_settings import ConfiguredTable, configure_table
from service.control.planning.adoption import adopt_pending_actions
from service.control.planning.decision_summary import DecisionSummary, make_scan_record
from service.control.planning.observation import (
    observe_table,
    requested_partitions,
    snapshot_partitions,
)
from service.control.planning.observed_reads import with_observed_reads
from service.control.planning.observed_state import with_current_identity
from service.control.planning.outdated_proposals import (
    exclude_stale_actions,
    find_outdated_proposals,
    mark_all_outdated,
)
from service.control.planning.plan_request import PlanResponse, plan_document
from service.control.planning.planning_inputs import read_planning_inputs
from service.control.planning.planning_session import PlanningScope, PlanningSession
from service.control.planning.refusals import (
    missing_required_rules,
    other_name_in_use,
    partitions_locked_error,
    planning_refusal,
)
from service.control.planning.scan_response import plans_text, scan_response
from service.control.store.errors import NotFound
from service.control.store.views import Request
from service.modes import PLANNED_MODES
from service.text import plural

if TYPE_CHECKING:
    from service.control.store import Store

#: maximum number of plans of one request for a whole table; later scans plan the remaining files
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
    stores no plan and raises the same errors, except that it plans a table that may not be planned. The response to a
    request also names the plans that were stored for it before, by a process that died before it stored the response.
    ``unfinished`` returns the table's pending actions; without it they are read here.

    Raises OverrideError for bad overrides, Rejected for a kind of plan that the format does not have, and the outcomes
    of ``lake.errors`` if the table can't be read. That failure is recorded as the table's last scan, except for a
    request with overrides.
    """
    if request is not None and request.overrides:
        table = configure_table(config, table.ref, request.overrides)
    if request is not None and request.kind is PlanKind.COMPACTION:
        capabilities.require_capability(table.adapter, table.ref, Capability.COMPACTION)
    dry_run = dry_run or (request is not None and request.dry_run)
    state = None
    if request is None:  # the scheduler updates the registration before a tick, under the lock of its configuration
        with suppress(NotFound):
            state = store.table_state(table.name)
    if state is None:
        store.register_table(table.ref, table.mode, table.owner, table.tags, table.resource_group)
        state = store.table_state(table.name)
    # Read before the snapshot and again after it: files that a plan replaces in between are live in the snapshot.
    ending, proposals = store.locked_partitions(table.name), store.proposals(table.name)
    not_planned, refused = _reason_in_status(config, store, table), planning_refusal(config, store, table, state)
    earlier = () if request is None or dry_run else _earlier_plans(store, request)
    if request is not None and refused is not None and not dry_run:
        if earlier:
            return PlanResponse(
                table=table.name, outcome="planned", text=_earlier_plans_text(earlier), plan_ids=earlier
            )
        raise refused

    snapshot = observe_table(store, table, record_failure=request is None or not request.overrides)
    table = with_current_identity(store, table, snapshot, state)
    scope = PlanningScope()
    if request is not None:
        scope = PlanningScope(partitions=requested_partitions(snapshot, request.partitions), kind=request.kind)
    pending: Sequence[PendingAction] = ()
    if refused is None and not dry_run:
        pending = unfinished() if unfinished else capabilities.pending_actions(table.adapter, table.ref)

    executable = [entry for entry in pending if table.policy.adopt_pending or entry.must_execute]
    if table.mode == "propose":
        executable = exclude_stale_actions(executable, snapshot)
    if request is not None:
        old = mark_all_outdated(proposals, f"{request.actor} asked for plans")
    elif refused is None or table.mode != "propose":
        old = find_outdated_proposals(proposals, table, snapshot, pending)
    else:
        old = {}
    inputs = read_planning_inputs(
        store, with_observed_reads(store, table), state, snapshot, is_requested=request is not None
    )
    adopted = adopt_pending_actions(
        store,
        table,
        executable,
        cost_inputs=inputs.cost_inputs,
        snapshot_instant=snapshot.instant,
        actor=actor,
    )
    before, held = (
        {partition: plan_id for partition, plan_id in locks.items() if plan_id not in old}
        for locks in (ending, store.locked_partitions(table.name))
    )

    session = PlanningSession(
        store=store, inputs=inputs, scope=scope, locked_partitions=before | held, outdated_proposals=old
    )
    session.plan_documents += [plan_document(plan, {}) for plan in adopted]
    planning = session.plan()
    summary = DecisionSummary(planning)
    if request is None or not (request.overrides or request.partitions or request.kind):
        seconds = (datetime.now(UTC) - snapshot.taken_at).total_seconds()
        scan = replace(make_scan_record(summary, seconds), not_planned=not_planned)
        store.record_scan(scan, summary.partition_table, evaluate_objectives(planning, table.policy))
        store.record_declines_in_effect(planning.declines_in_effect)
    if refused is not None and not dry_run:
        session.withdraw_outdated(actor)
        return scan_response(session, summary, "observed", refused.args[0])

    most = _free_slots(table, held) if request is None and not dry_run else MAX_PLANS_PER_REQUEST - len(earlier)
    last = session.plan_and_store(planning, most + len(adopted), dry_run=dry_run, request=request, actor=actor)
    if last is not planning:
        summary = DecisionSummary(last)
    if request is None and not dry_run:
        session.withdraw_outdated(actor)
    if session.plan_documents:
        verb = "would create" if dry_run else "proposed" if inputs.needs_approval else "created"
        text = "; ".join([plans_text(session.plan_documents, verb), *filter(None, [_earlier_plans_text(earlier)])])
        answer = scan_response(session, summary, "dry_run" if dry_run else "planned", text)
        plan_ids = (*earlier, *answer.plan_ids)
        return replace(answer, plan_ids=plan_ids, refused="" if refused is None else refused.args[0])
    if earlier:
        answer = scan_response(session, summary, "planned", _earlier_plans_text(earlier))
        return replace(answer, plan_ids=earlier)
    if request is not None and refused is None:
        holders = session.blocking_plans()
        if holders:
            raise partitions_locked_error(table.name, holders)
    text = f"nothing to do for {table.name}"
    if session.is_over_budget:
        text = f"the budget of {table.name} is used up; later scans plan it"
    return scan_response(session, summary, "nothing", text)


def _earlier_plans(store: "Store", request: Request) -> tuple[str, ...]:
    """Return the plans that were stored for ``request`` before, oldest first."""
    plans = store.plans(request_id=request.request_id, limit=MAX_PLANS_PER_REQUEST)
    return tuple(sorted(plan.plan_id for plan in plans))


def _earlier_plans_text(plan_ids: Sequence[str]) -> str:
    return f"created {plural(len(plan_ids), 'plan')} before an interruption" if plan_ids else ""


def _reason_in_status(config: Config, store: "Store", table: ConfiguredTable) -> str | None:
    """Return why the table is not planned, if ``lakefold status`` knows it only from the scan."""
    if (rules := missing_required_rules(config, table)) is not None or table.mode not in PLANNED_MODES:
        return rules
    return other_name_in_use(store, table)


def explain_table(store: "Store", table: ConfiguredTable, partition: str | None = None) -> PlanningResult:
    """Return a fresh planning of ``table`` (or of one partition) with the decision for each slice; stores nothing.

    Raises the errors of a scan: a table that a scan refuses is refused here.
    """
    state = next(iter(store.table_states([table.name])), None)
    snapshot = observe_table(store, table, partitions=None if partition is None else [partition])
    if partition is not None and snapshot.slices.num_rows == 0:
        requested_partitions(table.adapter.snapshot(table.ref), [partition])
    inputs = read_planning_inputs(store, with_observed_reads(store, table), state, snapshot)
    locked = store.locked_partitions(table.name)
    return PlanningSession(store=store, inputs=inputs, scope=PlanningScope(), locked_partitions=locked).plan()


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
    if other_name_in_use(store, table) is not None:  # perhaps for hours; later scans of the whole table plan them
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
    snapshot = observe_table(store, table, partitions=narrow)
    table = with_current_identity(store, table, snapshot, state)
    selected = select_partitions(snapshot_partitions(snapshot), table.policy, now=snapshot.taken_at)
    requested = [name for name in selected if name in partitions]
    inputs = read_planning_inputs(store, with_observed_reads(store, table), state, snapshot)
    session = PlanningSession(
        store=store, inputs=inputs, scope=PlanningScope(partitions=requested), locked_partitions=held
    )
    last = session.plan_and_store(session.plan(), room, dry_run=False, request=None, actor=actor)
    plan_ids = tuple(plan["plan_id"] for plan in session.plan_documents)
    return WrittenScan(
        is_listed=True,
        plan_ids=plan_ids,
        rescan_in=_rescan_in(last, snapshot, is_within_budget=not session.is_over_budget),
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


def _free_slots(table: ConfiguredTable, locked_partitions: Mapping[str, str]) -> int:
    """Return the number of plans of the table that executors can claim soon, besides the live ones."""
    return max(0, table.policy.max_inflight_per_table + 1 - len(set(locked_partitions.values())))
