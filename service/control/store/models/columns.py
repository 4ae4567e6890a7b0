# SPDX-License-Identifier: Apache-2.0
"""Column types that mean the same on SQLite and PostgreSQL, and names of constraints."""

import json
from typing import Any

from sqlalchemy import BigInteger, Dialect, Index, Integer, MetaData, String, Text, text
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.types import TypeDecorator

from lake.plan import Step


class Json(TypeDecorator[Any]):
    """A small JSON document, stored as compact text with sorted keys, so that equal documents have equal texts."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        """See SQLAlchemy."""
        return None if value is None else json.dumps(value, separators=(",", ":"), sort_keys=True)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        """See SQLAlchemy."""
        return None if value is None else json.loads(value)


#: step → its name in the database; an earlier release that uses the same database can read this name
_STORED_STEPS = {Step.FIND_COMMIT.value: "ask", Step.VERIFY.value: "receipt"}
_STEPS = {stored: step for step, stored in _STORED_STEPS.items()}


class StepName(TypeDecorator[str]):
    """A step of a plan's run, stored under the name that earlier releases use."""

    impl = String
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """See SQLAlchemy."""
        return None if value is None else _STORED_STEPS.get(value, value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        """See SQLAlchemy."""
        return None if value is None else _STEPS.get(value, value)


class StepTimes(Json):
    """The duration of each step, stored under the names that earlier releases use."""

    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        """See SQLAlchemy."""
        named = None if value is None else {_STORED_STEPS.get(step, step): took for step, took in value.items()}
        return super().process_bind_param(named, dialect)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        """See SQLAlchemy."""
        found = super().process_result_value(value, dialect)
        return None if found is None else {_STEPS.get(step, step): took for step, took in found.items()}


#: 64 bits on both databases; SQLite numbers rows by itself only in a column declared INTEGER
RowId = BigInteger().with_variant(Integer, "sqlite")


def in_clause(column: str, values: Any) -> str:
    """Return the SQL condition that ``column`` has one of ``values``. The values are quoted but not escaped."""
    return f"{column} IN ({', '.join(repr(str(value)) for value in values)})"


def partial_index(name: str, *columns: str, where: str, unique: bool = False) -> Index:
    """Return an index of the rows for which the condition holds."""
    return Index(name, *columns, unique=unique, sqlite_where=text(where), postgresql_where=text(where))


class Base(DeclarativeBase):
    """Base class of the rows. Gives every constraint a name, so that migrations can refer to it."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
