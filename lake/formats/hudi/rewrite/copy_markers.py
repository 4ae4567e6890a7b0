# SPDX-License-Identifier: Apache-2.0
"""Markers for the files of Hudi's copy of row groups, which creates none.

Hudi's other writers mark each file before they create it. A writer that takes over a begun clustering rolls it back by
its markers: a file without a marker would stay, and the writer's commit would make it visible beside the writer's own
file of the same rows. The tasks of the copy choose the names of their files, so lakefold marks the files as soon as
they exist: while the copy runs, and once more when it has ended. A file of a copy that is killed in between has no
marker; the sweep deletes it when another process has begun the instant (``pending.late_files``).
"""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from lake.errors import LakefoldError
from lake.formats.hudi.client.client import HudiClient
from lake.formats.hudi.files.names import marker_path
from lake.formats.hudi.pending.late_files import list_files_of_instant
from lake.ports import PreparedPlan

log = logging.getLogger(__name__)
#: the time between two searches for new files; longer if a search takes longer than a quarter of it
_POLL_SECONDS = 0.5
_POLL_FACTOR = 4


@contextmanager
def marked_copies(client: HudiClient, prepared: PreparedPlan) -> Iterator[None]:
    """While the block runs, mark the files that Hudi's copy writes under the instant; nothing for other engines.

    Every file of a block that ends without an error has a marker, unless another process has taken the instant over.
    Raises the errors of the storage.
    """
    if not client.engine.is_copy:
        yield
        return
    markers, ended = _CopyMarkers(client, prepared), threading.Event()
    thread = threading.Thread(target=markers.keep_marking, args=(ended,), name=f"mark {prepared.instant}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    markers.mark_new_files()


class _CopyMarkers:
    """Marks the files of one attempt at one instant. Used by one thread at a time."""

    def __init__(self, client: HudiClient, prepared: PreparedPlan) -> None:
        self._client, self._instant = client, prepared.instant
        self._partitions = sorted({prepared.plan.groups[index].partition for index in prepared.live_groups})
        self._marked: set[str] = set()

    def keep_marking(self, ended: threading.Event) -> None:
        """Mark new files until ``ended`` is set. Errors are logged: the last call of ``mark_new_files`` raises them."""
        pause = _POLL_SECONDS
        while not ended.wait(pause):
            started = time.monotonic()
            try:
                self.mark_new_files()
            except (LakefoldError, OSError) as error:
                log.warning("%s: can't mark files of %s now: %s", self._client.table.name, self._instant, error)
            pause = max(_POLL_SECONDS, _POLL_FACTOR * (time.monotonic() - started))

    def mark_new_files(self) -> None:
        """Mark the files that have no marker yet. Marks none once another process has taken the instant over."""
        storage = self._client.storage
        found = list_files_of_instant(storage, self._instant, self._partitions)
        for path in found:
            if path in self._marked:
                continue
            # The files were listed first, so they include none of a process that takes the instant over now. By markers
            # under an instant that another process has committed, a writer could roll that commit back.
            if self._client.is_taken_over(self._instant):
                return
            storage.create_empty(marker_path(self._instant, path))
            self._marked.add(path)
