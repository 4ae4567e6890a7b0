# SPDX-License-Identifier: Apache-2.0
"""ORC: facts from the values themselves, since pyarrow does not hand out what an ORC footer says of them.

Facts mean the same as those of a Parquet file with these rows, so that files of both kinds compare: types are named as
Parquet stores them, and a null or empty list counts as one null of its elements.
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

from executors.datafiles.facts import Facts, Leaf, LeafType
from executors.datafiles.orc_tail import OrcTail, read_tail
from executors.datafiles.parquet import columns_of
from executors.datafiles.values import leaves_of
from executors.rowhash import sum_of_values

_BATCH_ROWS = 1 << 15
_READ_BYTES = 4 << 20
#: as many digits as the longest decimal has
_EXACT = Context(prec=80)


@dataclass(frozen=True, slots=True)
class OrcFooter:
    """What is kept of a file when it is closed again."""

    facts: Facts
    schema: pa.Schema

    @property
    def rows(self) -> int:
        """Rows of the file."""
        return self.facts.rows

    @staticmethod
    def together(footers: "Sequence[OrcFooter]", ignore: Collection[str]) -> Facts:
        """See ``Footer``."""
        total = Facts()
        for footer in footers:
            total.merge(footer.facts)
        return total


class OrcFile:
    """An open ORC file; see ``DataFile``."""

    def __init__(self, handle: pa.NativeFile) -> None:
        self._handle = handle
        # A fragment reads a stripe in batches, where ``pyarrow.orc`` reads it whole.
        self._fragment = pads.OrcFileFormat().make_fragment(handle)

    @cached_property
    def _schema(self) -> pa.Schema:
        return self._fragment.physical_schema

    @cached_property
    def tail(self) -> OrcTail:
        """What the file says of itself."""
        return read_tail(self._handle)

    def stripes(self, check: Callable[[], None]) -> Iterator[bytes]:
        """The hash of each stripe's bytes, and of its rows. ``check`` is called between parts of it."""
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

    def footer(self, ignore: Collection[str], check: Callable[[], None]) -> OrcFooter:
        """See ``DataFile``. Reads every value once."""
        shape = columns_of(self._schema, ignore)
        total = Facts(
            leaves={path: Leaf(leaf.kinds, leaf.repeated, ids=leaf.ids) for path, leaf in shape.leaves.items()}
        )
        for batch in self.batches(ignore):
            check()
            one = Facts(rows=batch.num_rows)
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                for path, values, without in leaves_of(name, column):
                    known = shape.leaves[path]
                    one.leaves[path] = _leaf(path, known, values, without, batch.num_rows)
            total.merge(one)
        return OrcFooter(total, self._schema)

    def batches(self, ignore: Collection[str]) -> Iterator[pa.RecordBatch]:
        """See ``DataFile``."""
        for batch in self._fragment.to_batches(batch_size=_BATCH_ROWS, batch_readahead=1, use_threads=False):
            yield batch.drop_columns([name for name in batch.schema.names if name in ignore])

    def close(self) -> None:
        """See ``DataFile``."""
        self._handle.close()


def _leaf(name: str, known: Leaf, values: pa.Array, without: int, rows: int) -> Leaf:
    leaf = Leaf(known.kinds, known.repeated, rows=rows, nulls=values.null_count + without, ids=known.ids)
    if values.null_count == len(values):
        return leaf
    kind = next(iter(known.kinds))
    # Some values that a mistake with time zones moves lie between the bounds.
    leaf.values = sum_of_values(values, name) if kind.family == "timestamp" else None
    if pa.types.is_floating(values.type) and pc.any(pc.is_nan(values)).as_py():
        leaf.bounded = False
        return leaf
    bounds = pc.min_max(values)
    leaf.low, leaf.high = _bound(kind, bounds["min"]), _bound(kind, bounds["max"])
    return leaf


def _bound(kind: LeafType, scalar: Any) -> Any:
    """A bound as ``Leaf`` holds it."""
    if kind.family in ("date", "timestamp"):
        return scalar.value
    if kind.family == "decimal":
        return int(scalar.as_py().scaleb(int(kind.detail[1]), _EXACT))
    if kind.family == "string":
        return scalar.as_py().encode()
    return scalar.as_py()
