# SPDX-License-Identifier: Apache-2.0
"""The rows of slices as a reader of the table sees them, read by hudi-rs.

hudi-rs is another implementation than the one that rewrites, on purpose: a mistake of either shows. It reads no slices
of logs only, and none of whose records it can't run the merger: payload classes and mergers of a table's own, updates
of some columns, and whatever else it says it does not know. Those Hudi itself reads, see ``rewrite.merged_rows``.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lake.errors import Transient, first_line
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.timeline.records import is_intact_log
from lake.storage import s3
from lake.storage.locations import bucket_and_key


def open_table(storage: TableStorage) -> Any:
    """The table at ``storage`` as hudi-rs opens it; raises what hudi-rs raises."""
    import hudi

    if storage.is_local:
        return hudi.HudiTableBuilder.from_base_uri(storage.base).build()
    bucket, _ = bucket_and_key(storage.location)
    access = s3.access(bucket)
    _set_environment(access.environment())
    options = access.object_store_options(bucket)
    return hudi.HudiTableBuilder.from_base_uri(storage.location).with_storage_options(options).build()


def _set_environment(environment: Mapping[str, str]) -> None:
    """Set what of the process's environment is not so yet.

    hudi-rs opens the metadata table without the options that it was given for the table. Of a bucket in a store of
    one's own it would ask Amazon, and for minutes where Amazon can't be reached.
    """
    for key, value in environment.items():
        if os.environ.get(key) != value:
            os.environ[key] = value


class MergeUnsupported(Exception):
    """hudi-rs does not know how to merge a slice, whose files are sound as far as can be told; the message is its."""


class HudiRsReader:
    """Reads slices of one table by hudi-rs."""

    def __init__(self, storage: TableStorage) -> None:
        self._storage = storage
        self._reader: Any = None

    def read_rows(self, base: str, logs: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows of a slice, its base file merged with its logs.

        Raises NotMerged before the first of them, Transient where a file can't be read.
        """
        if not self._storage.is_supported_by_hudi_rs:
            raise MergeUnsupported("it does not know HDFS")
        begun = False
        try:
            if self._reader is None:
                self._reader = open_table(self._storage).create_file_group_reader_with_options()
            for batch in self._reader.read_file_slice_from_paths_stream(base, list(logs)):
                begun = True
                yield pa.record_batch(batch)
        except BaseException as error:
            # hudi-rs' errors have no base class of their own, and a panic of Rust code is no Exception.
            if not isinstance(error, Exception) and type(error).__module__ != "pyo3_runtime":
                raise
            complaint = first_line(error)
            # Hudi's own reader passes over a torn block without a word, and so does the rewrite.
            if logs and not begun and all(self._is_intact(path) for path in logs):
                raise MergeUnsupported(complaint) from error
            raise Transient(f"{self._storage.path(base)}: hudi-rs can't read it ({complaint})") from error

    def count_rows(self, base: str, logs: Sequence[str]) -> int:
        """The number of rows of a slice. Raises as ``rows`` does, and what pyarrow does of a footer."""
        if logs or self._storage.is_supported_by_hudi_rs:
            return sum(batch.num_rows for batch in self.read_rows(base, logs))
        with self._storage.open(base) as source:
            return int(pq.read_metadata(source).num_rows)

    def _is_intact(self, path: str) -> bool:
        try:
            with self._storage.open(path) as source:
                return is_intact_log(source, source.size())
        except OSError:
            return False
