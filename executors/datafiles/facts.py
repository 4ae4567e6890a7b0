# SPDX-License-Identifier: Apache-2.0
"""What data files say about their rows: counts, and per leaf column type, nulls, smallest and largest value.

A figure that is not known, or that a writer is free to round, is inexact and is never compared.
"""

from dataclasses import dataclass, field
from decimal import Decimal
from itertools import zip_longest
from typing import Any

MASK = (1 << 64) - 1
"""Sums of hashes are sums modulo 2^64."""

FieldIds = tuple[frozenset[int | None], ...]
"""Field ids of a leaf column and of what it is nested in, from the top, each with those that it has in some file.

None stands for files in which it has none.
"""


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
        if (self.family, other.family) == ("binary", "string"):  # as Impala writes strings, with no word of their kind
            return True
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
        if self.family in ("binary", "string"):
            return other.family in ("binary", "string")
        return self == other or (self.family == other.family == "decimal" and self.detail[1] == other.detail[1])


@dataclass(slots=True)
class Leaf:
    """One leaf column over any number of files. ``nulls`` None and ``bounded`` False mean inexact.

    ``values`` is the sum of the hashes of all values, whatever their order; None where they were not read.
        Figures are those of its name. Where two files have different ``ids`` under it, these are different columns.
    """

    kinds: frozenset[LeafType]
    repeated: bool
    rows: int = 0
    nulls: int | None = 0
    bounded: bool = True
    low: Any = None
    high: Any = None
    ids: FieldIds = ()
    values: int | None = 0

    @property
    def is_null(self) -> bool | None:
        """Whether all of its values are null; None where that is not known."""
        if self.bounded:
            return self.low is None
        return None if self.nulls is None else not self.repeated and self.nulls == self.rows

    def merge(self, other: "Leaf") -> None:
        """Count the values of ``other`` in."""
        self.rows += other.rows
        self.nulls = None if self.nulls is None or other.nulls is None else self.nulls + other.nulls
        self.values = None if self.values is None or other.values is None else (self.values + other.values) & MASK
        self.bounded = self.bounded and other.bounded and self.bounds_compare_with(other)
        self.kinds |= other.kinds
        if self.ids != other.ids:
            none: frozenset[int | None] = frozenset()
            self.ids = tuple(mine | theirs for mine, theirs in zip_longest(self.ids, other.ids, fillvalue=none))
        if self.bounded and other.low is not None:
            self.low = other.low if self.low is None else min(self.low, other.low)
            self.high = other.high if self.high is None else max(self.high, other.high)

    def bounds_compare_with(self, other: "Leaf") -> bool:
        """Whether the bounds of both are of one scale."""
        return all(mine.bounds_compare_with(theirs) for mine in self.kinds for theirs in other.kinds)

    def other_ids(self, other: "Leaf") -> tuple[str, str] | None:
        """The field ids of both, for a person, where files of ``other`` can't be those of this one; else None.

        Each id that they have must be one of this one's, and each of this one's be there, unless they lack some: these
        may be those that are missing. Where one side has none there is nothing to compare.
        """
        for mine, theirs in zip(self.ids, other.ids, strict=False):
            old, new = ({number for number in ids if number is not None} for ids in (mine, theirs))
            if old and new and (new - old or (old - new and None not in theirs)):
                return " or ".join(map(str, sorted(old))), " or ".join(map(str, sorted(new)))
        return None

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


def render(kind: LeafType, bound: Any) -> str:
    """A bound for a person."""
    if bound is None:
        return "no value"
    if kind.family == "decimal":
        return str(Decimal(bound).scaleb(-int(kind.detail[1])))
    if kind.family == "string":
        return repr(bound.decode(errors="replace"))
    return repr(bound)
