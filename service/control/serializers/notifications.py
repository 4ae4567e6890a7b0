# SPDX-License-Identifier: Apache-2.0
"""The documents of messages to the webhook, and of the effect of retrying and dropping them."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from service.control.store import Notification


def notification(message: "Notification") -> dict[str, Any]:
    """Return a message to the webhook, or to the channel of that name; ``id`` identifies it for the receiver."""
    return {
        "number": message.number,
        "id": message.body["id"],
        "event": message.event,
        "channel": message.channel,
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
    """Return the result of retrying dead messages."""
    return {"retried": count}


def notifications_dropped(count: int) -> dict[str, Any]:
    """Return the result of dropping dead messages."""
    return {"dropped": count}
