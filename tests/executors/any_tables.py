# SPDX-License-Identifier: Apache-2.0
"""Tables of any types, drawn by Hypothesis."""

from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

_SCALARS = st.one_of(
    st.tuples(st.just(pa.int64()), st.just(st.integers(-(2**63), 2**63 - 1))),
    st.tuples(st.just(pa.uint64()), st.just(st.integers(0, 2**64 - 1))),
    st.tuples(st.just(pa.int8()), st.just(st.integers(-128, 127))),
    st.tuples(st.just(pa.float64()), st.just(st.floats())),
    st.tuples(st.just(pa.float32()), st.just(st.floats(width=32))),
    st.tuples(st.just(pa.string()), st.just(st.text(max_size=40))),
    st.tuples(st.just(pa.binary()), st.just(st.binary(max_size=40))),
    st.tuples(st.just(pa.binary(3)), st.just(st.binary(min_size=3, max_size=3))),
    st.tuples(st.just(pa.bool_()), st.just(st.booleans())),
    st.tuples(
        st.just(pa.decimal128(20, 4)),
        st.just(st.integers(-(10**20) + 1, 10**20 - 1).map(lambda n: Decimal(n).scaleb(-4))),
    ),
    st.tuples(st.just(pa.timestamp("us", "UTC")), st.just(st.integers(-(2**50), 2**50))),
    st.tuples(st.just(pa.timestamp("ns")), st.just(st.integers(-(2**62), 2**62))),
    st.tuples(st.just(pa.date32()), st.just(st.integers(-100_000, 100_000))),
)


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def as_list(pair: tuple[pa.DataType, st.SearchStrategy[Any]]) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
        return pa.list_(pair[0]), st.lists(st.none() | pair[1], max_size=3)

    def as_struct(pair: tuple[pa.DataType, st.SearchStrategy[Any]]) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
        return pa.struct([("x", pair[0]), ("y", pa.int32())]), st.fixed_dictionaries(
            {"x": st.none() | pair[1], "y": st.none() | st.integers(-5, 5)}
        )

    return inner.map(as_list) | inner.map(as_struct)


_KINDS = st.recursive(_SCALARS, _nested, max_leaves=3)


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    count = draw(st.integers(1, 12))
    columns = {}
    for index in range(draw(st.integers(1, 4))):
        kind, values = draw(_KINDS)
        columns[f"c{index}"] = pa.array(draw(st.lists(st.none() | values, min_size=count, max_size=count)), kind)
    return pa.table(columns)
