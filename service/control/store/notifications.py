# SPDX-License-Identifier: Apache-2.0
"""Notifications: messages to the webhook and to channels.

A message is written in the transaction of its event. It waits until it is delivered, or until its last attempt has
failed; then it is dead.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, Row, delete, func, insert, select, update
from uuid_utils import uuid7

from service.control.store.audit import record_audit
from service.control.store.base import StorePart, storable_text
from service.control.store.database import datetime_from_ms, db_now, timedelta_to_ms
from service.control.store.errors import NotFound, WrongState
from service.control.store.models import NotificationRow
from service.control.store.rows import view_of
from service.control.store.views import Notification, NotificationState, StoreSettings

_IS_WAITING = (NotificationRow.delivered_at_ms.is_(None), NotificationRow.dead_at_ms.is_(None))
_STATE_CONDITIONS: Mapping[NotificationState, Any] = {
    NotificationState.WAITING: _IS_WAITING,
    NotificationState.DELIVERED: (NotificationRow.delivered_at_ms.is_not(None),),
    NotificationState.DEAD: (NotificationRow.dead_at_ms.is_not(None),),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifiedEvent:
    """An event to be reported.

    ``table`` is None if the event concerns the whole service. ``partition`` is None unless it concerns one partition.
    """

    event: str
    table: str | None
    partition: str | None = None
    reason: str = ""
    plan: str | None = None
    epoch: int | None = None
    figures: Mapping[str, int] = field(default_factory=dict)


def enqueue_notification(connection: Connection, settings: StoreSettings, event: NotifiedEvent) -> None:
    """Write one message for each receiver of the event, in the transaction of the event."""
    receivers = settings.receivers_of(event.event)
    if not receivers:
        return
    now = connection.execute(select(db_now())).scalar_one()
    body = {
        "id": str(uuid7()),
        "event": event.event,
        "at": datetime_from_ms(now).isoformat(),
        "table": event.table,
        **({} if event.partition is None else {"partition": event.partition}),
        "plan": event.plan,
        "epoch": event.epoch,
        "reason": storable_text(event.reason),
        "figures": dict(event.figures),
    }
    for channel in receivers:
        row = {"event": event.event, "channel": channel, "body": body, "created_at_ms": now, "not_before_ms": now}
        connection.execute(insert(NotificationRow).values(**row))


def notification_counts(connection: Connection) -> dict[str, int]:
    """Return the numbers of waiting and of dead messages, as fields of ``Figures``."""
    return {
        f"notifications_{state}": connection.execute(
            select(func.count()).select_from(NotificationRow).where(*_STATE_CONDITIONS[state])
        ).scalar_one()
        for state in (NotificationState.WAITING, NotificationState.DEAD)
    }


class Notifications(StorePart):
    """The outbox of the webhook and of the channels."""

    def notify(self, event: str, *, table: str | None, reason: str) -> None:
        """Write the messages about an event that changes no other row of the database."""
        if self._settings.receivers_of(event):
            with self._database.write() as connection:
                enqueue_notification(connection, self._settings, NotifiedEvent(event=event, table=table, reason=reason))

    def due_notifications(self, limit: int, channel: str | None = None) -> list[Notification]:
        """Return the waiting messages to ``channel`` (None: the webhook) that are due, oldest first."""
        receiver = NotificationRow.channel.is_(None) if channel is None else NotificationRow.channel == channel
        is_due = NotificationRow.not_before_ms <= db_now()
        due = select(NotificationRow.__table__).where(*_IS_WAITING, is_due, receiver)
        with self._database.read() as connection:
            rows = connection.execute(due.order_by(NotificationRow.not_before_ms, NotificationRow.id).limit(limit))
            return [_notification(row) for row in rows]

    def mark_notification_delivered(self, number: int) -> None:
        """Record that the receiver accepted a message."""
        self._record_attempt(number, delivered_at_ms=db_now(), error=None)

    def mark_notification_failed(self, number: int, error: str, retry_in: timedelta | None) -> None:
        """Record a failed attempt. The next attempt is due after ``retry_in``; if that is None, the message is dead."""
        end = {"dead_at_ms": db_now()} if retry_in is None else {"not_before_ms": db_now() + timedelta_to_ms(retry_in)}
        self._record_attempt(number, error=storable_text(error), **end)

    def notifications(
        self, state: NotificationState | None = None, limit: int = 50, after: int | None = None
    ) -> list[Notification]:
        """Return at most ``limit`` messages, newest first; with ``after`` only messages with lower numbers."""
        query = select(NotificationRow.__table__).where(*(_STATE_CONDITIONS[state] if state else ()))
        if after is not None:
            query = query.where(NotificationRow.id < after)
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(NotificationRow.id.desc()).limit(limit))
            return [_notification(row) for row in rows]

    def retry_notifications(self, numbers: Collection[int] | None, *, actor: str) -> int:
        """Send dead messages again, all of them if ``numbers`` is None; return their number. Skips waiting messages.

        Raises NotFound if a number is unknown, WrongState if a message was delivered; then no message is changed.
        """
        values = {"dead_at_ms": None, "attempts": 0, "not_before_ms": db_now()}
        return self._change_dead(
            update(NotificationRow).values(**values),
            numbers,
            "sent again",
            actor=actor,
            skipped_states=(NotificationState.WAITING,),
        )

    def drop_notifications(self, numbers: Collection[int] | None, *, actor: str) -> int:
        """Delete dead messages, all of them if ``numbers`` is None; return their number.

        Raises NotFound if a number is unknown, WrongState if a message is not dead; then no message is deleted.
        """
        return self._change_dead(delete(NotificationRow), numbers, "dropped", actor=actor)

    def prune_notifications(self, *, delivered: timedelta, dead: timedelta) -> int:
        """Delete messages that were delivered, or became dead, longer ago than these times; return their number."""
        with self._database.write() as connection:
            return sum(
                connection.execute(delete(NotificationRow).where(ended < db_now() - timedelta_to_ms(kept))).rowcount
                for ended, kept in ((NotificationRow.delivered_at_ms, delivered), (NotificationRow.dead_at_ms, dead))
            )

    def _record_attempt(self, number: int, **values: Any) -> None:
        this = update(NotificationRow).where(NotificationRow.id == number, *_IS_WAITING)
        with self._database.write() as connection:
            connection.execute(this.values(attempts=NotificationRow.attempts + 1, **values))

    def _change_dead(
        self,
        change: Any,
        numbers: Collection[int] | None,
        action: str,
        *,
        actor: str,
        skipped_states: Collection[NotificationState] = (),
    ) -> int:
        dead = change.where(NotificationRow.dead_at_ms.is_not(None))
        with self._database.write() as connection:
            if numbers is None:
                changed = int(connection.execute(dead).rowcount)
            else:
                changed = sum(
                    self._change_one_dead(connection, dead, number, action, skipped_states)
                    for number in sorted(set(numbers))
                )
            subject = "all" if numbers is None else ", ".join(map(str, sorted(set(numbers))))
            record_audit(connection, actor, f"notifications {action}", subject=subject, detail=f"{changed} changed")
        return changed

    @staticmethod
    def _change_one_dead(
        connection: Connection, dead: Any, number: int, action: str, skipped_states: Collection[NotificationState]
    ) -> bool:
        if connection.execute(dead.where(NotificationRow.id == number)).rowcount:
            return True
        row = connection.execute(select(NotificationRow.__table__).where(NotificationRow.id == number)).one_or_none()
        if row is None:
            raise NotFound(f"no notification {number}")
        if (state := _notification(row).state) not in skipped_states:
            raise WrongState(f"notification {number} is {state}; only dead ones can be {action}")
        return False


def _notification(row: Row[Any]) -> Notification:
    return view_of(Notification, row, number=row.id)
