# SPDX-License-Identifier: Apache-2.0
"""Copies of the requests that lakefold removes from the timeline, and the begun actions that lack their request.

A writer begins a requested rewrite or clean in two steps, without a lock: it checks that the request exists, and
creates the inflight file. If the request is deleted between the two steps, an inflight action without a plan remains.
Neither Hudi nor lakefold can read the inputs of such a rewrite, so every write of the table fails. Nor can they read
which files such a clean deletes, so no writer's cleaner ends it, and lakefold does not recognize it as its own.

Hudi has no step that removes a request and excludes a begin at once. So lakefold saves a copy before it removes a
request. The copy is beside the record of the instant, and is kept as long as the record. If a writer began the action
nevertheless, the request is written back from the copy, by the withdrawal itself or by the next sweep of any lakefold
installation.
"""

from collections.abc import Iterator

from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.pending.late_files import record_pending, request_copy_path
from lake.formats.hudi.timeline.timeline import COMMIT_ACTIONS, Instant, Timeline

_INFLIGHT, _REQUESTED = ".inflight", ".requested"
#: the actions whose requests lakefold removes from the timeline
_WITHDRAWN_ACTIONS = COMMIT_ACTIONS | {"clean"}


def copy_request(storage: TableStorage, timeline: Timeline, instant: Instant) -> None:
    """Save a copy of the request of a pending action, if there is a request; call it under the lock."""
    if instant.requested_file is not None:
        storage.write(request_copy_path(instant.time), storage.read(f"{timeline.directory}/{instant.requested_file}"))


def find_lost_requests(storage: TableStorage, timeline: Timeline) -> Iterator[Instant]:
    """Yield the begun rewrites and cleans without a request, of whose request there is a copy.

    Needs no lock, so nothing may be changed without a second check under the lock.
    """
    for instant in timeline.pending:
        is_begun = instant.inflight_file is not None and instant.action in _WITHDRAWN_ACTIONS
        if is_begun and instant.requested_file is None and storage.is_file(request_copy_path(instant.time)):
            yield instant


def write_back_requests(storage: TableStorage, timeline: Timeline) -> list[str]:
    """Write the requests of ``find_lost_requests`` back; call it under the lock. Returns the times of the instants."""
    found = list(find_lost_requests(storage, timeline))
    for instant in found:
        name = str(instant.inflight_file).removesuffix(_INFLIGHT) + _REQUESTED
        write_back_request(storage, timeline, instant.time, name)
    return [instant.time for instant in found]


def write_back_request(storage: TableStorage, timeline: Timeline, instant: str, name: str) -> None:
    """Write the request of ``instant`` back from its copy, as the file ``name``; call it under the lock."""
    copy = request_copy_path(instant)
    storage.write(f"{timeline.directory}/{name}", storage.read(copy))
    record_pending(storage, instant)
    storage.delete(copy)
