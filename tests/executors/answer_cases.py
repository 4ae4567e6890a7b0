# SPDX-License-Identifier: Apache-2.0
"""Tables of random schemas and values, and conditions on them in the words of Spark, DuckDB and pyarrow.

Everything is drawn from a seed. Values are the ones on whose order readers differ or by which they skip wrongly: NaN
beside numbers in one file, one of the two zeros, empty and long strings, bytes that are not UTF-8, the first and the
last of a type. Literals of the conditions are values of the table and those just beyond a file's smallest and largest.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property, reduce
from operator import and_, or_
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

NAN, INF = float("nan"), float("inf")
#: rows of a table have numbers of their own, from ``number * IDS``
IDS = 10_000
_DAY_MICROS = 86_400_000_000
_LONG = "ab" * 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A type of column: how its values are drawn and stored, its literals, and the next value up and down."""

    arrow: pa.DataType
    draw: Callable[[Random], Any]
    spark: Callable[[Any], str]
    duckdb: Callable[[Any], str]
    next: Callable[[Any, int], Any]
    #: the type that Python's values have before they are cast
    stored: pa.DataType | None = None

    def array(self, values: Sequence[Any]) -> pa.Array:
        """Values as a column."""
        return pa.array(values, self.stored or self.arrow).cast(self.arrow)

    def scalar(self, value: Any) -> pa.Scalar:
        """A literal of pyarrow."""
        return self.array([value])[0]

    @property
    def is_float(self) -> bool:
        """Whether there is NaN among the values."""
        return bool(pa.types.is_floating(self.arrow))


def _integer(bits: int, name: str) -> Kind:
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    special = [low, low + 1, -1, 0, 1, 7, high - 1, high]
    return Kind(
        arrow=getattr(pa, f"int{bits}")(),
        draw=lambda random: random.choice([random.choice(special), random.randint(-9, 9), random.randint(low, high)]),
        spark=lambda value: f"CAST('{value}' AS {name})",
        duckdb=lambda value: f"CAST('{value}' AS {name})",
        next=lambda value, by: min(high, max(low, value + by)),
    )


def _float(bits: int, name: str) -> Kind:
    kind = {32: np.float32, 64: np.float64}[bits]
    special = [0.0, -0.0, INF, -INF, 1.0, -1.0, 100.0, 1e30, float(np.finfo(kind).tiny), float(np.finfo(kind).max)]

    def draw(random: Random) -> float:
        return float(kind(random.choice([random.choice(special), random.uniform(-100, 100), random.randint(-9, 9)])))

    def following(value: float, by: int) -> float:
        with np.errstate(over="ignore"):
            return float(np.nextafter(kind(value), kind(by * INF)))

    return Kind(
        arrow=getattr(pa, f"float{bits}")(),
        draw=draw,
        spark=lambda value: f"CAST('{value!r}' AS {name})",
        duckdb=lambda value: f"CAST('{value!r}' AS {name})",
        next=following,
    )


def _decimal(precision: int, scale: int) -> Kind:
    most = 10**precision - 1
    special = [-most, -(10**scale), -1, 0, 1, 255, 256, 10**scale, most]
    name = f"DECIMAL({precision}, {scale})"

    def of(number: int) -> Decimal:
        return Decimal((number < 0, tuple(map(int, str(abs(number)))), -scale))

    def number(value: Decimal) -> int:
        sign, digits, _ = value.as_tuple()
        return (-1 if sign else 1) * int("".join(map(str, digits)))

    return Kind(
        arrow=pa.decimal128(precision, scale),
        draw=lambda random: of(random.choice([random.choice(special), random.randint(-most, most)])),
        spark=lambda value: f"CAST('{value:f}' AS {name})",
        duckdb=lambda value: f"CAST('{value:f}' AS {name})",
        next=lambda value, by: of(min(most, max(-most, number(value) + by))),
    )


def _text(random: Random) -> str:
    letters = "abz \u00e9\u07ff\uffff\U0001f600~\x7f"
    return random.choice(
        [
            random.choice(
                ["", "a", "ab", _LONG, _LONG + "a", _LONG[:-1], "\uffff" * 40, "x" * 5000, "\U0010ffff" * 30]
            ),
            "".join(random.choice(letters) for _ in range(random.randint(0, 12))),
        ]
    )


def _raw(random: Random) -> bytes:
    special = [
        b"",
        b"\0",
        b"\x7f",
        b"\x80",
        b"\xff",
        b"\xff" * 70,
        b"\xff" * 5000,
        b"\xc3(",
        b"a" * 65,
        b"\xed\xa0\x80",
    ]
    return random.choice([random.choice(special), random.randbytes(random.randint(0, 12))])


#: days since 1970 of the first and the last date that all readers have, and some at which calendars change
_DAYS = [-719_162, -141_428, -141_427, -25_567, -1, 0, 20_541, 2_932_896]
_MOMENTS = [day * _DAY_MICROS for day in _DAYS] + [-1, 1, 253_402_300_799_999_999, 1_774_751_400_000_000]


def _days(random: Random) -> int:
    return random.choice([random.choice(_DAYS), random.randint(-25_000, 100_000)])


def _micros(random: Random) -> int:
    return random.choice([random.choice(_MOMENTS), random.randint(-25_000 * _DAY_MICROS, 80_000 * _DAY_MICROS)])


def _ordinal(arrow: pa.DataType, draw: Callable[[Random], int], stored: pa.DataType, spark: str, duckdb: str) -> Kind:
    """A type of dates or timestamps, whose values are integers here."""
    return Kind(
        arrow=arrow, draw=draw, stored=stored,
        spark=lambda value: spark.format(value),
        duckdb=lambda value: duckdb.format(value),
        next=lambda value, by: value + by,
    )  # fmt: skip


KINDS: Mapping[str, Kind] = {
    "flag": Kind(
        arrow=pa.bool_(),
        draw=lambda random: random.random() < 0.5,
        spark=lambda value: str(value).lower(),
        duckdb=lambda value: str(value).lower(),
        next=lambda value, by: by > 0,
    ),
    "tiny": _integer(8, "TINYINT"),
    "small": _integer(16, "SMALLINT"),
    "whole": _integer(32, "INT"),
    "long": _integer(64, "BIGINT"),
    "half": _float(32, "FLOAT"),
    "double": _float(64, "DOUBLE"),
    "money": _decimal(9, 2),
    "more": _decimal(18, 4),
    "most": _decimal(38, 10),
    "text": Kind(
        arrow=pa.string(),
        draw=_text,
        spark=lambda value: f"CAST(X'{value.encode().hex()}' AS STRING)",
        duckdb=lambda value: f"decode(from_hex('{value.encode().hex()}'))",
        next=lambda value, by: value + "\x01" if by > 0 else value[:-1],
    ),
    "raw": Kind(
        arrow=pa.binary(),
        draw=_raw,
        spark=lambda value: f"X'{value.hex()}'",
        duckdb=lambda value: f"from_hex('{value.hex()}')",
        next=lambda value, by: value + b"\0" if by > 0 else value[:-1],
    ),
    "day": _ordinal(pa.date32(), _days, pa.int32(), "date_from_unix_date({})", "(DATE '1970-01-01' + {})"),
    "moment": _ordinal(
        pa.timestamp("us", "UTC"), _micros, pa.int64(), "timestamp_micros({}L)", "make_timestamptz({})"
    ),
    "local": _ordinal(
        pa.timestamp("us"), _micros, pa.int64(), "CAST(timestamp_micros({}L) AS TIMESTAMP_NTZ)", "make_timestamp({})"
    ),
}  # fmt: skip
_FLOATS = ("double", "half")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Predicate:
    """A condition on a row, as each reader is asked it.

    pyarrow is not asked about a literal NaN: it skips wrongly then (``NOT d < NaN``), whoever wrote a file.
    """

    spark: str
    duckdb: str
    arrow: pc.Expression
    names_nan: bool = False

    def __repr__(self) -> str:
        return self.spark


@dataclass(frozen=True, eq=False, kw_only=True)
class Batch:
    """Tables of one schema, each in some files, and conditions on all of them.

    ``columns`` names the kind of each column; those of ``part`` are fields of a struct.
    """

    columns: Mapping[str, str]
    tables: Sequence[Sequence[pa.Table]]
    predicates: Sequence[Predicate]

    @cached_property
    def rows(self) -> pa.Table:
        """All rows of all tables."""
        return pa.concat_tables(file for files in self.tables for file in files)


def batch(seed: int, *, tables: int, predicates: int, columns: int = 7, without: Sequence[str] = ()) -> Batch:
    """A batch drawn from ``seed`` with ``columns`` columns, some of them floating-point, none of kinds ``without``."""
    random = Random(seed)
    others = [name for name in KINDS if name not in (*_FLOATS, *without)]
    chosen = [*_FLOATS, *random.sample(others, columns - len(_FLOATS) - 2)]
    nested = [random.choice(_FLOATS), random.choice(chosen[len(_FLOATS) :])]
    kinds = {name: name for name in chosen} | {f"part.{name}": name for name in nested}
    drawn = [
        [{column: _column(random, KINDS[kind], rows) for column, kind in kinds.items()} for rows in sizes]
        for sizes in ([random.choice([1, 2, 3, 8, 30]) for _ in range(random.choice([2, 2, 3]))] for _ in range(tables))
    ]
    return Batch(
        columns=kinds,
        tables=[
            [
                _file(values, kinds, number * IDS + sum(len(one["double"]) for one in files[:index]))
                for index, values in enumerate(files)
            ]
            for number, files in enumerate(drawn)
        ],
        predicates=[_predicate(random, kinds, drawn) for _ in range(predicates)],
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


def _file(values: Mapping[str, list[Any]], kinds: Mapping[str, str], first: int) -> pa.Table:
    rows = len(values["double"])
    flat = {name: KINDS[kind].array(values[name]) for name, kind in kinds.items() if "." not in name}
    fields = {name: KINDS[kind].array(values[name]) for name, kind in kinds.items() if "." in name}
    parts = pa.StructArray.from_arrays(
        list(fields.values()),
        names=[name.removeprefix("part.") for name in fields],
        mask=pa.array([number % 7 == 3 for number in range(rows)]),
    )
    return pa.table({"id": pa.array(range(first, first + rows), pa.int64()), **flat, "part": parts})


def _predicate(
    random: Random, kinds: Mapping[str, str], drawn: Sequence[Sequence[Mapping[str, list[Any]]]]
) -> Predicate:
    one = _simple(random, kinds, drawn)
    match random.randrange(10):
        case 0:
            return replace(one, spark=f"NOT ({one.spark})", duckdb=f"NOT ({one.duckdb})", arrow=~one.arrow)
        case 1 | 2:
            return _pair("AND", and_, one, _simple(random, kinds, drawn))
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


_COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "=": lambda one, other: one == other,
    "!=": lambda one, other: one != other,
    "<": lambda one, other: one < other,
    "<=": lambda one, other: one <= other,
    ">": lambda one, other: one > other,
    ">=": lambda one, other: one >= other,
}


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
        literals.append(_literal(random, kind, random.choice(random.choice(drawn))[column]))
        return literals[-1]

    operators = [*_COMPARISONS, *_COMPARISONS, "<=>", "in", "not in", "between", "null", "not null"]
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
        spark=f"{column} {operator} {kind.spark(value)}",
        duckdb=f"{column} {operator} {kind.duckdb(value)}",
        arrow=_COMPARISONS[operator](field, kind.scalar(value)),
    )


def _literal(random: Random, kind: Kind, values: Sequence[Any]) -> Any:
    """A value of one file's column, one just beyond its bounds, or any other."""
    known = [value for value in values if value is not None]
    numbers = [value for value in known if not (kind.is_float and math.isnan(value))]
    way = random.random()
    if kind.is_float and way < 0.15:
        return random.choice([0.0, -0.0, NAN])
    if numbers and way < 0.5:
        by = random.choice([1, -1])
        return kind.next(max(numbers) if by > 0 else min(numbers), by)
    if known and way < 0.9:
        return random.choice(known)
    return kind.draw(random)
