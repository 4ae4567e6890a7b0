# SPDX-License-Identifier: Apache-2.0
"""What Parquet footers say about rows: counts, and per leaf column type, nulls, smallest and largest value.

A figure that a footer does not hold, or that a writer is free to round, is inexact and is never compared:
statistics missing in one row group, bytes that may have been cut short, NaN among the bounds, INT96.
"""

import json
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

#: Writers may cut the bounds of long strings (to 64 bytes and the like); shorter ones are taken as they are.
EXACT_BYTES = 31

_TIME_UNITS = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}


@dataclass(frozen=True, slots=True)
class LeafType:
    """What the values of a leaf column mean, whichever way they are encoded.

    ``family`` groups types whose bounds compare with each other; ``detail`` holds width, scale or unit.
    """

    family: str
    detail: tuple[int | str, ...] = ()

    def __str__(self) -> str:
        return f"{self.family}({', '.join(str(d) for d in self.detail)})" if self.detail else self.family

    def widens_to(self, other: "LeafType") -> bool:
        """Whether every value of this type is the same value in ``other``."""
        if self == other:
            return True
        if self.family == other.family in ("int", "float"):
            return self.detail <= other.detail
        if self.family == other.family == "decimal":
            return self.detail[1] == other.detail[1] and self.detail[0] <= other.detail[0]  # type: ignore[operator]
        if self.family == other.family == "timestamp":
            order = ("ms", "us", "ns")
            return self.detail[1] == other.detail[1] and order.index(str(self.detail[0])) <= order.index(
                str(other.detail[0])
            )
        return self.family == "int" and other == LeafType("float", (64,)) and self.detail <= (32,)

    def bounds_compare_with(self, other: "LeafType") -> bool:
        """Whether bounds of both types, as this module holds them, are numbers or bytes of one scale."""
        if self.family in ("int", "float"):
            return other.family in ("int", "float")
        return self == other or (self.family == other.family == "decimal" and self.detail[1] == other.detail[1])


@dataclass(slots=True)
class Leaf:
    """One leaf column over any number of files. ``nulls`` None and ``bounded`` False mean inexact."""

    kinds: frozenset[LeafType]
    repeated: bool
    rows: int = 0
    nulls: int | None = 0
    bounded: bool = True
    low: Any = None
    high: Any = None

    def merge(self, other: "Leaf") -> None:
        """Count the values of ``other`` in."""
        self.rows += other.rows
        self.nulls = None if self.nulls is None or other.nulls is None else self.nulls + other.nulls
        self.bounded = self.bounded and other.bounded and self.bounds_compare_with(other)
        self.kinds |= other.kinds
        if self.bounded and other.low is not None:
            self.low = other.low if self.low is None else min(self.low, other.low)
            self.high = other.high if self.high is None else max(self.high, other.high)

    def bounds_compare_with(self, other: "Leaf") -> bool:
        """Whether the bounds of both are of one scale."""
        return all(mine.bounds_compare_with(theirs) for mine in self.kinds for theirs in other.kinds)

    def absent_in(self, rows: int) -> None:
        """Count ``rows`` of a file written before this column existed: they read as nulls."""
        self.rows += rows
        if self.repeated and rows:
            self.nulls = None
        elif self.nulls is not None:
            self.nulls += rows


@dataclass(slots=True)
class Facts:
    """What the footers of some files say together."""

    rows: int = 0
    leaves: dict[str, Leaf] = field(default_factory=dict)

    def merge(self, other: "Facts") -> None:
        """Count another set of files in; a column that one of them lacks is all null there."""
        for path, leaf in other.leaves.items():
            mine = self.leaves.get(path)
            if mine is None:
                self.leaves[path] = mine = Leaf(leaf.kinds, leaf.repeated)
                mine.absent_in(self.rows)
            mine.merge(leaf)
        for path, mine in self.leaves.items():
            if path not in other.leaves:
                mine.absent_in(other.rows)
        self.rows += other.rows


def facts(metadata: Iterable[pq.FileMetaData], ignore: Collection[str] = ()) -> Facts:
    """The facts of some footers without the top-level columns in ``ignore``."""
    total = Facts()
    schema: pq.ParquetSchema | None = None
    columns: list[tuple[int, str, LeafType, bool]] = []
    for footer in metadata:
        if schema is None or not schema.equals(footer.schema):
            schema = footer.schema
            columns = _columns(footer, ignore)
        one = Facts(rows=footer.num_rows)
        groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
        for index, path, kind, repeated in columns:
            leaf = Leaf(frozenset((kind,)), repeated, rows=footer.num_rows)
            for group in groups:
                if group.num_rows:
                    _count(leaf, kind, group.column(index))
            one.leaves[path] = leaf
        total.merge(one)
    return total


def _count(leaf: Leaf, kind: LeafType, chunk: pq.ColumnChunkMetaData) -> None:
    statistics = chunk.statistics
    if statistics is None or not statistics.has_null_count:
        leaf.nulls, leaf.bounded = None, False
        return
    nulls = statistics.null_count
    if leaf.nulls is not None:
        leaf.nulls += nulls
    if not leaf.bounded or nulls == chunk.num_values:
        return
    if not statistics.has_min_max:
        leaf.bounded = False
        return
    low, high = _bound(kind, statistics.min_raw), _bound(kind, statistics.max_raw)
    if low is None or high is None:
        leaf.bounded = False
        return
    leaf.low = low if leaf.low is None or low < leaf.low else leaf.low
    leaf.high = high if leaf.high is None or high > leaf.high else leaf.high


def _bound(kind: LeafType, raw: Any) -> Any:
    """A bound as a number or bytes that compares in the type's own order; None where it can't be trusted."""
    if kind.family in ("int", "date", "time", "timestamp"):
        return raw if isinstance(raw, int) else None
    if kind.family in ("string", "binary"):
        return raw if len(raw) <= EXACT_BYTES else None
    if kind.family == "decimal":
        return int.from_bytes(raw, "big", signed=True) if isinstance(raw, bytes) else raw
    if kind.family == "float":
        return raw if isinstance(raw, float) and not math.isnan(raw) else None
    if kind.family == "unsigned":
        return raw & ((1 << int(kind.detail[0])) - 1)
    return raw if kind.family == "boolean" else None


def render(kind: LeafType, bound: Any) -> str:
    """A bound for a person."""
    if bound is None:
        return "no value"
    if kind.family == "decimal":
        return str(Decimal(bound).scaleb(-int(kind.detail[1])))
    if kind.family == "string":
        return repr(bound.decode(errors="replace"))
    return repr(bound)


def _columns(footer: pq.FileMetaData, ignore: Collection[str]) -> list[tuple[int, str, LeafType, bool]]:
    schema = footer.schema
    columns = [schema.column(index) for index in range(footer.num_columns)]
    paths = _paths(schema.to_arrow_schema())
    if len(paths) != len(columns):  # a type that Arrow sees in another shape; its own path is as good a name
        paths = [(column.path.split(".", 1)[0], column.path) for column in columns]
    return [
        (index, path, _leaf_type(column), column.max_repetition_level > 0)
        for index, ((top, path), column) in enumerate(zip(paths, columns, strict=True))
        if top not in ignore
    ]


def _paths(schema: pa.Schema) -> list[tuple[str, str]]:
    """Top-level name and path of the leaves in file order; all ways to spell a list or a map in Parquet agree."""
    found: list[tuple[str, str]] = []

    def walk(top: str, path: str, kind: pa.DataType) -> None:
        if isinstance(kind, pa.ExtensionType):
            walk(top, path, kind.storage_type)
        elif pa.types.is_struct(kind):
            for child in kind:
                walk(top, f"{path}.{child.name}", child.type)
        elif pa.types.is_map(kind):
            walk(top, f"{path}[key]", kind.key_type)
            walk(top, f"{path}[value]", kind.item_type)
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
            walk(top, f"{path}[]", kind.value_type)
        else:
            found.append((top, path))

    for column in schema:
        walk(column.name, column.name, column.type)
    return found


def _leaf_type(column: pq.ColumnSchema) -> LeafType:
    """The meaning of a column: its annotation, or what its physical type means without one."""
    logical = column.logical_type.type
    if logical in ("STRING", "ENUM"):
        return LeafType("string")
    if logical == "DECIMAL":
        return LeafType("decimal", (column.precision, column.scale))
    if logical == "DATE":
        return LeafType("date")
    if logical in ("INT", "TIME", "TIMESTAMP"):
        described = json.loads(column.logical_type.to_json())
        if logical == "INT":
            return LeafType("int" if described["isSigned"] else "unsigned", (described["bitWidth"],))
        utc = "utc" if described["isAdjustedToUTC"] else "local"
        return LeafType(logical.lower(), (_TIME_UNITS[described["timeUnit"]], utc))
    if logical != "NONE":
        return LeafType(logical.lower())
    physical = column.physical_type
    if physical == "INT96":  # Spark's old way to write an instant; its statistics are never exact
        return LeafType("timestamp", ("us", "utc"))
    return {
        "BOOLEAN": LeafType("boolean"),
        "INT32": LeafType("int", (32,)),
        "INT64": LeafType("int", (64,)),
        "FLOAT": LeafType("float", (32,)),
        "DOUBLE": LeafType("float", (64,)),
        "BYTE_ARRAY": LeafType("binary"),
    }.get(physical, LeafType("fixed", (column.length or 0,)))
