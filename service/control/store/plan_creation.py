# SPDX-License-Identifier: Apache-2.0
"""The creation of plans, with their groups and their position in the queue."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, insert

from lake.plan import Plan, PlanState
from lake.trace import current_traceparent
from service.control.store.approvals import record_proposal, withdraw_undecided
from service.control.store.base import StorePart, insert_if_absent, record_event
from service.control.store.database import db_now, timedelta_to_ms
from service.control.store.errors import StoreError
from service.control.store.models import GroupRow, PlanRow, TableRow
from service.control.store.partition_locks import lock_plan_partitions, write_with_partitions
from service.control.store.rows import options_document, pack_slices
from service.control.store.tables import table_values


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueEntry:
    """The position of a plan in the queue.

    ``cpu_seconds`` is the predicted cost, which budgets need. The plan runs as if it had been created earlier by
    ``priority_offset``. If the table misses an objective, ``urgency`` is added to this offset, and ``urgency_reason``
    names the objective. A plan that ``needs_approval`` is a proposal.
    """

    cpu_seconds: float | None = None
    priority_offset: timedelta = timedelta()
    urgency: timedelta = timedelta()
    urgency_reason: str = ""
    needs_approval: bool = False


_UNRANKED = QueueEntry()


class PlanCreation(StorePart):
    """Creation of plans."""

    def add_plan(
        self,
        plan: Plan,
        *,
        request_id: str | None,
        actor: str,
        estimate: Mapping[str, Any],
        settings_digest: str | None = None,
        queued: QueueEntry = _UNRANKED,
        replaced_proposals: Mapping[str, str] | None = None,
    ) -> None:
        """Store ``plan`` as requested and lock its partitions, in one transaction.

        ``settings_digest`` is a digest of everything that determines the plan, except its inputs; ``failed_plans``
        compares it. ``replaced_proposals`` are proposals (plan → reason) that the plan replaces: those that are still
        undecided are cancelled in the same transaction.

        An unknown table is registered in mode ``observe``. Raises PartitionsLocked with the owners if another plan or
        process holds one of the partitions, also under another name of the table.
        """
        groups = [
            {
                "plan_id": plan.plan_id,
                "number": number,
                "partition_path": group.partition,
                "slices": len(group.slices),
                "input_files": sum(1 for s in group.slices if s.path is not None),
                "input_bytes": group.bytes,
                "output_files": group.output_files,
                "files": pack_slices(group.slices),
            }
            for number, group in enumerate(plan.groups)
        ]
        if not groups:
            raise StoreError(f"plan {plan.plan_id} has no group; a plan must have at least one group")

        def withdraw_replaced(connection: Connection) -> None:
            reasons = {
                key: f"replaced by plan {plan.plan_id}: {why}" for key, why in (replaced_proposals or {}).items()
            }
            if reasons:
                withdraw_undecided(connection, self._settings, reasons, actor=actor)

        def add(connection: Connection) -> None:
            insert_if_absent(connection, TableRow, **table_values(plan.table, "observe"))
            connection.execute(
                insert(PlanRow).values(
                    id=plan.plan_id,
                    table_name=plan.table.name,
                    format=plan.table.format,
                    location=plan.table.location,
                    identity=plan.table.identity,
                    kind=plan.kind.value,
                    settings=settings_digest,
                    state=PlanState.REQUESTED,
                    snapshot_instant=plan.snapshot_instant,
                    options=options_document(plan.options),
                    engine=plan.options.engine,
                    predicted_cpu_ms=None if queued.cpu_seconds is None else round(1000 * queued.cpu_seconds),
                    estimate=dict(estimate),
                    request_id=request_id,
                    actor=actor,
                    group_count=len(groups),
                    partition_count=len(plan.partitions),
                    input_files=plan.input_files,
                    input_bytes=plan.bytes,
                    output_files=sum(g.output_files for g in plan.groups),
                    progress_bytes_total=plan.bytes,
                    adopted=plan.adopted_instant,
                    traceparent=current_traceparent(),
                    created_at_ms=db_now(),
                    not_before_ms=db_now(),
                    rank_ms=db_now() - timedelta_to_ms(queued.priority_offset + queued.urgency),
                    urgency_ms=timedelta_to_ms(queued.urgency),
                )
            )
            connection.execute(insert(GroupRow), groups)
            lock_plan_partitions(connection, plan.table.name, plan.plan_id, plan.partitions)
            reason = "planned" if plan.adopted_instant is None else f"adopted instant {plan.adopted_instant}"
            reason += f" for request {request_id}" if request_id is not None else ""
            reason += f"; runs first: {queued.urgency_reason}" if queued.urgency_reason else ""
            reason += "; waits for approval" if queued.needs_approval else ""
            record_event(connection, plan.plan_id, None, PlanState.REQUESTED, epoch=0, actor=actor, reason=reason)
            if queued.needs_approval:
                record_proposal(connection, self._settings, plan, reason)

        write_with_partitions(self._database, plan.table, plan.partitions, add, withdraw_replaced)
