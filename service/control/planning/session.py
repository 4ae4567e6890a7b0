# SPDX-License-Identifier: Apache-2.0
"""The planning of one table at one snapshot: plans are made while there is room and a free partition."""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from uuid_utils import uuid7

from lake.model import Snapshot
from lake.plan import PlanKind
from planner.budgets import UNLIMITED, TableLimits, WorkAmount, plan_size_limit
from planner.candidates import PlanningConstraints
from planner.cost import estimate_benefit
from planner.partitions import select_partitions
from planner.planner import PlanningResult, plan_table
from planner.priority import objective_urgency, priority_offset
from planner.reasons import Reason
from service.control.config.tables import ConfiguredTable
from service.control.planning.cost_inputs import table_cost_inputs
from service.control.planning.decision_summary import DecisionLine, DecisionSummary
from service.control.planning.observed_reads import with_observed_reads
from service.control.planning.outdated_proposals import OutdatedProposal
from service.control.planning.plan_request import PlanResponse, plan_document
from service.control.store.errors import PartitionsLocked
from service.control.store.plan_creation import QueueEntry
from service.control.store.views import Request, TableObjective, TableState
from service.former_names import both_names
from service.text import to_jsonable

if TYPE_CHECKING:
    from service.control.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningScope:
    """The part of a table that is planned: ``partitions`` (None: all that the policy selects), and plans of ``kind``.

    If a person requested the scope (``is_requested``), its plans need no approval.
    """

    partitions: Collection[str] | None = None
    kind: PlanKind | None = None
    is_requested: bool = False


class PlanningSession:
    """One table at one snapshot, planned repeatedly while there is room."""

    def __init__(
        self,
        *,
        store: "Store",
        table: ConfiguredTable,
        state: TableState | None,
        snapshot: Snapshot,
        scope: PlanningScope,
        locked_partitions: Mapping[str, str],
        outdated_proposals: Mapping[str, OutdatedProposal] | None = None,
    ) -> None:
        """In mode ``propose`` plans wait for approval unless requested, and declined plans are not proposed again.

        ``outdated_proposals`` are proposals that new plans replace; ``locked_partitions`` has none of their partitions.
        """
        table = with_observed_reads(store, table)
        self.store, self.table, self.snapshot = store, table, snapshot
        self.requested_partitions, self.kind = scope.partitions, scope.kind
        #: quarantined paths that have another file now, with the size of the quarantined file
        self.replaced_files = _replaced_quarantined_files(state, snapshot) if state else {}
        self.quarantined = tuple(path for path in state.quarantined if path not in self.replaced_files) if state else ()
        self.locked_partitions = dict(locked_partitions)
        self.failed = store.failed_plans(table.name, table.settings_digest)
        self.needs_approval = table.mode == "propose" and not scope.is_requested
        self.outdated_proposals = dict(outdated_proposals or {})
        self.declined = store.declined_plans(table.name, table.settings_digest) if self.needs_approval else []
        self.cost_inputs = table_cost_inputs(store, table)
        own = TableLimits.from_settings(table.policy).budget
        #: the limit by which every group and plan fits into the budgets
        self.plan_size_limit = plan_size_limit(own, table.work_budget, self.cost_inputs.rates)
        #: True if a worthwhile plan does not fit into the rest of the table's budget
        self.is_over_budget = False
        self.plan_documents: list[Mapping[str, Any]] = []
        self._planned: list[PlanningResult] = []
        self._summary: DecisionSummary | None = None

    def plan(self) -> PlanningResult:
        """Plan the partitions that no live plan holds."""
        return plan_table(
            self.snapshot,
            self.table.policy,
            now=self.snapshot.taken_at,
            plan_id=str(uuid7()),
            constraints=PlanningConstraints(
                locked_partitions=dict(self.locked_partitions),
                quarantined=self.quarantined,
                partitions=self.requested_partitions,
                kinds=tuple(PlanKind) if self.kind is None else (self.kind,),
                failed=self.failed,
                declined=self.declined,
            ),
            cost_inputs=self.cost_inputs,
            budget=self.plan_size_limit,
        )

    def plan_and_store(
        self, planning: PlanningResult, max_plans: int, *, dry_run: bool, request: Request | None, actor: str
    ) -> PlanningResult:
        """Store plans one by one, or only collect them in a dry run; return the planning after the last plan."""
        room = (
            UNLIMITED
            if dry_run
            else self.store.remaining_table_budget(self.table.name, excluded=self.outdated_proposals.keys())
        )
        if self.replaced_files and not dry_run:
            self.store.end_quarantine(self.table.name, self.replaced_files)
        missed = [] if dry_run else self._missed_objectives()
        urgent = objective_urgency((found.budget_left for found in missed), self.table.ageing)
        if not dry_run and self.table.policy.has_objectives:
            self.store.update_urgency(self.table.name, urgent)
        while planning.plan is not None and len(self.plan_documents) < max_plans:
            replaces = {
                plan_id: proposal.reason
                for plan_id, proposal in self.outdated_proposals.items()
                if not proposal.partitions.isdisjoint(planning.plan.partitions)
            }
            worth = estimate_benefit(planning.plan, self.table.policy, self.cost_inputs)
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
                        settings_digest=self.table.settings_digest,
                        queued=QueueEntry(
                            cpu_seconds=worth.cpu_seconds,
                            priority_offset=priority_offset(
                                worth.benefit_cost_ratio, self.table.policy.priority_weight, self.table.ageing
                            ),
                            urgency=urgent,
                            urgency_reason=", ".join(found.text for found in missed),
                            needs_approval=self.needs_approval,
                        ),
                        replaced_proposals=replaces,
                    )
            except PartitionsLocked as error:
                # Another process took these partitions first; the others may still be planned.
                self.locked_partitions |= error.locking_plans | error.lock_owners
            else:
                room -= cost
                self.plan_documents.append(plan_document(planning.plan, estimate))
                self._planned.append(planning)
                self.outdated_proposals = {
                    key: self.outdated_proposals[key] for key in self.outdated_proposals.keys() - replaces.keys()
                }
                self.locked_partitions |= dict.fromkeys(planning.plan.partitions, planning.plan.plan_id)
            planning = self.plan()
        return planning

    def _missed_objectives(self) -> list[TableObjective]:
        """Return the objectives that the table misses, by its last scan."""
        if not self.table.policy.has_objectives:
            return []
        found = self.store.objectives([self.table.name]).get(self.table.name, ())
        return [objective for objective in found if not objective.met]

    def summarize(self, planning: PlanningResult) -> DecisionSummary:
        """Return the summary of ``planning``; it is computed once."""
        if self._summary is None or self._summary.planning is not planning:
            self._summary = DecisionSummary(planning)
        return self._summary

    def response(self, planning: PlanningResult, outcome: str, text: str) -> PlanResponse:
        """Return the response with everything known now."""
        lines = self.summarize(self._with_created_plans(planning)).by_reason
        new = {plan["plan_id"] for plan in self.plan_documents}
        return PlanResponse(
            table=self.table.name,
            outcome=outcome,
            text=text,
            plan_ids=tuple(plan["plan_id"] for plan in self.plan_documents) if outcome == "planned" else (),
            plans=tuple(self.plan_documents),
            reasons=tuple(self._reason_document(line) for line in lines if line.reason is not Reason.CHOSEN),
            holders={
                name: plan_id
                for name, plan_id in sorted(self.locked_partitions.items())
                if plan_id not in new and (self.requested_partitions is None or name in self.requested_partitions)
            },
            instant=self.snapshot.instant,
            taken_at=self.snapshot.taken_at,
            files=sum(line.files for line in lines),
            bytes=sum(line.bytes for line in lines),
        )

    def _with_created_plans(self, last: PlanningResult) -> PlanningResult:
        """Return ``last``; for the partitions of this session's plans it has the decisions that made these plans."""
        decisions = last.decisions
        held = pc.equal(decisions["reason"].cast(pa.string()), Reason.HELD.value)
        for made in self._planned:
            assert made.plan is not None
            its = pc.and_(held, pc.is_in(decisions["partition"].cast(pa.string()), pa.array(made.plan.partitions)))
            for name in ("reason", "number"):
                was, new = decisions[name], made.decisions[name]
                plain_type = pa.string() if name == "reason" else was.type
                column = pc.if_else(its, new.cast(plain_type), was.cast(plain_type))
                decisions = decisions.set_column(decisions.column_names.index(name), name, column)
        return replace(last, decisions=decisions) if self._planned else last

    def blocking_plans(self) -> dict[str, str]:
        """Return the holder of each wanted partition if every wanted partition is held; else an empty mapping."""
        wanted = self.requested_partitions
        if wanted is None:
            known = sorted(snapshot_partitions(self.snapshot))
            wanted = select_partitions(known, self.table.policy, now=self.snapshot.taken_at)
        if not wanted or not all(name in self.locked_partitions for name in wanted):
            return {}
        return {name: self.locked_partitions[name] for name in sorted(wanted)}

    def _reason_document(self, line: DecisionLine) -> Mapping[str, Any]:
        """Return a reason as text; if the request excluded the partition or the kind, the text is about the request."""
        words: dict[str, str] = {}
        if self.requested_partitions is not None and line.reason is Reason.FILTERED:
            words = {"text": "partition not requested", "setting": ""}
        elif self.kind is not None and line.reason is Reason.NEXT_PLAN_KIND:
            words = {"text": f"not requested, only {self.kind}", "setting": ""}
        return both_names("decision", line.document() | words)


def snapshot_partitions(snapshot: Snapshot) -> set[str]:
    """Return the partitions in the snapshot."""
    column = snapshot.slices["partition"].unify_dictionaries()
    return set(column.unique().to_pylist())


def _replaced_quarantined_files(state: TableState, snapshot: Snapshot) -> dict[str, int]:
    """Return the quarantined paths that have another file now, each with the size of the quarantined file."""
    known = state.quarantined_bytes
    if not known:
        return {}
    slices = snapshot.slices
    there = slices.filter(pc.is_in(slices["path"], value_set=pa.array(sorted(known), pa.string())))
    found = zip(there["path"].to_pylist(), there["bytes"].to_pylist(), strict=True)
    return {path: known[path] for path, size in found if size != known[path]}
