# SPDX-License-Identifier: Apache-2.0
"""The tables that a caller may see, by patterns of their names; evaluated alike by Python and by the database."""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sqlalchemy import ColumnElement, false, or_, true

#: characters not allowed in a pattern, since SQLite, PostgreSQL and shells treat them differently
_UNPORTABLE = re.compile(r"[\[\]\x00]")


@dataclass(frozen=True)
class TableScope:
    """Table names that match one of ``patterns``, in which ``*`` is any text and ``?`` is one character.

    ``patterns`` is None for all tables.
    """

    patterns: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for pattern in self.patterns or ():
            if not pattern or _UNPORTABLE.search(pattern):
                raise ValueError(f"{pattern!r} is not a pattern for table names; use letters of names, * and ?")

    @property
    def is_unrestricted(self) -> bool:
        """True if the scope has every table, and records that belong to no table."""
        return self.patterns is None

    @property
    def text(self) -> str:
        """The scope in words, for a sentence."""
        return "all tables" if self.patterns is None else ", ".join(self.patterns)

    def has_table(self, name: str | None) -> bool:
        """Return True if the table ``name`` is in the scope. None, no table, is only in the scope of all tables."""
        if self.patterns is None:
            return True
        return name is not None and self._expression.fullmatch(name) is not None

    def sql_condition(self, column: Any, dialect: str) -> ColumnElement[bool]:
        """Return ``has_table`` of the name in ``column`` as an SQL condition."""
        if self.patterns is None:
            return true()
        if dialect == "postgresql":
            return or_(false(), *(column.like(_like_pattern(pattern), escape="\\") for pattern in self.patterns))
        return or_(false(), *(column.op("GLOB")(pattern) for pattern in self.patterns))

    @cached_property
    def _expression(self) -> re.Pattern[str]:
        parts = (re.escape(p).replace(r"\*", ".*").replace(r"\?", ".") for p in self.patterns or ())
        return re.compile("|".join(f"(?:{part})" for part in parts) or "(?!)", re.DOTALL)


#: the scope with all tables
UNRESTRICTED = TableScope()


def _like_pattern(pattern: str) -> str:
    kept = re.sub(r"([\\%_])", r"\\\1", pattern)
    return kept.replace("*", "%").replace("?", "_")
