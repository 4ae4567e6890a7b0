# SPDX-License-Identifier: Apache-2.0
"""INT96 timestamps, checked to be within the years that Arrow's unit reaches.

INT96 has a Julian day and the nanoseconds of that day. Arrow's nanoseconds reach from 1677 to 2262, its microseconds
about 292,000 years. A timestamp outside of this range silently becomes another time. Impala and Hive write any year,
with nanoseconds. Spark writes microseconds; for its last years it writes a negative day, which Arrow reads as a day in
the far future. INT96 columns are therefore read a second time in milliseconds, which reach every day, and compared.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from executors.nested_types import leaf_arrays

_PER_MILLISECOND = {"ns": 1_000_000, "us": 1_000}
_UNIT_NAMES = {"ns": "nanoseconds", "us": "microseconds"}


def verify_int96(
    batches: Iterable[pa.RecordBatch], coarse: Iterator[pa.RecordBatch], unit: str
) -> Iterator[pa.RecordBatch]:
    """Yield ``batches`` with INT96 columns in ``unit``, ``ns`` or ``us``; ``coarse`` has these in milliseconds.

    Raises ``pa.ArrowInvalid`` if the two differ.
    """
    rest: pa.Table | None = None
    for batch in batches:
        while rest is None or rest.num_rows < batch.num_rows:
            more = pa.Table.from_batches([next(coarse)])
            rest = more if rest is None else pa.concat_tables([rest, more])
        for name in rest.schema.names:
            fine = list(_timestamps(batch.column(name)))
            for one, other in zip(fine, _timestamps(rest[name].slice(0, batch.num_rows).combine_chunks()), strict=True):
                if (one.type.unit, other.type.unit) == (unit, "ms") and not _equal(one, other):
                    raise pa.ArrowInvalid(
                        f"column {name} has timestamps of years that {_UNIT_NAMES[unit]} do not reach"
                    )
        rest = rest.slice(batch.num_rows)
        yield batch


def _timestamps(array: pa.Array) -> Iterator[pa.Array]:
    """Yield the timestamps at any depth of a column, without timestamps in null or empty values."""
    return (leaf for leaf in leaf_arrays(array) if pat.is_timestamp(leaf.type))


def _equal(fine: pa.Array, coarse: pa.Array) -> bool:
    values, milliseconds = (np.asarray(one.cast(pa.int64()).drop_null()) for one in (fine, coarse))
    return bool(np.array_equal(values // _PER_MILLISECOND[fine.type.unit], milliseconds))
