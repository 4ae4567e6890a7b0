# SPDX-License-Identifier: Apache-2.0
"""The lineage of rows as data files store it, in format version 3: the id of a row and the number of its last change.

Source of the rules: Iceberg's table specification, "Row Lineage".
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from lake.formats.iceberg.read.unreadable import UnusableFile, reading_new_file, unreadable_file

MIN_VERSION = 3
"""The first format version whose rows have a lineage."""
ROW_ID = "_row_id"
"""The column in which a file stores the ids of rows that it got from other files."""
LAST_UPDATED = "_last_updated_sequence_number"
"""The column in which a file stores the sequence numbers of the commits that last changed such rows."""
FIELD_IDS: Mapping[str, int] = MappingProxyType({ROW_ID: 2_147_483_540, LAST_UPDATED: 2_147_483_539})
"""The field ids by which readers find these columns."""
NOTHING = -1
"""Stands for the id or the number of a row that has none."""
Numbers = npt.NDArray[np.int64]

_FIELD_ID = b"PARQUET:field_id"
_MULTIPLIER = np.uint64(0xBF58476D1CE4E5B9)
_INCREMENT = np.uint64(0x9E3779B97F4A7C15)
"""Odd constants of SplitMix64."""


@dataclass(frozen=True, slots=True)
class Lineage:
    """The ids of some rows and the sequence numbers of their last changes, ``NOTHING`` for a row without one."""

    ids: Numbers
    numbers: Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageDigest:
    """A digest of the lineage of rows: their number, the hash of all ids, and that of all pairs of id and number."""

    rows: int
    ids: int
    pairs: int


def stored_in(batch: pa.RecordBatch) -> Lineage:
    """Return the lineage that a batch stores."""
    return Lineage(_stored(batch, ROW_ID), _stored(batch, LAST_UPDATED))


def _stored(batch: pa.RecordBatch, name: str) -> Numbers:
    if name not in batch.schema.names:
        return np.full(batch.num_rows, NOTHING)
    found: Numbers = batch.column(name).fill_null(NOTHING).to_numpy(zero_copy_only=False)
    return found


def stored_lineage(paths: Sequence[str]) -> Iterator[Lineage]:
    """Yield the lineage that new files store, in the order of the rows. Raises as ``reading_new_file`` does."""
    for path in paths:
        with reading_new_file(path), pq.ParquetFile(path) as opened:
            for batch in opened.iter_batches(columns=list(FIELD_IDS), use_threads=False):
                yield stored_in(batch)


def digest(parts: Iterable[Lineage], *, in_order: bool) -> LineageDigest:
    """Return the digest of some rows. With ``in_order``, the hash of pairs also depends on the order of the rows."""
    rows, ids, pairs = 0, np.uint64(0), np.uint64(0)
    for part in parts:
        mixed = _mixed(part.ids.astype(np.uint64))
        pair = _mixed(mixed + part.numbers.astype(np.uint64))
        if in_order:
            positions: npt.NDArray[np.uint64] = np.arange(rows, rows + len(pair), dtype=np.uint64)
            pair = _mixed(pair + positions)
        rows += len(mixed)
        ids, pairs = _sum(ids, mixed), _sum(pairs, pair)
    return LineageDigest(rows=rows, ids=int(ids), pairs=int(pairs))


def _mixed(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    mixed = (values + _INCREMENT) * _MULTIPLIER
    mixed = (mixed ^ (mixed >> np.uint64(29))) * _MULTIPLIER
    mixed ^= mixed >> np.uint64(32)
    return mixed


def _sum(total: np.uint64, more: npt.NDArray[np.uint64]) -> np.uint64:
    return np.uint64((int(total) + int(more.sum(dtype=np.uint64))) % 2**64)


def files_without_lineage(paths: Collection[str]) -> list[str]:
    """Return the new files in which readers don't find both columns. Raises as ``reading_new_file`` does."""
    found = []
    for path in paths:
        with reading_new_file(path):
            schema = pq.read_schema(path)
        if not FIELD_IDS.items() <= field_ids(schema).items():
            found.append(path)
    return found


def field_ids(schema: pa.Schema) -> dict[str, int]:
    """Return the field ids of the top-level columns that have one, by name."""
    return {one.name: int(one.metadata[_FIELD_ID]) for one in schema if one.metadata and _FIELD_ID in one.metadata}


def files_without_numbers(paths: Collection[str]) -> Mapping[str, UnusableFile]:
    """Return the files whose footers do not show that they store the number of the last change of each row.

    ``paths`` were added with the number of an earlier snapshot, as a rewrite adds files. Each returned file has the
    reason why it can't be rewritten. Raises Transient if storage fails at the moment.
    """
    return {path: reason for path in paths if (reason := _lacks_numbers(path)) is not None}


def _lacks_numbers(path: str) -> UnusableFile | None:
    try:
        if _stores_all_numbers(pq.read_metadata(path)):
            return None
    except (OSError, pa.ArrowException) as error:
        return unreadable_file(path, error)
    return UnusableFile(
        "it was rewritten before the table had format version 3, so Iceberg would read a wrong sequence number for the "
        "last change of its rows"
    )


def _stores_all_numbers(metadata: pq.FileMetaData) -> bool:
    paths = [metadata.schema.column(leaf).path for leaf in range(len(metadata.schema))]
    if LAST_UPDATED not in paths:
        return False
    leaf = paths.index(LAST_UPDATED)
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    found = [group.column(leaf).statistics for group in groups if group.num_rows]
    return all(one is not None and one.has_null_count and one.null_count == 0 for one in found)
