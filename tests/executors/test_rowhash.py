# SPDX-License-Identifier: Apache-2.0
"""Fingerprints of rows: what counts and what does not."""

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from executors.rowhash import Fingerprint
from lake.errors import Rejected


def fingerprint(*tables: pa.Table, batch: int = 1000) -> Fingerprint:
    total = Fingerprint()
    for table in tables:
        for part in table.to_batches(max_chunksize=batch):
            total.add(part)
    return total


def column(values: Any, kind: pa.DataType) -> Fingerprint:
    return fingerprint(pa.table({"c": pa.array(values, kind)}))


TEXT = ["a", None, "", "exactly8", "nine byte", "a string of more than three words", "ü€𝄞"]


@pytest.mark.parametrize(
    "kind",
    [pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.dictionary(pa.int8(), pa.string())],
    ids=str,
)
def test_strings_hash_alike_in_every_arrow_type(kind: pa.DataType):
    assert fingerprint(pa.table({"c": pa.array(TEXT).cast(kind)})) == column(TEXT, pa.string())


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint64()], ids=str)
def test_integers_hash_alike_in_every_width_that_holds_them(kind: pa.DataType):
    assert column([0, 1, None, 127], kind) == column([0, 1, None, 127], pa.int64())


def test_decimals_hash_alike_in_every_precision_that_holds_them():
    values = [Decimal("0.00"), Decimal("-12.34"), None, Decimal("999.99"), Decimal("-0.01")]
    expected = column(values, pa.decimal128(38, 2))
    for kind in (pa.decimal32(5, 2), pa.decimal64(12, 2), pa.decimal128(5, 2), pa.decimal256(76, 2)):
        assert column(values, kind) == expected, str(kind)
    huge = [Decimal(10**40), Decimal(-(10**40))]
    assert column(huge[:1], pa.decimal256(60, 0)) != column(huge[1:], pa.decimal256(60, 0))


def test_instants_hash_alike_in_every_unit_and_differ_by_a_nanosecond():
    units = [("s", 1), ("ms", 1000), ("us", 1_000_000), ("ns", 1_000_000_000)]
    prints = [column([-7 * n, None, 1_767_225_600 * n], pa.timestamp(unit)) for unit, n in units]
    assert all(one == prints[0] for one in prints)
    assert column([1], pa.timestamp("ns")) != column([2], pa.timestamp("ns"))


def test_order_and_cuts_of_rows_do_not_count():
    rows = pa.table({"a": list(range(500)), "b": [[i, None] if i % 3 else [] for i in range(500)], "c": TEXT[:1] * 500})
    expected = fingerprint(rows)
    assert fingerprint(rows.slice(300), rows.slice(0, 300), batch=7) == expected
    assert fingerprint(rows.take(pa.array(list(reversed(range(500)))))) == expected
    merged = fingerprint(rows.slice(0, 123))
    merged.merge(fingerprint(rows.slice(123)))
    assert merged == expected


@pytest.mark.parametrize(
    ("one", "other", "kind"),
    [
        ([["a", "b"]], [["b", "a"]], pa.list_(pa.string())),
        ([["ab"]], [["a", "b"]], pa.list_(pa.string())),
        ([[]], [None], pa.list_(pa.string())),
        ([[None]], [[]], pa.list_(pa.string())),
        ([[None, None]], [[None]], pa.list_(pa.int64())),
        ([[[1], []]], [[[], [1]]], pa.list_(pa.list_(pa.int64()))),
        ([[1, 2]], [[2, 1]], pa.list_(pa.int64(), 2)),
        ([{"x": 1, "y": 2}], [{"x": 2, "y": 1}], pa.struct([("x", pa.int64()), ("y", pa.int64())])),
        ([{"x": None}], [None], pa.struct([("x", pa.int64())])),
        ([[("a", 1), ("b", 2)]], [[("a", 2), ("b", 1)]], pa.map_(pa.string(), pa.int64())),
        ([""], [None], pa.string()),
        (["a"], ["a\0"], pa.string()),
        (["\0\0"], ["\0"], pa.string()),
        (["12345678abcdefgh"], ["abcdefgh12345678"], pa.string()),
        ([0], [None], pa.int64()),
        ([False], [None], pa.bool_()),
        ([1.0], [-1.0], pa.float64()),
        ([2**53], [2**53 + 1], pa.int64()),
        ([b"abc"], [b"abd"], pa.binary(3)),
    ],
    ids=str,
)
def test_different_values_have_different_hashes(one: Any, other: Any, kind: pa.DataType):
    assert column(one, kind) != column(other, kind)


def test_the_entries_of_a_map_have_no_order():
    kind = pa.map_(pa.string(), pa.int64())
    assert column([[("a", 1), ("b", 2)], None], kind) == column([None, [("b", 2), ("a", 1)]], kind)


def test_arrays_that_are_cut_out_of_larger_ones_hash_like_their_own_values():
    rows = pa.table(
        {
            "text": TEXT,
            "list": pa.array([[1], None, [], [2, 3], [4], [None], [5, 6, 7]], pa.list_(pa.int64())),
            "map": pa.array([[("a", 1)], None, [], [("b", 2)], [("c", 3)], [], []], pa.map_(pa.string(), pa.int32())),
            "fixed": pa.array([[1, 2], None, [3, 4], [5, 6], None, [7, None], [8, 9]], pa.list_(pa.int16(), 2)),
            "struct": pa.array([{"x": i, "y": str(i)} if i % 3 else None for i in range(7)]),
            "flag": [True, None, False, True, True, False, None],
            "number": pa.array([None, 2, 3, 4, 5, 6, 7], pa.decimal128(9, 1)),
        }
    )
    for low in range(7):
        for high in range(low + 1, 8):
            cut = rows.slice(low, high - low)
            own = pa.Table.from_pylist(cut.to_pylist(), rows.schema)
            assert fingerprint(cut) == fingerprint(own), (low, high)


def test_a_column_of_nulls_equals_no_column_and_a_swap_of_columns_names_one():
    rows = pa.table({"a": [1, 2], "b": [2, 1]})
    assert fingerprint(rows.append_column("n", pa.nulls(2))).differing_column(fingerprint(rows)) is None
    swapped = rows.rename_columns(["b", "a"])
    assert fingerprint(rows).row_sum == fingerprint(swapped).row_sum  # the same rows in another order ...
    moved = pa.table({"a": [1, 3], "b": [2, 1]})
    assert fingerprint(rows).differing_column(fingerprint(moved)) == "a"


def test_a_type_without_a_hash_is_refused_with_the_way_out():
    months = pa.array([pa.MonthDayNano([1, 2, 3])])
    with pytest.raises(Rejected, match=r"column c has type month_day_nano_interval.*verification = footer"):
        fingerprint(pa.table({"c": months}))
