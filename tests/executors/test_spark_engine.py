# SPDX-License-Identifier: Apache-2.0
"""The engine ``spark``: what pyarrow can't concatenate, rewritten by the table's schema."""

import json
import os
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from executors.engines import create_engines
from executors.engines.spark_schema import find_missing_column, has_required_fields, schema_of_files
from executors.engines.stitch.engine import HybridEngine, ParquetStitchEngine
from lake.engine_choice import choose_engines, engine_notes
from lake.engines import RewriteEngine, RewriteTask
from lake.errors import CancelRequested, Conflict
from lake.plan import RewriteOptions, RewriteProgress

pytestmark = pytest.mark.spark
OPTIONS = RewriteOptions(target_file_max_bytes=1 << 30)
SCHEMA = "id bigint, name string, at timestamp, amount decimal(12, 2), extra array<struct<x: int, y: string>>"
OLD = "SELECT id, concat('n', id) AS name, timestamp_seconds(id) AS at FROM range(0, 200)"
NEW = """
    SELECT id, concat('m', id) AS name, timestamp_seconds(id) AS at, cast(id AS decimal(12, 2)) AS amount,
      array(struct(cast(id AS int) AS x, 'y' AS y)) AS extra FROM range(200, 500)
"""


@pytest.fixture
def both(spark: Any) -> tuple[RewriteEngine, ...]:
    """All engines but those that copy row groups of Parquet files."""
    return tuple(
        one for one in create_engines(lambda: spark) if not isinstance(one, (ParquetStitchEngine, HybridEngine))
    )


def files(spark: Any, folder: Path, kind: str = "parquet", **options: str) -> list[str]:
    """Two files of an old schema and three of a new one, a folder for each as of a partition."""
    for name, query, count in (("dt=1", OLD, 2), ("dt=2", NEW, 3)):
        spark.sql(query).repartitionByRange(count, "id").write.format(kind).options(**options).save(str(folder / name))
    return sorted(map(str, folder.glob("*/part-*")))


AS_JSON = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in {
                "id": "long",
                "name": "string",
                "at": "timestamp",
                "amount": "decimal(12,2)",
                "extra": {
                    "type": "array",
                    "containsNull": True,
                    "elementType": {
                        "type": "struct",
                        "fields": [
                            {"name": "x", "type": "integer", "nullable": True, "metadata": {}},
                            {"name": "y", "type": "string", "nullable": True, "metadata": {}},
                        ],
                    },
                },
            }.items()
        ],
    }
)


def task_of(
    paths: list[str], folder: Path, outputs: int = 1, group: int = 0, schema: str | None = AS_JSON
) -> RewriteTask:
    folder.mkdir(exist_ok=True)
    names = tuple(str(folder / f"{group}-{number}") for number in range(outputs))
    size = sum(map(os.path.getsize, paths))
    return RewriteTask(group=group, inputs=tuple(paths), outputs=names, bytes=size, schema=schema)


def rows(spark: Any, kind: str, paths: list[str] | tuple[str, ...]) -> list[str]:
    frame = spark.read.schema(SCHEMA).format(kind).option("recursiveFileLookup", "true").load(list(paths))
    return [row.t for row in frame.selectExpr("cast(struct(*) AS string) AS t").collect()]


@pytest.mark.crossed
def test_files_of_an_older_schema_get_the_columns_of_the_table_and_lose_none(spark, both, tmp_path):
    paths = files(spark, tmp_path / "t", compression="zstd")
    task = task_of(paths, tmp_path / "new", outputs=3)
    choices = choose_engines([task], both, OPTIONS, "t")
    (note,) = engine_notes(choices)
    assert note.startswith("engine spark (1 group): arrow can't: ")
    assert "has another schema than" in note
    told: list[RewriteProgress] = []
    began = time.monotonic()
    written = list(choices[0].engine.rewrite([task], OPTIONS, told.append, threading.Event()))
    assert 0 < told[-1].cpu_seconds < (time.monotonic() - began) * os.cpu_count(), "as Spark counts it"
    assert [(file.path, file.rows) for file in written] == list(zip(task.outputs, (167, 167, 166), strict=True))
    assert [file.bytes for file in written] == [os.path.getsize(path) for path in task.outputs]
    assert sorted(os.listdir(tmp_path / "new")) == ["0-0", "0-1", "0-2"]
    assert Counter(rows(spark, "parquet", paths)) == Counter(rows(spark, "parquet", task.outputs))
    found = [pq.read_table(path) for path in task.outputs]
    assert [value for table in found for value in table["id"].to_pylist()] == list(range(500))
    metadata = pq.read_metadata(task.outputs[0])
    assert metadata.schema.column(2).physical_type == "INT96"
    assert metadata.row_group(0).column(0).compression == "ZSTD"
    assert told[-1].rows_done == 500


def test_orc_is_rewritten_and_read_by_another_reader(spark, both, tmp_path):
    paths = files(spark, tmp_path / "t", "orc", compression="zlib")
    task = task_of(paths, tmp_path / "new")
    choices = choose_engines([task], both, OPTIONS, "t")
    assert "is no Parquet file" in choices[0].reason
    (file,) = choices[0].engine.rewrite([task], OPTIONS, lambda _: None, threading.Event())
    assert file.rows == 500
    assert Counter(rows(spark, "orc", paths)) == Counter(rows(spark, "orc", task.outputs))
    read = orc.ORCFile(file.path)
    assert (read.nrows, read.compression) == (500, "ZLIB")
    assert read.read(["id"])["id"].to_pylist() == list(range(500))


def test_field_ids_that_the_schema_names_are_those_of_the_new_files(both, tmp_path):
    def column(name: str) -> pa.Field:
        return pa.field(name, pa.int64(), metadata={b"PARQUET:field_id": {"id": b"1", "b": b"7"}[name]})

    paths = [str(tmp_path / f"{number}.parquet") for number in range(2)]
    for path, names in zip(paths, (("id",), ("id", "b")), strict=True):
        pq.write_table(pa.table([[1]] * len(names), schema=pa.schema(map(column, names))), path)
    fields = [
        {"name": name, "type": "long", "nullable": True, "metadata": {"parquet.field.id": number}}
        for name, number in (("id", 1), ("b", 7))
    ]
    task = task_of(paths, tmp_path / "new", schema=json.dumps({"type": "struct", "fields": fields}))
    (file,) = choose_engines([task], both, OPTIONS, "t")[0].engine.rewrite(
        [task], OPTIONS, lambda _: None, threading.Event()
    )
    ids = [field.metadata[b"PARQUET:field_id"] for field in pq.read_schema(file.path)]
    assert (ids, pq.read_table(file.path)["b"].to_pylist()) == ([b"1", b"7"], [None, 1])


def test_a_column_is_required_if_all_inputs_require_it_and_milliseconds_become_microseconds_with_them(
    spark, both, tmp_path
):
    def part(number: int, unit: str, required: bool) -> pa.Table:
        fields = [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("at", pa.timestamp(unit, "UTC"), nullable=False),
            pa.field("s", pa.struct([pa.field("x", pa.int32(), nullable=not required)])),
        ]
        columns = [[number], [1_001 if unit == "us" else 1], [{"x": number} if required else {"x": None}]]
        return pa.table(columns, schema=pa.schema(fields))

    paths = [str(tmp_path / f"{number}.parquet") for number in range(2)]
    pq.write_table(part(0, "ms", True), paths[0])
    pq.write_table(part(1, "us", False), paths[1])
    schema = json.dumps(json.loads(spark.read.parquet(paths[1]).schema.json()))
    task = task_of(paths, tmp_path / "new", schema=schema)
    (file,) = both[1].rewrite([task], OPTIONS, lambda _: None, threading.Event())
    found = pq.read_table(file.path)
    assert found.to_pylist() == [row for path in paths for row in pq.read_table(path).to_pylist()]
    assert [field.nullable for field in found.schema] == [False, False, True]
    assert found.schema.field("s").type.field("x").nullable
    assert found.schema.field("at").type == pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    "many", [pa.large_list, lambda element: pa.list_(element, 3)], ids=["large_list", "fixed_size_list"]
)
def test_null_elements_of_every_kind_of_list_are_kept_beside_a_file_that_requires_elements(spark, both, tmp_path, many):
    """The kind of list is in the file's Arrow schema; Parquet stores all kinds in the same way."""
    element = pa.field("element", pa.int32(), nullable=False)
    inner = pa.field("x", pa.int32())
    with_nulls = pa.table(
        [[[1, None, 3]] * 5, [{"y": [None, 5, 6]}] * 5, [[{"x": None}] * 3] * 5],
        schema=pa.schema(
            [
                ("l", many(pa.field("element", pa.int32()))),
                ("s", pa.struct([("y", many(pa.field("element", pa.int32())))])),
                ("r", many(pa.field("element", pa.struct([inner]), nullable=False))),
            ]
        ),
    )
    without = pa.table(
        [[[7, 8, 9]] * 5, [{"y": [10, 11]}] * 5, [[{"x": 12}]] * 5],
        schema=pa.schema(
            [
                ("l", pa.list_(element)),
                ("s", pa.struct([("y", pa.list_(element))])),
                ("r", pa.list_(pa.field("element", pa.struct([inner.with_nullable(False)]), nullable=False))),
            ]
        ),
    )
    paths = [str(tmp_path / f"{number}.parquet") for number in range(2)]
    for rows_of_one, path in zip((without, with_nulls), paths, strict=True):
        pq.write_table(rows_of_one, path)
    schema = json.dumps(json.loads(spark.read.parquet(paths[0]).schema.json()))
    task = task_of(paths, tmp_path / "new", schema=schema)
    assert both[1].unsupported_reason(task, OPTIONS) is None
    (file,) = both[1].rewrite([task], OPTIONS, lambda _: None, threading.Event())
    found = pq.read_table(file.path)
    assert found.to_pylist() == without.to_pylist() + with_nulls.to_pylist()
    assert found.schema.field("l").type.value_field.nullable
    assert found.schema.field("s").type.field("y").type.value_field.nullable
    assert not found.schema.field("r").type.value_field.nullable
    assert found.schema.field("r").type.value_type.field("x").nullable


def test_parts_of_a_type_that_is_not_recognised_are_optional():
    """As of a file whose Arrow schema gives a column another type than the table has."""
    value = pa.struct([pa.field("x", pa.int32(), nullable=False)])
    known = {
        "l": pa.list_(pa.field("element", value, nullable=False)),
        "m": pa.map_(pa.string(), pa.field("value", value, nullable=False)),
        "s": pa.struct([pa.field("t", value, nullable=False)]),
    }
    x = {"type": "struct", "fields": [{"name": "x", "type": "integer", "nullable": True, "metadata": {}}]}
    types = {
        "l": {"type": "array", "elementType": x, "containsNull": True},
        "m": {"type": "map", "keyType": "string", "valueType": x, "valueContainsNull": True},
        "s": {"type": "struct", "fields": [{"name": "t", "type": x, "nullable": True, "metadata": {}}]},
    }
    fields = [{"name": name, "type": one, "nullable": True, "metadata": {}} for name, one in types.items()]
    schema = json.dumps({"type": "struct", "fields": fields})
    other = pa.schema([(name, pa.binary()) for name in known])
    assert has_required_fields(schema_of_files(schema, [pa.schema(known)]))
    assert not has_required_fields(schema_of_files(schema, [pa.schema(known), other]))


def spark_fields(**types: Any) -> list[dict[str, Any]]:
    return [{"name": name, "type": one, "nullable": True, "metadata": {}} for name, one in types.items()]


def types_of_files(table: dict[str, Any], *files: pa.Schema) -> dict[str, Any]:
    """By name, in the order in which the new files have the columns."""
    found = json.loads(schema_of_files(json.dumps({"type": "struct", "fields": spark_fields(**table)}), files))
    return {one["name"]: one["type"] for one in found["fields"]}


def test_numbers_that_are_narrower_in_every_file_than_in_the_table_stay_so():
    table = {
        "f": "double",
        "n": "integer",
        "i": "double",
        "l": "long",
        "d": "decimal(12,2)",
        "u": "byte",
        "s": "string",
    }
    files = [pa.float32(), pa.int8(), pa.int32(), pa.int64(), pa.decimal128(10, 2), pa.int32(), pa.string()]
    first = pa.schema(list(zip(table, files, strict=True)))
    own = {"f": "float", "n": "byte", "i": "integer", "l": "long", "d": "decimal(10,2)", "u": "byte", "s": "string"}
    assert types_of_files(table, first, first) == own
    assert types_of_files(table, first, pa.schema([("f", pa.float32())])) == own
    wide = [pa.float64(), pa.int32(), pa.int64(), pa.int64(), pa.decimal128(12, 2), pa.int8(), pa.string()]
    assert types_of_files(table, first, pa.schema(list(zip(table, wide, strict=True)))) == table
    assert types_of_files(table) == table


def test_numbers_within_nested_types_that_are_narrower_in_every_file_stay_so():
    inner = {"type": "struct", "fields": spark_fields(x="long", y="double")}
    table = {
        "l": {"type": "array", "elementType": inner, "containsNull": True},
        "m": {"type": "map", "keyType": "long", "valueType": "double", "valueContainsNull": True},
    }
    file = pa.schema(
        [
            ("l", pa.list_(pa.struct([("y", pa.float32()), ("x", pa.int16())]))),
            ("m", pa.map_(pa.int32(), pa.float32())),
        ]
    )
    found = types_of_files(table, file)
    assert [(one["name"], one["type"]) for one in found["l"]["elementType"]["fields"]] == [
        ("y", "float"),
        ("x", "short"),
    ]
    assert (found["m"]["keyType"], found["m"]["valueType"]) == ("integer", "float")


@pytest.mark.parametrize(
    ("files", "order"),
    [
        ([["b", "a"], ["b"]], ["b", "a", "c"]),
        ([["b"], ["b", "a", "c"]], ["b", "a", "c"]),
        ([["b", "a"], ["a", "b"]], ["a", "b", "c"]),
        ([["a", "c"], ["a", "b"]], ["a", "b", "c"]),
        ([["b", "b"], ["b"]], ["b", "a", "c"]),
        ([[], ["c"]], ["c", "a", "b"]),
        ([], ["a", "b", "c"]),
    ],
)
def test_columns_stay_in_the_order_of_the_files_if_all_have_one(files: list[list[str]], order: list[str]):
    schemas = [pa.schema([(name, pa.int32()) for name in names]) for names in files]
    assert list(types_of_files(dict.fromkeys("abc", "integer"), *schemas)) == order


@pytest.mark.parametrize("many", [pa.list_, pa.large_list, pa.list_view, lambda element: pa.list_(element, 2)])
def test_a_field_in_any_kind_of_list_that_the_table_does_not_have_is_found(many):
    x = {"type": "struct", "fields": [{"name": "x", "type": "integer", "nullable": True, "metadata": {}}]}
    column = {"name": "l", "type": {"type": "array", "elementType": x, "containsNull": True}, "nullable": True}
    columns = pa.schema([("l", many(pa.struct([("x", pa.int32()), ("y", pa.int32())])))])
    assert find_missing_column(json.dumps({"type": "struct", "fields": [column]}), columns) == "l.element.y"


def test_outputs_without_rows_are_written_too(spark, both, tmp_path):
    paths = files(spark, tmp_path / "t")
    spark.sql(OLD + " LIMIT 5").coalesce(1).write.parquet(str(tmp_path / "few"))
    few = sorted(map(str, (tmp_path / "few").glob("part-*")))
    written = list(
        both[1].rewrite([task_of(few, tmp_path / "new", outputs=4)], OPTIONS, lambda _: None, threading.Event())
    )
    assert [file.rows for file in written] == [2, 2, 1, 0]
    assert [pq.read_metadata(file.path).num_rows for file in written] == [2, 2, 1, 0]
    assert len(paths) == 5


def test_a_group_without_a_schema_or_with_a_sort_is_refused(spark, both, tmp_path):
    task = task_of(files(spark, tmp_path / "t"), tmp_path / "new", schema=None)
    with pytest.raises(Conflict, match=r"arrow can't: .* another schema .*; spark can't: it would hide columns"):
        choose_engines([task], both, OPTIONS, "t")


@pytest.mark.parametrize("kind", ["parquet", "orc"])
def test_files_with_a_column_or_a_field_that_the_table_does_not_have_are_refused(spark, both, tmp_path, kind):
    paths = files(spark, tmp_path / "t", kind)
    for gone in ("extra", "y"):
        task = task_of(paths, tmp_path / "new", schema=AS_JSON.replace(f'"{gone}"', f'"{gone}2"'))
        why = both[1].unsupported_reason(task, OPTIONS)
        assert why is not None
        assert f"{gone}, which is not in the table's schema" in why


@pytest.mark.parametrize(
    ("kind", "options", "why"),
    [
        (pa.timestamp("ns"), {"use_deprecated_int96_timestamps": True}, "nanoseconds, which Spark would drop"),
        (pa.timestamp("ns"), {}, "column at is a Timestamp.*nanoseconds.*, which Spark does not read as this type"),
        (pa.time64("us"), {}, "column at is a Time"),
        (pa.uint32(), {}, "column at is a Int.*, which Spark"),
    ],
)
def test_values_that_spark_would_change_are_refused(both, tmp_path, kind, options, why):
    path = str(tmp_path / "x.parquet")
    pq.write_table(pa.table({"at": pa.array([1], kind)}), path, **options)
    with pytest.raises(AssertionError, match=why):
        assert not both[1].unsupported_reason(task_of([path], tmp_path / "new"), OPTIONS)


def test_an_input_that_cant_be_read_leaves_its_group_out_and_a_cancelled_rewrite_ends(spark, both, tmp_path):
    paths = files(spark, tmp_path / "t")
    content = bytearray(Path(paths[0]).read_bytes())
    content[4:200] = bytes(196)
    Path(paths[0]).write_bytes(content)
    tasks = [task_of(paths[:2], tmp_path / "new", group=0), task_of(paths[2:], tmp_path / "new", group=1)]
    written = []
    with pytest.raises(Conflict) as raised:
        written.extend(both[1].rewrite(tasks, OPTIONS, lambda _: None, threading.Event()))
    assert [(item.group, item.quarantine) for item in raised.value.args[1]] == [(0, (paths[0],))]
    assert [(file.group, file.rows) for file in written] == [(1, 300)]
    assert os.listdir(tmp_path / "new") == ["1-0"]
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(CancelRequested):
        list(both[1].rewrite(tasks[1:], OPTIONS, lambda _: None, cancelled))


@pytest.mark.parametrize("kind", [pa.float32(), pa.int32()])
def test_a_column_that_became_a_double_is_refused_since_spark_does_not_read_it(both, tmp_path, kind):
    paths = [str(tmp_path / f"{number}.parquet") for number in range(2)]
    for path in paths:
        pq.write_table(pa.table({"x": pa.array([0, 7], kind)}), path)
    double = {"name": "x", "type": "double", "nullable": True, "metadata": {}}
    task = task_of(paths, tmp_path / "new", schema=json.dumps({"type": "struct", "fields": [double]}))
    why = both[1].unsupported_reason(task, OPTIONS)
    assert why is not None
    assert why.startswith("column x is ")
    assert "it would convert the values" in why
