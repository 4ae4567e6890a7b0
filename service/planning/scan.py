# SPDX-License-Identifier: Apache-2.0
"""Scan a table and plan it: the one function behind the scheduler's ticks, requests, dry runs and ``explain``."""

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from lake import optional
from lake.errors import LakefoldError, Rejected, one_line
from lake.formats import load_format
from lake.model import Snapshot
from lake.optional import LikelyWriter, Unfinished
from lake.plan import Plan, PlanKind
from lake.ports import Capability
from lake.units import format_bytes
from planner.judgement import judge
from planner.offers import not_offered
from planner.partitions import select_partitions
from planner.planner import Planning
from planner.reasons import Reason
from service import problems
from service.config.loader import Config
from service.config.tables import ConfiguredTable, configure
from service.modes import PLANNED
from service.planning.account import scan_record
from service.planning.adoption import adopt
from service.planning.answer import Answer, describe_plan
from service.planning.proposals import Outdated, all_of, outdated, without_stale
from service.planning.refusals import refusal, taken, unsaid_in_rules, without_halted
from service.planning.rounds import Rounds, digest, partitions_of
from service.problems import CommandError
from service.store.views import Request, ScanRecord, TableState
from service.text import nearest

if TYPE_CHECKING:
    from service.store import Store

logger = logging.getLogger(__name__)

#: a request for a whole table may need several plans; the rest waits for the scans that follow
MOST_PLANS_PER_REQUEST = 100
#: when to look again at reported partitions of a table that has as many live plans as it may; that look is cheap
_ROOM_AGAIN = timedelta(seconds=5)
_FOR_ROOM = (
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
    unfinished: Callable[[], Sequence[Unfinished]] | None = None,
) -> Answer:
    """Scan ``table``, remember the scan, and store the plans that policy and live plans leave room for.

    Without a ``request`` this is a tick: a table that is not in mode propose or compact, is paused or halted is only
    scanned, and no more plans are stored than executors can take up soon; in mode propose they wait for approval. A
    request needs no approval, and plans all that is free, what proposals hold included; it raises
    CommandError where the table may not be planned, a partition does not exist or all of them are taken. A dry run
    plans whatever the mode is and stores no plan. ``unfinished`` saves reading the table's timeline for the caller who
    reads it as well. Raises OverrideError for bad overrides, Rejected for a kind of plan that its format has not, and
    the outcomes of ``lake.errors`` where the table can't be read, after recording that as the table's last scan.
    """
    if request is not None and request.overrides:
        table = configure(config, table.ref, request.overrides)
    if request is not None and request.kind is PlanKind.COMPACTION:
        optional.require(load_format(table.ref.format), table.ref, Capability.COMPACTION)
    dry_run = dry_run or (request is not None and request.dry_run)
    state = _registered(store, table)
    refused = refusal(config, store, table, state)
    if request is not None and refused is not None and not dry_run:
        raise refused
    # Before the snapshot as well as after it: what a plan that ends in between has replaced is live in the snapshot.
    ending = store.held_partitions(table.name)
    proposals = store.proposals(table.name)
    snapshot = _snapshot(store, table, remember=request is None or not request.overrides)
    table = _identified(store, table, snapshot, state)
    asked = _partitions_asked(snapshot, request)
    pending: Sequence[Unfinished] = ()
    adopted: list[Plan] = []
    if refused is None and not dry_run:
        pending = unfinished() if unfinished else optional.unfinished(load_format(table.ref.format), table.ref)
        ours = [entry for entry in pending if table.policy.adopt_pending or entry.stays]
        if table.mode == "propose":
            ours = without_stale(ours, snapshot)
        adopted = adopt(store, table, ours, snapshot=snapshot.instant, actor=actor)
    if request is not None:
        old = all_of(proposals, f"{request.actor} asked for plans")
    elif refused is None or table.mode != "propose":
        old = outdated(proposals, table, snapshot, digest(table), pending)
    else:
        old = {}
    held = _without(store.held_partitions(table.name), old)
    rounds = Rounds(
        store=store,
        table=table,
        state=state,
        snapshot=snapshot,
        asked=asked,
        held=_without(ending, old) | held,
        kind=request.kind if request is not None else None,
        proposes=table.mode == "propose" and request is None,
        outdated=old,
    )
    rounds.plans += [describe_plan(plan, {}) for plan in adopted]
    planning = rounds.plan()
    if request is None or not (request.overrides or request.partitions or request.kind):
        account = rounds.account(planning)
        seconds = (datetime.now(UTC) - snapshot.taken_at).total_seconds()
        scan = replace(scan_record(account, seconds), not_planned=unsaid_in_rules(config, table))
        store.record_scan(scan, account.partitions, judge(planning, table.policy))
        store.spare(planning.spared)
    if refused is not None and not dry_run:
        _take_back(store, rounds, actor)
        return rounds.answer(planning, "observed", refused.args[0])
    most = _room(table, held) if request is None and not dry_run else MOST_PLANS_PER_REQUEST
    planning = rounds.take(planning, most + len(adopted), dry_run=dry_run, request=request, actor=actor)
    if request is None and not dry_run:
        _take_back(store, rounds, actor)
    if rounds.plans:
        verb = "would create" if dry_run else "proposed" if rounds.proposes else "created"
        answer = rounds.answer(planning, "dry_run" if dry_run else "planned", _made(rounds.plans, verb))
        return replace(answer, refused="" if refused is None else refused.args[0])
    if request is not None and not dry_run:
        holders = rounds.holders()
        if holders:
            raise taken(table.name, holders)
    if rounds.waits_for_budget:
        return rounds.answer(planning, "nothing", f"the budget of {table.name} is used up; later scans plan it")
    return rounds.answer(planning, "nothing", f"nothing to do for {table.name}")


def explain(store: "Store", table: ConfiguredTable, partition: str | None = None) -> Planning:
    """A fresh scan of ``table`` (of one partition) and what planning says of each slice; stores nothing.

    Raises what a scan raises: what is refused there is refused here.
    """
    state = next(iter(store.tables([table.name])), None)
    snapshot = _snapshot(store, table, remember=False, partitions=None if partition is None else [partition])
    if partition is not None and snapshot.slices.num_rows == 0:
        _partitions_asked(load_format(table.ref.format).snapshot(table.ref), None, [partition])
    rounds = Rounds(
        store=store,
        table=table,
        state=state,
        snapshot=snapshot,
        asked=None,
        held=store.held_partitions(table.name),
        proposes=table.mode == "propose",
    )
    return rounds.plan()


def writers_of(planning: Planning) -> Sequence[LikelyWriter]:
    """The tools that likely write or read the table that was planned. Raises what a scan raises."""
    snapshot = planning.snapshot
    return optional.likely_writers(load_format(snapshot.table.format), snapshot)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What came of looking at partitions that writers reported: plans stored, and what to look at again, and when.

    ``looked`` says that the table was listed; it is not where nothing could be planned anyway.
    """

    looked: bool = False
    plan_ids: tuple[str, ...] = ()
    again_in: Mapping[str | None, timedelta] = field(default_factory=dict)


def plan_written(
    config: Config, store: "Store", table: ConfiguredTable, partitions: Collection[str], *, actor: str
) -> Look:
    """A tick for ``partitions`` of ``table`` only, which a writer reported. Partitions that are gone are no error.

    What the last scan of the whole table found stays on record. A partition with files that are only too young is
    to be looked at again when the quiet period of the youngest has passed, and one that could be planned but for the
    room that running plans take soon. Raises the outcomes of ``lake.errors`` where the table can't be read.
    """
    if table.mode not in PLANNED or unsaid_in_rules(config, table) is not None:
        return Look()
    state = _registered(store, table)
    if refusal(config, store, table, state) is not None:  # it is given out again after the resume
        return Look(again_in=dict.fromkeys(partitions, timedelta()))
    held = store.held_partitions(table.name)
    room = _room(table, held)
    if not room:
        # Plans end within minutes, but proposals may wait for days: what they keep out is left to the scans.
        soon = not _room(table, store.held_partitions(table.name, by_proposals=False))
        return Look(again_in=dict.fromkeys(partitions, _ROOM_AGAIN) if soon else {})
    # Some filters go by a partition's place among all of them.
    narrow = None if table.policy.compares_partitions else sorted(partitions)
    snapshot = _snapshot(store, table, remember=False, partitions=narrow)
    table = _identified(store, table, snapshot, state)
    selected = select_partitions(partitions_of(snapshot), table.policy, now=snapshot.taken_at)
    asked = [name for name in selected if name in partitions]
    rounds = Rounds(
        store=store,
        table=table,
        state=state,
        snapshot=snapshot,
        asked=asked,
        held=held,
        proposes=table.mode == "propose",
    )
    last = rounds.take(rounds.plan(), room, dry_run=False, request=None, actor=actor)
    plan_ids = tuple(plan["plan_id"] for plan in rounds.plans)
    return Look(looked=True, plan_ids=plan_ids, again_in=_again_in(last, snapshot, fits=not rounds.waits_for_budget))


def _again_in(planning: Planning, snapshot: Snapshot, *, fits: bool) -> dict[str | None, timedelta]:
    """When to look at partitions again whose slices wait for nothing but time or room for another plan.

    What does not fit into the table's budget is left to the scans of the whole table: that may take hours.
    """
    rows = pa.table(
        {
            "partition": planning.decisions["partition"].cast(pa.string()),
            "reason": planning.decisions["reason"].cast(pa.string()),
            "modified_at": snapshot.slices["modified_at"],
        }
    )
    waiting = [Reason.RECENT, *(_FOR_ROOM if planning.plan is not None and fits else ())]
    rows = rows.filter(pc.is_in(rows["reason"], pa.array([reason.value for reason in waiting])))
    youngest = rows.group_by(["partition", "reason"]).aggregate([("modified_at", "max")]).to_pylist()
    again: dict[str | None, timedelta] = {}
    for row in youngest:
        wait = _ROOM_AGAIN
        if row["reason"] == Reason.RECENT:
            wait = max(timedelta(), row["modified_at_max"] + planning.policy.quiet_period - snapshot.taken_at)
        again[row["partition"]] = min(wait, again.get(row["partition"], wait))
    return again


def _registered(store: "Store", table: ConfiguredTable) -> TableState:
    store.register(table.ref, table.mode, table.owner)
    return store.table_state(table.name)


def _identified(store: "Store", table: ConfiguredTable, snapshot: Snapshot, state: TableState) -> ConfiguredTable:
    """``table`` as the snapshot is of it; one that was made anew is known as such from now on."""
    found = snapshot.table
    if found.identity != state.ref.identity:
        store.register(found, table.mode, table.owner)
        another = optional.made_anew(found, state.ref.identity)
        if another is not None:
            logger.warning("%s", another)
    return replace(table, ref=found)


def _without(held: Mapping[str, str], old: Mapping[str, Outdated]) -> dict[str, str]:
    """``held`` without what is held by proposals that make way."""
    return {partition: plan_id for partition, plan_id in held.items() if plan_id not in old}


def _take_back(store: "Store", rounds: Rounds, actor: str) -> None:
    """Take back the proposals in whose place no plan has come."""
    reasons = {plan_id: f"taken back: {proposal.why}" for plan_id, proposal in rounds.outdated.items()}
    store.take_back_proposals(reasons, actor=actor)


def _room(table: ConfiguredTable, held: Mapping[str, str]) -> int:
    """How many more plans of the table executors can take up soon."""
    return max(0, table.policy.max_inflight_per_table + 1 - len(set(held.values())))


def _snapshot(
    store: "Store", table: ConfiguredTable, *, remember: bool, partitions: Collection[str] | None = None
) -> Snapshot:
    began = time.monotonic()
    try:
        snapshot = listed(table, partitions)
    except (LakefoldError, OSError) as error:
        if remember:
            store.record_scan(
                ScanRecord(
                    table=table.name,
                    taken_at=datetime.now(UTC),
                    seconds=time.monotonic() - began,
                    outcome="error",
                    error=one_line(error),
                )
            )
        raise
    return without_halted(snapshot, store.halted_partitions(table.ref))


def listed(table: ConfiguredTable, partitions: Collection[str] | None = None) -> Snapshot:
    """The table's latest slices, listed now. Raises Rejected where it can't be served, and what reading it raises."""
    adapter = load_format(table.ref.format)
    adapter.check(table.ref)
    for problem in not_offered(table.policy, adapter):
        raise Rejected(f"{table.name}: {problem}")
    # First which table it is: were it made anew in between, its plans would be refused, and not run on another.
    return adapter.snapshot(optional.identified(adapter, table.ref), partitions)


def _partitions_asked(
    snapshot: Snapshot, request: Request | None, partitions: Collection[str] | None = None
) -> list[str] | None:
    """The partitions a request names, each looked up in the table; None for all of them."""
    wanted = request.partitions if request is not None else partitions
    if wanted is None:
        return None
    known = partitions_of(snapshot)
    asked = [name.strip("/") for name in wanted]
    for name in asked:
        if name not in known:
            hint = nearest(name, sorted(known)) or f"; it has {len(known)}"
            raise CommandError(
                problems.NOT_FOUND, f"{snapshot.table.name} has no partition {name!r}{hint}", partition=name
            )
    return asked


def _made(plans: list[Mapping[str, Any]], verb: str) -> str:
    clusterings = [plan for plan in plans if plan["kind"] != PlanKind.COMPACTION]
    files = sum(plan["input_files"] for plan in clusterings)
    after = sum(plan["output_files"] for plan in clusterings)
    slices = sum(plan["output_files"] for plan in plans) - after
    done = [f"{files:,} files → {after:,}"] if clusterings else []
    done += [f"the logs of {slices:,} slice{'s' if slices != 1 else ''} into new base files"] if slices else []
    count = f"{len(plans)} plan" + ("s" if len(plans) != 1 else "")
    size = format_bytes(sum(plan["input_bytes"] for plan in plans))
    return f"{verb} {count}: {', '.join(done)} ({size} to rewrite)"
