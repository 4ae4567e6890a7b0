# SPDX-License-Identifier: Apache-2.0
"""The engine ``arrow`` and floating-point values: what readers may skip a row group by."""

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_arrow_engine import altered, read, rewrite, task_of, write

from executors.datafiles.thrift import Struct
from executors.engines.footer import RawParquetFooter
from executors.engines.inputs import ParquetInput
from executors.engines.special_floats import SpecialFloatTracker

NAN = float("nan")
FLOATS = [pa.float16(), pa.float32(), pa.float64()]
#: fields of Parquet's ColumnChunk, ColumnMetaData and Statistics
COLUMN_INDEX, OFFSET_INDEX, META = 6, 4, 3
STATISTICS, ENCODING_STATISTICS, BLOOM_FILTER = 12, 13, 14
NULLS, BOUNDS = 3, {1, 2, 5, 6, 7, 8}


def floats(values: list[float | None], kind: pa.DataType = FLOATS[2]) -> pa.Array:
    return pa.array(values, pa.float64()).cast(kind)


def chunks(path: str, group: int = 0) -> list[dict[int, Any]]:
    """The column chunks of a row group as the footer has them."""
    groups = RawParquetFooter(ParquetInput.read(path).footer)._fields[4][1][1]
    return list(groups[group][1][1][1])


def skipped_by(chunk: dict[int, Any]) -> set[str]:
    """What readers can skip a chunk by."""
    meta = chunk[META][1]
    statistics = meta[STATISTICS][1]
    assert (NULLS in statistics, OFFSET_INDEX in chunk) == (True, True)
    told = {
        "bounds": bool(statistics.keys() & BOUNDS),
        "pages": COLUMN_INDEX in chunk,
        "filter": BLOOM_FILTER in meta,
        "dictionary": ENCODING_STATISTICS in meta,
    }
    return {name for name, is_there in told.items() if is_there}


@pytest.mark.parametrize("kind", FLOATS, ids=str)
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, NAN], {"dictionary"}),
        ([NAN, NAN], {"dictionary"}),
        ([None, -NAN, 1.0], {"dictionary"}),
        ([0.0, 1.0, None], {"bounds", "pages"}),
        ([-0.0, NAN], set()),
        ([2.0, 1.0, float("inf")], {"bounds", "pages", "filter", "dictionary"}),
    ],
    ids=["one NaN", "only NaN", "NaN and null", "a zero", "both", "others"],
)
def test_a_reader_skips_a_chunk_only_by_statistics_that_are_true_for_nan_and_both_zeros(
    tmp_path, kind, values, expected
):
    rows = pa.table({"d": floats(values, kind), "n": range(len(values))})
    filters = {name: {"ndv": 9} for name in ("d", "n") if name == "n" or kind != pa.float16()}
    path = write(tmp_path / "a.parquet", rows, write_page_index=True, bloom_filter_options=filters)
    (new,) = rewrite(task_of([path, path], tmp_path))
    of_values, of_numbers = map(skipped_by, chunks(new))
    assert of_values == expected - ({"filter"} if kind == pa.float16() else set())
    assert of_numbers == {"bounds", "pages", "filter", "dictionary"}


def test_a_filter_of_booleans_which_spark_writes_and_pyarrow_does_not_stops_no_rewrite(tmp_path):
    def filtered(fields: Struct) -> None:
        chunk = fields[4][1][1][0][1][1][1]
        chunk[0][META][1][BLOOM_FILTER] = chunk[1][META][1][BLOOM_FILTER]

    rows = pa.table({"flag": [True, None], "n": [1, 2]})
    path = write(tmp_path / "a.parquet", rows, bloom_filter_options={"n": {"ndv": 9}})
    (new,) = rewrite(task_of([altered(path, filtered)], tmp_path))
    assert read(new).equals(rows)
    assert [BLOOM_FILTER in chunk[META][1] for chunk in chunks(new)] == [False, True]


def test_bounds_of_zeros_hold_both_zeros(tmp_path):
    rows = pa.table({"plus": floats([0.0, 0.0]), "minus": floats([-0.0, -0.0])})
    path = write(tmp_path / "a.parquet", rows)
    (new,) = rewrite(task_of([path], tmp_path))
    statistics = [pq.read_metadata(new).row_group(0).column(n).statistics for n in range(2)]
    assert [str((one.min, one.max)) for one in statistics] == ["(-0.0, 0.0)"] * 2
    assert str(read(new).to_pydict()) == str(rows.to_pydict())


def test_columns_with_nan_are_found_at_any_depth_and_others_keep_their_bounds(tmp_path):
    entry = {"list": [1.0, NAN], "map": [("k", [{"x": NAN, "y": 1.0}])], "text": "t"}
    kinds = pa.struct(
        [
            ("list", pa.list_(pa.float32())),
            ("map", pa.map_(pa.string(), pa.list_(pa.struct([("x", pa.float64()), ("y", pa.float64())])))),
            ("text", pa.string()),
        ]
    )
    rows = pa.table(
        {
            "s": pa.array([{"list": [], "map": None, "text": None}, entry], kinds),
            "fixed": pa.array([[1.0, 2.0], None], pa.list_(pa.float64(), 2)),
            "d": floats([None, NAN]),
            "all_null": floats([None, None]),
        }
    )
    path = write(tmp_path / "a.parquet", rows, write_page_index=True)
    (new,) = rewrite(task_of([path], tmp_path))
    metadata = pq.read_metadata(new)
    told = {
        metadata.schema.column(number).path.replace(".list.element", "[]"): skipped_by(chunk) & {"bounds", "pages"}
        for number, chunk in enumerate(chunks(new))
    }
    both = {"bounds", "pages"}
    assert told == {
        "s.list[]": set(),
        "s.map.key_value.key": both,
        "s.map.key_value.value[].x": set(),
        "s.map.key_value.value[].y": both,
        "s.text": both,
        "fixed[]": both,
        "d": set(),
        "all_null": {"pages"},
    }


def test_row_groups_without_nan_keep_their_bounds_wherever_the_writer_cuts_them():
    found = SpecialFloatTracker(pa.schema([("n", pa.int64()), ("d", pa.float64())]))
    for values in ([1.0, 2.0], [NAN, 0.0], [3.0, 4.0]):
        found.add(pa.table({"n": [1, 2], "d": values}))
    assert [sorted(odd.nan_columns) for odd in found.of_row_groups([2, 2, 2])] == [[], [1], []]
    assert [sorted(odd.zero_columns) for odd in found.of_row_groups([2, 1, 1, 2])] == [[], [1], [1], []]
    assert [sorted(odd.nan_columns) for odd in found.of_row_groups([5, 1])] == [[1], []]
