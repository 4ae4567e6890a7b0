# SPDX-License-Identifier: Apache-2.0
"""A table's schema, as Spark's JSON, beside the columns of its files.

What is not in it Spark would lose. What has its name and another field id, because a column was dropped and one of its
name added, Spark would take for it.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from executors.datafiles.parquet import field_id

#: a column, or a part of one, by the names from the top
_Path = tuple[str, ...]

#: where Spark's JSON has the id of a field
_ID = "parquet.field.id"
#: what Hive once called columns in ORC files, which are then read by their position
_NUMBERED = re.compile(r"_col\d+")


def find_missing_column(schema: str, columns: pa.Schema) -> str | None:
    """The first column of a file that the table's ``schema`` does not name; None where it has them all.

    A table's column may have been dropped or renamed since: readers do not see such values, and may again some day.
    """
    fields: Sequence[Any] = json.loads(schema)["fields"]
    if is_positional(columns) and len(columns) <= len(fields):
        pairs = zip(columns, fields, strict=False)
        return next(
            (path for column, one in pairs for path in _missing_in_type(column.name, column.type, one["type"])), None
        )
    return next(_missing_in_struct("", columns, fields), None)


def is_positional(columns: pa.Schema) -> bool:
    """Whether an ORC file names its columns by their position only, as old releases of Hive did."""
    return bool(columns.names) and all(map(_NUMBERED.fullmatch, columns.names))


def has_field_ids(schema: str) -> bool:
    """Whether the table's ``schema`` names field ids, so that its readers go by them."""
    return any(True for _ in _ids_in_schema(json.loads(schema), ()))


def find_field_id_conflict(schema: str, files: Iterable[tuple[str, pa.Schema]]) -> str | None:
    """The first column that is not the same one in all ``files``, paths with their columns, and in the ``schema``.

    In words, by field ids: one without any is not the same as one with. None where they agree; where the schema names
    no id the files have to agree among themselves.
    """
    known: dict[_Path, tuple[str, int | None]] = {
        column: ("the table's schema", number) for column, number in _ids_in_schema(json.loads(schema), ())
    }
    for path, columns in files:
        for column, number in _ids_in_file(columns, ()):
            where, other = known.setdefault(column, (path, number))
            if number != other:
                here = "no field id" if number is None else f"field id {number}"
                there = "none" if other is None else other
                return f"column {'.'.join(column)} has {here} in {path} and {there} in {where}, and it goes by names"
    return None


def _ids_in_schema(kind: Any, above: _Path) -> Iterator[tuple[_Path, int]]:
    """The fields of a type in Spark's JSON that have an id there."""
    if not isinstance(kind, dict):
        return
    for one in kind.get("fields", ()):
        if (number := one.get("metadata", {}).get(_ID)) is not None:
            yield (*above, one["name"]), int(number)
        yield from _ids_in_schema(one["type"], (*above, one["name"]))
    for part in ("element", "key", "value"):
        yield from _ids_in_schema(kind.get(f"{part}Type"), (*above, part))


def _ids_in_file(fields: Iterable[pa.Field], above: _Path) -> Iterator[tuple[_Path, int | None]]:
    """All columns of a file, and what they are made of, each with its id."""
    for field in fields:
        yield from _parts((*above, field.name), field)


def _parts(path: _Path, field: pa.Field) -> Iterator[tuple[_Path, int | None]]:
    yield path, field_id(field)
    if pa.types.is_struct(field.type):
        yield from _ids_in_file(field.type, path)
    elif pa.types.is_map(field.type):
        yield from _parts((*path, "key"), field.type.key_field)
        yield from _parts((*path, "value"), field.type.item_field)
    elif pa.types.is_list(field.type):
        yield from _parts((*path, "element"), field.type.value_field)


def _missing_in_struct(above: str, columns: Any, fields: Sequence[Any]) -> Iterator[str]:
    known = {one["name"]: one["type"] for one in fields}
    for column in columns:
        if column.name not in known:
            yield f"{above}{column.name}"
        else:
            yield from _missing_in_type(f"{above}{column.name}", column.type, known[column.name])


def _missing_in_type(path: str, kind: pa.DataType, known: Any) -> Iterator[str]:
    nested = known["type"] if isinstance(known, dict) else ""
    if pa.types.is_struct(kind):
        if nested == "struct":
            yield from _missing_in_struct(f"{path}.", kind, known["fields"])
        else:
            yield path
    elif pa.types.is_map(kind):
        if nested == "map":
            yield from _missing_in_type(f"{path}.key", kind.key_type, known["keyType"])
            yield from _missing_in_type(f"{path}.value", kind.item_type, known["valueType"])
        else:
            yield path
    elif pa.types.is_list(kind):
        if nested == "array":
            yield from _missing_in_type(f"{path}.element", kind.value_type, known["elementType"])
        else:
            yield path
