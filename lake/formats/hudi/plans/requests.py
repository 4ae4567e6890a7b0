# SPDX-License-Identifier: Apache-2.0
"""The removal of the requests of pending rewrites and cleans from the timeline.

Failpoints: ``request_copied`` before the deletion of a request, ``request_deleted`` right after it.
"""

import logging
from collections.abc import Callable
from typing import Any

from lake.failpoints import failpoint
from lake.formats.hudi.client.client import HudiClient
from lake.formats.hudi.jvm.errors import translated_errors
from lake.formats.hudi.pending.request_copies import (
    copy_request,
    find_lost_requests,
    write_back_request,
    write_back_requests,
)
from lake.formats.hudi.timeline.timeline import Instant, Timeline

log = logging.getLogger(__name__)
_WRITING_BACK = "writing back a plan"


def delete_request(
    client: HudiClient, instant: Instant, requested: Any, is_needed: Callable[[Timeline], bool] = lambda timeline: False
) -> bool:
    """Delete the request of the requested ``instant``; call it under the lock. Returns False if it had to be put back.

    Writers execute pending plans, and begin them without the lock. If a writer begins the instant right now, only the
    request has its plan: without it no writer could read the instant's plan, and none could roll it back. So a copy
    is saved first; ``write_back_lost_requests`` uses it if the writer begins after the last check of this function, or
    if this process dies. ``is_needed`` gets the timeline after the deletion and returns True if the request must stay
    for another reason.
    """
    before = client.read_timeline()
    copy_request(client.storage, before, instant)
    failpoint("request_copied")
    client.meta.getActiveTimeline().deletePending(requested)
    failpoint("request_deleted")
    now = client.read_timeline()
    if now.find(instant.time, action=instant.action) is None and not is_needed(now):
        return True
    write_back_request(client.storage, before, instant.time, str(instant.requested_file))
    return False


def write_back_lost_requests(client: HudiClient) -> None:
    """Write back the requests of rewrites and cleans that a writer began during their withdrawal. Idempotent.

    See ``pending.request_copies``.
    """
    if not any(find_lost_requests(client.storage, client.read_timeline())):
        return
    with (
        translated_errors(client.table, _WRITING_BACK),
        client.locked(_WRITING_BACK, writes_metadata_table=False),
    ):
        for time in write_back_requests(client.storage, client.read_timeline()):
            log.warning(
                "%s: a writer began %s while it was being withdrawn; its plan is back on the timeline",
                client.table.name,
                time,
            )
