# SPDX-License-Identifier: Apache-2.0
"""The rows of slices as a reader of the table sees them, read by hudi-rs.

hudi-rs is another implementation than the one that rewrites, on purpose: a mistake of either shows. It reads no slices
of logs only, and none of whose records it can't run the merger: payload classes and mergers of a table's own, updates
of some columns, and whatever else it says it does not know. Those Hudi itself reads, see ``rewrite.merged_rows``.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from lake.errors import Transient
from lake.formats.hudi.files.storage import Storage
from lake.formats.hudi.timeline.records import is_whole


class NotMerged(Exception):
    """hudi-rs does not know how to merge a slice, whose files are sound as far as can be told; the message is its."""


class HudiRsReader:
    """Reads slices of one table by hudi-rs."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._reader: Any = None

    def rows(self, base: str, logs: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows of a slice, its base file merged with its logs.

        Raises NotMerged before the first of them, Transient where a file can't be read.
        """
        begun = False
        try:
            if self._reader is None:
                self._reader = self._storage.hudi_rs_table().create_file_group_reader_with_options()
            for batch in self._reader.read_file_slice_from_paths_stream(base, list(logs)):
                begun = True
                yield pa.record_batch(batch)
        except BaseException as error:
            # hudi-rs' errors have no base class of their own, and a panic of Rust code is no Exception.
            if not isinstance(error, Exception) and type(error).__module__ != "pyo3_runtime":
                raise
            complaint = (str(error).strip() or type(error).__name__).splitlines()[0]
            # Hudi's own reader passes over a torn block without a word, and so does the rewrite.
            if logs and not begun and all(self._is_whole(path) for path in logs):
                raise NotMerged(complaint) from error
            raise Transient(f"{self._storage.path(base)}: hudi-rs can't read it ({complaint})") from error

    def _is_whole(self, path: str) -> bool:
        try:
            with self._storage.open(path) as source:
                return is_whole(source, source.size())
        except OSError:
            return False
