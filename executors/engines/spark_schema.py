# SPDX-License-Identifier: Apache-2.0
"""Comparisons of a table's schema, as Spark's JSON, with the columns of its files.

Spark would lose a column that the schema lacks. If a column was dropped and a new column of its name was added, the two
differ in field id, but Spark would read both as one column.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from executors.datafiles.parquet import field_id
from executors.nested_types import is_list, parts, storage_type

#: the names of a column or of a part of a column, from the top
_Path = tuple[str, ...]

#: the key of a field's id in Spark's JSON
_ID = "parquet.field.id"
#: the names that old releases of Hive gave to columns in ORC files, which are then read by position
_NUMBERED = re.compile(r"_col\d+")
#: a part of a type that is not recognised
_UNKNOWN = pa.field("", pa.null())
#: Spark's names for the parts of lists and maps
_PART_NAMES = {"[]": "element", "[key]": "key", "[value]": "value"}
#: Spark's names of the numbers
_NUMBERS = {
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
}
#: the numbers that have all values of another one
_WIDER = {
    "byte": ("short", "integer", "long", "double"),
    "short": ("integer", "long", "double"),
    "integer": ("long", "double"),
    "float": ("double",),
}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


def find_missing_column(schema: str, columns: pa.Schema) -> str | None:
    """Return the first column of a file that the table's ``schema`` does not name. None if it names all.

    Such a column may have been dropped or renamed: readers do not see its values now, and may see them again later.
    """
    fields: Sequence[Any] = json.loads(schema)["fields"]
    if is_positional(columns) and len(columns) <= len(fields):
        pairs = zip(columns, fields, strict=False)
        return next(
            (path for column, one in pairs for path in _missing_in_type(column.name, column.type, one["type"])), None
        )
    return next(_missing_in_struct("", columns, fields), None)


def is_positional(columns: pa.Schema) -> bool:
    """True if an ORC file names its columns by position only, as old releases of Hive did."""
    return bool(columns.names) and all(map(_NUMBERED.fullmatch, columns.names))


def has_field_ids(schema: str) -> bool:
    """True if the table's ``schema`` has field ids, so that its readers use them."""
    return any(True for _ in _ids_in_schema(json.loads(schema), ()))


def find_field_id_conflict(schema: str, files: Iterable[tuple[str, pa.Schema]]) -> str | None:
    """Return a phrase about the first column whose field id differs between ``files`` and ``schema``, or None.

    ``files`` are paths with their columns. A column without an id differs from one with an id. If the schema has no
    ids, the files have to agree among themselves.
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
                name = ".".join(column)
                return f"column {name} has {here} in {path} and {there} in {where}, and it reads columns by name"
    return None


def schema_of_files(schema: str, files: Sequence[pa.Schema]) -> str:
    """Return ``schema`` with the properties of ``files``: their field ids, and what all of them have in common.

    Fields are required that are required in every file. Numbers that are narrower in every file than in ``schema`` stay
    so, and fields stay in the order of the files. Only the table's present columns are in ``schema``, but some readers
    use those from when the partition was made, or the positions of columns in the files. The files agree in their ids
    (``find_field_id_conflict``). Elements of lists, keys and values of maps have no ids in Spark's schema.
    """
    parsed = json.loads(schema)
    return json.dumps({**parsed, "fields": _fields_of_files(parsed["fields"], files)})


def has_required_fields(schema: str) -> bool:
    """True if a field of ``schema``, at any depth, is required."""
    return re.search(r'"(nullable|containsNull|valueContainsNull)": false', json.dumps(json.loads(schema))) is not None


def _fields_of_files(known: Sequence[Mapping[str, Any]], files: Sequence[Iterable[pa.Field]]) -> list[dict[str, Any]]:
    """Return fields in Spark's JSON as the fields in ``files`` are.

    Fields that no file has come last. Files in which one position has different fields have no common order.
    """
    found = {one["name"]: _field_of_files(one, files) for one in known}
    orders = [[field.name for field in columns] for columns in files]
    order = max(orders, key=len, default=[])
    if any(other != order[: len(other)] for other in orders) or not found.keys() >= set(order):
        return list(found.values())
    return [found[name] for name in dict.fromkeys([*order, *found])]


def _field_of_files(known: Mapping[str, Any], files: Iterable[Iterable[pa.Field]]) -> dict[str, Any]:
    """Return a field in Spark's JSON as the fields of that name in ``files`` have it."""
    found = [next((one for one in columns if one.name == known["name"]), None) for columns in files]
    fields = [one for one in found if one is not None]
    ids = {number for one in fields if (number := field_id(one)) is not None}
    metadata = dict(known.get("metadata") or {}) | ({_ID: min(ids)} if ids else {})
    return {
        **known,
        "type": _type_of_files(known["type"], [one.type for one in fields]),
        "nullable": not fields or any(one is None or one.nullable for one in found),
        "metadata": metadata,
    }


def _type_of_files(known: Any, kinds: Sequence[pa.DataType]) -> Any:
    """Return a type in Spark's JSON as ``kinds``, the types of the files' columns, have it.

    In a file whose type is not recognised, all parts count as optional.
    """
    nested, kinds = known["type"] if isinstance(known, dict) else "", [storage_type(kind) for kind in kinds]
    if nested == "struct":
        unknown = [pa.field(one["name"], pa.null()) for one in known["fields"]]
        structs = [kind if pa.types.is_struct(kind) else unknown for kind in kinds]
        return {**known, "fields": _fields_of_files(known["fields"], structs)}
    if nested == "array":
        elements = [kind.value_field if is_list(kind) else _UNKNOWN for kind in kinds]
        return {
            **known,
            "elementType": _type_of_files(known["elementType"], [element.type for element in elements]),
            "containsNull": not elements or any(element.nullable for element in elements),
        }
    if nested == "map":
        keys = [kind.key_type if pa.types.is_map(kind) else _UNKNOWN.type for kind in kinds]
        values = [kind.item_field if pa.types.is_map(kind) else _UNKNOWN for kind in kinds]
        return {
            **known,
            "keyType": _type_of_files(known["keyType"], keys),
            "valueType": _type_of_files(known["valueType"], [value.type for value in values]),
            "valueContainsNull": not values or any(value.nullable for value in values),
        }
    return known if nested else _number_of_files(known, kinds)


def _number_of_files(known: str, kinds: Sequence[pa.DataType]) -> str:
    """Return the number that all files have if ``known`` has all of its values; else ``known``."""
    if len(set(kinds)) != 1:
        return known
    kind = kinds[0]
    if pa.types.is_decimal(kind):
        wide = _DECIMAL.fullmatch(known)
        is_narrow = wide is not None and kind.scale == int(wide[2]) and kind.precision <= int(wide[1])
        return f"decimal({kind.precision},{kind.scale})" if is_narrow else known
    own = _NUMBERS.get(kind, known)
    return own if known in _WIDER.get(own, ()) else known


def _ids_in_schema(kind: Any, above: _Path) -> Iterator[tuple[_Path, int]]:
    """Yield the fields of a type in Spark's JSON that have an id."""
    if not isinstance(kind, dict):
        return
    for one in kind.get("fields", ()):
        if (number := one.get("metadata", {}).get(_ID)) is not None:
            yield (*above, one["name"]), int(number)
        yield from _ids_in_schema(one["type"], (*above, one["name"]))
    for part in ("element", "key", "value"):
        yield from _ids_in_schema(kind.get(f"{part}Type"), (*above, part))


def _ids_in_file(fields: Iterable[pa.Field], above: _Path) -> Iterator[tuple[_Path, int | None]]:
    """Yield all columns of a file, and their parts, each with its id."""
    for field in fields:
        yield from _parts((*above, field.name), field)


def _parts(path: _Path, field: pa.Field) -> Iterator[tuple[_Path, int | None]]:
    yield path, field_id(field)
    for end, part in parts(field.type):
        yield from _parts((*path, _PART_NAMES.get(end, part.name)), part)


def _missing_in_struct(above: str, columns: Any, fields: Sequence[Any]) -> Iterator[str]:
    known = {one["name"]: one["type"] for one in fields}
    for column in columns:
        if column.name not in known:
            yield f"{above}{column.name}"
        else:
            yield from _missing_in_type(f"{above}{column.name}", column.type, known[column.name])


def _missing_in_type(path: str, kind: pa.DataType, known: Any) -> Iterator[str]:
    nested, kind = known["type"] if isinstance(known, dict) else "", storage_type(kind)
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
    elif is_list(kind):
        if nested == "array":
            yield from _missing_in_type(f"{path}.element", kind.value_type, known["elementType"])
        else:
            yield path
