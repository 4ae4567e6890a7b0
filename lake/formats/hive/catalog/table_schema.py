# SPDX-License-Identifier: Apache-2.0
"""The schema of a table in Spark's JSON form, for engines that read the files.

It is the schema that Spark stored, or is built from Hive's types.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from lake.metastore import MetastoreTable

#: the property in which Spark stores a table's schema; a long one is in several parts
_SCHEMA_KEY = "spark.sql.sources.schema"
#: Hive's types that have another name in Spark
_SPARK_NAMES = {"tinyint": "byte", "smallint": "short", "int": "integer", "bigint": "long"}
_SAME_NAMES = frozenset({"boolean", "float", "double", "string", "binary", "date", "timestamp"})
_TOKEN = re.compile(r"[<>,]|[^<>,]+")
_CHAR_TYPE = re.compile(r"(?:var)?char\(\d+\)")
_DECIMAL_TYPE = re.compile(r"decimal(?:\((\d+)(?:,(\d+))?\))?")


def spark_schema_json(table: MetastoreTable) -> str | None:
    """Return the columns of the table's files, without partition columns. None if a type is unknown.

    Spark's schema keeps the case of names, and has types that Hive does not have. If Hive's writers may change the
    table as well, Spark's schema is used only while it agrees with Hive's; Spark has the same rule.
    """
    noted, of_hive = _stored_spark_schema(table), _schema_from_hive_types(table.storage.columns)
    by_spark = table.parameters.get("spark.sql.sources.provider", "hive").lower() != "hive"
    if noted is not None and (by_spark or _comparable(noted) == _comparable(of_hive)):
        return json.dumps(noted)
    return None if of_hive is None else json.dumps(of_hive)


def _stored_spark_schema(table: MetastoreTable) -> dict[str, Any] | None:
    properties = table.parameters
    text = properties.get(_SCHEMA_KEY)
    if text is None and (parts := properties.get(f"{_SCHEMA_KEY}.numParts", "")).isdecimal():
        text = "".join(properties.get(f"{_SCHEMA_KEY}.part.{number}", "") for number in range(int(parts)))
    try:
        schema = json.loads(text or "")
        partition_columns = {name.lower() for name, _ in table.partition_columns}
        return {**schema, "fields": [one for one in schema["fields"] if one["name"].lower() not in partition_columns]}
    except (ValueError, KeyError, TypeError):
        return None


def _schema_from_hive_types(columns: Sequence[tuple[str, str]]) -> dict[str, Any] | None:
    try:
        return _struct_type([(name, _parse_type(kind)) for name, kind in columns])
    except _UnknownType:
        return None


class _UnknownType(Exception):
    """A type that Spark can't read, or a text that is not in Hive's syntax for types."""


def _parse_type(text: str) -> Any:
    tokens = _TOKEN.findall(_escape_decimal_commas(text))
    found = _parse_next(tokens)
    if tokens:
        raise _UnknownType(text)
    return found


def _escape_decimal_commas(text: str) -> str:
    """Make ``decimal(10,2)`` one token."""
    return re.sub(r"\((\d+)\s*,\s*(\d+)\)", r"(\1;\2)", text)


def _parse_next(tokens: list[str]) -> Any:
    """Parse the type at the beginning of ``tokens``, and remove its tokens."""
    name = _pop_token(tokens).strip()
    kind = name.lower()
    if kind in ("array", "map", "struct"):
        _expect_token(tokens, "<")
        made = {"array": _parse_array, "map": _parse_map, "struct": _parse_struct}[kind](tokens)
        _expect_token(tokens, ">")
        return made
    if (decimal := _DECIMAL_TYPE.fullmatch(kind.replace(";", ","))) is not None:
        return f"decimal({decimal[1] or 10},{decimal[2] or 0})"
    if _CHAR_TYPE.fullmatch(kind):
        return "string"
    if kind in _SPARK_NAMES or kind in _SAME_NAMES:
        return _SPARK_NAMES.get(kind, kind)
    raise _UnknownType(name)


def _parse_array(tokens: list[str]) -> Any:
    return {"type": "array", "elementType": _parse_next(tokens), "containsNull": True}


def _parse_map(tokens: list[str]) -> Any:
    key = _parse_next(tokens)
    _expect_token(tokens, ",")
    return {"type": "map", "keyType": key, "valueType": _parse_next(tokens), "valueContainsNull": True}


def _parse_struct(tokens: list[str]) -> Any:
    found = []
    while True:
        name, colon, rest = _pop_token(tokens).partition(":")
        if not colon:
            raise _UnknownType(name)
        tokens.insert(0, rest)
        found.append((name.strip(), _parse_next(tokens)))
        if not tokens or tokens[0] != ",":
            return _struct_type(found)
        tokens.pop(0)


def _struct_type(fields: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    made = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in fields]
    return {"type": "struct", "fields": made}


def _pop_token(tokens: list[str]) -> str:
    if not tokens:
        raise _UnknownType("")
    return tokens.pop(0)


def _expect_token(tokens: list[str], token: str) -> None:
    if _pop_token(tokens) != token:
        raise _UnknownType(token)


def _comparable(schema: Any) -> Any:
    """Return a type in a form for comparison: names in lower case, without nullability and metadata.

    Only Spark stores these attributes.
    """
    if isinstance(schema, str):
        return "string" if _CHAR_TYPE.fullmatch(schema) else schema
    if not isinstance(schema, Mapping):
        return None
    if schema["type"] == "struct":
        return [(one["name"].lower(), _comparable(one["type"])) for one in schema["fields"]]
    return {
        name: _comparable(schema[name]) for name in ("type", "elementType", "keyType", "valueType") if name in schema
    }
