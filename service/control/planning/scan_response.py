# SPDX-License-Identifier: Apache-2.0
"""The response of a scan: its plans, the reasons of the other slices, and the plans that hold partitions."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lake.plan import PlanKind
from lake.units import format_bytes
from planner.reasons import Reason
from planner.result import PlanningResult
from service.control.planning.decision_summary import DecisionLine, DecisionSummary
from service.control.planning.plan_request import PlanResponse
from service.control.planning.planning_session import PlanningScope, PlanningSession
from service.former_names import both_names


def scan_response(session: PlanningSession, summary: DecisionSummary, outcome: str, text: str) -> PlanResponse:
    """Return the response with everything known now; ``summary`` sums up the session's last planning."""
    if session.created:
        summary = DecisionSummary(_with_created_plans(summary.planning, session.created))
    lines, scope, snapshot = summary.by_reason, session.scope, session.inputs.snapshot
    new = {plan["plan_id"] for plan in session.plan_documents}
    return PlanResponse(
        table=session.inputs.table.name,
        outcome=outcome,
        text=text,
        plan_ids=tuple(plan["plan_id"] for plan in session.plan_documents) if outcome == "planned" else (),
        plans=tuple(session.plan_documents),
        reasons=tuple(_reason_document(line, scope) for line in lines if line.reason is not Reason.CHOSEN),
        holders={
            name: plan_id
            for name, plan_id in sorted(session.locked_partitions.items())
            if plan_id not in new and (scope.partitions is None or name in scope.partitions)
        },
        instant=snapshot.instant,
        taken_at=snapshot.taken_at,
        files=sum(line.files for line in lines),
        bytes=sum(line.bytes for line in lines),
    )


def plans_text(plans: Sequence[Mapping[str, Any]], verb: str) -> str:
    """Return ``created 2 plans: 63 files → 6 (1.0 MiB to rewrite)``, with ``verb`` for ``created``."""
    clusterings = [plan for plan in plans if plan["kind"] != PlanKind.COMPACTION]
    files = sum(plan["input_files"] for plan in clusterings)
    after = sum(plan["output_files"] for plan in clusterings)
    slices = sum(plan["output_files"] for plan in plans) - after
    done = [f"{files:,} files → {after:,}"] if clusterings else []
    done += [f"the logs of {slices:,} slice{'s' if slices != 1 else ''} into new base files"] if slices else []
    count = f"{len(plans)} plan" + ("s" if len(plans) != 1 else "")
    size = format_bytes(sum(plan["input_bytes"] for plan in plans))
    return f"{verb} {count}: {', '.join(done)} ({size} to rewrite)"


def _with_created_plans(last: PlanningResult, created: Sequence[PlanningResult]) -> PlanningResult:
    """Return ``last``; for the partitions of the ``created`` plans it has the decisions that made these plans."""
    decisions = last.decisions
    held = pc.equal(decisions["reason"].cast(pa.string()), Reason.HELD.value)
    for made in created:
        assert made.plan is not None
        its = pc.and_(held, pc.is_in(decisions["partition"].cast(pa.string()), pa.array(made.plan.partitions)))
        for name in ("reason", "number"):
            was, new = decisions[name], made.decisions[name]
            plain_type = pa.string() if name == "reason" else was.type
            column = pc.if_else(its, new.cast(plain_type), was.cast(plain_type))
            decisions = decisions.set_column(decisions.column_names.index(name), name, column)
    return replace(last, decisions=decisions)


def _reason_document(line: DecisionLine, scope: PlanningScope) -> Mapping[str, Any]:
    """Return a reason as text; if the request excluded the partition or the kind, the text is about the request."""
    words: dict[str, str] = {}
    if scope.partitions is not None and line.reason is Reason.FILTERED:
        words = {"text": "partition not requested", "setting": ""}
    elif scope.kind is not None and line.reason is Reason.NEXT_PLAN_KIND:
        words = {"text": f"not requested, only {scope.kind}", "setting": ""}
    return both_names("decision", line.document() | words)
