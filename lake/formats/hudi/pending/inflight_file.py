# SPDX-License-Identifier: Apache-2.0
"""What this process has begun of a pending rewrite, and whether that is still there.

Hudi lets anybody execute a pending plan, and a writer with inline clustering executes whatever is pending. Whoever does
takes back what was begun, files included, and begins anew under the same instant, without a lock. So that can't be
kept out, only noticed: the inflight file is another one then.
"""

from datetime import datetime

from pyarrow import fs as pafs

from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.timeline.timeline import Timeline


class InflightFile:
    """A rewrite that this process is about to begin; any thread may ask for it."""

    def __init__(self, storage: TableStorage, instant: str) -> None:
        self._storage = storage
        self.instant = instant
        #: the inflight file and when it was written, from the first look that found it
        self._own_file: tuple[str, datetime] | None = None

    def is_unchanged(self) -> bool | None:
        """Whether what an earlier look found is still there; None where there has been nothing to find."""
        if self._own_file is None:
            self._own_file = self._find_inflight_file()
            return None
        path, written_at = self._own_file
        return self._modified_at(path) == written_at

    def _find_inflight_file(self) -> tuple[str, datetime] | None:
        timeline = Timeline(self._storage)
        instant = timeline.find(self.instant)
        if instant is None or instant.inflight_file is None:
            return None
        path = f"{timeline.directory}/{instant.inflight_file}"
        written_at = self._modified_at(path)
        return None if written_at is None else (path, written_at)

    def _modified_at(self, path: str) -> datetime | None:
        info = self._storage.info(path)
        return info.mtime if info.type == pafs.FileType.File else None
