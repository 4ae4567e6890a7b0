# SPDX-License-Identifier: Apache-2.0
"""Actions on many plans at once. An action runs only once for each idempotency key."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Row, select, update
from uuid_utils import uuid7

from service.control.store.base import StorePart, actor_idempotency_key, insert_if_absent, storable_text
from service.control.store.database import datetime_to_ms, db_now
from service.control.store.errors import IdempotencyMismatch
from service.control.store.models import AuditRow, BulkActionRow
from service.control.store.plan_queries import resolve_id
from service.control.store.rows import view_of
from service.control.store.views import BulkAction

#: action → its name in the audit entry of one plan
_AUDIT_ACTIONS = {
    "cancel": "plan cancelled",
    "retry": "plan retried",
    "approve": "plan approved",
    "decline": "plan declined",
}


class BulkActions(StorePart):
    """Bulk actions with their plans, actors, reasons and results."""

    def begin_bulk_action(
        self,
        action: str,
        plan_filter: Mapping[str, Any],
        plan_ids: Sequence[str],
        *,
        actor: str,
        reason: str,
        idempotency_key: str | None = None,
    ) -> BulkAction:
        """Record that ``action`` begins on ``plan_ids``, the plans that matched ``plan_filter``.

        If the actor has used ``idempotency_key`` before, returns the earlier action with its plans and answer instead.
        Raises IdempotencyMismatch if that was another action or had another filter.
        """
        action_id, key, kept = (
            str(uuid7()),
            actor_idempotency_key(actor, idempotency_key),
            json.loads(json.dumps(dict(plan_filter))),
        )
        with self._database.write() as connection:
            insert_if_absent(
                connection,
                BulkActionRow,
                id=action_id,
                action=action,
                terms=kept,
                plan_ids=list(plan_ids),
                idempotency_key=key,
                actor=actor,
                reason=storable_text(reason),
                created_at_ms=db_now(),
            )
            this = BulkActionRow.id == action_id if key is None else BulkActionRow.idempotency_key == key
            row = connection.execute(select(BulkActionRow.__table__).where(this)).one()
        if (row.action, row.terms) != (action, kept):
            raise IdempotencyMismatch(
                f"idempotency key {idempotency_key!r} was used for another action, {row.id}; use a new key"
            )
        return _bulk_action(row)

    def plans_already_changed(self, bulk_action: BulkAction) -> Collection[str]:
        """Return the plans that the actor has changed in this way since the action began.

        The action changed them before a crash, or in a concurrent call.
        """
        done = select(AuditRow.subject).where(
            AuditRow.at_ms >= datetime_to_ms(bulk_action.created_at),
            AuditRow.actor == storable_text(bulk_action.actor),
            AuditRow.action == _AUDIT_ACTIONS[bulk_action.action],
        )
        with self._database.read() as connection:
            return frozenset(bulk_action.plan_ids) & set(connection.execute(done).scalars())

    def finish_bulk_action(self, action_id: str, actor: str, answer: Mapping[str, Any]) -> BulkAction:
        """Record the answer. If two calls run concurrently, the first answer is kept."""
        this = BulkActionRow.id == action_id
        with self._database.write() as connection:
            connection.execute(
                update(BulkActionRow).where(this, BulkActionRow.answer.is_(None)).values(answer=dict(answer))
            )
        return self.bulk_action(action_id, actor)

    def bulk_action(self, action_id: str, actor: str) -> BulkAction:
        """Return one action of ``actor``; ``action_id`` may be a unique part of an id. Raises NotFound, AmbiguousId."""
        with self._database.read() as connection:
            action_id = resolve_id(connection, BulkActionRow.id, action_id, "action", BulkActionRow.actor == actor)
            return _bulk_action(
                connection.execute(select(BulkActionRow.__table__).where(BulkActionRow.id == action_id)).one()
            )


def _bulk_action(row: Row[Any]) -> BulkAction:
    return view_of(BulkAction, row, action_id=row.id)
