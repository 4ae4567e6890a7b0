# SPDX-License-Identifier: Apache-2.0
"""Statistics of ORC files, computed from the values, since pyarrow does not show the statistics in a footer.

They have the meaning of a Parquet file's statistics, so that files of both kinds can be compared: types have the names
that Parquet has for them, and a null or empty list counts as one null of its elements.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from decimal import Context
from functools import cached_property
from hashlib import blake2b
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads

from executors.datafiles.leaf_columns import leaf_columns
from executors.datafiles.orc_tail import OrcTail, read_tail
from executors.datafiles.parquet import schema_statistics
from executors.datafiles.statistics import FileStatistics, LeafStatistics, LeafType
from executors.rowhash import sum_of_hashes

_BATCH_ROWS = 1 << 15
_READ_BYTES = 4 << 20
#: at least as many digits as the longest decimal has
_EXACT = Context(prec=80)


@dataclass(frozen=True, slots=True)
class OrcFooter:
    """The part of a file that is kept after it is closed."""

    statistics: FileStatistics
    schema: pa.Schema

    @property
    def rows(self) -> int:
        """The number of rows in the file."""
        return self.statistics.rows

    @staticmethod
    def combine(footers: "Sequence[OrcFooter]", ignore: Collection[str]) -> FileStatistics:
        """See ``FileFooter``."""
        total = FileStatistics()
        for footer in footers:
            total.merge(footer.statistics)
        return total


class OrcFile:
    """An open ORC file; see ``OpenDataFile``."""

    def __init__(self, handle: pa.NativeFile) -> None:
        self._handle = handle
        # A fragment reads a stripe in batches; ``pyarrow.orc`` reads it whole.
        self._fragment = pads.OrcFileFormat().make_fragment(handle)

    @cached_property
    def _schema(self) -> pa.Schema:
        return self._fragment.physical_schema

    @cached_property
    def tail(self) -> OrcTail:
        """The tail of the file: its footer and the footers of its stripes."""
        return read_tail(self._handle)

    def stripe_hashes(self, check: Callable[[], None]) -> Iterator[bytes]:
        """Yield a hash of each stripe's bytes and row count. ``check`` is called between reads."""
        for stripe in self.tail.stripes:
            found = blake2b(stripe.rows.to_bytes(8, "little"), digest_size=16)
            for offset in range(0, stripe.bytes, _READ_BYTES):
                check()
                length = min(_READ_BYTES, stripe.bytes - offset)
                part = self._handle.read_at(length, stripe.offset + offset)
                if len(part) != length:
                    raise pa.ArrowInvalid("the file ends within a stripe")
                found.update(part)
            yield found.digest()

    def read_footer(self, ignore: Collection[str], check: Callable[[], None]) -> OrcFooter:
        """See ``OpenDataFile``. Reads every value once."""
        shape = schema_statistics(self._schema, ignore)
        total = FileStatistics(
            leaves={
                path: LeafStatistics(leaf.types, leaf.is_repeated, field_ids=leaf.field_ids)
                for path, leaf in shape.leaves.items()
            }
        )
        for batch in self.read_batches(ignore):
            check()
            one = FileStatistics(rows=batch.num_rows)
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                for path, values, without in leaf_columns(name, column):
                    known = shape.leaves[path]
                    one.leaves[path] = _leaf(path, known, values, without, batch.num_rows)
            total.merge(one)
        return OrcFooter(total, self._schema)

    def read_batches(self, ignore: Collection[str]) -> Iterator[pa.RecordBatch]:
        """See ``OpenDataFile``."""
        for batch in self._fragment.to_batches(batch_size=_BATCH_ROWS, batch_readahead=1, use_threads=False):
            yield batch.drop_columns([name for name in batch.schema.names if name in ignore])

    def close(self) -> None:
        """See ``OpenDataFile``."""
        self._handle.close()


def _leaf(name: str, known: LeafStatistics, values: pa.Array, without: int, rows: int) -> LeafStatistics:
    leaf = LeafStatistics(
        known.types, known.is_repeated, rows=rows, null_count=values.null_count + without, field_ids=known.field_ids
    )
    if values.null_count == len(values):
        return leaf
    kind = next(iter(known.types))
    # Bounds alone would miss a wrong time zone that shifts only values between them.
    leaf.hash_sum = sum_of_hashes(values, name) if kind.family == "timestamp" else None
    if pa.types.is_floating(values.type) and pc.any(pc.is_nan(values)).as_py():
        leaf.has_exact_bounds = False
        return leaf
    bounds = pc.min_max(values)
    leaf.minimum, leaf.maximum = _bound(kind, bounds["min"]), _bound(kind, bounds["max"])
    return leaf


def _bound(kind: LeafType, scalar: Any) -> Any:
    """Return a bound in the form of ``LeafStatistics``."""
    if kind.family in ("date", "timestamp"):
        return scalar.value
    if kind.family == "decimal":
        return int(scalar.as_py().scaleb(int(kind.detail[1]), _EXACT))
    if kind.family == "string":
        return scalar.as_buffer().to_pybytes()  # Hive also writes bytes that are not UTF-8
    return scalar.as_py()
