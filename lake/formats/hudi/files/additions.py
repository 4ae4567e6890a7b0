# SPDX-License-Identifier: Apache-2.0
"""The parts of Hudi's base files besides the rows, for base files that an engine writes.

Hudi's row writer names each file, marks it before it exists, replaces the name of the file in its rows, and writes the
Bloom filter and the bounds of its record keys into the footer. The tasks of an engine do the same. All other meta
columns stay as they are, as in every clustering that keeps Hudi's metadata.
"""

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs as pafs

from lake.errors import Rejected, Transient, first_line
from lake.formats.hudi.files.bloom_filter import DYNAMIC, BloomFilter, BloomFilterSettings
from lake.formats.hudi.files.names import marker_path, relative_path
from lake.formats.hudi.files.storage import TableStorage

KEY_COLUMN, FILE_NAME_COLUMN = "_hoodie_record_key", "_hoodie_file_name"
SPARK_VERSION = "org.apache.spark.version"
"""The release of Spark that wrote a file, by which readers know the calendar of its dates."""

_BLOOM_FILTER, _BLOOM_TYPE = "org.apache.hudi.bloomfilter", "hoodie_bloom_filter_type_code"
_MIN_KEY, _MAX_KEY = "hoodie_min_record_key", "hoodie_max_record_key"
#: the first byte in UTF-8 of the characters beyond U+FFFF
_FIRST_BEYOND_FFFF = 0xF0


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseFileAdditions:
    """See ``lake.engines.FileAdditions``.

    The planned path of an output ends with the id of its file group; ``create_file`` appends the write token of the
    attempt. So the files of all attempts belong to one file group. Readers read only one base file of a group at a
    time, so no reader would see a row twice, even if files of two attempts were visible.
    """

    location: str
    instant: str
    partition: str
    bloom_filter: BloomFilterSettings
    spark_version: str
    #: the inflight file of the instant and its modification time, by which a task detects that the rewrite is still
    #: pending
    inflight_file: tuple[str, datetime] | None = None

    #: Hudi's row writer gives the root of the schema this name; its Avro writer names the root after the table's record
    root_name: str = "spark_schema"
    removed_keys: frozenset[str] = frozenset(
        {
            _BLOOM_FILTER,
            "com.uber.hoodie.bloomfilter",
            _BLOOM_TYPE,
            _MIN_KEY,
            _MAX_KEY,
            "parquet.avro.schema",
            "writer.model.name",
        }
    )

    read_columns: tuple[str, ...] = (KEY_COLUMN,)
    replaced_columns: tuple[str, ...] = (FILE_NAME_COLUMN,)

    @property
    def shared_entries(self) -> Mapping[str, str]:
        """See ``lake.engines.FileAdditions``. The entry is Spark's version: files of Hudi's Avro writer lack it."""
        return MappingProxyType({SPARK_VERSION: self.spark_version})

    def create_file(self, path: str) -> "BaseFile":
        """See ``lake.engines.FileAdditions``.

        The marker is written first, as by Hudi.
        """
        # Hudi's tokens are three numbers. The last one is this attempt's own.
        written = f"{path}_0-0-{uuid.uuid4().int >> 65}_{self.instant}.parquet"
        name = written.rpartition("/")[2]
        marker = marker_path(self.instant, relative_path(self.partition, name))
        self.check_pending()
        try:
            TableStorage(self.location).create_empty(marker)
        except FileNotFoundError as error:
            raise Transient(f"{self.location}/{marker} can't be written: {first_line(error)}") from error
        return BaseFile(path=written, additions=self, bloom_filter=BloomFilter(self.bloom_filter))

    def check_pending(self) -> None:
        """Raise Transient if the instant was withdrawn or committed, or is now executed by another process.

        A Python process continues for a while after Spark has ended its task, and Spark may start a slow task a second
        time. If such a process wrote a file after the commit, readers would see the file.
        """
        if self.inflight_file is None:
            return
        path, written_at = self.inflight_file
        storage = TableStorage(self.location)
        info = storage.info(path)
        if info.type != pafs.FileType.File or info.mtime != written_at or self._is_completed(storage, path):
            raise Transient(f"{self.location}: {self.instant} is no longer pending, or another process executes it")

    def _is_completed(self, storage: TableStorage, inflight_path: str) -> bool:
        """True if the clustering has completed: its inflight file stays on the timeline beside the completed file."""
        names = storage.list_file_names(inflight_path.rpartition("/")[0])
        return any(re.fullmatch(rf"{self.instant}(_\d+)?\.replacecommit", name) for name in names)


@dataclass(slots=True, kw_only=True)
class BaseFile:
    """A base file that is being written: see ``lake.engines.FileAddition``."""

    path: str
    additions: BaseFileAdditions
    bloom_filter: BloomFilter
    _bounds: list[str] = field(default_factory=list)

    def verify_wanted(self) -> None:
        """See ``lake.engines.FileAddition``."""
        self.additions.check_pending()

    def add(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """See ``lake.engines.FileAddition``. Raises Rejected for a row without a record key."""
        keys = rows.column(KEY_COLUMN)
        if pa.types.is_dictionary(keys.type):
            keys = keys.dictionary_decode()
        try:
            self.bloom_filter.add(keys)
        except ValueError as error:
            raise Rejected(f"{self.path} can't be written: {error}; set engine = spark") from error
        if len(keys):
            both = [*self._bounds, *key_bounds(keys)]
            self._bounds = [min(both, key=_utf_16_units), max(both, key=_utf_16_units)]
        index = rows.schema.get_field_index(FILE_NAME_COLUMN)
        column = rows.schema.field(index)
        return rows.set_column(index, column, _repeated(self.path.rpartition("/")[2], column.type, rows.num_rows))

    def footer_entries(self) -> Mapping[str, str]:
        """See ``lake.engines.FileAddition``. Raises Transient if the file is no longer wanted."""
        self.verify_wanted()
        found = {_BLOOM_FILTER: self.bloom_filter.serialize()}
        if self.bloom_filter.settings.type == DYNAMIC:
            found[_BLOOM_TYPE] = DYNAMIC
        if self._bounds:
            found |= zip((_MIN_KEY, _MAX_KEY), self._bounds, strict=True)
        return found


def key_bounds(keys: pa.StringArray) -> tuple[str, str]:
    """Return the least and the greatest of record keys, in the order of Java's strings.

    Java orders strings by the units of UTF-16. Hudi's index BLOOM looks a key up only in files whose bounds enclose the
    key in that order. For characters beyond U+FFFF, which begin with a byte from 0xF0 on in UTF-8, it differs from the
    order of UTF-8: with bounds in the order of UTF-8 an upsert would not find some keys, and would insert their rows
    once more.
    """
    content = keys.buffers()[2]
    if content is not None and np.frombuffer(content, np.uint8).max(initial=0) >= _FIRST_BEYOND_FFFF:
        words = keys.to_pylist()
        return min(words, key=_utf_16_units), max(words, key=_utf_16_units)
    ends = pc.min_max(keys.cast(pa.binary()))
    return ends["min"].as_py().decode(), ends["max"].as_py().decode()


def _utf_16_units(key: str) -> bytes:
    """Return a value that sorts as the key does in Java."""
    return key.encode("utf-16-be", "surrogatepass")


def _repeated(value: str, kind: pa.DataType, count: int) -> pa.Array:
    if not pa.types.is_dictionary(kind):
        return pa.repeat(pa.scalar(value, kind), count)
    references = pa.array(np.zeros(count, np.int32)).cast(kind.index_type)
    return pa.DictionaryArray.from_arrays(references, pa.array([value], kind.value_type))
