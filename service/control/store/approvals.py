# SPDX-License-Identifier: Apache-2.0
"""Proposals: plans that wait for approval.

People approve or decline a proposal; the scheduler withdraws an outdated one. A proposal is in state requested and
holds its partitions, but no executor can claim it. A proposal can be decided only once: a second decision raises an
error that names the first one.
"""

import logging
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, Row, func, select, update

from lake.plan import DeclinedPlan, Plan, PlanState, ProposalDecision
from service.control.store.audit import record_audit
from service.control.store.base import StorePart, in_batches, record_event, storable_text, with_row_locks
from service.control.store.claimed_plans import cancel_requested_plan
from service.control.store.database import db_now, timedelta_to_ms
from service.control.store.errors import WrongState
from service.control.store.models import PlanRow
from service.control.store.notifications import NotifiedEvent, enqueue_notification
from service.control.store.plan_filter import is_awaiting_approval
from service.control.store.plan_queries import resolve_plan_id, slices_by_plan
from service.control.store.views import Proposal, StoreSettings

logger = logging.getLogger(__name__)

#: every scan leaves the files of declined plans alone; this is recorded at most once per this time
_DECLINE_NOTE_INTERVAL_MS = timedelta_to_ms(timedelta(days=1))


def record_proposal(connection: Connection, settings: StoreSettings, plan: Plan, reason: str) -> None:
    """Record that a new plan waits for approval, and notify of it; ``reason`` is the reason in its first event."""
    connection.execute(update(PlanRow).where(PlanRow.id == plan.plan_id).values(proposed_at_ms=db_now()))
    event = NotifiedEvent(
        event="plan.proposed",
        table=plan.table.name,
        plan=plan.plan_id,
        epoch=0,
        reason=reason,
        figures={
            "input_files": plan.input_files,
            "input_bytes": plan.bytes,
            "partitions": len(plan.partitions),
            "output_files": sum(group.output_files for group in plan.groups),
        },
    )
    enqueue_notification(connection, settings, event)


def withdraw_undecided(
    connection: Connection, settings: StoreSettings, reasons: Mapping[str, str], *, actor: str
) -> Collection[str]:
    """Cancel those of the proposals in ``reasons`` (plan → reason) that are still undecided. Returns their ids."""
    waiting = select(PlanRow.__table__).where(PlanRow.id.in_(reasons), is_awaiting_approval()).order_by(PlanRow.id)
    rows = connection.execute(with_row_locks(waiting)).all()
    for row in rows:
        cancel_requested_plan(connection, settings, row, actor=actor, reason=storable_text(reasons[row.id]))
    return [row.id for row in rows]


class Proposals(StorePart):
    """Proposals and the decisions on them."""

    def proposals(self, name: str) -> list[Proposal]:
        """Return the undecided proposals of the table ``name``, oldest first."""
        waiting = select(PlanRow.id, PlanRow.settings, PlanRow.adopted).where(
            PlanRow.table_name == name, is_awaiting_approval()
        )
        with self._database.read() as connection:
            rows = connection.execute(waiting.order_by(PlanRow.id)).all()
            slices = slices_by_plan(connection, [row.id for row in rows])
        return [
            Proposal(plan_id=row.id, settings=row.settings, adopted=row.adopted, slices=slices[row.id]) for row in rows
        ]

    def declined_plans(self, name: str, settings_digest: str) -> list[DeclinedPlan]:
        """Return the proposals of the table ``name`` that were declined under these settings."""
        declined = select(PlanRow.id, PlanRow.decided_by, PlanRow.cancel_reason).where(
            PlanRow.table_name == name,
            PlanRow.decision == ProposalDecision.DECLINED,
            PlanRow.settings == settings_digest,
        )
        with self._database.read() as connection:
            rows = connection.execute(declined.order_by(PlanRow.id)).all()
            slices = slices_by_plan(connection, [row.id for row in rows])
        return [
            DeclinedPlan(
                plan_id=row.id, declined_by=row.decided_by, explanation=row.cancel_reason, slices=slices[row.id]
            )
            for row in rows
        ]

    def record_declines_in_effect(self, plan_ids: Collection[str]) -> None:
        """Record, at most once a day for each plan, that files were left alone because these plans were declined."""
        since = func.coalesce(PlanRow.spared_at_ms, PlanRow.finalized_at_ms)
        noted_before = PlanRow.decision == ProposalDecision.DECLINED, since < db_now() - _DECLINE_NOTE_INTERVAL_MS
        for some in in_batches(sorted(plan_ids)):
            due = PlanRow.id.in_(some), *noted_before
            with self._database.read() as connection:
                if connection.execute(select(PlanRow.id).where(*due).limit(1)).first() is None:
                    continue
            with self._database.write() as connection:
                connection.execute(update(PlanRow).where(*due).values(spared_at_ms=db_now()))

    def approve(self, plan_id: str, actor: str, reason: str = "") -> None:
        """Approve a proposal. ``plan_id`` may be a unique part of an id. Raises NotFound, WrongState."""
        with self._database.write() as connection:
            row = self._lock_undecided(connection, plan_id)
            connection.execute(
                update(PlanRow)
                .where(PlanRow.id == row.id)
                .values(
                    decision=ProposalDecision.APPROVED, decided_by=actor, decided_at_ms=db_now(), not_before_ms=db_now()
                )
            )
            text, requested = storable_text(reason), PlanState.REQUESTED
            why = f"approved: {text}" if text else "approved"
            record_event(connection, row.id, requested, requested, epoch=row.epoch, actor=actor, reason=why)
            record_audit(connection, actor, "plan approved", table=row.table_name, subject=row.id, detail=text)
        _log_decision("approved", row, actor, text)

    def decline(self, plan_id: str, actor: str, reason: str = "") -> None:
        """Cancel a proposal; its files are not proposed again until they change.

        ``plan_id`` may be a unique part of an id. Raises NotFound, WrongState.
        """
        text = storable_text(reason)
        with self._database.write() as connection:
            row = self._lock_undecided(connection, plan_id)
            cancel_requested_plan(
                connection,
                self._settings,
                row,
                actor=actor,
                reason=f"declined: {text}" if text else "declined",
                decision=ProposalDecision.DECLINED,
                decided_by=actor,
                decided_at_ms=db_now(),
            )
            record_audit(connection, actor, "plan declined", table=row.table_name, subject=row.id, detail=text)
        _log_decision("declined", row, actor, text)

    def withdraw_proposals(self, reasons: Mapping[str, str], *, actor: str) -> None:
        """Cancel outdated proposals (plan → reason), except those that were decided in the meantime."""
        if reasons:
            with self._database.write() as connection:
                withdraw_undecided(connection, self._settings, reasons, actor=actor)

    def _lock_undecided(self, connection: Connection, part: str) -> Row[Any]:
        """Return the locked row of a proposal. Raises NotFound, WrongState."""
        plan_id = resolve_plan_id(connection, part, self._is_in_scope(PlanRow.table_name))
        row = connection.execute(with_row_locks(select(PlanRow.__table__).where(PlanRow.id == plan_id))).one()
        if row.decision is not None:
            raise WrongState(f"plan {plan_id} was already {row.decision} by {row.decided_by}; it is {row.state}")
        if row.proposed_at_ms is None or row.state != PlanState.REQUESTED:
            raise WrongState(f"plan {plan_id} is {row.state} and does not wait for approval")
        return row


def _log_decision(decision: str, row: Row[Any], actor: str, reason: str) -> None:
    log_fields = {"plan": row.id, "table": row.table_name, "epoch": row.epoch}
    why = f": {reason}" if reason else ""
    logger.info("plan %s of %s %s by %s%s", row.id, row.table_name, decision, actor, why, extra=log_fields)
