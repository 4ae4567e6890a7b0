# SPDX-License-Identifier: Apache-2.0
"""What this process has begun of a pending rewrite, and whether that is still there.

Hudi lets anybody execute a pending plan, and a writer with inline clustering executes whatever is pending. Whoever does
takes back what was begun, files included, and begins anew under the same instant, without a lock. So that can't be
kept out, only noticed: the inflight file is another one then.
"""

from datetime import datetime

from pyarrow import fs as pafs

from lake.formats.hudi.files.storage import Storage
from lake.formats.hudi.timeline.timeline import Timeline


class Begun:
    """A rewrite that this process is about to begin; any thread may ask for it."""

    def __init__(self, storage: Storage, instant: str) -> None:
        self._storage = storage
        self.instant = instant
        #: the inflight file and when it was written, from the first look that found it
        self._inflight: tuple[str, datetime] | None = None

    def is_ours(self) -> bool | None:
        """Whether what an earlier look found is still there; None where there has been nothing to find."""
        if self._inflight is None:
            self._inflight = self._find()
            return None
        path, written_at = self._inflight
        return self._written_at(path) == written_at

    def _find(self) -> tuple[str, datetime] | None:
        timeline = Timeline(self._storage)
        instant = timeline.find(self.instant)
        if instant is None or instant.inflight_file is None:
            return None
        path = f"{timeline.directory}/{instant.inflight_file}"
        written_at = self._written_at(path)
        return None if written_at is None else (path, written_at)

    def _written_at(self, path: str) -> datetime | None:
        info = self._storage.info(path)
        return info.mtime if info.type == pafs.FileType.File else None
