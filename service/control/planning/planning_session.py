# SPDX-License-Identifier: Apache-2.0
"""The planning of one table at one snapshot: plans are made while there is room and a free partition."""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from uuid_utils import uuid7

from lake.plan import PlanKind
from planner.budgets import UNLIMITED, WorkAmount
from planner.candidates import PlanningConstraints
from planner.partition_selection import select_partitions
from planner.planner import next_plan
from planner.preparation import PreparedTable, prepare_table
from planner.priority import objective_urgency, priority_offset
from planner.result import PlanningResult
from service.control.planning.observation import snapshot_partitions
from service.control.planning.outdated_proposals import OutdatedProposal
from service.control.planning.plan_request import plan_document
from service.control.planning.planning_inputs import PlanningInputs
from service.control.store.errors import PartitionsLocked
from service.control.store.plan_creation import QueueEntry
from service.control.store.views import Request, TableObjective
from service.text import to_jsonable

if TYPE_CHECKING:
    from service.control.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningScope:
    """The part of a table to plan: ``partitions`` (None: all that the policy selects), and plans of ``kind``."""

    partitions: Collection[str] | None = None
    kind: PlanKind | None = None


class PlanningSession:
    """One table at one snapshot, planned repeatedly while there is room."""

    def __init__(
        self,
        *,
        store: "Store",
        inputs: PlanningInputs,
        scope: PlanningScope,
        locked_partitions: Mapping[str, str],
        outdated_proposals: Mapping[str, OutdatedProposal] | None = None,
    ) -> None:
        """``outdated_proposals`` are proposals that new plans replace.

        ``locked_partitions`` has none of their partitions.
        """
        self.store, self.inputs, self.scope = store, inputs, scope
        self.locked_partitions = dict(locked_partitions)
        self.outdated_proposals = dict(outdated_proposals or {})
        #: True if a worthwhile plan does not fit into the rest of the table's budget
        self.is_over_budget = False
        self.plan_documents: list[Mapping[str, Any]] = []
        #: the plannings whose plans were created, or would be created by a dry run
        self.created: list[PlanningResult] = []
        #: set by the first planning
        self._prepared: PreparedTable | None = None

    def plan(self) -> PlanningResult:
        """Plan the partitions that no live plan holds."""
        if self._prepared is None:
            inputs = self.inputs
            self._prepared = prepare_table(
                inputs.snapshot,
                inputs.table.policy,
                now=inputs.snapshot.taken_at,
                constraints=PlanningConstraints(
                    quarantined=inputs.quarantined,
                    partitions=self.scope.partitions,
                    kinds=tuple(PlanKind) if self.scope.kind is None else (self.scope.kind,),
                    failed=inputs.failed,
                    declined=inputs.declined,
                ),
                cost_inputs=inputs.cost_inputs,
                budget=inputs.size_limit,
            )
        return next_plan(self._prepared, str(uuid7()), self.locked_partitions)

    def plan_and_store(
        self, planning: PlanningResult, max_plans: int, *, dry_run: bool, request: Request | None, actor: str
    ) -> PlanningResult:
        """Store plans one by one, or only collect them in a dry run; return the planning after the last plan."""
        table = self.inputs.table
        room = (
            UNLIMITED
            if dry_run
            else self.store.remaining_table_budget(table.name, excluded=self.outdated_proposals.keys())
        )
        if self.inputs.replaced_files and not dry_run:
            self.store.end_quarantine(table.name, self.inputs.replaced_files)
        missed = [] if dry_run else self._missed_objectives()
        urgent = objective_urgency((found.budget_left for found in missed), table.ageing)
        if not dry_run and table.policy.has_objectives:
            self.store.update_urgency(table.name, urgent)
        while planning.plan is not None and planning.benefit is not None and len(self.plan_documents) < max_plans:
            replaces = {
                plan_id: proposal.reason
                for plan_id, proposal in self.outdated_proposals.items()
                if not proposal.partitions.isdisjoint(planning.plan.partitions)
            }
            worth = planning.benefit
            cost = WorkAmount(bytes=planning.plan.bytes, cpu_ms=round(1000 * worth.cpu_seconds))
            if not cost.is_within(room):
                # If stored, it would wait and hold back the plans of other tables behind it.
                self.is_over_budget = True
                break
            estimate = asdict(planning.estimate) | {"worth": asdict(worth)}
            try:
                if not dry_run:
                    request_id = request.request_id if request else None
                    self.store.add_plan(
                        planning.plan,
                        request_id=request_id,
                        actor=actor,
                        estimate=to_jsonable(estimate),
                        settings_digest=table.settings_digest,
                        queued=QueueEntry(
                            cpu_seconds=worth.cpu_seconds,
                            priority_offset=priority_offset(
                                worth.benefit_cost_ratio, table.policy.priority_weight, table.ageing
                            ),
                            urgency=urgent,
                            urgency_reason=", ".join(found.text for found in missed),
                            needs_approval=self.inputs.needs_approval,
                        ),
                        replaced_proposals=replaces,
                    )
            except PartitionsLocked as error:
                # Another process took these partitions first; the remaining partitions may still be planned.
                self.locked_partitions |= error.locking_plans | error.lock_owners
            else:
                room -= cost
                self.plan_documents.append(plan_document(planning.plan, estimate))
                self.created.append(planning)
                self.outdated_proposals = {
                    key: self.outdated_proposals[key] for key in self.outdated_proposals.keys() - replaces.keys()
                }
                self.locked_partitions |= dict.fromkeys(planning.plan.partitions, planning.plan.plan_id)
            planning = self.plan()
        return planning

    def withdraw_outdated(self, actor: str) -> None:
        """Withdraw the outdated proposals that no new plan has replaced."""
        reasons = {plan_id: f"withdrawn: {proposal.reason}" for plan_id, proposal in self.outdated_proposals.items()}
        self.store.withdraw_proposals(reasons, actor=actor)

    def blocking_plans(self) -> dict[str, str]:
        """Return the holder of each wanted partition if every wanted partition is held; else an empty mapping."""
        wanted, snapshot = self.scope.partitions, self.inputs.snapshot
        if wanted is None:
            known = sorted(snapshot_partitions(snapshot))
            wanted = select_partitions(known, self.inputs.table.policy, now=snapshot.taken_at)
        if not wanted or not all(name in self.locked_partitions for name in wanted):
            return {}
        return {name: self.locked_partitions[name] for name in sorted(wanted)}

    def _missed_objectives(self) -> list[TableObjective]:
        """Return the objectives that the table misses, by its last scan."""
        table = self.inputs.table
        if not table.policy.has_objectives:
            return []
        found = self.store.objectives([table.name]).get(table.name, ())
        return [objective for objective in found if not objective.met]
