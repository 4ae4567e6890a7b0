# SPDX-License-Identifier: Apache-2.0
"""The removal of the requests of pending rewrites from the timeline."""

from collections.abc import Callable
from typing import Any

from lake.formats.hudi.client.client import HudiClient
from lake.formats.hudi.timeline.timeline import Instant, Timeline


def delete_request(
    client: HudiClient, instant: Instant, requested: Any, is_needed: Callable[[Timeline], bool] = lambda timeline: False
) -> bool:
    """Delete the request of the requested ``instant``; call it under the lock. Returns False if it had to be put back.

    Writers execute pending plans, and begin them without the lock. If a writer begins the instant right now, only the
    request names the inputs: without it no writer could read the instant's plan, and none could roll it back.
    ``is_needed`` gets the timeline after the deletion and returns True if the request must stay for another reason.
    """
    path = f"{client.read_timeline().directory}/{instant.requested_file}"
    content = client.storage.read(path)
    client.meta.getActiveTimeline().deletePending(requested)
    now = client.read_timeline()
    if now.find(instant.time, action=instant.action) is None and not is_needed(now):
        return True
    client.storage.write(path, content)
    return False
