# SPDX-License-Identifier: Apache-2.0
"""The engine ``spark`` goes by names: groups in which a name is not one column all through are not for it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from toys.cases import no_spark

from executors.engines.arrow import ArrowEngine
from executors.engines.backends import InProcessBackend
from executors.engines.spark_sql import SparkEngine
from lake.engines import RewriteTask
from lake.plan import RewriteOptions

OPTIONS = RewriteOptions(target_file_max_bytes=1 << 30)
ARROW, SPARK = ArrowEngine(InProcessBackend(1)), SparkEngine(no_spark)
#: as pyarrow shows a column's id in Parquet, and that which Iceberg's writers give to ORC
KEYS = {"parquet": b"PARQUET:field_id", "orc": b"iceberg.id"}

Ids = Mapping[str, int | None]


def column(kind: str, name: str, of: pa.DataType, ids: Ids, path: str) -> pa.Field:
    number = ids.get(path)
    return pa.field(name, of, metadata=None if number is None else {KEYS[kind]: str(number).encode()})


def write(path: Path, ids: Ids, *names: str) -> str:
    """A file with the columns ``names``: ``s`` a struct of ``x``, ``l`` a list, ``m`` a map, the others text."""
    kind = path.suffix.removeprefix(".")
    types: Mapping[str, Any] = {
        "s": pa.struct([column(kind, "x", pa.int32(), ids, "s.x")]),
        "l": pa.list_(column(kind, "element", pa.int32(), ids, "l.element")),
        "m": pa.map_(pa.string(), column(kind, "value", pa.int32(), ids, "m.value")),
    }
    values: Mapping[str, Any] = {"s": {"x": 1}, "l": [1], "m": [("k", 1)]}
    schema = pa.schema([column(kind, name, types.get(name, pa.string()), ids, name) for name in names])
    rows = pa.Table.from_pylist([{name: values.get(name, "v") for name in names}], schema)
    (orc if kind == "orc" else pq).write_table(rows, path)
    return str(path)


def as_json(ids: Ids, *names: str) -> str:
    """The columns ``names`` as Spark's JSON."""

    def field(name: str, kind: object, path: str) -> dict[str, object]:
        number = ids.get(path)
        metadata = {} if number is None else {"parquet.field.id": number}
        return {"name": name, "type": kind, "nullable": True, "metadata": metadata}

    types: Mapping[str, object] = {
        "s": {"type": "struct", "fields": [field("x", "integer", "s.x")]},
        "l": {"type": "array", "elementType": "integer", "containsNull": True},
        "m": {"type": "map", "keyType": "string", "valueType": "integer", "valueContainsNull": True},
    }
    return json.dumps({"type": "struct", "fields": [field(name, types.get(name, "string"), name) for name in names]})


def obstacle(schema: str, *paths: str) -> str | None:
    return SPARK.unsupported_reason(
        RewriteTask(group=0, inputs=paths, outputs=("/new",), bytes=1, schema=schema), OPTIONS
    )


@pytest.mark.parametrize("kind", ["parquet", "orc"])
def test_files_in_which_a_name_is_not_one_column_are_refused(tmp_path: Path, kind: str):
    first = write(tmp_path / f"1.{kind}", {"id": 1, "a": 2}, "id", "a")
    second = write(tmp_path / f"2.{kind}", {"id": 1, "a": 3}, "id", "a")
    without = write(tmp_path / f"3.{kind}", {"id": 1}, "id", "a")
    fewer = write(tmp_path / f"4.{kind}", {"id": 1}, "id")
    schema = as_json({}, "id", "a")
    if kind == "parquet":
        task = RewriteTask(group=0, inputs=(first, second), outputs=("/new",), bytes=1)
        assert "another schema" in str(ARROW.unsupported_reason(task, OPTIONS))
    assert obstacle(schema, first, second) == (
        f"column a has field id 3 in {second} and 2 in {first}, and it reads columns by name"
    )
    assert obstacle(schema, fewer, without, first) == (
        f"column a has field id 2 in {first} and none in {without}, and it reads columns by name"
    )
    assert obstacle(schema, first, fewer) is None
    assert obstacle(schema, without, fewer) is None


def test_files_in_which_a_name_is_another_column_than_the_tables_are_refused(tmp_path: Path):
    first = write(tmp_path / "1.parquet", {"id": 1, "a": 2}, "id", "a")
    fewer = write(tmp_path / "2.parquet", {"id": 1}, "id")
    without = write(tmp_path / "3.parquet", {"id": 1}, "id", "a")
    dropped_and_added = as_json({"id": 1, "a": 3}, "id", "a")
    assert obstacle(dropped_and_added, first, fewer) == (
        f"column a has field id 2 in {first} and 3 in the table's schema, and it reads columns by name"
    )
    assert obstacle(dropped_and_added, without) == (
        f"column a has no field id in {without} and 3 in the table's schema, and it reads columns by name"
    )
    assert obstacle(dropped_and_added, fewer) is None
    assert obstacle(as_json({"id": 1, "a": 2}, "id", "a"), first, fewer) is None
    assert obstacle(as_json({"id": 1}, "id", "a"), first, fewer) is None, "a column without an id asks for nothing"


def test_orc_files_of_a_table_with_field_ids_are_refused(tmp_path: Path):
    path = write(tmp_path / "1.orc", {"a": 2}, "a")
    assert "no field ids into ORC files" in str(obstacle(as_json({"a": 2}, "a"), path))
    assert obstacle(as_json({}, "a"), path) is None


@pytest.mark.parametrize("changed", ["s", "s.x", "l", "l.element", "m", "m.value"])
def test_field_ids_of_nested_columns_count_as_well(tmp_path: Path, changed: str):
    ids = {"s": 1, "s.x": 2, "l": 3, "l.element": 4, "m": 5, "m.value": 6}
    first = write(tmp_path / "1.parquet", ids, "s", "l", "m")
    second = write(tmp_path / "2.parquet", {**ids, changed: 9}, "s", "l", "m")
    why = f"column {changed} has field id 9 in {second} and {ids[changed]} in "
    assert obstacle(as_json({}, "s", "l", "m"), first, second) == f"{why}{first}, and it reads columns by name"
    assert obstacle(as_json(ids, "s", "l", "m"), first) is None
    if "l." not in changed and "m." not in changed:  # Spark's JSON has no place for them
        assert obstacle(as_json(ids, "s", "l", "m"), second) == f"{why}the table's schema, and it reads columns by name"
