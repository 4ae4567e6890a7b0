# SPDX-License-Identifier: Apache-2.0
"""The types of columns whose values are drawn, and conditions in the words of Spark, DuckDB and pyarrow."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from operator import eq, ge, gt, le, lt, ne
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

NAN, INF = float("nan"), float("inf")
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
        arrow=arrow,
        draw=draw,
        stored=stored,
        spark=lambda value: spark.format(value),
        duckdb=lambda value: duckdb.format(value),
        next=lambda value, by: value + by,
    )


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
    "moment": _ordinal(pa.timestamp("us", "UTC"), _micros, pa.int64(), "timestamp_micros({}L)", "make_timestamptz({})"),
    "local": _ordinal(
        pa.timestamp("us"), _micros, pa.int64(), "CAST(timestamp_micros({}L) AS TIMESTAMP_NTZ)", "make_timestamp({})"
    ),
}
FLOATS = ("double", "half")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A column that is no field of a struct, one of ``=``, ``!=``, ``<``, ``<=``, ``>``, ``>=``, ``in``, and values."""

    column: str
    operator: str
    values: Sequence[Any]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Predicate:
    """A condition on a row, as each reader is asked it; None where pyarrow has no words for it.

    ``compared`` is the same as comparisons that all hold, for a reader that knows nothing else; None where it is none.
    """

    spark: str
    duckdb: str
    arrow: pc.Expression | None
    names_nan: bool = False
    compared: Sequence[Comparison] | None = None

    @property
    def is_for_pyarrow(self) -> bool:
        """Whether pyarrow is asked; not about NaN, by which it skips wrongly in any file (``NOT d < NaN``)."""
        return self.arrow is not None and not self.names_nan

    def __repr__(self) -> str:
        return self.spark


COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {"=": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}


def drawn_literal(random: Random, kind: Kind, values: Sequence[Any]) -> Any:
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
