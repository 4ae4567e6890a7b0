# SPDX-License-Identifier: Apache-2.0
"""Lists and maps of drawn values, and conditions on their elements."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from answers.kinds import COMPARISONS, KINDS, NAN, Kind, Predicate, drawn_literal

_KEYS = ("a", "b")


def collections_of(random: Random, name: str, kind: Kind, rows: int) -> list[Any]:
    """Lists (``items``) or maps (``pairs``) of values of ``kind``: null ones, empty ones, and with null elements."""
    pool = [kind.draw(random) for _ in range(random.choice([1, 2, 4]))]
    if kind.is_float and random.random() < 0.5:
        pool = [float(random.randint(-5, 5)), NAN]
    if random.random() < 0.3:
        pool.append(None)
    few: list[Any] = []
    for _ in range(3):
        values = [random.choice(pool) for _ in range(random.randint(0, 2))]
        few.append(values if name == "items" else dict(zip(_KEYS, values, strict=False)))
    if random.random() < 0.3:
        few.append(None)
    return [random.choice(few) for _ in range(rows)]


def array_of(name: str, kind: Kind, values: Sequence[Any]) -> pa.Array:
    """A column of lists or maps."""
    missing = pa.array([value is None for value in values])
    sizes = [0 if value is None else len(value) for value in values]
    offsets = pa.array(np.cumsum([0, *sizes]), pa.int32())
    flat = [one for value in values for one in _elements(value)]
    if name == "items":
        return pa.ListArray.from_arrays(offsets, kind.array(flat), mask=missing)
    keys = pa.array([key for value in values for key in value or ()], pa.string())
    return pa.MapArray.from_arrays(offsets, keys, kind.array(flat), mask=missing)


def about_elements(
    random: Random, elements: Mapping[str, str], drawn: Sequence[Sequence[Mapping[str, list[Any]]]]
) -> Predicate:
    """A condition on lists or maps."""
    name = random.choice([*elements])
    kind, field = KINDS[elements[name]], pc.field(name)
    values = [one for value in random.choice(random.choice(drawn))[name] for one in _elements(value)]
    value, operator = drawn_literal(random, kind, values), random.choice([*COMPARISONS])
    spark, duckdb = kind.spark(value), kind.duckdb(value)
    # NaN reads as no number of Python.
    names_nan = value != value
    asked = random.choice(["null", "not null", "size", "contains", "contains", "first", "first"])
    match asked:
        case "null" | "not null":
            words = f"{name} IS {asked.upper()}"
            return Predicate(spark=words, duckdb=words, arrow=field.is_null() if asked == "null" else field.is_valid())
        case "size":
            count = random.randint(0, 2)
            length = pc.list_value_length(field) if name == "items" else None
            return Predicate(
                spark=f"size({name}) {operator} {count}",
                duckdb=f"{'len' if name == 'items' else 'cardinality'}({name}) {operator} {count}",
                arrow=None if length is None else COMPARISONS[operator](length, pa.scalar(count, pa.int32())),
            )
        case "contains":
            if name == "items":
                one = Predicate(
                    spark=f"array_contains(items, {spark})", duckdb=f"list_contains(items, {duckdb})", arrow=None
                )
            else:
                key = random.choice(_KEYS)
                one = Predicate(
                    spark=f"map_contains_key(pairs, '{key}')", duckdb=f"map_contains(pairs, '{key}')", arrow=None
                )
        case _:
            if name == "items":
                one = Predicate(
                    spark=f"items[0] {operator} {spark}", duckdb=f"items[1] {operator} {duckdb}", arrow=None
                )
            else:
                key = random.choice(_KEYS)
                found = pc.map_lookup(field, pa.scalar(key), "first")
                one = Predicate(
                    spark=f"pairs['{key}'] {operator} {spark}",
                    duckdb=f"pairs['{key}'] {operator} {duckdb}",
                    arrow=COMPARISONS[operator](found, kind.scalar(value)),
                )
    return replace(one, names_nan=names_nan)


def _elements(value: Any) -> Sequence[Any]:
    """The elements of a list, the values of a map; none of null."""
    return () if value is None else list(value.values()) if isinstance(value, dict) else value
