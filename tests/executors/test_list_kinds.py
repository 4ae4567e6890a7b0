# SPDX-License-Identifier: Apache-2.0
"""Lists of every kind that Arrow has, which Parquet stores in the same way, pass every check and every engine alike."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from verification_case import Case

from executors.datafiles.leaf_columns import leaf_columns
from executors.datafiles.parquet import footer_statistics
from executors.engines.arrow import ArrowEngine
from executors.engines.backends import InProcessBackend
from executors.engines.inputs import ParquetInput
from executors.engines.spark_conversions import find_calendar_rebase
from executors.engines.special_floats import SpecialFloatTracker
from executors.engines.stitch.engine import HybridEngine, ParquetStitchEngine
from executors.engines.task_engine import TaskEngine
from lake.engines import FileSchema, RewriteTask
from lake.errors import Conflict, Integrity
from lake.plan import OutputFile, RewriteOptions

NAN = float("nan")
ENGINE = ArrowEngine(InProcessBackend(1))
#: each makes the type of a list from the type of its elements
LISTS: dict[str, Callable[[pa.DataType], pa.DataType]] = {
    "list": pa.list_,
    "large_list": pa.large_list,
    "fixed_size_list": lambda element: pa.list_(element, 2),
    "list_view": pa.list_view,
    "large_list_view": pa.large_list_view,
}
#: types of elements, each with two values
ELEMENTS: dict[str, tuple[pa.DataType, Sequence[Any]]] = {
    "double": (pa.float64(), [NAN, -0.0]),
    "struct": (pa.struct([("a", pa.float64()), ("b", pa.string())]), [{"a": NAN, "b": "x"}, None]),
    "map": (pa.map_(pa.string(), pa.float64()), [[("k", NAN), ("l", None)], []]),
    "list": (pa.list_(pa.float64()), [[NAN, None], []]),
    "list_view": (pa.list_view(pa.int32()), [[1, 2, 3], None]),
    "fixed_size_list": (pa.list_(pa.float32(), 1), [[0.0], None]),
    "string_view": (pa.string_view(), ["long " * 9, None]),
    "lists of views": (pa.struct([("a", pa.list_view(pa.binary_view()))]), [{"a": [b"x", None]}, None]),
}
ANY_LIST = pytest.mark.parametrize("kind", LISTS)
ANY_ELEMENT = pytest.mark.parametrize("element", ELEMENTS)


def lists(kind: str, element: pa.DataType, values: Sequence[Any]) -> pa.Array:
    """Full, null and empty lists of two ``values``; a part of a longer array, so that it has an offset."""
    empty = [] if kind != "fixed_size_list" else list(values)
    rows = [list(values), None, list(values[::-1]), empty, list(values), None, list(values)]
    return pa.array([list(values), *rows, empty], LISTS[kind](element))[1:8]


def table(kind: str, element: str) -> pa.Table:
    """Lists among other columns, which have NaN and a zero."""
    column = lists(kind, *ELEMENTS[element])
    rows = len(column)
    return pa.table({"id": range(rows), "c": column, "d": [1.0, NAN, 2.0, 0.0, None, 3.0, 4.0][:rows], "n": [1] * rows})


def write(path: Path, rows: pa.Table, **options: Any) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, path, row_group_size=4, **options)
    return str(path)


def read(path: str) -> tuple[pa.Schema, str]:
    """The types of a file's columns and its rows as text, where one NaN is another one."""
    file = pq.ParquetFile(path)
    return file.schema_arrow, str([row for batch in file.iter_batches() for row in batch.to_pylist()])


def rewrite(engine: type[TaskEngine], paths: Sequence[str], output: Path, sort: tuple[str, ...] = ()) -> str:
    """The new file for ``paths`` by an engine that takes them; ``hybrid`` merges all row groups."""
    output.parent.mkdir(parents=True, exist_ok=True)
    made, least = engine(InProcessBackend(1)), 1 << 40 if engine is HybridEngine else 0
    options = RewriteOptions(
        target_file_max_bytes=1 << 30, engine=made.name, min_row_group_bytes=least, sort_columns=sort
    )
    task = RewriteTask(group=0, inputs=tuple(paths), outputs=(str(output),), bytes=1)
    assert made.unsupported_reason(task, options) is None
    (written,) = made.rewrite([task], options, lambda _: None, threading.Event())
    return written.path


@ANY_LIST
@ANY_ELEMENT
@pytest.mark.parametrize("engine", [ArrowEngine, HybridEngine, ParquetStitchEngine])
def test_every_engine_keeps_the_rows_and_the_kind_of_list_and_verification_proves_it(
    tmp_path: Path, kind: str, element: str, engine: type[TaskEngine]
):
    case, rows = Case(tmp_path), table(kind, element)
    paths = [str(case.input(part, row_group_size=3)) for part in (rows, rows.slice(2))]
    new = rewrite(engine, paths, tmp_path / "p" / "new.parquet")
    before = [read(path) for path in paths]
    assert read(new) == (before[0][0], before[0][1][:-1] + ", " + before[1][1][1:])
    assert LISTS[kind](pa.null()).id == read(new)[0].field("c").type.id
    case.outputs = [OutputFile(partition="p", path="p/new.parquet", bytes=1, rows=2 * len(rows) - 2)]
    case.prove()


@ANY_LIST
@ANY_ELEMENT
def test_rows_with_any_kind_of_list_are_sorted(tmp_path: Path, kind: str, element: str):
    path = write(tmp_path / "0.parquet", table(kind, element))
    new = rewrite(ArrowEngine, [path, path], tmp_path / "new", sort=("id",))
    (schema, _), rows = read(path), [row for batch in pq.ParquetFile(path).iter_batches() for row in batch.to_pylist()]
    assert read(new) == (schema, str([row for row in rows for _ in range(2)]))


@ANY_LIST
@ANY_ELEMENT
def test_leaf_columns_have_the_names_and_the_nulls_that_the_footer_has(tmp_path: Path, kind: str, element: str):
    column = lists(kind, *ELEMENTS[element])
    plain = lists("list", ELEMENTS[element][0], ELEMENTS[element][1])
    found = {path: (nulls + values.null_count, values) for path, values, nulls in leaf_columns("c", column)}
    for name, some in (("read", column), ("plain", plain)):
        path = write(tmp_path / name, pa.table({"c": some}))
        known = footer_statistics([pq.read_metadata(path)]).leaves
        if kind != "fixed_size_list" or name == "read":  # whose lists are never empty
            assert {path: nulls for path, (nulls, _) in found.items()} == {
                path: leaf.null_count for path, leaf in known.items()
            }
        assert list(found) == list(known)
    for (_, values), (_, of_plain, _) in zip(found.values(), leaf_columns("c", plain), strict=True):
        if kind != "fixed_size_list":
            assert str(values.to_pylist()) == str(of_plain.to_pylist())


@ANY_LIST
@ANY_ELEMENT
def test_nan_and_zeros_are_found_in_and_after_any_kind_of_list(tmp_path: Path, kind: str, element: str):
    rows = table(kind, element)
    tracker = SpecialFloatTracker(rows.schema)
    tracker.add(rows)
    (found,) = tracker.of_row_groups([rows.num_rows])
    leaves = [*leaf_columns("c", rows["c"].combine_chunks())]
    floats = {n: values.drop_null() for n, (_, values, _) in enumerate(leaves, 1) if pa.types.is_floating(values.type)}
    after = len(leaves) + 1
    assert found.nan_columns == {n for n, values in floats.items() if pc.any(pc.is_nan(values)).as_py()} | {after}
    assert found.zero_columns == {n for n, values in floats.items() if pc.any(pc.equal(values, 0.0)).as_py()} | {after}
    new = rewrite(ArrowEngine, [write(tmp_path / "0.parquet", rows)], tmp_path / "new")
    group = pq.read_metadata(new).row_group(0)
    bounded = {n for n in range(group.num_columns) if group.column(n).statistics.has_min_max}
    assert not bounded & found.nan_columns
    assert {0, after + 1} <= bounded


def test_nan_in_an_extension_type_is_found(tmp_path: Path):
    scalars = pa.opaque(pa.float64(), "number", "test").wrap_array(pa.array([1.0, NAN, 2.0]))
    tensors = pa.fixed_shape_tensor(pa.float32(), [2]).wrap_array(pa.array([[1.0, NAN]] * 3, pa.list_(pa.float32(), 2)))
    pairs = pa.struct([("x", pa.int32()), ("y", pa.int32())])
    parts = pa.opaque(pairs, "pair", "test").wrap_array(pa.array([{"x": 1, "y": 2}] * 3, pairs))
    rows = pa.table({"pair": parts, "number": scalars, "tensor": tensors, "d": [1.0, NAN, 2.0], "n": [1, 2, 3]})
    paths = [write(tmp_path / f"{number}.parquet", rows) for number in range(2)]
    assert pq.read_schema(paths[0]).types == rows.schema.types
    new = rewrite(ArrowEngine, paths, tmp_path / "new")
    assert pq.read_table(new).equals(pq.read_table(paths)) or read(new)[0] == rows.schema
    group = pq.read_metadata(new).row_group(0)
    assert [group.column(n).statistics.has_min_max for n in range(6)] == [True, True, False, False, False, True]


@ANY_LIST
@ANY_ELEMENT
def test_files_that_name_other_kinds_of_lists_are_rewritten_under_the_schema_that_a_format_gives(
    tmp_path: Path, kind: str, element: str
):
    """Arrow's cast between kinds of lists returns wrong values of list views with nulls."""
    rows = [table(one, element) for one in (kind, "list")]
    paths = [write(tmp_path / f"{number}.parquet", one, store_schema=number == 0) for number, one in enumerate(rows)]
    schema = FileSchema(
        optional_ids=frozenset(), root_name="table", removed_keys=frozenset({"ARROW:schema"}), entries={"k": "v"}
    )
    task = RewriteTask(group=0, inputs=tuple(paths), outputs=(str(tmp_path / "new"),), bytes=1, file_schema=schema)
    options = RewriteOptions(target_file_max_bytes=1 << 30)
    assert ENGINE.unsupported_reason(task, options) is None
    list(ENGINE.rewrite([task], options, lambda _: None, threading.Event()))
    texts = [read(path)[1] for path in paths]
    assert read(task.outputs[0])[1] == texts[0][:-1] + ", " + texts[1][1:]
    assert pq.read_metadata(task.outputs[0]).metadata == {b"k": b"v"}


#: elements with timestamps, which are written as INT96, of the year 1970 and of the years 1970 and 9999
MOMENTS = pa.timestamp("us")
FAR = 253_402_300_799_999_999
STAMPS: dict[str, tuple[pa.DataType, Callable[[int], Any]]] = {
    "timestamp": (MOMENTS, lambda at: at),
    "struct": (pa.struct([("n", pa.int32()), ("at", MOMENTS)]), lambda at: {"n": 1, "at": at}),
    "map": (pa.map_(pa.string(), MOMENTS), lambda at: [("k", at)]),
    "list": (pa.list_(MOMENTS), lambda at: [None, at]),
    "fixed_size_list": (pa.list_(MOMENTS, 2), lambda at: [at, None]),
    "list_view": (pa.list_view(MOMENTS), lambda at: [at]),
}
ANY_STAMP = pytest.mark.parametrize("element", STAMPS)
OLD = {"use_deprecated_int96_timestamps": True}


def stamps(kind: str, element: str, last: int) -> pa.Table:
    """INT96 timestamps in lists, and one more column of them; ``last`` is the last one in the lists."""
    of, value = STAMPS[element]
    column = pa.concat_arrays([lists(kind, of, [value(1), None]), lists(kind, of, [None, value(last)])[:1]])
    return pa.table({"c": column, "at": pa.array([5] * len(column), MOMENTS), "n": range(len(column))})


@ANY_LIST
@ANY_STAMP
@pytest.mark.parametrize("engine", [ArrowEngine, HybridEngine, ParquetStitchEngine])
@pytest.mark.parametrize("store_schema", [True, False])
def test_int96_in_any_kind_of_list_stays_int96_and_verification_proves_it(
    tmp_path: Path, kind: str, element: str, engine: type[TaskEngine], store_schema: bool
):
    case, rows = Case(tmp_path), stamps(kind, element, 2)
    paths = [str(case.input(rows, store_schema=store_schema, **OLD)) for _ in range(2)]
    new = rewrite(engine, paths, tmp_path / "p" / "new.parquet")
    schema, text = read(paths[0])
    assert read(new) == (schema, text[:-1] + ", " + text[1:])
    case.outputs = [OutputFile(partition="p", path="p/new.parquet", bytes=1, rows=2 * len(rows))]
    case.prove()


@ANY_LIST
@ANY_STAMP
def test_years_beyond_nanoseconds_are_found_in_any_kind_of_list(tmp_path: Path, kind: str, element: str):
    path = write(tmp_path / "0.parquet", stamps(kind, element, FAR), **OLD)
    with pytest.raises(Conflict, match="column c has timestamps of years that nanoseconds do not reach"):
        rewrite(ArrowEngine, [path], tmp_path / "new")


@ANY_LIST
@ANY_STAMP
def test_another_int96_in_any_kind_of_list_is_found_by_verification(tmp_path: Path, kind: str, element: str):
    case = Case(tmp_path)
    case.input(stamps(kind, element, 2), **OLD)
    case.output(stamps(kind, element, 3), **OLD)
    with pytest.raises(Integrity, match=r"column c.*hash of its values"):
        case.prove()


@ANY_LIST
@pytest.mark.parametrize("element", ["date", "struct", "map", "list", "list_view", "fixed_size_list"])
@pytest.mark.parametrize("moments", [pa.date32(), MOMENTS])
def test_old_dates_and_timestamps_are_found_in_any_kind_of_list(
    tmp_path: Path, kind: str, element: str, moments: pa.DataType
):
    of = {
        "date": moments,
        "struct": pa.struct([("n", pa.int32()), ("at", moments)]),
        "map": pa.map_(pa.string(), moments),
        "list": pa.list_(moments),
        "list_view": pa.list_view(moments),
        "fixed_size_list": pa.list_(moments, 1),
    }[element]
    make: dict[str, Callable[[int], Any]] = {
        "date": lambda at: at,
        "struct": lambda at: {"n": 1, "at": at},
        "map": lambda at: [("k", at)],
    }
    value = make.get(element, lambda at: [at])
    unit = 1 if moments == pa.date32() else 86_400_000_000
    found = []
    for days in (0, -200_000):
        rows = pa.table({"c": lists(kind, of, [value(1), value(days * unit)])})
        # Without bounds the values must be read; INT96 never has bounds.
        path = write(tmp_path / str(days), rows, write_statistics=False, store_schema=True, **OLD)
        found.append(find_calendar_rebase(ParquetInput.read(path)) is not None)
    assert found == [False, True]
