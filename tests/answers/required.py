# SPDX-License-Identifier: Apache-2.0
"""Tables without null values as files whose columns and parts of columns are required, and conditions by joins."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from answers.cases import Batch
from answers.kinds import KINDS, Predicate, drawn_literal

#: what is null in no row of a table: only values, also the struct, list and map around them, or values in one file only
SHAPES = ("values", "everything", "mixed")
_JOINS = (
    "{0} IN (SELECT k FROM {1})",
    "{0} NOT IN (SELECT k FROM {1})",
    "EXISTS (SELECT 1 FROM {1} WHERE k = {0})",
    "NOT EXISTS (SELECT 1 FROM {1} WHERE k = {0})",
)


def without_nulls(drawn: Batch) -> Batch:
    """The same batch, in which no value is null. In the shape ``everything`` no struct, list or map is null, either."""
    return replace(
        drawn,
        tables=[
            [_filled(drawn, rows, shape_of(number)) for rows in files] for number, files in enumerate(drawn.tables)
        ],
    )


def shape_of(number: int) -> str:
    """The shape of the table ``number`` of a batch."""
    return SHAPES[number % len(SHAPES)]


def required(tables: Sequence[pa.Table], shape: str) -> list[pa.Table]:
    """The files of a table of ``shape``, with a schema that requires what is null in no row."""
    return [
        rows if shape == "mixed" and index else _required(rows, containers=shape == "everything")
        for index, rows in enumerate(tables)
    ]


def _filled(drawn: Batch, rows: pa.Table, shape: str) -> pa.Table:
    columns: dict[str, pa.Array] = {}
    for name in rows.column_names:
        column = rows[name].combine_chunks()
        is_null = None if shape == "everything" else column.is_null()
        if name == "part":
            fields = [(one.name, KINDS[drawn.columns[f"part.{one.name}"]]) for one in column.type]
            filled = [_fill(column.field(field), kind) for field, kind in fields]
            columns[name] = pa.StructArray.from_arrays(filled, names=[field for field, _ in fields], mask=is_null)
        elif name == "items":
            values = _fill(column.values, KINDS[drawn.elements[name]])
            columns[name] = pa.ListArray.from_arrays(column.offsets, values, mask=is_null)
        elif name == "pairs":
            values = _fill(column.items, KINDS[drawn.elements[name]])
            columns[name] = pa.MapArray.from_arrays(column.offsets, column.keys, values, mask=is_null)
        else:
            columns[name] = column if name == "id" else _fill(column, KINDS[drawn.columns[name]])
    return pa.table(columns)


def _fill(values: pa.Array, kind: Any) -> pa.Array:
    # The engine ``spark`` refuses earlier values of pyarrow's files, which Spark reads by another calendar.
    if pa.types.is_temporal(values.type):
        day = date(1582, 10, 15) if pa.types.is_date(values.type) else datetime(1900, 1, 1, tzinfo=UTC)
        first = pa.scalar(day, values.type)
        values = pc.if_else(pc.less(values, first), first, values)
    known = values.drop_null()
    return pc.fill_null(values, known[0] if len(known) else kind.array([kind.draw(Random(0))])[0])


def _required(rows: pa.Table, *, containers: bool) -> pa.Table:
    arrays, fields = [], []
    for name in rows.column_names:
        column = rows[name].combine_chunks()
        is_null = None if containers else column.is_null()
        if name == "part":
            parts = [one.with_nullable(False) for one in column.type]
            children = [column.field(index) for index in range(len(parts))]
            column = pa.StructArray.from_arrays(children, fields=parts, mask=is_null)
        elif name == "items":
            kind = pa.list_(pa.field("element", column.type.value_type, nullable=False))
            column = pa.ListArray.from_arrays(column.offsets, column.values, type=kind, mask=is_null)
        elif name == "pairs":
            kind = pa.map_(pa.string(), pa.field("value", column.type.item_type, nullable=False))
            column = pa.MapArray.from_arrays(column.offsets, column.keys, column.items, type=kind, mask=is_null)
        arrays.append(column)
        is_container = name in ("part", "items", "pairs")
        fields.append(pa.field(name, column.type, nullable=is_container and not containers))
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def joins(drawn: Batch, seed: int, count: int) -> list[Predicate]:
    """Conditions on columns that Spark and DuckDB answer by a join with a few values, one of them null at times."""
    random, found = Random(seed), []
    for number in range(count):
        column = random.choice([*drawn.columns])
        kind = KINDS[drawn.columns[column]]
        rows = random.choice(random.choice(drawn.tables))
        values = pc.struct_field(rows["part"], column[5:]) if column.startswith("part.") else rows[column]
        known = (values.cast(kind.stored) if kind.stored else values).to_pylist()
        keys = [drawn_literal(random, kind, known) for _ in range(random.choice([1, 3]))]
        null = ["(NULL)"] * (random.random() < 0.2)
        spark, duckdb = (
            _JOINS[number % len(_JOINS)].format(
                column, f"(VALUES {', '.join([*(f'({literal(key)})' for key in keys), *null])}) AS keys(k)"
            )
            for literal in (kind.spark, kind.duckdb)
        )
        found.append(Predicate(spark=spark, duckdb=duckdb, arrow=None))
    return found
