# SPDX-License-Identifier: Apache-2.0
"""Adoption: plans for rewrites that other processes scheduled on a table's timeline, and a log of abandoned actions."""

import logging
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from uuid_utils import uuid7

from lake.capabilities import PendingAction
from lake.plan import LIVE_STATES, Plan, PlanState
from lake.units import format_duration
from planner.cost import CostInputs, estimate_benefit
from planner.priority import priority_offset
from service.control.config.table_settings import ConfiguredTable
from service.control.store.errors import PartitionsLocked
from service.control.store.plan_creation import QueueEntry
from service.control.store.views import ErrorClass
from service.text import to_jsonable

if TYPE_CHECKING:
    from service.control.store import Store

logger = logging.getLogger(__name__)
#: how long an action that may be adopted again is left alone after its last plan ended without executing it
READOPTION_DELAY = timedelta(hours=1)


def adopt_pending_actions(
    store: "Store",
    table: ConfiguredTable,
    pending: Sequence[PendingAction],
    *,
    cost_inputs: CostInputs,
    snapshot_instant: str,
    actor: str,
) -> list[Plan]:
    """Store a plan for every scheduled rewrite that has not begun and that lakefold may execute; return these plans.

    An instant is adopted once: if its plan was cancelled or failed, the instant is left to its owner. There are two
    exceptions. If the plan was cancelled because the table was refused, the refusal may have ended. And an action that
    a plan of lakefold left and could not withdraw has no other owner. Both are adopted again until they are executed,
    at most once in ``READOPTION_DELAY``, since the cause that ended the last plan may end the next plan too. An action
    with a partition that a live plan holds waits for the next scan. In mode propose these plans wait for approval like
    other plans. ``snapshot_instant`` is the newest instant of the table.
    """
    unknown = table.policy.adopt_pending
    waiting = [
        entry
        for entry in pending
        if entry.kind is not None
        and not entry.is_begun
        and (entry.plan_id is None or _is_orphaned(store, entry, adopt_unknown=unknown))
    ]
    if not waiting:
        return []
    known = store.adopted_plans(table.name, [entry.instant for entry in waiting])
    plans = []
    for entry in waiting:
        adopter = known.get(entry.instant)
        if adopter is not None and not _may_adopt_again(store, entry, adopter):
            continue
        name = f"table {table.name}: {entry.action} {entry.instant}"
        if entry.refusal is not None:
            logger.debug("%s is not adopted: %s", name, entry.refusal)
            continue
        assert entry.kind is not None
        plan = Plan(
            plan_id=str(uuid7()),
            table=table.ref,
            kind=entry.kind,
            groups=entry.groups,
            # The process that scheduled it chose the sort columns; the executor chooses the rest.
            options=replace(table.policy.rewrite_options, sort_columns=entry.sort_columns, layout="linear"),
            snapshot_instant=snapshot_instant,
            adopted_instant=entry.instant,
        )
        try:
            worth = estimate_benefit(plan, table.policy, cost_inputs)
            estimate = {"worth": to_jsonable(asdict(worth))}
            store.add_plan(
                plan,
                request_id=None,
                actor=actor,
                estimate=estimate,
                queued=QueueEntry(
                    cpu_seconds=worth.cpu_seconds,
                    priority_offset=priority_offset(
                        worth.benefit_cost_ratio, table.policy.priority_weight, table.ageing
                    ),
                    needs_approval=table.mode == "propose",
                ),
            )
        except PartitionsLocked as error:
            logger.debug("%s waits: %s", name, error)
            continue
        plans.append(plan)
    return plans


def _may_adopt_again(store: "Store", entry: PendingAction, adopter: str) -> bool:
    """Return True if ``entry`` may be adopted again after its last plan, ``adopter``."""
    last = store.plan(adopter)
    was_refused = last.state is PlanState.CANCELLED and last.error_class is ErrorClass.REJECTED
    if entry.plan_id is None and not was_refused:
        return False
    return last.finalized_at is not None and datetime.now(UTC) - last.finalized_at >= READOPTION_DELAY


def _is_orphaned(store: "Store", entry: PendingAction, *, adopt_unknown: bool) -> bool:
    """Return True if a plan left an action that still has to be executed, and on which no process works.

    If the plan has ended in this database, only a suspended executor could still work on the action;
    ``has_live_owner`` shows whether that executor may be alive. If this database does not know the plan, any activity
    on the action counts, and the action is orphaned only with ``adopt_unknown``.
    """
    if not entry.must_execute or entry.plan_id is None:
        return False
    state = store.plan_state(entry.plan_id)
    if state is None:
        return adopt_unknown and not entry.is_alive
    at_work = entry.is_alive if entry.has_live_owner is None else entry.has_live_owner
    return state not in LIVE_STATES and not at_work


def abandoned_actions(store: "Store", table: str, pending: Sequence[PendingAction]) -> list[PendingAction]:
    """Return the actions that other processes began and abandoned, without actions that a live plan executes.

    The result includes the actions of another lakefold, or of this one before its database was lost. Such an action
    names a plan unknown to this database, and it blocks writers whether it has begun or not.
    """
    dead = [entry for entry in pending if entry.is_abandoned]
    adopted = store.adopted_plans(table, [entry.instant for entry in dead]) if dead else {}
    own = {instant for instant, plan_id in adopted.items() if store.plan_state(plan_id) in LIVE_STATES}
    unknown = [
        entry for entry in pending if not entry.is_alive and entry.plan_id and not store.plan_state(entry.plan_id)
    ]
    return [entry for entry in dead if entry.instant not in own] + unknown


class AbandonedActionLog:
    """Logs each action on a table's timeline once if its owner seems to be dead."""

    def __init__(self) -> None:
        self._logged: dict[str, frozenset[str]] = {}

    def log_new(self, table: str, found: Sequence[PendingAction]) -> None:
        """Log one warning for each abandoned action that the last call for ``table`` did not have."""
        dead = {entry.instant: entry for entry in found}
        for instant in sorted(dead.keys() - self._logged.get(table, frozenset())):
            entry = dead[instant]
            silent = format_duration(datetime.now(UTC) - entry.last_activity)
            owner = (
                "another process"
                if entry.plan_id is None
                else f"plan {entry.plan_id}, which this database does not know,"
            )
            logger.warning(
                "table %s: %s %s of %s has shown no activity for %s; to withdraw it: lakefold tables rollback %s %s",
                *(table, entry.action, instant, owner, silent, table, instant),
            )
        self._logged[table] = frozenset(dead)
