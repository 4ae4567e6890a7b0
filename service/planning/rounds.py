# SPDX-License-Identifier: Apache-2.0
"""The rounds of planning one table at one snapshot: plan after plan, as long as there is room and something is free."""

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from uuid_utils import uuid7

from lake.model import Snapshot
from lake.plan import PlanKind
from lake.version import __version__
from planner.budgets import UNLIMITED, Amount, TableLimits, within
from planner.cost import appraise
from planner.partitions import select_partitions
from planner.planner import Planning, plan_table
from planner.ranking import head_start, urgency
from planner.reasons import Reason
from service.config.tables import ConfiguredTable
from service.planning.account import Account, Line
from service.planning.answer import Answer, describe_plan
from service.planning.proposals import Outdated
from service.planning.terms import terms_of
from service.store.errors import PartitionsTaken
from service.store.views import Request, TableObjective, TableState
from service.text import plain

if TYPE_CHECKING:
    from service.store import Store


class Rounds:
    """One table at one snapshot, planned as often as there is room."""

    def __init__(
        self,
        *,
        store: "Store",
        table: ConfiguredTable,
        state: TableState | None,
        snapshot: Snapshot,
        asked: Collection[str] | None,
        held: Mapping[str, str],
        kind: PlanKind | None = None,
        proposes: bool = False,
        outdated: Mapping[str, Outdated] | None = None,
    ) -> None:
        """With ``proposes`` plans wait for approval, and those declined are not made again.

        ``outdated`` are proposals in whose place plans come; they hold none of ``held``.
        """
        self.store, self.table, self.snapshot, self.asked, self.kind = store, table, snapshot, asked, kind
        #: quarantined paths at which there is another file by now, with the size of the one that was quarantined
        self.replaced = _replaced(state, snapshot) if state else {}
        self.quarantined = tuple(path for path in state.quarantined if path not in self.replaced) if state else ()
        self.held = dict(held)
        self.settings = digest(table)
        self.failed = store.failed_plans(table.name, self.settings)
        self.proposes, self.outdated = proposes, dict(outdated or {})
        self.declined = store.declined_plans(table.name, self.settings) if proposes else []
        self.terms = terms_of(store, table)
        own = TableLimits.of(table.policy).budget
        #: groups and plans that could never start are not made
        self.sizing = within(table.policy, (table.work_budget, own), self.terms.rates)
        #: whether plans are worth making that the table's budget has no room for now
        self.waits_for_budget = False
        self.plans: list[Mapping[str, Any]] = []
        self._made: list[Planning] = []
        self._account: Account | None = None

    def plan(self) -> Planning:
        """Plan what no live plan holds."""
        return plan_table(
            self.snapshot,
            self.sizing,
            now=self.snapshot.taken_at,
            plan_id=str(uuid7()),
            held=self.held,
            quarantined=self.quarantined,
            partitions=self.asked,
            kinds=tuple(PlanKind) if self.kind is None else (self.kind,),
            failed=self.failed,
            declined=self.declined,
            terms=self.terms,
        )

    def take(self, planning: Planning, most: int, *, dry_run: bool, request: Request | None, actor: str) -> Planning:
        """Store (or, dry, only note) plan after plan; the last planning, which knows them as live."""
        room = UNLIMITED if dry_run else self.store.room(self.table.name, without=self.outdated.keys())
        if self.replaced and not dry_run:
            self.store.end_quarantine(self.table.name, self.replaced)
        missed = [] if dry_run else self._missed()
        urgent = urgency((found.budget_left for found in missed), self.table.ageing)
        if not dry_run and self.table.policy.has_objectives:
            self.store.hurry(self.table.name, urgent)
        while planning.plan is not None and len(self.plans) < most:
            replaces = {
                plan_id: proposal.why
                for plan_id, proposal in self.outdated.items()
                if not proposal.partitions.isdisjoint(planning.plan.partitions)
            }
            worth = appraise(planning.plan, self.table.policy, self.terms)
            cost = Amount(bytes=planning.plan.bytes, cpu_ms=round(1000 * worth.cpu_seconds))
            if not cost.fits(room):
                # Stored it would wait, and keep back the plans of others that come after it.
                self.waits_for_budget = True
                break
            estimate = asdict(planning.estimate) | {"worth": asdict(worth)}
            try:
                if not dry_run:
                    request_id = request.request_id if request else None
                    self.store.add_plan(
                        planning.plan,
                        request_id=request_id,
                        actor=actor,
                        estimate=plain(estimate),
                        settings=self.settings,
                        cpu_seconds=worth.cpu_seconds,
                        head_start=head_start(worth.per_cost, self.table.policy.weight, self.table.ageing),
                        urgency=urgent,
                        urgent=", ".join(found.text for found in missed),
                        proposed=self.proposes,
                        replaces=replaces,
                    )
            except PartitionsTaken as error:
                # Somebody was faster: what they took is theirs, the rest may still be planned.
                self.held |= error.holders | error.keepers
            else:
                room -= cost
                self.plans.append(describe_plan(planning.plan, estimate))
                self._made.append(planning)
                self.outdated = {key: self.outdated[key] for key in self.outdated.keys() - replaces.keys()}
                self.held |= dict.fromkeys(planning.plan.partitions, planning.plan.plan_id)
            planning = self.plan()
        return planning

    def _missed(self) -> list[TableObjective]:
        """The objectives that the table misses, as its last scan judged them."""
        if not self.table.policy.has_objectives:
            return []
        found = self.store.objectives([self.table.name]).get(self.table.name, ())
        return [objective for objective in found if not objective.met]

    def account(self, planning: Planning) -> Account:
        """What ``planning`` decided, added up; once, where it is asked for again."""
        if self._account is None or self._account.planning is not planning:
            self._account = Account(planning)
        return self._account

    def answer(self, planning: Planning, outcome: str, text: str) -> Answer:
        """Everything known now as an answer."""
        lines = self.account(self._with_plans(planning)).by_reason
        new = {plan["plan_id"] for plan in self.plans}
        return Answer(
            table=self.table.name,
            outcome=outcome,
            text=text,
            plan_ids=tuple(plan["plan_id"] for plan in self.plans) if outcome == "planned" else (),
            plans=tuple(self.plans),
            reasons=tuple(self._reason(line) for line in lines if line.reason is not Reason.CHOSEN),
            holders={
                name: plan_id
                for name, plan_id in sorted(self.held.items())
                if plan_id not in new and (self.asked is None or name in self.asked)
            },
            instant=self.snapshot.instant,
            taken_at=self.snapshot.taken_at,
            files=sum(line.files for line in lines),
            bytes=sum(line.bytes for line in lines),
        )

    def _with_plans(self, last: Planning) -> Planning:
        """``last`` with the slices of partitions that our plans hold as the planning of that plan saw them."""
        decisions = last.decisions
        held = pc.equal(decisions["reason"].cast(pa.string()), Reason.HELD.value)
        for made in self._made:
            assert made.plan is not None
            its = pc.and_(held, pc.is_in(decisions["partition"].cast(pa.string()), pa.array(made.plan.partitions)))
            for name in ("reason", "number"):
                was, new = decisions[name], made.decisions[name]
                plain_type = pa.string() if name == "reason" else was.type
                column = pc.if_else(its, new.cast(plain_type), was.cast(plain_type))
                decisions = decisions.set_column(decisions.column_names.index(name), name, column)
        return replace(last, decisions=decisions) if self._made else last

    def holders(self) -> dict[str, str]:
        """Who holds each partition wanted, where somebody holds every one of them; else nothing."""
        wanted = self.asked
        if wanted is None:
            known = sorted(partitions_of(self.snapshot))
            wanted = select_partitions(known, self.table.policy, now=self.snapshot.taken_at)
        if not wanted or not all(name in self.held for name in wanted):
            return {}
        return {name: self.held[name] for name in sorted(wanted)}

    def _reason(self, line: Line) -> Mapping[str, Any]:
        """A reason in the words of a request: what it did not name was not left out by the policy's filter."""
        words: dict[str, str] = {}
        if self.asked is not None and line.reason is Reason.FILTERED:
            words = {"text": "partition not asked for", "knob": ""}
        elif self.kind is not None and line.reason is Reason.NEXT_PLAN_KIND:
            words = {"text": f"not asked for, only {self.kind}", "knob": ""}
        return line.document() | words


def digest(table: ConfiguredTable) -> str:
    """What a plan of ``table`` follows from beside its files, as a word that changes with it."""
    ref = table.ref
    said = table.access, ref.sessions_refresh
    writers = ref.concurrency, ref.on_conflict, said, sorted(ref.write_options.items())
    parts = (__version__, ref.location, ref.identity, writers, table.policy)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def partitions_of(snapshot: Snapshot) -> set[str]:
    """The partitions that the table had."""
    column = snapshot.slices["partition"].unify_dictionaries()
    return set(column.unique().to_pylist())


def _replaced(state: TableState, snapshot: Snapshot) -> dict[str, int]:
    """Quarantined files in whose place others are, each path with the size that was quarantined."""
    known = state.quarantined_bytes
    if not known:
        return {}
    slices = snapshot.slices
    there = slices.filter(pc.is_in(slices["path"], value_set=pa.array(sorted(known), pa.string())))
    found = zip(there["path"].to_pylist(), there["bytes"].to_pylist(), strict=True)
    return {path: known[path] for path, size in found if size != known[path]}
