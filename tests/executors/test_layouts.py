# SPDX-License-Identifier: Apache-2.0
"""Rows of new files in the order of ``sort_columns``: linear, along the Z-order curve, and along Hilbert's curve."""

import math
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from any_tables import tables
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from executors.engines.arrow import ArrowEngine
from executors.engines.backends import InProcessBackend
from executors.engines.layout import sorting
from executors.engines.layout.curves import hilbert, z_order
from executors.engines.layout.ordering import is_sortable, order_rows
from lake.engines import RewriteTask
from lake.errors import CancelRequested, Conflict
from lake.plan import RewriteOptions

ENGINE = ArrowEngine(InProcessBackend(1))
OPTIONS = RewriteOptions(target_file_max_bytes=1 << 30)
POINTS = 1 << 17


def write(path: Path, rows: pa.Table, **options: Any) -> str:
    pq.write_table(rows, path, row_group_size=max(1, rows.num_rows // 2), **options)
    return str(path)


def rewrite(
    folder: Path, inputs: Sequence[str], by: Sequence[str], layout: str = "linear", files: int = 1
) -> list[str]:
    (folder / "new").mkdir(exist_ok=True)
    names = tuple(str(folder / "new" / f"{number}.parquet") for number in range(files))
    size = sum(Path(path).stat().st_size for path in inputs)
    task = RewriteTask(group=0, inputs=tuple(inputs), outputs=names, bytes=size)
    options = replace(OPTIONS, sort_columns=tuple(by), layout=layout)
    assert ENGINE.unsupported_reason(task, options) is None
    return [file.path for file in ENGINE.rewrite([task], options, lambda _: None, threading.Event())]


def texts(rows: pa.Table) -> list[str]:
    rows = rows.combine_chunks()
    return ["".join(column.slice(index, 1).to_string() for column in rows) for index in range(rows.num_rows)]


@pytest.mark.parametrize(("dimensions", "bits"), [(1, 5), (2, 4), (3, 3), (4, 2), (8, 1)])
def test_hilberts_curve_meets_each_point_once_and_goes_to_a_neighbour(dimensions: int, bits: int):
    grid = np.array(np.meshgrid(*[np.arange(1 << bits)] * dimensions)).reshape(dimensions, -1).astype(np.uint64)
    places = hilbert(list(grid), bits)
    assert sorted(places.tolist()) == list(range(1 << (bits * dimensions)))
    steps = np.abs(np.diff(grid[:, np.argsort(places)].astype(np.int64), axis=1)).sum(axis=0)
    assert (steps == 1).all()


def test_the_z_order_curve_interleaves_bits():
    assert z_order([np.array([0b10], np.uint64), np.array([0b11], np.uint64)], 2).tolist() == [0b1101]
    grid = np.array(np.meshgrid(np.arange(8), np.arange(8))).reshape(2, -1).astype(np.uint64)
    assert sorted(z_order(list(grid), 3).tolist()) == list(range(64))


def points(kind: str, columns: int) -> list[Any]:
    random = np.random.default_rng(1)
    if kind == "uniform":
        return list(random.random((columns, POINTS)))
    if kind == "skewed":
        return [*random.lognormal(0, 3, (columns - 1, POINTS)), random.zipf(1.3, POINTS).astype(float)]
    base = random.random(POINTS)
    return [base + random.normal(0, 0.1, POINTS) * (number > 0) for number in range(columns)]


def ranges(columns: Sequence[Any], layout: str, files: int) -> list[float]:
    """For each column the mean share of the rows whose values are between the bounds of a file."""
    order = order_rows([pa.chunked_array([values]) for values in columns], layout, files, POINTS)
    assert len(order.rows_per_file) == files
    assert sum(order.rows_per_file) == POINTS
    assert max(order.rows_per_file) < 1.5 * POINTS / files
    file_of = np.searchsorted(np.cumsum(order.rows_per_file), order.positions, side="right")
    found = []
    for values in columns:
        ranks = np.argsort(np.argsort(values, kind="stable")) / POINTS
        low, high = np.ones(files), np.zeros(files)
        np.minimum.at(low, file_of, ranks)
        np.maximum.at(high, file_of, ranks)
        found.append(float((high - low).mean()))
    return found


@pytest.mark.parametrize(("columns", "files"), [(2, 64), (3, 64), (4, 256)])
@pytest.mark.parametrize("kind", ["uniform", "skewed", "correlated"])
def test_a_file_covers_little_of_each_column_and_hilbert_covers_no_more_than_z_order(
    kind: str, columns: int, files: int
):
    """The ideal are files that are cells of the curve: of 64 files with two columns each covers an eighth of both."""
    values, ideal = points(kind, columns), files ** (-1 / columns)
    by_z_order, by_hilbert = (ranges(values, layout, files) for layout in ("zorder", "hilbert"))
    assert max(by_z_order) <= 1.5 * ideal
    assert max(by_hilbert) <= 1.5 * ideal
    assert sum(by_hilbert) <= sum(by_z_order) + 1e-9
    if kind == "uniform":
        assert ranges(values, "linear", files)[1] > 0.9, "the second column of a linear order"


def test_files_of_a_curve_stay_within_their_limit():
    columns = [pa.chunked_array([values]) for values in points("correlated", 2)]
    order = order_rows(columns, "hilbert", 64, POINTS // 64 + 10)
    assert max(order.rows_per_file) <= POINTS // 64 + 10
    assert len(set(order_rows(columns, "hilbert", 64, POINTS // 64).rows_per_file)) == 1


def test_nulls_are_smallest_nan_is_greatest_and_zeros_are_one_value():
    values = pa.chunked_array([[3.0, None], [float("nan"), -0.0, 0.0], [None, 1.0]])
    assert order_rows([values], "linear", 1, 7).positions.tolist() == [5, 0, 6, 2, 3, 1, 4]
    assert order_rows([pa.chunked_array([[], []], pa.string())], "hilbert", 3, 0).rows_per_file == [0, 0, 0]


def is_sorted(rows: pa.Table, names: Sequence[str]) -> bool:
    keys = [(name, "ascending", "at_start") for name in names]
    order = pc.sort_indices(rows.select(names), sort_keys=keys)
    return texts(rows.select(names).take(order)) == texts(rows.select(names))


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=tables(), data=st.data())
def test_any_tables_rows_are_kept_and_sorted(
    tmp_path_factory: pytest.TempPathFactory, rows: pa.Table, data: st.DataObject
):
    folder = tmp_path_factory.mktemp("layout")
    rows = rows.append_column("number", pa.array(range(rows.num_rows), pa.int32()))
    sortable = [field.name for field in rows.schema if is_sortable(field.type)]
    by = data.draw(st.lists(st.sampled_from(sortable), min_size=1, max_size=3, unique=True))
    layout, files = data.draw(st.sampled_from(["linear", "zorder", "hilbert"])), data.draw(st.integers(1, 3))
    inputs = [write(folder / f"{number}.parquet", rows, store_schema=False) for number in range(2)]
    before = pa.concat_tables([pq.ParquetFile(path).read() for path in inputs])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorting, "_BUCKET_BYTES", data.draw(st.sampled_from([100, 1 << 20])))
        patch.setattr(sorting, "_BATCH_ROWS", data.draw(st.sampled_from([3, 1 << 16])))
        written = rewrite(folder, inputs, by, layout, files)
    after = [pq.ParquetFile(path).read() for path in written]
    assert len(written) == files
    assert sorted(texts(pa.concat_tables(after))) == sorted(texts(before))
    has_nan = any(pa.types.is_floating(rows.schema.field(name).type) for name in by)
    if layout == "linear" and not has_nan:
        assert is_sorted(pa.concat_tables(after).combine_chunks(), by)
    for path in written:
        metadata = pq.read_metadata(path)
        for number in range(metadata.num_row_groups):
            columns = [
                metadata.row_group(number).column(one.column_index).path_in_schema
                for one in metadata.row_group(number).sorting_columns
            ]
            assert columns == (by if layout == "linear" else [])
    assert not list(folder.glob("lakefold-sort-*"))


def test_rows_of_equal_values_keep_their_order_and_names_are_found_in_any_case(tmp_path: Path):
    rows = pa.table({"Key": [2, 1, 2, 1], "n": [0, 1, 2, 3]})
    inputs = [write(tmp_path / f"{number}.parquet", rows) for number in range(2)]
    (path,) = rewrite(tmp_path, inputs, ["key"])
    assert pq.read_table(path).to_pydict() == {"Key": [1] * 4 + [2] * 4, "n": [1, 3, 1, 3, 0, 2, 0, 2]}


def test_strings_with_dictionaries_are_sorted_by_value(tmp_path: Path):
    words = [f"word {number % 7}" for number in range(1_000)]
    inputs = [write(tmp_path / f"{number}.parquet", pa.table({"w": words, "n": range(1_000)})) for number in range(2)]
    written = rewrite(tmp_path, inputs, ["w", "n"], files=2)
    rows = pa.concat_tables([pq.ParquetFile(path).read() for path in written])
    assert rows["w"].to_pylist() == sorted(words * 2)
    assert pq.read_metadata(written[0]).row_group(0).column(0).has_dictionary_page


@pytest.mark.parametrize(
    ("by", "why"),
    [
        (["gone"], "0 columns are called gone, which is in sort_columns"),
        (["LIST"], "column LIST has type list<.*>, which has no order; remove it from sort_columns"),
        (["a.b"], "0 columns are called a.b"),
    ],
)
def test_columns_that_rows_cannot_be_sorted_by_are_refused(tmp_path: Path, by: list[str], why: str):
    path = write(tmp_path / "x.parquet", pa.table({"list": [[1]], "a": [{"b": 1}]}))
    task = RewriteTask(group=0, inputs=(path,), outputs=(str(tmp_path / "y"),), bytes=1)
    reason = ENGINE.unsupported_reason(task, replace(OPTIONS, sort_columns=tuple(by)))
    assert pc.match_substring_regex(pa.array([reason]), why)[0].as_py(), reason


def test_groups_that_do_not_fit_in_memory_are_refused_with_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = write(tmp_path / "x.parquet", pa.table({"n": range(1_000), "w": ["x" * 50] * 1_000}), use_dictionary=False)
    task = RewriteTask(group=0, inputs=(path,), outputs=(str(tmp_path / "y"),), bytes=1)
    monkeypatch.setattr(sorting, "MAX_ORDER_BYTES", 8 * 4 * 999)
    why = ENGINE.unsupported_reason(task, replace(OPTIONS, sort_columns=("n",)))
    assert why == "it sorts at most 999 rows by 1 columns at once, and the group has 1,000; lower max_bytes_per_group"
    monkeypatch.setattr(sorting, "MAX_ORDER_BYTES", 1 << 20)
    monkeypatch.setattr(sorting, "MAX_KEY_BYTES", 20_000)
    assert ENGINE.unsupported_reason(task, replace(OPTIONS, sort_columns=("n",))) is None
    why = ENGINE.unsupported_reason(task, replace(OPTIONS, sort_columns=("w",)))
    assert why is not None
    assert why.startswith("it holds at most 19.5 KiB of sort columns in memory, and the group has ")


def test_a_sort_that_is_cancelled_or_meets_a_damaged_file_leaves_nothing(tmp_path: Path):
    rows = pa.table({"n": list(range(5_000))})
    paths = [write(tmp_path / f"{number}.parquet", rows, compression="none") for number in range(2)]
    task = RewriteTask(group=0, inputs=tuple(paths), outputs=(str(tmp_path / "new.parquet"),), bytes=1)
    options, cancelled = replace(OPTIONS, sort_columns=("n",)), threading.Event()
    cancelled.set()
    with pytest.raises(CancelRequested):
        list(ENGINE.rewrite([task], options, lambda _: None, cancelled))
    content = bytearray(Path(paths[1]).read_bytes())
    content[4:40] = bytes(36)
    Path(paths[1]).write_bytes(content)
    with pytest.raises(Conflict) as raised:
        list(ENGINE.rewrite([task], options, lambda _: None, threading.Event()))
    assert raised.value.args[1][0].quarantine == (paths[1],)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.parquet", "1.parquet"]


def test_the_order_of_many_rows_is_found_quickly_enough_to_be_bounded_by_reading():
    """Ranks and curve are arrays: no Python code runs for a row."""
    columns = [pa.chunked_array([np.arange(1 << 18)[:: 1 - 2 * number]]) for number in range(2)]
    positions = order_rows(columns, "hilbert", 4, 1 << 18).positions
    assert math.isclose(positions.mean(), (len(positions) - 1) / 2)
