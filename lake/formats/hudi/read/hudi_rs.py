# SPDX-License-Identifier: Apache-2.0
"""The rows of slices as a reader of the table sees them, read by hudi-rs.

hudi-rs is deliberately not the implementation that rewrites, so that a mistake of either becomes visible. hudi-rs can't
read log-only slices, nor slices whose merger it can't run: the table's own payload classes and mergers, partial
updates, and other cases that it reports. Hudi itself reads these slices, see ``rewrite.merged_rows``.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lake.errors import Transient, first_line
from lake.formats.hudi.files.additions import KEY_COLUMN
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.timeline.records import is_intact_log
from lake.storage import s3
from lake.storage.locations import bucket_and_key


def open_table(storage: TableStorage) -> Any:
    """Open the table at ``storage`` with hudi-rs. Raises hudi-rs's own errors."""
    import hudi

    if storage.is_local:
        return hudi.HudiTableBuilder.from_base_uri(storage.base).build()
    bucket, _ = bucket_and_key(storage.location)
    access = s3.access(bucket)
    _set_environment(access.environment())
    options = access.object_store_options(bucket)
    return hudi.HudiTableBuilder.from_base_uri(storage.location).with_storage_options(options).build()


def _set_environment(environment: Mapping[str, str]) -> None:
    """Set the variables of the process's environment that differ from ``environment``.

    hudi-rs opens the metadata table without the options given for the table. For a bucket in another S3-compatible
    store it would send requests to Amazon, and retry for minutes if Amazon can't be reached.
    """
    for key, value in environment.items():
        if os.environ.get(key) != value:
            os.environ[key] = value


class MergeUnsupported(Exception):
    """hudi-rs can't merge a slice with intact log files, or does not support the storage; the message is the reason."""


class HudiRsReader:
    """A reader of one table's slices through hudi-rs."""

    def __init__(self, storage: TableStorage) -> None:
        self._storage = storage
        self._reader: Any = None

    def read_rows(self, base: str, logs: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a slice, its base file merged with its logs.

        Raises MergeUnsupported before the first row if hudi-rs can't merge the slice, Transient for unreadable files.
        """
        if not self._storage.is_supported_by_hudi_rs:
            raise MergeUnsupported("it does not support HDFS")
        begun = False
        try:
            if self._reader is None:
                self._reader = open_table(self._storage).create_file_group_reader_with_options()
            for batch in self._reader.read_file_slice_from_paths_stream(base, list(logs)):
                begun = True
                yield pa.record_batch(batch)
        except BaseException as error:
            # hudi-rs's errors have no common base class, and a panic of Rust code isn't an Exception.
            if not isinstance(error, Exception) and type(error).__module__ != "pyo3_runtime":
                raise
            complaint = first_line(error)
            # Only intact logs, since Hudi's own reader and the rewrite silently skip an incomplete block.
            if logs and not begun and all(self._is_intact(path) for path in logs):
                raise MergeUnsupported(complaint) from error
            raise Transient(f"{self._storage.path(base)}: hudi-rs can't read it ({complaint})") from error

    def has_repeated_keys(self, base: str) -> bool:
        """True if rows of a base file share a key, as inserts without deduplication write them.

        False if the file has no column of keys. Raises Transient if it can't be read.
        """
        try:
            with self._storage.open(base) as source:
                file = pq.ParquetFile(source)
                if KEY_COLUMN not in file.schema_arrow.names:
                    return False
                keys = file.read(columns=[KEY_COLUMN]).column(KEY_COLUMN)
        except (OSError, pa.ArrowException) as error:
            raise Transient(
                f"{self._storage.display_path(base)}: its record keys can't be read ({first_line(error)})"
            ) from error
        return bool(pc.count_distinct(keys).as_py() < len(keys))

    def count_rows(self, base: str, logs: Sequence[str]) -> int:
        """Return the number of rows of a slice. Raises as ``read_rows`` does, and pyarrow's errors for a bad footer."""
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
