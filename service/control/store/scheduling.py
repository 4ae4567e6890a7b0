# SPDX-License-Identifier: Apache-2.0
"""Changes of plans by the scheduler and by operators: add, cancel and retry; the owners of locked partitions."""

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, Row, insert, select, update

from lake.model import FileSlice
from lake.plan import FailedPlan, LockOwner, LockOwnerKind, Plan, PlanState
from lake.trace import current_traceparent
from service.control.store.approvals import withdraw_undecided
from service.control.store.audit import record_audit
from service.control.store.base import StorePart, insert_if_absent, record_event, storable_text, with_row_locks
from service.control.store.database import db_now, timedelta_to_ms
from service.control.store.errors import ConstraintViolated, PartitionsLocked, StoreError, WrongState
from service.control.store.lifecycle import cancel_requested_plan
from service.control.store.models import GroupRow, LivePartitionRow, PlanRow, TableRow
from service.control.store.notifications import NotifiedEvent, enqueue_notification
from service.control.store.partition_locks import delete_expired_locks
from service.control.store.plan_filter import is_approved_or_exempt, is_awaiting_approval
from service.control.store.plan_queries import resolve_plan_id
from service.control.store.rows import options_document, pack_slices, unpack_slices
from service.control.store.tables import table_values
from service.control.store.views import FailureKind

logger = logging.getLogger(__name__)

#: if the plan that holds a partition ends between check and insert, the next attempt succeeds
_LOCK_ATTEMPTS = 5
_EXHAUSTED_REMEMBERED = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueEntry:
    """How a plan waits for an executor.

    ``cpu_seconds`` is the predicted cost, which budgets need. ``priority_offset`` moves the plan forward by that time
    in the order of creation. ``urgency`` is added to it if the table misses an objective; ``urgency_reason`` is the
    reason in words. A plan that ``needs_approval`` is a proposal.
    """

    cpu_seconds: float | None = None
    priority_offset: timedelta = timedelta()
    urgency: timedelta = timedelta()
    urgency_reason: str = ""
    needs_approval: bool = False


_UNRANKED = QueueEntry()


class Scheduling(StorePart):
    """Creation of plans, and operators' actions on them."""

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
        compares it.
        ``replaced_proposals`` are proposals (plan → reason) that it replaces: the undecided ones are cancelled in the
        same transaction.

        An unknown table is registered in mode ``observe``. Raises PartitionsLocked with the owners if another plan or
        process holds one of the partitions.
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
            raise StoreError(f"plan {plan.plan_id} has no group; a plan rewrites at least one")

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
                    proposed_at_ms=db_now() if queued.needs_approval else None,
                    rank_ms=db_now() - timedelta_to_ms(queued.priority_offset + queued.urgency),
                    urgency_ms=timedelta_to_ms(queued.urgency),
                )
            )
            connection.execute(insert(GroupRow), groups)
            _lock_plan_partitions(connection, plan.table.name, plan.plan_id, plan.partitions)
            reason = "planned" if plan.adopted_instant is None else f"adopted instant {plan.adopted_instant}"
            reason += f" for request {request_id}" if request_id is not None else ""
            reason += f"; runs first: {queued.urgency_reason}" if queued.urgency_reason else ""
            reason += "; waits for approval" if queued.needs_approval else ""
            record_event(connection, plan.plan_id, None, PlanState.REQUESTED, epoch=0, actor=actor, reason=reason)
            if queued.needs_approval:
                enqueue_notification(
                    connection,
                    self._settings,
                    NotifiedEvent(
                        event="plan.proposed",
                        table=plan.table.name,
                        plan=plan.plan_id,
                        epoch=0,
                        reason=reason,
                        figures=_proposed_figures(plan),
                    ),
                )

        self._run_with_partitions(plan.table.name, plan.partitions, add, withdraw_replaced)

    def locked_partitions(self, name: str, *, include_proposals: bool = True) -> dict[str, str]:
        """Return partition → live plan that holds it, for the table ``name``; with or without proposals."""
        with self._database.read() as connection:
            owners = _partition_owners(connection, name)[0]
            if include_proposals:
                return owners
            waiting = select(PlanRow.id).where(PlanRow.table_name == name, is_awaiting_approval())
            proposals = frozenset(connection.execute(waiting).scalars())
        return {partition: plan_id for partition, plan_id in owners.items() if plan_id not in proposals}

    def failed_plans(self, name: str, settings_digest: str) -> list[FailedPlan]:
        """Return the plans of the table ``name`` that failed under these settings and must not be repeated unchanged.

        They count until they are retried or the table is resumed. Plans that ran out of attempts count for only a day,
        since the cause may have been the storage.
        """
        remembered = (PlanRow.failure == FailureKind.REJECTED) | (
            PlanRow.finalized_at_ms > db_now() - timedelta_to_ms(_EXHAUSTED_REMEMBERED)
        )
        failed = select(PlanRow.id, PlanRow.attempts, PlanRow.failure, PlanRow.error).where(
            PlanRow.table_name == name,
            PlanRow.state == PlanState.FAILED,
            PlanRow.failure.is_not(None),
            PlanRow.settings == settings_digest,
            remembered,
        )
        files = select(GroupRow.plan_id, GroupRow.partition_path, GroupRow.files)
        with self._database.read() as connection:
            rows = connection.execute(failed.order_by(PlanRow.id)).all()
            groups = connection.execute(files.where(GroupRow.plan_id.in_([row.id for row in rows]))).all()
        slices: dict[str, list[FileSlice]] = defaultdict(list)
        for group in groups:
            slices[group.plan_id] += unpack_slices(group.files, group.partition_path)
        return [
            FailedPlan(
                plan_id=row.id,
                attempts=row.attempts,
                error=row.error or "",
                slices=tuple(slices[row.id]),
            )
            for row in rows
        ]

    def adopted_plans(self, name: str, instants: Collection[str]) -> dict[str, str]:
        """Return instant → plan for those ``instants`` that a plan of the table ``name`` has adopted, live or ended.

        A proposal that ended undecided does not count.
        """
        adopted = select(PlanRow.adopted, PlanRow.id).where(
            PlanRow.table_name == name,
            PlanRow.adopted.in_(instants),
            is_approved_or_exempt() | PlanRow.decision.is_not(None) | is_awaiting_approval(),
        )
        with self._database.read() as connection:
            return {row.adopted: row.id for row in connection.execute(adopted.order_by(PlanRow.id))}

    def request_cancel(self, plan_id: str, actor: str, reason: str = "") -> PlanState:
        """Cancel a requested plan at once; request the cancel of an inflight plan. Returns the state afterwards.

        ``plan_id`` may be a unique part of an id. Raises NotFound, or WrongState for a plan that has ended.
        """
        reason = storable_text(reason or f"cancelled by {actor}")
        with self._database.write() as connection:
            plan_id = resolve_plan_id(connection, plan_id, self._is_in_scope(PlanRow.table_name))
            row = connection.execute(with_row_locks(select(PlanRow.__table__).where(PlanRow.id == plan_id))).one()
            if row.state == PlanState.REQUESTED:
                cancel_requested_plan(connection, self._settings, row, actor=actor, reason=reason)
                after = PlanState.CANCELLED
            elif row.state == PlanState.INFLIGHT:
                if row.cancel_requested_at_ms is not None:
                    return PlanState.INFLIGHT
                cancel_values = {
                    "cancel_requested_by": actor,
                    "cancel_requested_at_ms": db_now(),
                    "cancel_reason": reason,
                }
                connection.execute(update(PlanRow).where(PlanRow.id == plan_id).values(**cancel_values))
                after, reason = PlanState.INFLIGHT, f"cancel requested: {reason}"
                record_event(connection, plan_id, after, after, epoch=row.epoch, actor=actor, reason=reason)
            else:
                raise WrongState(f"plan {plan_id} is {row.state}; only requested and inflight plans can be cancelled")
            record_audit(connection, actor, "plan cancelled", table=row.table_name, subject=plan_id, detail=reason)
        log_fields = {"plan": plan_id, "table": row.table_name, "epoch": row.epoch}
        outcome = "cancelled" if after is PlanState.CANCELLED else "to be cancelled"
        logger.info("plan %s of %s %s by %s: %s", plan_id, row.table_name, outcome, actor, reason, extra=log_fields)
        return after

    def retry(self, plan_id: str, actor: str, reason: str = "") -> None:
        """Request a failed plan again, with all attempts and the same partitions; its history records the reason.

        ``plan_id`` may be a unique part of an id. Raises NotFound, WrongState, or PartitionsLocked.
        """
        with self._database.write() as connection:
            plan_id = resolve_plan_id(connection, plan_id, self._is_in_scope(PlanRow.table_name))
            table = _lock_failed_plan(connection, plan_id).table_name
            groups = select(GroupRow.partition_path).where(GroupRow.plan_id == plan_id).distinct()
            partitions = tuple(connection.execute(groups).scalars())

        def request_again(connection: Connection) -> None:
            row = _lock_failed_plan(connection, plan_id)
            _lock_plan_partitions(connection, table, plan_id, partitions)
            connection.execute(
                update(PlanRow)
                .where(PlanRow.id == plan_id, PlanRow.state == PlanState.FAILED)
                .values(
                    state=PlanState.REQUESTED,
                    failure=None,
                    attempts=0,
                    not_before_ms=db_now(),
                    finalized_at_ms=None,
                    step=None,
                    cancel_requested_by=None,
                    cancel_requested_at_ms=None,
                    cancel_reason=None,
                )
            )
            record_event(
                connection,
                plan_id,
                PlanState.FAILED,
                PlanState.REQUESTED,
                epoch=row.epoch,
                actor=actor,
                reason=f"retried: {storable_text(reason)}" if reason else "retried",
            )
            record_audit(connection, actor, "plan retried", table=table, subject=plan_id, detail=storable_text(reason))

        self._run_with_partitions(table, partitions, request_again)
        log_fields = {"plan": plan_id, "table": table}
        logger.info("plan %s of %s requested again by %s", plan_id, table, actor, extra=log_fields)

    def _run_with_partitions(
        self,
        table: str,
        partitions: tuple[str, ...],
        write: Callable[[Connection], None],
        before: Callable[[Connection], None] = lambda connection: None,
    ) -> None:
        """Run ``write`` in a transaction. Raises PartitionsLocked if one of ``partitions`` has another owner.

        ``before`` runs before the owners are read, and is rolled back if a partition still has another owner.
        """
        for attempt in range(_LOCK_ATTEMPTS):
            try:
                with self._database.write() as connection:
                    before(connection)
                    self._raise_if_locked(connection, table, partitions)
                    write(connection)
                return
            except ConstraintViolated:
                # Another process took a partition between our check and our insert, or the write is invalid itself.
                with self._database.read() as connection:
                    self._raise_if_locked(connection, table, partitions)
                if attempt == _LOCK_ATTEMPTS - 1:
                    raise

    @staticmethod
    def _raise_if_locked(connection: Connection, table: str, partitions: tuple[str, ...]) -> None:
        by_plans, by_others = _partition_owners(connection, table)
        plans = {partition: by_plans[partition] for partition in partitions if partition in by_plans}
        other_owners = {partition: by_others[partition] for partition in partitions if partition in by_others}
        if plans or other_owners:
            raise PartitionsLocked(plans, other_owners)


def _partition_owners(connection: Connection, table: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return partition → plan that holds it, and partition → text of another owner."""
    by_plans, by_others = dict[str, str](), dict[str, str]()
    in_force = LivePartitionRow.expires_at_ms.is_(None) | (LivePartitionRow.expires_at_ms > db_now())
    for row in connection.execute(
        select(LivePartitionRow.__table__).where(LivePartitionRow.table_name == table, in_force)
    ):
        if row.plan_id is not None:
            by_plans[row.partition_path] = row.plan_id
        else:
            by_others[row.partition_path] = str(LockOwner(kind=LockOwnerKind(row.holder_kind), name=row.keeper))
    return by_plans, by_others


def _lock_failed_plan(connection: Connection, plan_id: str) -> Row[Any]:
    row = connection.execute(with_row_locks(select(PlanRow.__table__).where(PlanRow.id == plan_id))).one()
    if row.state != PlanState.FAILED:
        raise WrongState(f"plan {plan_id} is {row.state}; only failed plans can be retried")
    return row


def _proposed_figures(plan: Plan) -> dict[str, int]:
    """Return the figures in the notification of a proposal."""
    return {
        "input_files": plan.input_files,
        "input_bytes": plan.bytes,
        "partitions": len(plan.partitions),
        "output_files": sum(group.output_files for group in plan.groups),
    }


def _lock_plan_partitions(connection: Connection, table: str, plan_id: str, partitions: tuple[str, ...]) -> None:
    delete_expired_locks(connection, table)
    # Sorted, so that two plans for the same partitions never deadlock.
    connection.execute(
        insert(LivePartitionRow),
        [
            {"table_name": table, "partition_path": p, "holder_kind": "plan", "plan_id": plan_id}
            for p in sorted(partitions)
        ],
    )
