# SPDX-License-Identifier: Apache-2.0
"""The footers of a plan's base files, read without a JVM."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lake.formats.hudi.files.storage import TableStorage

_BLOOM_TYPE = b"hoodie_bloom_filter_type_code"
_NUMBERS = frozenset({"INT32", "INT64", "FLOAT", "DOUBLE"})
_BLOOM_FILTERS = (b"org.apache.hudi.bloomfilter", b"com.uber.hoodie.bloomfilter")
#: metadata that Spark writes into a file: the calendar before 3.0, Spark's version, the timestamps' time zone
_LEGACY, _VERSION, _ZONE = b"org.apache.spark.legacyDateTime", b"org.apache.spark.version", b"org.apache.spark.timeZone"
#: 1582-10-15 in days and 1900-01-01 in seconds, both since 1970
_GREGORIAN_START_DAYS, _MODERN_ZONES_START_SECONDS = -141_427, -2_208_988_800
_PER_SECOND = {"milliseconds": 1_000, "microseconds": 1_000_000, "nanoseconds": 1_000_000_000}


@dataclass(frozen=True, slots=True)
class InputFooter:
    """The footer of one file: Parquet schema as text, row groups, type of the bloom filter.

    ``file_bytes`` is the size of the file, ``data_bytes`` the size of its compressed column chunks. ``columns`` are the
    names of its columns. ``numeric_columns`` are the columns of plain numbers, nested ones by their dotted paths.
    ``legacy_calendar_zone`` is not None if Spark wrote dates and timestamps in the hybrid Julian calendar of its
    releases before 3.0: it is the zone of the timestamps, '' if the file does not name it. ``rebased_columns`` are then
    the columns that may have other values in the proleptic Gregorian calendar. ``undated_columns`` are the same columns
    of a file that does not name the release of Spark that wrote it: readers decide by their own settings which calendar
    these values are in.
    """

    path: str
    file_bytes: int
    schema: str
    row_groups: int
    data_bytes: int
    bloom_filter: str | None
    columns: frozenset[str]
    numeric_columns: frozenset[str]
    legacy_calendar_zone: str | None = None
    rebased_columns: tuple[str, ...] = ()
    undated_columns: tuple[str, ...] = ()


def read_footers(storage: TableStorage, paths: Sequence[str]) -> Iterator[InputFooter]:
    """Yield the footers of ``paths`` in order, read in parallel. Missing and damaged files are skipped."""

    def read(path: str) -> InputFooter | None:
        try:
            with storage.open(path) as source:
                footer = pq.read_metadata(source)
                file_bytes = source.size()
        except (OSError, pa.ArrowException):
            return None
        metadata = footer.metadata or {}
        bloom = metadata.get(_BLOOM_TYPE, b"SIMPLE" if any(key in metadata for key in _BLOOM_FILTERS) else None)
        # The first two lines are an address and the root's name, which depends on the writer.
        schema = str(footer.schema).split("\n", 2)[2]
        data_bytes = sum(
            footer.row_group(i).column(j).total_compressed_size
            for i in range(footer.num_row_groups)
            for j in range(footer.num_columns)
        )
        leaves = [footer.schema.column(j) for j in range(footer.num_columns)]
        calendar = _legacy_calendar_zone(metadata)
        return InputFooter(
            path,
            file_bytes,
            schema,
            footer.num_row_groups,
            data_bytes,
            bloom.decode() if bloom else None,
            frozenset(leaf.path.partition(".")[0] for leaf in leaves),
            frozenset(leaf.path for leaf in leaves if leaf.physical_type in _NUMBERS),
            calendar,
            () if calendar is None else tuple(_rebased_columns(footer)),
            () if _VERSION in metadata else tuple(_rebased_columns(footer)),
        )

    with ThreadPoolExecutor(min(8, 2 * (os.cpu_count() or 1)), "footers") as pool:
        yield from (footer for footer in pool.map(read, paths) if footer is not None)


def _legacy_calendar_zone(metadata: Mapping[bytes, bytes]) -> str | None:
    """Return ``InputFooter.legacy_calendar_zone`` from a file's metadata, by Spark's own rule."""
    major = metadata.get(_VERSION, b"").split(b".")[0]
    is_old = major.isdigit() and (int(major) < 3 or _LEGACY in metadata)
    return metadata.get(_ZONE, b"").decode() if is_old else None


def _rebased_columns(footer: Any) -> Iterator[str]:
    """Yield the columns with values so old that the calendars may differ, and columns without statistics."""
    for j in range(footer.num_columns):
        leaf = footer.schema.column(j)
        if leaf.logical_type.type == "DATE":
            limit = _GREGORIAN_START_DAYS
        elif leaf.logical_type.type == "TIMESTAMP":
            limit = _MODERN_ZONES_START_SECONDS * _PER_SECOND[json.loads(leaf.logical_type.to_json())["timeUnit"]]
        else:
            continue
        chunks = [footer.row_group(i).column(j) for i in range(footer.num_row_groups)]
        if any(_can_be_before(limit, chunk) for chunk in chunks):
            yield leaf.path


def _can_be_before(limit: int, chunk: Any) -> bool:
    statistics = chunk.statistics
    if statistics is not None and statistics.has_null_count and statistics.null_count == chunk.num_values:
        return False
    return statistics is None or not statistics.has_min_max or statistics.min_raw < limit
