# SPDX-License-Identifier: Apache-2.0
"""The columns of a table as Spark's JSON, which engines read files by: as Spark has noted them, or by Hive's types."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from lake.metastore import Table

#: where Spark notes a table's schema; a long one in several parts
_SCHEMA = "spark.sql.sources.schema"
#: Hive's types that Spark calls something else
_NAMES = {"tinyint": "byte", "smallint": "short", "int": "integer", "bigint": "long"}
_ALIKE = frozenset({"boolean", "float", "double", "string", "binary", "date", "timestamp"})
_TOKEN = re.compile(r"[<>,]|[^<>,]+")
_LENGTH = re.compile(r"(?:var)?char\(\d+\)")
_DECIMAL = re.compile(r"decimal(?:\((\d+)(?:,(\d+))?\))?")


def schema_of(table: Table) -> str | None:
    """The columns of the table's files, which those of its partitions are not among; None where a type is unknown.

    Spark's note has what Hive's types do not: capital letters and types of Spark's own. Of a table that Hive's writers
    may change as well it counts only while it says the same as Hive, as Spark itself has it.
    """
    noted, of_hive = _noted(table), _of_hive(table.storage.columns)
    by_spark = table.parameters.get("spark.sql.sources.provider", "hive").lower() != "hive"
    if noted is not None and (by_spark or _bare(noted) == _bare(of_hive)):
        return json.dumps(noted)
    return None if of_hive is None else json.dumps(of_hive)


def _noted(table: Table) -> dict[str, Any] | None:
    properties = table.parameters
    text = properties.get(_SCHEMA)
    if text is None and (parts := properties.get(f"{_SCHEMA}.numParts", "")).isdecimal():
        text = "".join(properties.get(f"{_SCHEMA}.part.{number}", "") for number in range(int(parts)))
    try:
        schema = json.loads(text or "")
        apart = {name.lower() for name, _ in table.partition_columns}
        return {**schema, "fields": [one for one in schema["fields"] if one["name"].lower() not in apart]}
    except (ValueError, KeyError, TypeError):
        return None


def _of_hive(columns: Sequence[tuple[str, str]]) -> dict[str, Any] | None:
    try:
        return _struct([(name, _type(kind)) for name, kind in columns])
    except _Unknown:
        return None


class _Unknown(Exception):
    """A type is none that Spark reads, or is not written as Hive writes it."""


def _type(text: str) -> Any:
    tokens = _TOKEN.findall(_without_commas_in_brackets(text))
    found = _next(tokens)
    if tokens:
        raise _Unknown(text)
    return found


def _without_commas_in_brackets(text: str) -> str:
    """``decimal(10,2)`` as one token."""
    return re.sub(r"\((\d+)\s*,\s*(\d+)\)", r"(\1;\2)", text)


def _next(tokens: list[str]) -> Any:
    """The type that ``tokens`` begin with, which it takes away from them."""
    name = _taken(tokens).strip()
    kind = name.lower()
    if kind in ("array", "map", "struct"):
        _expect(tokens, "<")
        made = {"array": _array, "map": _map, "struct": _fields}[kind](tokens)
        _expect(tokens, ">")
        return made
    if (decimal := _DECIMAL.fullmatch(kind.replace(";", ","))) is not None:
        return f"decimal({decimal[1] or 10},{decimal[2] or 0})"
    if _LENGTH.fullmatch(kind):
        return "string"
    if kind in _NAMES or kind in _ALIKE:
        return _NAMES.get(kind, kind)
    raise _Unknown(name)


def _array(tokens: list[str]) -> Any:
    return {"type": "array", "elementType": _next(tokens), "containsNull": True}


def _map(tokens: list[str]) -> Any:
    key = _next(tokens)
    _expect(tokens, ",")
    return {"type": "map", "keyType": key, "valueType": _next(tokens), "valueContainsNull": True}


def _fields(tokens: list[str]) -> Any:
    found = []
    while True:
        name, colon, rest = _taken(tokens).partition(":")
        if not colon:
            raise _Unknown(name)
        tokens.insert(0, rest)
        found.append((name.strip(), _next(tokens)))
        if not tokens or tokens[0] != ",":
            return _struct(found)
        tokens.pop(0)


def _struct(fields: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    made = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in fields]
    return {"type": "struct", "fields": made}


def _taken(tokens: list[str]) -> str:
    if not tokens:
        raise _Unknown("")
    return tokens.pop(0)


def _expect(tokens: list[str], what: str) -> None:
    if _taken(tokens) != what:
        raise _Unknown(what)


def _bare(kind: Any) -> Any:
    """A type for comparing: names in lower case, and nothing of what only Spark says."""
    if isinstance(kind, str):
        return "string" if _LENGTH.fullmatch(kind) else kind
    if not isinstance(kind, Mapping):
        return None
    if kind["type"] == "struct":
        return [(one["name"].lower(), _bare(one["type"])) for one in kind["fields"]]
    return {name: _bare(kind[name]) for name in ("type", "elementType", "keyType", "valueType") if name in kind}
