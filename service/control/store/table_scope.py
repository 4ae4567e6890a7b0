# SPDX-License-Identifier: Apache-2.0
"""The tables that somebody may see, by patterns of their names: told by Python and by the database alike."""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sqlalchemy import ColumnElement, false, or_, true

#: what a pattern may not have, since SQLite, PostgreSQL and shells take it differently
_UNPORTABLE = re.compile(r"[\[\]\x00]")


@dataclass(frozen=True)
class TableScope:
    """Names that match one of ``patterns``, in which ``*`` stands for anything and ``?`` for one character.

    All tables where ``patterns`` is None.
    """

    patterns: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for pattern in self.patterns or ():
            if not pattern or _UNPORTABLE.search(pattern):
                raise ValueError(f"{pattern!r} is not a pattern for table names; use letters of names, * and ?")

    @property
    def is_unrestricted(self) -> bool:
        """Whether that is every table, and what is of no table."""
        return self.patterns is None

    @property
    def text(self) -> str:
        """The tables, for a sentence."""
        return "all tables" if self.patterns is None else ", ".join(self.patterns)

    def has_table(self, name: str | None) -> bool:
        """Whether the table ``name`` is among them; what is of no table, None, only where all tables are."""
        if self.patterns is None:
            return True
        return name is not None and self._expression.fullmatch(name) is not None

    def sql_condition(self, column: Any, dialect: str) -> ColumnElement[bool]:
        """``sees`` of a name in ``column``, for a query."""
        if self.patterns is None:
            return true()
        if dialect == "postgresql":
            return or_(false(), *(column.like(_like_pattern(pattern), escape="\\") for pattern in self.patterns))
        return or_(false(), *(column.op("GLOB")(pattern) for pattern in self.patterns))

    @cached_property
    def _expression(self) -> re.Pattern[str]:
        parts = (re.escape(p).replace(r"\*", ".*").replace(r"\?", ".") for p in self.patterns or ())
        return re.compile("|".join(f"(?:{part})" for part in parts) or "(?!)", re.DOTALL)


#: of whoever may see all
UNRESTRICTED = TableScope()


def _like_pattern(pattern: str) -> str:
    kept = re.sub(r"([\\%_])", r"\\\1", pattern)
    return kept.replace("*", "%").replace("?", "_")
