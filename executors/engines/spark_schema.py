# SPDX-License-Identifier: Apache-2.0
"""A table's schema, as Spark's JSON, beside the columns of its files: what is not in it Spark would lose."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

#: what Hive once called columns in ORC files, which are then read by their position
_NUMBERED = re.compile(r"_col\d+")


def lost(schema: str, columns: pa.Schema) -> str | None:
    """The first column of a file that the table's ``schema`` does not name; None where it has them all.

    A table's column may have been dropped or renamed since: readers do not see such values, and may again some day.
    """
    fields: Sequence[Any] = json.loads(schema)["fields"]
    if columns.names and all(map(_NUMBERED.fullmatch, columns.names)) and len(columns) <= len(fields):
        pairs = zip(columns, fields, strict=False)
        return next((path for column, one in pairs for path in _lost(column.name, column.type, one["type"])), None)
    return next(_of_struct("", columns, fields), None)


def _of_struct(above: str, columns: Any, fields: Sequence[Any]) -> Iterator[str]:
    known = {one["name"]: one["type"] for one in fields}
    for column in columns:
        if column.name not in known:
            yield f"{above}{column.name}"
        else:
            yield from _lost(f"{above}{column.name}", column.type, known[column.name])


def _lost(path: str, kind: pa.DataType, known: Any) -> Iterator[str]:
    nested = known["type"] if isinstance(known, dict) else ""
    if pa.types.is_struct(kind):
        if nested == "struct":
            yield from _of_struct(f"{path}.", kind, known["fields"])
        else:
            yield path
    elif pa.types.is_map(kind):
        if nested == "map":
            yield from _lost(f"{path}.key", kind.key_type, known["keyType"])
            yield from _lost(f"{path}.value", kind.item_type, known["valueType"])
        else:
            yield path
    elif pa.types.is_list(kind):
        if nested == "array":
            yield from _lost(f"{path}.element", kind.value_type, known["elementType"])
        else:
            yield path
