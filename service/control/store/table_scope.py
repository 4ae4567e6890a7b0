# SPDX-License-Identifier: Apache-2.0
"""The tables that a caller may see, selected by patterns of their names.

Python and the database evaluate a pattern in the same way.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sqlalchemy import ColumnElement, false, or_, true

#: characters that are not allowed in a pattern, because SQLite, PostgreSQL and shells treat them differently
_UNPORTABLE = re.compile(r"[\[\]\x00]")


@dataclass(frozen=True)
class TableScope:
    """The tables whose names match one of ``patterns``; all tables if None.

    In a pattern, ``*`` is any text and ``?`` is any character.
    """

    patterns: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for pattern in self.patterns or ():
            if not pattern or _UNPORTABLE.search(pattern):
                raise ValueError(f"{pattern!r} is not a pattern for table names; use parts of names, * and ?")

    @property
    def is_unrestricted(self) -> bool:
        """True if the scope includes every table, and the records that belong to no table."""
        return self.patterns is None

    @property
    def text(self) -> str:
        """The scope as text for a sentence."""
        return "all tables" if self.patterns is None else ", ".join(self.patterns)

    def has_table(self, name: str | None) -> bool:
        """Return True if the table ``name`` is in the scope. None, for no table, is only in the unrestricted scope."""
        if self.patterns is None:
            return True
        return name is not None and self._expression.fullmatch(name) is not None

    def sql_condition(self, column: Any, dialect: str) -> ColumnElement[bool]:
        """Return the SQL condition that the table whose name is in ``column`` is in the scope."""
        if self.patterns is None:
            return true()
        if dialect == "postgresql":
            return or_(false(), *(column.like(_like_pattern(pattern), escape="\\") for pattern in self.patterns))
        return or_(false(), *(column.op("GLOB")(pattern) for pattern in self.patterns))

    @cached_property
    def _expression(self) -> re.Pattern[str]:
        parts = (re.escape(p).replace(r"\*", ".*").replace(r"\?", ".") for p in self.patterns or ())
        return re.compile("|".join(f"(?:{part})" for part in parts) or "(?!)", re.DOTALL)


#: the scope of all tables
UNRESTRICTED = TableScope()


def _like_pattern(pattern: str) -> str:
    kept = re.sub(r"([\\%_])", r"\\\1", pattern)
    return kept.replace("*", "%").replace("?", "_")
