# SPDX-License-Identifier: Apache-2.0
"""Rows of new files in the order of ``sort_columns``: linear, along the Z-order curve, and along Hilbert's curve."""

import errno
import threading
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
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

from executors.engines import group_rewrite
from executors.engines.arrow import ArrowEngine
from executors.engines.backends import InProcessBackend
from executors.engines.layout import sorting
from executors.engines.layout.curves import hilbert, z_order
from executors.engines.layout.keys import SortedColumn, is_sortable, sort_indices
from executors.engines.layout.ordering import CellCounts, RankCurve, equal_shares
from lake.engines import RewriteTask
from lake.errors import CancelRequested, Conflict, Rejected, Transient
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


def files_along(columns: Sequence[Any], layout: str, files: int, max_rows: int = POINTS) -> tuple[Any, list[int]]:
    """The rows in their order along a curve, as indices, and the number of rows of each file."""
    sample = sorting.KeySample(len(columns[0]))
    for start in range(0, len(columns[0]), 1 << 15):
        part = [values[start : start + (1 << 15)] for values in columns]
        sample.add(pa.RecordBatch.from_arrays([pa.array(values) for values in part], list("abcd")[: len(part)]))
    curve = RankCurve(sample.columns(), layout)
    cells = CellCounts(curve.positions(sample.columns()))
    positions = curve.positions([pa.array(values) for values in columns])
    cells.add(positions)
    return np.argsort(positions, kind="stable"), cells.rows_per_file(files, max_rows)


def ranges(columns: Sequence[Any], order: Any, rows_per_file: Sequence[int]) -> list[float]:
    """For each column the mean share of the rows whose values are between the bounds of a file."""
    found = []
    for values in columns:
        ranks = np.argsort(np.argsort(values, kind="stable"))[order] / len(order)
        parts = np.split(ranks, np.cumsum(rows_per_file)[:-1])
        found.append(float(np.mean([part.max() - part.min() for part in parts])))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("columns", "files"), [(2, 64), (3, 64), (4, 256)])
@pytest.mark.parametrize("kind", ["uniform", "skewed", "correlated"])
@pytest.mark.parametrize("sample", [POINTS, POINTS // 8], ids=["exact ranks", "ranks of a sample"])
def test_a_file_covers_little_of_each_column_and_hilbert_covers_no_more_than_z_order(
    kind: str, columns: int, files: int, sample: int, monkeypatch: pytest.MonkeyPatch
):
    """The ideal are files that are cells of the curve: of 64 files with two columns each covers an eighth of both."""
    monkeypatch.setattr(sorting, "_SAMPLE_ROWS", sample)
    values, ideal = points(kind, columns), files ** (-1 / columns)
    found = {}
    for layout in ("zorder", "hilbert"):
        order, rows_per_file = files_along(values, layout, files)
        assert len(rows_per_file) == files
        assert sum(rows_per_file) == POINTS
        assert max(rows_per_file) < 1.5 * POINTS / files
        found[layout] = ranges(values, order, rows_per_file)
    assert max(found["zorder"]) <= 1.5 * ideal
    assert max(found["hilbert"]) <= 1.5 * ideal
    assert sum(found["hilbert"]) <= sum(found["zorder"]) * (1 if sample == POINTS else 1.01) + 1e-9
    if kind == "uniform":
        linear = sort_indices([pa.array(column) for column in values])
        assert ranges(values, linear, equal_shares(POINTS, files))[1] > 0.9, "the second column of a linear order"


@pytest.mark.slow
@pytest.mark.parametrize("sample", [POINTS, 1_000])
def test_files_of_a_curve_stay_within_their_limit(sample: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sorting, "_SAMPLE_ROWS", sample)
    values = points("correlated", 2)
    assert max(files_along(values, "hilbert", 64, POINTS // 64 + 10)[1]) <= POINTS // 64 + 10
    assert len(set(files_along(values, "hilbert", 64, POINTS // 64)[1])) == 1


def test_nulls_are_smallest_nan_is_greatest_and_zeros_are_one_value():
    values = pa.array([3.0, None, float("nan"), -0.0, 0.0, None, 1.0])
    assert sort_indices([values]).tolist() == [1, 5, 3, 4, 6, 0, 2]
    smaller, not_greater = SortedColumn(values).rank_ranges(pa.array([None, 0.0, 2.0, float("nan")]))
    assert (smaller.tolist(), not_greater.tolist()) == ([0, 2, 5, 6], [2, 4, 5, 7])


def test_a_group_without_rows_is_written_as_planned(tmp_path: Path):
    path = write(tmp_path / "empty.parquet", pa.table({"a": pa.array([], pa.string()), "b": pa.array([], pa.int8())}))
    for layout in ("linear", "hilbert"):
        assert [pq.read_metadata(one).num_rows for one in rewrite(tmp_path, [path], ["a", "b"], layout, 3)] == [0] * 3


def as_keys(rows: pa.Table, names: Sequence[str]) -> list[Any]:
    """The values of each row, such that Python compares them in the order of a layout."""
    columns = []
    for name in names:
        column = rows[name]
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.int64())
        columns.append(
            [(0, 0) if value is None else (2, 0) if value != value else (1, value) for value in column.to_pylist()]
        )
    return list(zip(*columns, strict=True))


def stable_order(rows: pa.Table, names: Sequence[str]) -> list[int]:
    keys = as_keys(rows, names)
    return sorted(range(len(keys)), key=keys.__getitem__)


def read(paths: Sequence[str]) -> pa.Table:
    return pa.concat_tables([pq.ParquetFile(path).read() for path in paths])


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=tables(), data=st.data())
def test_any_tables_rows_are_kept_and_sorted(
    tmp_path_factory: pytest.TempPathFactory, rows: pa.Table, data: st.DataObject
):
    folder = tmp_path_factory.mktemp("layout")
    rows = pa.concat_tables([rows] * data.draw(st.integers(1, 3)))
    for index, field in enumerate(rows.schema):
        if pa.types.is_string(field.type):
            kind = data.draw(st.sampled_from([field.type, pa.string_view(), pa.dictionary(pa.int32(), pa.string())]))
            rows = rows.set_column(index, field.name, rows[index].cast(kind))
    rows = rows.append_column("number", pa.array(range(rows.num_rows), pa.int32()))
    sortable = [
        field.name
        for field in rows.schema
        if is_sortable(field.type) or field.type in (pa.string_view(), pa.dictionary(pa.int32(), pa.string()))
    ]
    by = data.draw(st.lists(st.sampled_from(sortable), min_size=1, max_size=3, unique=True))
    layout, files = data.draw(st.sampled_from(["linear", "zorder", "hilbert"])), data.draw(st.integers(1, 3))
    half, store_schema = rows.num_rows // 2, data.draw(st.booleans())
    inputs = [
        write(folder / f"{number}.parquet", part, store_schema=store_schema)
        for number, part in enumerate([rows.slice(half), rows.slice(0, half)])
    ]
    before = read(inputs)
    with pytest.MonkeyPatch.context() as patch:
        for limit, most in {"_MAX_HELD_BYTES": 1 << 20, "_SAMPLE_ROWS": 1 << 16, "_SAMPLE_BYTES": 1 << 20}.items():
            patch.setattr(sorting, limit, data.draw(st.sampled_from([5, 60, most]), label=limit))
        patch.setattr(sorting, "_BUCKET_BYTES", 50)
        patch.setattr(sorting, "_BATCH_ROWS", data.draw(st.sampled_from([3, 1 << 16])))
        written = rewrite(folder, inputs, by, layout, files)
    after = read(written)
    assert len(written) == files
    assert after.schema.equals(before.schema)
    assert sorted(texts(after)) == sorted(texts(before))
    if layout == "linear" or len(by) == 1:
        assert after["number"].to_pylist() == before["number"].take(pa.array(stable_order(before, by))).to_pylist()
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


@pytest.mark.parametrize("by", [[], ["k"]], ids=["in the order of the inputs", "sorted"])
@pytest.mark.parametrize("files", [1, 2])
@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view()])
def test_views_are_kept_in_structs_and_lists(tmp_path: Path, by: list[str], files: int, kind: pa.DataType):
    inputs = []
    for part, count in enumerate((70, 90, 30)):
        long = [f"value number {number} of {part}" for number in range(count)]
        columns = {
            "k": pa.array(range(count, 0, -1)),
            "top": pa.array(long, kind),
            "struct": pa.array([{"a": one} for one in long], pa.struct([("a", kind)])),
            "list": pa.array([[one, None] for one in long], pa.list_(kind)),
        }
        # pyarrow can't write a part of such rows: each file has one row group.
        inputs.append(str(tmp_path / f"{part}.parquet"))
        pq.write_table(pa.table(columns), inputs[-1])
    before = read(inputs)
    assert before.schema.field("struct").type.field("a").type == kind
    after = read(rewrite(tmp_path, inputs, by, files=files))
    assert after.schema.equals(before.schema)
    order = stable_order(before, by) if by else range(before.num_rows)
    rows = before.to_pylist()
    assert after.to_pylist() == [rows[number] for number in order]


def test_the_footer_names_the_sorting_column_and_no_nested_column_of_the_same_path(tmp_path: Path):
    rows = pa.table({"a": [{"b": 3}, {"b": 1}, {"b": 2}], "a.b": [3, 5, 4]})
    (path,) = rewrite(tmp_path, [write(tmp_path / "x.parquet", rows)], ["a.b"])
    assert pq.ParquetFile(path).read()["a.b"].to_pylist() == [3, 4, 5]
    assert [one.column_index for one in pq.read_metadata(path).row_group(0).sorting_columns] == [1]


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


ROWS = 8_000


def column_of(kind: str) -> pa.Array:
    random = np.random.default_rng(3)
    numbers = random.integers(-3_000, 3_000, ROWS)
    is_null = random.random(ROWS) < 0.1
    if kind == "strings":
        return pa.array([f"{'a long common prefix ' * 5}{number}" for number in numbers], mask=is_null)
    if kind == "decimals":
        return pa.array([Decimal(int(number)).scaleb(-2) for number in numbers], pa.decimal128(30, 2), mask=is_null)
    if kind == "floats":
        return pa.array(np.where(numbers > 2_000, np.nan, numbers / 7), mask=is_null)
    if kind == "frequent":
        return pa.array(np.where(random.random(ROWS) < 0.9, 7, numbers))
    if kind == "one":
        return pa.array(np.full(ROWS, 7))
    return pa.array(numbers.astype("datetime64[D]"), mask=is_null)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of rows that were sorted in memory, while the limits are those of a group of gigabytes."""
    monkeypatch.setattr(sorting, "_BUCKET_BYTES", 12 << 10)
    monkeypatch.setattr(sorting, "_MAX_HELD_BYTES", 16 << 10)
    monkeypatch.setattr(sorting, "_BATCH_BYTES", 32 << 10)
    monkeypatch.setattr(sorting, "_SAMPLE_ROWS", 500)
    monkeypatch.setattr(group_rewrite, "_BATCH_ROWS", 300)
    monkeypatch.setattr(group_rewrite, "_BATCH_BYTES", 1 << 12)
    counts: list[int] = []
    in_memory = sorting._ExternalSort._sorted_in_memory

    def counting(self: Any, rows: Any) -> Any:
        counts.append(sum(batch.num_rows for batch in rows))
        return in_memory(self, rows)

    monkeypatch.setattr(sorting._ExternalSort, "_sorted_in_memory", counting)
    return counts


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["strings", "decimals", "floats", "dates", "frequent", "one"])
def test_a_group_larger_than_memory_is_sorted_exactly_and_equal_rows_keep_their_order(
    tmp_path: Path, kind: str, held: list[int]
):
    rows = pa.table({"k": column_of(kind), "second": column_of("dates"), "n": range(ROWS)})
    inputs = [write(tmp_path / f"{n}.parquet", rows.slice(n * ROWS // 2, ROWS // 2)) for n in range(2)]
    written = rewrite(tmp_path, inputs, ["k", "second"] if kind == "floats" else ["k"], files=4)
    after = read(written)
    assert after["n"].to_pylist() == stable_order(rows, ["k", "second"] if kind == "floats" else ["k"])
    assert texts(after) == texts(rows.take(after["n"]))
    assert [pq.read_metadata(path).num_rows for path in written] == [ROWS // 4] * 4
    # One value that most rows have must not be held in memory.
    assert max(held, default=0) < ROWS // 10
    assert len(held) > 2 or kind == "one"


def read_row_groups(paths: Sequence[str]) -> pa.Table:
    """The rows of some files. pyarrow can't read nested dictionaries of several row groups at once."""
    files = [pq.ParquetFile(path) for path in paths]
    return pa.concat_tables([file.read_row_group(at) for file in files for at in range(file.num_row_groups)])


@pytest.mark.slow
def test_a_dictionary_larger_than_memory_does_not_count_for_each_batch_and_the_sort_ends(
    tmp_path: Path, held: list[int], monkeypatch: pytest.MonkeyPatch
):
    """As pandas writes categoricals: the files say that a column is a dictionary, and pyarrow reads it as one."""
    random, kind = np.random.default_rng(3), pa.dictionary(pa.int32(), pa.string())
    texts_of = [f"category {number:06}" for number in random.integers(0, 2_000, ROWS)]
    lists = [[text, None] for text in texts_of]
    rows = pa.table(
        {
            "k": column_of("dates"),
            "top": pa.array(texts_of).dictionary_encode(),
            "struct": pa.StructArray.from_arrays([pa.array(texts_of).dictionary_encode()], ["a"]),
            "list": pa.array(lists, pa.list_(pa.string())).cast(pa.list_(kind)),
            "n": range(ROWS),
        }
    )
    inputs = [write(tmp_path / f"{n}.parquet", rows.slice(n * ROWS // 2, ROWS // 2)) for n in range(2)]
    assert read_row_groups(inputs)["list"].type.value_type == kind
    made, created = [], sorting._Buckets.__init__

    def counting(self: Any, *given: Any) -> None:
        made.append(self)
        assert len(made) < 100, "the sort does not end"
        created(self, *given)

    monkeypatch.setattr(sorting._Buckets, "__init__", counting)
    for by in (["k"], ["top", "n"]):
        made.clear()
        after = read_row_groups(rewrite(tmp_path, inputs, by))
        assert after.schema.equals(read_row_groups(inputs).schema)
        plain = after.to_pydict()
        assert plain["n"] == stable_order(rows, by)
        assert plain["top"] == [texts_of[number] for number in plain["n"]]
        assert plain["struct"] == [{"a": texts_of[number]} for number in plain["n"]]
        assert plain["list"] == [lists[number] for number in plain["n"]]
        assert max(held) < ROWS // 10


@pytest.mark.parametrize("is_nested", [False, True])
def test_a_row_group_with_more_categories_than_the_files_type_of_references_has_is_not_written(
    tmp_path: Path, is_nested: bool
):
    """pyarrow could not read it: the categories of one file fit into a byte, those of all files do not."""
    kind = pa.dictionary(pa.int8(), pa.string())
    inputs = []
    for part in range(3):
        column = pa.array([f"{part} {number}" for number in range(100)]).cast(kind)
        column = pa.StructArray.from_arrays([column], ["a"]) if is_nested else column
        inputs.append(write(tmp_path / f"{part}.parquet", pa.table({"k": range(100, 0, -1), "c": column})))
    with pytest.raises(Rejected, match="set engine = spark"):
        rewrite(tmp_path, inputs, ["k"])
    assert list((tmp_path / "new").iterdir()) == []
    (written,) = rewrite(tmp_path, inputs[:1], ["k"])
    assert read_row_groups([written])["c"].type == read_row_groups(inputs)["c"].type


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["zorder", "hilbert"])
def test_a_group_larger_than_memory_is_laid_out_along_a_curve(tmp_path: Path, layout: str, held: list[int]):
    rows = pa.table({"a": column_of("strings"), "b": column_of("floats"), "c": column_of("frequent"), "n": range(ROWS)})
    inputs = [write(tmp_path / f"{n}.parquet", rows.slice(n * ROWS // 2, ROWS // 2)) for n in range(2)]
    written = rewrite(tmp_path, inputs, ["a", "b", "c"], layout, files=8)
    after = read(written)
    assert sorted(after["n"].to_pylist()) == list(range(ROWS))
    assert texts(after) == texts(rows.take(after["n"]))
    sizes = [pq.read_metadata(path).num_rows for path in written]
    assert len(sizes) == 8
    assert max(sizes) < 1.5 * ROWS / 8
    assert len(held) > 3
    assert max(held) < ROWS // 10
    (tmp_path / "again").mkdir()
    again = rewrite(tmp_path / "again", inputs, ["a", "b", "c"], layout, files=8)
    assert [Path(path).read_bytes() for path in again] == [Path(path).read_bytes() for path in written], "a retry"


def test_a_sample_of_large_values_is_halved_and_stays_uniform(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sorting, "_SAMPLE_BYTES", 100_000)
    sample = sorting.KeySample(50_000)
    for start in range(0, 50_000, 1_000):
        numbers = range(start, start + 1_000)
        sample.add(pa.RecordBatch.from_pydict({"n": numbers, "text": [f"{number:0100}" for number in numbers]}))
    numbers, text = sample.columns()
    assert 300 < len(numbers) < 1_200
    assert abs(pc.mean(numbers).as_py() - 25_000) < 2_500
    assert [int(value) for value in text.to_pylist()] == numbers.to_pylist()


def test_inputs_that_are_in_order_are_not_sorted_and_their_order_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Each input is in order, and one of their orders is that of all rows: the rows do not go through local disk."""
    times = [[5, 6, 7], [None, None], [1, 2, 5], [], [7, 9, float("nan")], [None, 0, 0.5]]
    inputs = [
        write(
            tmp_path / f"{index}.parquet",
            pa.table({"t": pa.array(part, pa.float64()), "n": pa.repeat(index, len(part))}),
        )
        for index, part in enumerate(times)
    ]
    with monkeypatch.context() as patch:
        patch.setattr(sorting, "_ExternalSort", None)
        written = rewrite(tmp_path, [path for number, path in enumerate(inputs) if number != 0], ["T"], files=2)
    assert read(written)["n"].to_pylist() == [1, 1, 5, 5, 5, 2, 2, 2, 4, 4, 4]
    # Equal rows keep the order of inputs: the first input has a 5 as well as the third, which would come first.
    rows = read(inputs)
    written = rewrite(tmp_path, inputs, ["t"], files=2)
    assert read(written)["n"].to_pylist() == rows["n"].take(pa.array(stable_order(rows, ["t"]))).to_pylist()


def fill_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on a bucket's file can't be written."""

    def full(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pa.ipc, "new_stream", full)


def test_a_full_local_disk_is_reported_with_the_setting(
    tmp_path: Path, held: list[int], monkeypatch: pytest.MonkeyPatch
):
    path = write(tmp_path / "x.parquet", pa.table({"k": column_of("dates")}))
    fill_disk(monkeypatch)
    task = RewriteTask(group=0, inputs=(path,), outputs=(str(tmp_path / "y"),), bytes=1)
    with pytest.raises(
        Transient, match=r"a sort through .* failed, where .* are free: .*No space left.* or set TMPDIR"
    ):
        list(ENGINE.rewrite([task], replace(OPTIONS, sort_columns=("k",)), lambda _: None, threading.Event()))
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.parquet"]


@pytest.mark.parametrize("by_spark", [True, False])
def test_a_sort_goes_through_sparks_directory_which_spark_removes_after_a_kill(
    tmp_path: Path, held: list[int], monkeypatch: pytest.MonkeyPatch, by_spark: bool
):
    used, others = tmp_path / "used", tmp_path / "others"
    for folder in (used, others):
        folder.mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{used},{others}" if by_spark else "")
    monkeypatch.setattr("tempfile.tempdir", str(others if by_spark else used))
    path = write(tmp_path / "x.parquet", pa.table({"k": column_of("dates")}))
    new_stream, seen = pa.ipc.new_stream, list[str]()

    def watched(to: Path, *given: Any, **named: Any) -> Any:
        seen.append(to.relative_to(used).parts[0])
        return new_stream(to, *given, **named)

    monkeypatch.setattr(pa.ipc, "new_stream", watched)
    rewrite(tmp_path, [path], ["k"])
    assert len(set(seen)) == 1
    assert seen[0].startswith("lakefold-sort-")
    assert [*used.iterdir(), *others.iterdir()] == []

    fill_disk(monkeypatch)
    setting = "spark.local.dir" if by_spark else "TMPDIR"
    with pytest.raises(Transient, match=f"a sort through {used} failed, where .* free space there or set {setting}"):
        rewrite(tmp_path, [path], ["k"])


def test_a_missing_local_directory_is_reported_with_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    path = write(tmp_path / "x.parquet", pa.table({"k": [2, 1]}))
    with pytest.raises(Transient, match=r"a temporary directory can't be created: .*No such file.*; set TMPDIR"):
        rewrite(tmp_path, [path], ["k"])


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
