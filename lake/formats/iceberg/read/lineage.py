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
    """Yield the lineage that Parquet files store, in the order of the rows. Raises as pyarrow does."""
    for path in paths:
        with pq.ParquetFile(path) as opened:
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
    """Return the files in which readers don't find both columns. Raises as ``pq.read_schema`` does."""
    return [path for path in paths if not FIELD_IDS.items() <= field_ids(pq.read_schema(path)).items()]


def field_ids(schema: pa.Schema) -> dict[str, int]:
    """Return the field ids of the top-level columns that have one, by name."""
    return {one.name: int(one.metadata[_FIELD_ID]) for one in schema if one.metadata and _FIELD_ID in one.metadata}


def files_without_numbers(paths: Collection[str]) -> list[str]:
    """Return the files whose footers do not show that they store the number of the last change of each row.

    Raises as ``pq.read_metadata`` does.
    """
    return [path for path in paths if not _stores_all_numbers(pq.read_metadata(path))]


def _stores_all_numbers(metadata: pq.FileMetaData) -> bool:
    paths = [metadata.schema.column(leaf).path for leaf in range(len(metadata.schema))]
    if LAST_UPDATED not in paths:
        return False
    leaf = paths.index(LAST_UPDATED)
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    found = [group.column(leaf).statistics for group in groups if group.num_rows]
    return all(one is not None and one.has_null_count and one.null_count == 0 for one in found)
