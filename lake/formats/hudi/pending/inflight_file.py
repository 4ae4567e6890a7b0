# SPDX-License-Identifier: Apache-2.0
"""The inflight file of a rewrite that this process executes, and whether another process has replaced it.

Hudi lets every client execute a pending plan, and a writer with inline clustering executes all pending plans. Such a
writer rolls back the begun rewrite, files included, and begins again under the same instant, without a lock. lakefold
can't prevent this, but detects it: the inflight file is then another file.
"""

from datetime import datetime

from pyarrow import fs as pafs

from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.timeline.timeline import Timeline


class InflightFile:
    """The inflight file of a rewrite that this process is about to begin. Thread-safe."""

    def __init__(self, storage: TableStorage, instant: str) -> None:
        self._storage = storage
        self.instant = instant
        #: the inflight file and its modification time, from the first call that found it
        self._own_file: tuple[str, datetime] | None = None

    @property
    def own_file(self) -> tuple[str, datetime] | None:
        """The inflight file that ``is_unchanged`` found first, with its modification time."""
        return self._own_file

    def is_unchanged(self) -> bool | None:
        """True if the inflight file that an earlier call found is unchanged; None if no earlier call found one."""
        if self._own_file is None:
            self._own_file = self._find_inflight_file()
            return None
        path, written_at = self._own_file
        return self._modified_at(path) == written_at

    def _find_inflight_file(self) -> tuple[str, datetime] | None:
        timeline = Timeline(self._storage)
        instant = timeline.find_rewrite(self.instant)
        if instant is None or instant.inflight_file is None:
            return None
        path = f"{timeline.directory}/{instant.inflight_file}"
        written_at = self._modified_at(path)
        return None if written_at is None else (path, written_at)

    def _modified_at(self, path: str) -> datetime | None:
        info = self._storage.info(path)
        return info.mtime if info.type == pafs.FileType.File else None
