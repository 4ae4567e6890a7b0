# SPDX-License-Identifier: Apache-2.0
"""The documents of messages to the webhook, and of what retrying and dropping them has done."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from service.control.store import Notification


def notification(message: "Notification") -> dict[str, Any]:
    """A message to the webhook; ``id`` is what its receiver knows it by."""
    return {
        "number": message.number,
        "id": message.body["id"],
        "event": message.event,
        "table": message.body["table"],
        "plan": message.body["plan"],
        "reason": message.body["reason"],
        "state": message.state,
        "attempts": message.attempts,
        "created_at": message.created_at,
        "not_before": message.not_before,
        "delivered_at": message.delivered_at,
        "dead_at": message.dead_at,
        "error": message.error,
    }


def notifications_retried(count: int) -> dict[str, Any]:
    """What a retry of dead messages has done."""
    return {"retried": count}


def notifications_dropped(count: int) -> dict[str, Any]:
    """What dropping dead messages has done."""
    return {"dropped": count}
