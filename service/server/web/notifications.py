# SPDX-License-Identifier: Apache-2.0
"""The page of notifications: messages to the webhook and to channels that wait, were delivered, or were given up."""

from urllib.parse import urlencode

from service.control.store import NotificationState
from service.control.store.notifications import Notifications
from service.server.web.rendering import PageContent

MESSAGES_PER_PAGE = 50


def notifications_page(
    store: Notifications, *, state: NotificationState | None, after: int | None, configured: bool
) -> PageContent:
    """Return the page of messages in ``state`` that follow the number ``after``.

    ``configured`` is true if a webhook or a channel is set."""
    found = store.notifications(state, MESSAGES_PER_PAGE + 1, after)
    shown = found[:MESSAGES_PER_PAGE]
    chosen = {"state": state.value} if state else {}
    return PageContent(
        messages=tuple(shown),
        states=tuple(known.value for known in NotificationState),
        state=state.value if state else "",
        has_dead=bool(store.notifications(NotificationState.DEAD, limit=1)),
        has_webhook=configured,
        first_url=f"/notifications?{urlencode(chosen)}" if after is not None else "",
        next_url=f"/notifications?{urlencode(chosen | {'after': shown[-1].number})}" if len(found) > len(shown) else "",
    )
