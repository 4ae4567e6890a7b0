# SPDX-License-Identifier: Apache-2.0
"""Tables of random schemas and values, and conditions on them in the words of Spark, DuckDB and pyarrow.

Everything is drawn from a seed. Values are the ones on whose order readers differ or by which they skip wrongly: NaN
beside numbers in one file, one of the two zeros, empty and long strings, bytes that are not UTF-8, the first and the
last of a type; alone, in a struct, in lists and in maps. Literals of the conditions are values of the table and those
just beyond a file's smallest and largest.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import and_, or_
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from answers.elements import about_elements, array_of, collections_of
from answers.kinds import COMPARISONS, FLOATS, KINDS, NAN, Comparison, Kind, Predicate, drawn_literal

#: rows of a table have numbers of their own, from ``number * IDS``
IDS = 10_000


@dataclass(frozen=True, eq=False, kw_only=True)
class Batch:
    """Tables of one schema, each in some files, and conditions on all of them.

    ``columns`` names the kind of each column; those of ``part`` are fields of a struct. ``elements`` names that of the
    elements of the list ``items`` and of the values of the map ``pairs``.
    """

    columns: Mapping[str, str]
    elements: Mapping[str, str]
    tables: Sequence[Sequence[pa.Table]]
    predicates: Sequence[Predicate]

    @cached_property
    def rows(self) -> pa.Table:
        """All rows of all tables."""
        return pa.concat_tables(file for files in self.tables for file in files)


def batch(seed: int, *, tables: int, predicates: int, columns: int = 7, without: Sequence[str] = ()) -> Batch:
    """A batch drawn from ``seed`` with ``columns`` columns, some of them floating-point, none of kinds ``without``.

    Every fifth condition is on the elements of a list or a map, which are two columns more.
    """
    random = Random(seed)
    others = [name for name in KINDS if name not in (*FLOATS, *without)]
    chosen = [*FLOATS, *random.sample(others, columns - len(FLOATS) - 2)]
    nested = [random.choice(FLOATS), random.choice(chosen[len(FLOATS) :])]
    kinds = {name: name for name in chosen} | {f"part.{name}": name for name in nested}
    elements = {"items": random.choice([*FLOATS, *others]), "pairs": random.choice([*FLOATS, *others])}
    drawn = [
        [
            {column: _column(random, KINDS[kind], rows) for column, kind in kinds.items()}
            | {name: collections_of(random, name, KINDS[kind], rows) for name, kind in elements.items()}
            for rows in sizes
        ]
        for sizes in ([random.choice([1, 2, 3, 8, 30]) for _ in range(random.choice([2, 2, 3]))] for _ in range(tables))
    ]
    return Batch(
        columns=kinds,
        elements=elements,
        tables=[
            [
                _file(values, kinds, elements, number * IDS + sum(len(one["double"]) for one in files[:index]))
                for index, values in enumerate(files)
            ]
            for number, files in enumerate(drawn)
        ],
        predicates=[
            about_elements(random, elements, drawn) if number % 5 == 4 else _predicate(random, kinds, drawn)
            for number in range(predicates)
        ],
    )


def _column(random: Random, kind: Kind, rows: int) -> list[Any]:
    """Values of a column of one file: few different ones, so that files differ in what they can be skipped by."""
    pool = [kind.draw(random) for _ in range(random.choice([1, 1, 2, 3, 6]))]
    if kind.is_float:
        mood = random.random()
        if mood < 0.3:
            # Numbers of one small range, NaN among them and no bound but the numbers'.
            pool = [float(random.randint(-5, 5)) for _ in range(random.choice([1, 2, 3]))] + [NAN]
        elif mood < 0.5:
            pool = [random.choice([0.0, -0.0]), *([] if mood < 0.4 else [NAN, random.choice([-1.0, 5.0])])]
    if random.random() < 0.3:
        pool.append(None)
    if random.random() < 0.04:
        pool = [None]
    values = [pool[row % len(pool)] for row in range(rows)]
    random.shuffle(values)
    return values


def _file(
    values: Mapping[str, list[Any]], kinds: Mapping[str, str], elements: Mapping[str, str], first: int
) -> pa.Table:
    rows = len(values["double"])
    flat = {name: KINDS[kind].array(values[name]) for name, kind in kinds.items() if "." not in name}
    fields = {name: KINDS[kind].array(values[name]) for name, kind in kinds.items() if "." in name}
    parts = pa.StructArray.from_arrays(
        list(fields.values()),
        names=[name.removeprefix("part.") for name in fields],
        mask=pa.array([number % 7 == 3 for number in range(rows)]),
    )
    several = {name: array_of(name, KINDS[kind], values[name]) for name, kind in elements.items()}
    return pa.table({"id": pa.array(range(first, first + rows), pa.int64()), **flat, "part": parts, **several})


def _predicate(
    random: Random, kinds: Mapping[str, str], drawn: Sequence[Sequence[Mapping[str, list[Any]]]]
) -> Predicate:
    one = _simple(random, kinds, drawn)
    match random.randrange(10):
        case 0:
            return replace(
                one, spark=f"NOT ({one.spark})", duckdb=f"NOT ({one.duckdb})", arrow=~one.arrow, compared=None
            )
        case 1 | 2:
            other = _simple(random, kinds, drawn)
            both = None if one.compared is None or other.compared is None else (*one.compared, *other.compared)
            return replace(_pair("AND", and_, one, other), compared=both)
        case 3:
            return _pair("OR", or_, one, _simple(random, kinds, drawn))
    return one


def _pair(word: str, join: Callable[[Any, Any], Any], one: Predicate, other: Predicate) -> Predicate:
    return Predicate(
        spark=f"({one.spark}) {word} ({other.spark})",
        duckdb=f"({one.duckdb}) {word} ({other.duckdb})",
        arrow=join(one.arrow, other.arrow),
        names_nan=one.names_nan or other.names_nan,
    )


def _simple(random: Random, kinds: Mapping[str, str], drawn: Sequence[Sequence[Mapping[str, list[Any]]]]) -> Predicate:
    """A condition on one column."""
    literals: list[Any] = []
    found = _about(random, kinds, drawn, literals)
    return replace(found, names_nan=any(isinstance(value, float) and math.isnan(value) for value in literals))


def _about(
    random: Random,
    kinds: Mapping[str, str],
    drawn: Sequence[Sequence[Mapping[str, list[Any]]]],
    literals: list[Any],
) -> Predicate:
    column = random.choice([*kinds, *(name for name, kind in kinds.items() if KINDS[kind].is_float)])
    kind, field = KINDS[kinds[column]], pc.field(*column.split("."))

    def literal() -> Any:
        literals.append(drawn_literal(random, kind, random.choice(random.choice(drawn))[column]))
        return literals[-1]

    def compared(*told: tuple[str, Sequence[Any]]) -> Sequence[Comparison] | None:
        return None if "." in column else [Comparison(column=column, operator=op, values=some) for op, some in told]

    operators = [*COMPARISONS, *COMPARISONS, "<=>", "in", "not in", "between", "null", "not null"]
    operators += ["nan", "not nan"] * kind.is_float + ["prefix", "like"] * (kinds[column] == "text")
    operator = random.choice(operators)
    match operator:
        case "null" | "not null":
            words = f"{column} IS {operator.upper()}"
            return Predicate(
                spark=words, duckdb=words, arrow=field.is_null() if operator == "null" else field.is_valid()
            )
        case "nan" | "not nan":
            spark, duckdb, arrow = f"isnan({column})", f"coalesce(isnan({column}), false)", pc.is_nan(field)
            if operator == "nan":
                return Predicate(spark=spark, duckdb=duckdb, arrow=arrow)
            return Predicate(spark=f"NOT {spark}", duckdb=f"NOT {duckdb}", arrow=~arrow)
        case "prefix" | "like":
            start = literal()[: random.randint(0, 70)]
            words = "startswith({}, {})" if operator == "prefix" else "{} LIKE concat({}, '%')"
            return Predicate(
                spark=words.format(column, kind.spark(start)),
                duckdb=words.replace("startswith", "starts_with").format(column, kind.duckdb(start)),
                arrow=pc.starts_with(field, start),
            )
        case "between":
            low, high = literal(), literal()
            return Predicate(
                compared=compared((">=", [low]), ("<=", [high])),
                spark=f"{column} BETWEEN {kind.spark(low)} AND {kind.spark(high)}",
                duckdb=f"{column} BETWEEN {kind.duckdb(low)} AND {kind.duckdb(high)}",
                arrow=(field >= kind.scalar(low)) & (field <= kind.scalar(high)),
            )
        case "in" | "not in":
            # From ten values on Spark hands a list to the files as a range.
            values = [literal() for _ in range(random.choice([1, 2, 3, 11]))]
            spark, duckdb = (", ".join(map(words, values)) for words in (kind.spark, kind.duckdb))
            equal = reduce(or_, [field == kind.scalar(value) for value in values])
            return Predicate(
                compared=compared(("in", values)) if operator == "in" else None,
                spark=f"{column} {operator.upper()} ({spark})",
                duckdb=f"{column} {operator.upper()} ({duckdb})",
                arrow=equal if operator == "in" else ~equal,
            )
        case "<=>":
            value = literal()
            return Predicate(
                spark=f"{column} <=> {kind.spark(value)}",
                duckdb=f"{column} IS NOT DISTINCT FROM {kind.duckdb(value)}",
                arrow=(field == kind.scalar(value)) & field.is_valid(),
            )
    value = literal()
    return Predicate(
        compared=compared((operator, [value])),
        spark=f"{column} {operator} {kind.spark(value)}",
        duckdb=f"{column} {operator} {kind.duckdb(value)}",
        arrow=COMPARISONS[operator](field, kind.scalar(value)),
    )
