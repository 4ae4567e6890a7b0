# SPDX-License-Identifier: Apache-2.0
"""Statistics of data files: the row count, and for each leaf column its type, nulls, smallest and largest value.

A figure that is not known, or that a writer may round, is inexact and is never compared.
"""

from dataclasses import dataclass, field
from decimal import Decimal
from itertools import zip_longest
from typing import Any

MASK = (1 << 64) - 1
"""Sums of hashes are taken modulo 2^64."""

FieldIds = tuple[frozenset[int | None], ...]
"""The field ids of a leaf column and of its parents, from the top.

Each entry has the ids that the files have for this level; None stands for files without an id.
"""


@dataclass(frozen=True, slots=True)
class LeafType:
    """The meaning of a leaf column's values, independent of their encoding.

    ``family`` groups types whose bounds compare with each other; ``detail`` holds width, scale or unit.
    """

    family: str
    detail: tuple[int | str, ...] = ()

    def __str__(self) -> str:
        return f"{self.family}({', '.join(str(d) for d in self.detail)})" if self.detail else self.family

    def can_widen_to(self, other: "LeafType") -> bool:
        """True if every value of this type is the same value in ``other``."""
        if self == other:
            return True
        if self.family == other.family in ("int", "float"):
            return self.detail <= other.detail
        if (self.family, other.family) == ("binary", "string"):  # Impala writes strings without an annotation
            return True
        if self.family == other.family == "decimal":
            return self.detail[1] == other.detail[1] and self.detail[0] <= other.detail[0]  # type: ignore[operator]
        if self.family == other.family == "timestamp":
            order = ("ms", "us", "ns")
            return self.detail[1] == other.detail[1] and order.index(str(self.detail[0])) <= order.index(
                str(other.detail[0])
            )
        return self.family == "int" and other == LeafType("float", (64,)) and self.detail <= (32,)

    def has_comparable_bounds(self, other: "LeafType") -> bool:
        """True if the bounds of both types, as this module stores them, are numbers or bytes of one scale."""
        if self.family in ("int", "float"):
            return other.family in ("int", "float")
        if self.family in ("binary", "string"):
            return other.family in ("binary", "string")
        return self == other or (self.family == other.family == "decimal" and self.detail[1] == other.detail[1])


@dataclass(slots=True)
class LeafStatistics:
    """The statistics of one leaf column over any number of files.

    ``null_count`` is None, and ``has_exact_bounds`` is False, if the figure is inexact. ``hash_sum`` is the sum of the
    hashes of all values, independent of their order; None if the values were not read. Figures are collected by the
    column's name. But if two files have different ``field_ids`` for a name, these are different columns.
    """

    types: frozenset[LeafType]
    is_repeated: bool
    rows: int = 0
    null_count: int | None = 0
    has_exact_bounds: bool = True
    minimum: Any = None
    maximum: Any = None
    field_ids: FieldIds = ()
    hash_sum: int | None = 0

    @property
    def is_all_null(self) -> bool | None:
        """True if all values are null. None if that is not known."""
        if self.has_exact_bounds:
            return self.minimum is None
        return None if self.null_count is None else not self.is_repeated and self.null_count == self.rows

    def merge(self, other: "LeafStatistics") -> None:
        """Add the values of ``other``."""
        self.rows += other.rows
        self.null_count = (
            None if self.null_count is None or other.null_count is None else self.null_count + other.null_count
        )
        self.hash_sum = (
            None if self.hash_sum is None or other.hash_sum is None else (self.hash_sum + other.hash_sum) & MASK
        )
        self.has_exact_bounds = self.has_exact_bounds and other.has_exact_bounds and self.has_comparable_bounds(other)
        self.types |= other.types
        if self.field_ids != other.field_ids:
            none: frozenset[int | None] = frozenset()
            self.field_ids = tuple(
                mine | theirs for mine, theirs in zip_longest(self.field_ids, other.field_ids, fillvalue=none)
            )
        if self.has_exact_bounds and other.minimum is not None:
            self.minimum = other.minimum if self.minimum is None else min(self.minimum, other.minimum)
            self.maximum = other.maximum if self.maximum is None else max(self.maximum, other.maximum)

    def has_comparable_bounds(self, other: "LeafStatistics") -> bool:
        """True if the bounds of both are of one scale."""
        return all(mine.has_comparable_bounds(theirs) for mine in self.types for theirs in other.types)

    def conflicting_field_ids(self, other: "LeafStatistics") -> tuple[str, str] | None:
        """Return the field ids of both columns as text if the name means another column in files of ``other``.

        Returns None if it means the same column. Each id of ``other`` must be one of this column's ids. Each id of this
        column must be in ``other``, unless some files of ``other`` have no ids. If one side has no ids at all, there is
        no conflict.
        """
        for mine, theirs in zip(self.field_ids, other.field_ids, strict=False):
            old, new = ({number for number in ids if number is not None} for ids in (mine, theirs))
            if old and new and (new - old or (old - new and None not in theirs)):
                return " or ".join(map(str, sorted(old))), " or ".join(map(str, sorted(new)))
        return None

    def add_absent_rows(self, rows: int) -> None:
        """Add ``rows`` of a file that was written before this column existed, which read as nulls."""
        self.rows += rows
        if self.is_repeated and rows:
            self.null_count = None
        elif self.null_count is not None:
            self.null_count += rows


@dataclass(slots=True)
class FileStatistics:
    """The statistics of some files together."""

    rows: int = 0
    leaves: dict[str, LeafStatistics] = field(default_factory=dict)

    def merge(self, other: "FileStatistics") -> None:
        """Add the statistics of other files; a column that one side lacks is all null there."""
        for path, leaf in other.leaves.items():
            mine = self.leaves.get(path)
            if mine is None:
                self.leaves[path] = mine = LeafStatistics(leaf.types, leaf.is_repeated)
                mine.add_absent_rows(self.rows)
            mine.merge(leaf)
        for path, mine in self.leaves.items():
            if path not in other.leaves:
                mine.add_absent_rows(other.rows)
        self.rows += other.rows


def render_bound(kind: LeafType, bound: Any) -> str:
    """Return a bound as text."""
    if bound is None:
        return "no value"
    if kind.family == "decimal":
        return str(Decimal(bound).scaleb(-int(kind.detail[1])))
    if kind.family == "string":
        return repr(bound.decode(errors="replace"))
    return repr(bound)
