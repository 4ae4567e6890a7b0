# SPDX-License-Identifier: Apache-2.0
"""Tables of any types that Parquet has, drawn by Hypothesis."""

from decimal import Context, Decimal
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

Drawn = tuple[pa.DataType, st.SearchStrategy[Any]]
"""A type, and a strategy for its values."""

_EXACT = Context(prec=80)
#: each width in which Parquet stores a decimal, and the limits between them
_DECIMALS = ((1, 0), (4, 2), (9, 9), (10, 3), (18, 4), (19, 0), (20, 4), (38, 10), (39, 5), (76, 38))
_UNITS = {"s": 2**33, "ms": 2**43, "us": 2**50, "ns": 2**62}
_ZONES = (None, "UTC", "Europe/Berlin")


def _integers(kind: pa.DataType, low: int, high: int) -> Drawn:
    return kind, st.integers(low, high)


def _decimal(precision: int, scale: int) -> Drawn:
    kind = pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)
    most = 10**precision - 1
    return kind, st.integers(-most, most).map(lambda number: Decimal(number).scaleb(-scale, _EXACT))


_FLAT: list[Drawn] = [
    *(_integers(getattr(pa, f"int{bits}")(), -(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)),
    *(_integers(getattr(pa, f"uint{bits}")(), 0, 2**bits - 1) for bits in (8, 16, 32, 64)),
    *(_decimal(*one) for one in _DECIMALS),
    *(_integers(pa.timestamp(unit, zone), -most, most) for (unit, most), zone in product(_UNITS.items(), _ZONES)),
    _integers(pa.date32(), -100_000, 100_000),
    _integers(pa.time32("ms"), 0, 86_399_999),
    _integers(pa.time64("us"), 0, 86_399_999_999),
    _integers(pa.time64("ns"), 0, 86_399_999_999_999),
    (pa.float16(), st.floats(width=16).map(np.float16)),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    (pa.string(), st.text(max_size=40)),
    (pa.large_string(), st.text(max_size=5)),
    (pa.binary(), st.binary(max_size=40)),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.bool_(), st.booleans()),
]
#: what the engine `spark` refuses: Spark has no such type, or would write another one
_NOT_OF_SPARK = {
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(), pa.float16(), pa.binary(3)),
    *(pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    *(pa.timestamp("ns", zone) for zone in _ZONES),
    *(pa.timestamp(unit, zone) for unit in ("s", "ms") for zone in _ZONES),
    *(pa.decimal256(*one) for one in _DECIMALS if one[0] > 38),
}


def _nested(inner: st.SearchStrategy[Drawn]) -> st.SearchStrategy[Drawn]:
    def as_list(pair: Drawn) -> Drawn:
        return pa.list_(pair[0]), st.lists(st.none() | pair[1], max_size=3)

    def as_large_list(pair: Drawn) -> Drawn:
        return pa.large_list(pair[0]), st.lists(st.none() | pair[1], max_size=3)

    def as_fixed_list(pair: Drawn) -> Drawn:
        return pa.list_(pair[0], 2), st.lists(st.none() | pair[1], min_size=2, max_size=2)

    def as_map(pair: Drawn) -> Drawn:
        entries = st.dictionaries(st.text(max_size=3), st.none() | pair[1], max_size=3)
        return pa.map_(pa.string(), pair[0]), entries.map(lambda found: list(found.items()))

    def as_struct(pair: Drawn) -> Drawn:
        return pa.struct([("x", pair[0]), ("y", pa.int32())]), st.fixed_dictionaries(
            {"x": st.none() | pair[1], "y": st.none() | st.integers(-5, 5)}
        )

    return st.one_of(map(inner.map, (as_list, as_large_list, as_fixed_list, as_map, as_struct)))


def _kinds(flat: list[Drawn]) -> st.SearchStrategy[Drawn]:
    return st.recursive(st.sampled_from(flat), _nested, max_leaves=3)


_ALL = _kinds(_FLAT)
_OF_SPARK = _kinds([one for one in _FLAT if one[0] not in _NOT_OF_SPARK])


@st.composite
def tables(draw: st.DrawFn, *, for_spark: bool = False) -> pa.Table:
    """Up to four columns of any types; one in ten is all null. ``for_spark`` leaves out types that Spark lacks."""
    count = draw(st.integers(1, 12))
    columns = {}
    for index in range(draw(st.integers(1, 4))):
        kind, values = draw(_OF_SPARK if for_spark else _ALL)
        some = st.none() if draw(st.integers(0, 9)) == 9 else st.none() | values
        columns[f"c{index}"] = pa.array(draw(st.lists(some, min_size=count, max_size=count)), kind)
    return pa.table(columns)
