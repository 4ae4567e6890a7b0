# SPDX-License-Identifier: Apache-2.0
"""The engine ``arrow`` stores the columns that a format adds to each row, whatever of them its inputs store."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from toys.engine import CopyRows

from executors.engines import group_rewrite
from executors.engines.arrow import ArrowEngine
from executors.engines.backends import InProcessBackend
from executors.engines.stitch.engine import HybridEngine, ParquetStitchEngine
from lake.engine_choice import choose_engines, split_by_engine
from lake.engines import NO_OMISSIONS, NO_ROW_COLUMNS, FileSchema, RewriteTask, RowColumn
from lake.errors import Rejected
from lake.plan import RewriteOptions

OPTIONS = RewriteOptions(target_file_max_bytes=1 << 30)
ENGINE = ArrowEngine(InProcessBackend(1))
ID, NUMBER = 1001, 1002
ADDED = {"_id": ID, "_number": NUMBER}
FILE_SCHEMA = FileSchema(
    optional_ids=frozenset({1, 2, 3}), root_name="table", removed_keys=frozenset({"ARROW:schema"}), entries={"k": "v"}
)


@dataclass
class Omitted:
    """The positions of the rows that are left out, by input."""

    positions: Mapping[str, set[int]]

    def read_remaining(self, rows: Mapping[str, int]) -> Mapping[str, pa.BooleanArray]:
        return {
            path: pa.array([row not in gone for row in range(rows[path])], pa.bool_())
            for path, gone in self.positions.items()
        }


def field(name: str, kind: pa.DataType, field_id: int, nullable: bool = True) -> pa.Field:
    return pa.field(name, kind, nullable, metadata={b"PARQUET:field_id": str(field_id).encode()})


def some_rows(first: int, count: int) -> pa.Table:
    numbers = range(first, first + count)
    inner = pa.list_(pa.field("element", pa.int64(), metadata={b"PARQUET:field_id": b"6"}))
    kind = pa.struct([field("a", pa.int32(), 3), field("b", inner, 5)])
    columns = {
        "key": pa.array(numbers, pa.int64()),
        "name": pa.array([f"n{number % 5}" if number % 4 else None for number in numbers], pa.string()),
        "part": pa.array([{"a": number, "b": [number] * (number % 3)} for number in numbers], kind),
    }
    ids = {"key": 1, "name": 2, "part": 4}
    return pa.table(columns, schema=pa.schema([field(n, c.type, ids[n]) for n, c in columns.items()]))


def with_column(rows: pa.Table, at: int, name: str, values: Sequence[int | None], **options: Any) -> pa.Table:
    options = {"kind": pa.int64(), "field_id": ADDED[name], **options}
    return rows.add_column(at, field(name, **options), pa.array(values, options["kind"]))


def columns_for(first: Mapping[str, tuple[int, int]]) -> tuple[RowColumn, ...]:
    """Two columns: the first one counts the rows, the second one is the same for all rows of an input."""
    return (
        RowColumn(
            name="_id",
            field_id=ID,
            first_values={path: one for path, (one, _) in first.items()},
            adds_position=True,
        ),
        RowColumn(name="_number", field_id=NUMBER, first_values={path: one for path, (_, one) in first.items()}),
    )


def task_of(paths: Sequence[str], folder: Path, added: tuple[RowColumn, ...], **more: Any) -> RewriteTask:
    folder.mkdir(parents=True, exist_ok=True)
    outputs = tuple(str(folder / f"{number}.parquet") for number in range(more.pop("outputs", 1)))
    size = sum(Path(path).stat().st_size for path in paths)
    return RewriteTask(group=0, inputs=tuple(paths), outputs=outputs, bytes=size, row_columns=added, **more)


def rewrite(task: RewriteTask, options: RewriteOptions = OPTIONS) -> list[str]:
    assert ENGINE.unsupported_reason(task, options) is None
    return [file.path for file in ENGINE.rewrite([task], options, lambda _: None, threading.Event())]


def read(paths: Sequence[str]) -> list[dict[str, Any]]:
    return [row for path in paths for row in pq.ParquetFile(path).read().to_pylist()]


def schema_of(path: str) -> list[tuple[str, str, str]]:
    columns = pq.read_schema(path)
    return [(one.name, str(one.type), one.metadata[b"PARQUET:field_id"].decode()) for one in columns]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_each_row_keeps_its_stored_values_and_gets_those_of_its_input_and_position_otherwise(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, data: st.DataObject
):
    home = tmp_path_factory.mktemp("rows")
    batch = data.draw(st.sampled_from([2, 7, 1 << 16]))
    # pyarrow's batches, however small: the engine asks for at least 1,024 rows.
    monkeypatch.setattr(group_rewrite, "_BATCH_ROWS", batch)
    monkeypatch.setattr(
        group_rewrite, "max", lambda *numbers: batch if numbers[0] == 1024 else max(*numbers), raising=False
    )
    first: dict[str, tuple[int, int]] = {}
    wanted: list[dict[str, Any]] = []
    gone: dict[str, set[int]] = {}
    has_schema = data.draw(st.booleans())
    for number in range(data.draw(st.integers(1, 4))):
        count = data.draw(st.integers(0, 40))
        rows, path = some_rows(1000 * number, count), str(home / f"in{number}.parquet")
        first[path] = data.draw(st.integers(0, 2**62)), data.draw(st.integers(0, 2**40))
        values: dict[str, list[int]] = {}
        for turn, (name, start, step) in enumerate((("_id", first[path][0], 1), ("_number", first[path][1], 0))):
            values[name] = [start + step * row for row in range(count)]
            kind = data.draw(st.sampled_from(["absent", "stored", "some", "nulls"]))
            if kind == "absent":
                continue
            one = st.integers(-(2**63), 2**63 - 1)
            drawn = {"stored": one, "some": st.none() | one, "nulls": st.none()}[kind]
            stored = data.draw(st.lists(drawn, min_size=count, max_size=count))
            at = data.draw(st.integers(0, rows.num_columns)) if has_schema or turn else 3
            rows = with_column(rows, at, name, stored, nullable=kind != "stored" or data.draw(st.booleans()))
            values[name] = [old if new is None else new for old, new in zip(values[name], stored, strict=True)]
        pq.write_table(
            rows, path, row_group_size=data.draw(st.sampled_from([3, 16, 100])), store_schema=data.draw(st.booleans())
        )
        if data.draw(st.booleans()):
            gone[path] = data.draw(st.sets(st.integers(0, max(0, count - 1)), max_size=count))
        for row, old in enumerate(some_rows(1000 * number, count).to_pylist()):
            if row not in gone.get(path, ()):
                wanted.append(old | {name: values[name][row] for name in ADDED})
    task = task_of(
        list(first),
        home / "new",
        columns_for(first),
        outputs=data.draw(st.integers(1, 3)),
        omissions=Omitted(gone) if gone else None,
        file_schema=FILE_SCHEMA if has_schema else None,
    )
    by = data.draw(st.sampled_from([(), ("key",), ("name", "key")]))
    layout = data.draw(st.sampled_from(["linear", "zorder"]))
    written = rewrite(task, replace(OPTIONS, sort_columns=by, layout=layout))
    found = read(written)
    if by:
        found, wanted = (sorted(one, key=lambda row: row["key"]) for one in (found, wanted))
    assert found == wanted
    for path in written:
        assert [name for name, _, _ in schema_of(path)] == ["key", "name", "part", "_id", "_number"]
        assert schema_of(path)[3:] == [("_id", "int64", str(ID)), ("_number", "int64", str(NUMBER))]
        metadata = pq.read_metadata(path)
        for number in range(metadata.num_row_groups):
            for leaf in (4, 5):
                chunk = metadata.row_group(number).column(leaf)
                assert (chunk.statistics.null_count, chunk.statistics.has_min_max) == (0, True)
        if has_schema:
            assert metadata.metadata == {b"k": b"v"}


def test_columns_that_few_inputs_store_do_not_change_those_that_all_of_them_have(tmp_path: Path):
    """Codec, nested names and a Bloom filter are those of the inputs; a counted column gets no dictionary."""
    paths = []
    for number in range(2):
        rows = some_rows(100 * number, 100)
        rows = with_column(rows, 0, "_number", [7] * 100) if number else rows
        paths.append(str(tmp_path / f"{number}.parquet"))
        pq.write_table(
            rows, paths[-1], compression="zstd", bloom_filter_options={"name": {"ndv": 10, "fpp": 0.01}}
        )  # fmt: skip
    (new,) = rewrite(task_of(paths, tmp_path / "new", columns_for(dict.fromkeys(paths, (5, 6)))))
    group = pq.read_metadata(new).row_group(0)
    chunks = {group.column(leaf).path_in_schema: group.column(leaf) for leaf in range(group.num_columns)}
    assert list(chunks) == ["key", "name", "part.a", "part.b.list.element", "_id", "_number"]
    assert {chunk.compression for chunk in chunks.values()} == {"ZSTD"}
    assert [name for name, chunk in chunks.items() if chunk.bloom_filter_offset is not None] == ["name"]
    assert [chunks[name].has_dictionary_page for name in ("_id", "_number")] == [False, True]
    assert not pq.ParquetFile(new).schema.column(4).max_repetition_level
    assert pq.ParquetFile(new).schema.column(4).max_definition_level == 1, "it is optional"


def test_timestamps_of_other_columns_keep_their_form(tmp_path: Path):
    """pyarrow writes either all timestamps as INT96 or none."""
    moments = pa.array([0, 1, None, 3, 4], pa.timestamp("us"))
    paths = []
    for number in range(2):
        rows = some_rows(5 * number, 5).append_column(field("at", moments.type, 7), moments)
        rows = with_column(rows, 1, "_id", [9, None, 7, None, 5]) if number else rows
        paths.append(str(tmp_path / f"{number}.parquet"))
        pq.write_table(rows, paths[-1], use_deprecated_int96_timestamps=True, row_group_size=2, store_schema=False)
    first = {paths[0]: (100, 1), paths[1]: (200, 2)}
    (new,) = rewrite(task_of(paths, tmp_path / "new", columns_for(first)))
    schema = pq.ParquetFile(new).schema
    assert [schema.column(leaf).physical_type for leaf in (4, 5, 6)] == ["INT96", "INT64", "INT64"]
    found = pq.ParquetFile(new, coerce_int96_timestamp_unit="us").read()
    assert found["_id"].to_pylist() == [*range(100, 105), 9, 201, 7, 203, 5]
    assert found["_number"].to_pylist() == [1] * 5 + [2] * 5
    assert found["at"].to_pylist() == moments.to_pylist() * 2


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"kind": pa.int32()}, "stores the column _id as another type than 64-bit integers"),
        ({"kind": pa.uint64()}, "stores the column _id as another type"),
        ({"kind": pa.timestamp("us")}, "stores the column _id as another type"),
        ({"kind": pa.list_(pa.int64())}, "stores the column _id as another type"),
        ({"field_id": 9}, "has a column _id with field id 9, and the table's format adds the column _id with field id"),
        ({"field_id": NUMBER}, f"has a column _id with field id {NUMBER}"),
    ],
    ids=["narrow", "unsigned", "moments", "list", "another id", "the id of the other column"],
)
def test_an_input_with_another_column_of_the_name_or_id_is_refused(
    tmp_path: Path, options: dict[str, Any], reason: str
):
    path = str(tmp_path / "a.parquet")
    pq.write_table(with_column(some_rows(0, 5), 3, "_id", [None] * 5, **options), path)
    task = task_of([path], tmp_path / "new", columns_for({path: (1, 1)}))
    found = ENGINE.unsupported_reason(task, OPTIONS)
    assert found is not None
    assert reason in found


def test_an_input_that_stores_the_column_under_another_name_is_refused(tmp_path: Path):
    path = str(tmp_path / "a.parquet")
    rows = with_column(some_rows(0, 5), 3, "_id", [None] * 5).rename_columns(["key", "name", "part", "other"])
    pq.write_table(rows, path)
    task = task_of([path], tmp_path / "new", columns_for({path: (1, 1)}))
    assert "has a column other with field id" in str(ENGINE.unsupported_reason(task, OPTIONS))


def test_rows_are_not_sorted_by_an_added_column(tmp_path: Path):
    path = str(tmp_path / "a.parquet")
    pq.write_table(with_column(some_rows(0, 5), 3, "_id", [5, 4, 3, 2, 1]), path)
    task = task_of([path], tmp_path / "new", columns_for({path: (1, 1)}))
    reason = ENGINE.unsupported_reason(task, replace(OPTIONS, sort_columns=("_id",)))
    assert reason == "0 columns are called _id, which is in sort_columns"


def test_no_engine_that_does_not_know_of_row_columns_gets_a_task_with_them(tmp_path: Path):
    path = str(tmp_path / "a.parquet")
    pq.write_table(some_rows(0, 20), path)
    backend = InProcessBackend(1)
    engines: list[Any] = [ParquetStitchEngine(backend), HybridEngine(backend), CopyRows(), ENGINE]
    adding = task_of([path], tmp_path / "new", columns_for({path: (1, 1)}))
    plain = replace(adding, group=1, row_columns=())
    chosen = choose_engines([adding, plain], engines, replace(OPTIONS, min_row_group_bytes=0), "t")
    assert chosen[0].engine is ENGINE
    assert chosen[0].reason == "; ".join(f"{one.name} can't: {NO_ROW_COLUMNS}" for one in engines[:3])
    assert chosen[1].engine is engines[0]
    for name in ("stitch", "hybrid"):
        with pytest.raises(Rejected, match="adds to each row"):
            choose_engines([adding], engines, replace(OPTIONS, engine=name), "t")
        refused = {0: f"{name} can't: {NO_ROW_COLUMNS}"}
        assert split_by_engine([adding], engines, replace(OPTIONS, engine=name)) == ({}, refused)
    both = replace(adding, omissions=Omitted({}))
    assert split_by_engine([both], engines[:1], OPTIONS)[1] == {0: f"stitch can't: {NO_OMISSIONS}"}
