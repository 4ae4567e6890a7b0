# SPDX-License-Identifier: Apache-2.0
"""Column types that mean the same on SQLite and PostgreSQL, and names of constraints."""

import json
from typing import Any

from sqlalchemy import BigInteger, Dialect, Integer, MetaData, Text
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.types import TypeDecorator


class Json(TypeDecorator[Any]):
    """A small JSON document as text, compact and with sorted keys, so that equal documents are equal texts."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        """See SQLAlchemy."""
        return None if value is None else json.dumps(value, separators=(",", ":"), sort_keys=True)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        """See SQLAlchemy."""
        return None if value is None else json.loads(value)


#: 64 bits on both; SQLite numbers rows by itself only in a column declared INTEGER
RowId = BigInteger().with_variant(Integer, "sqlite")


def in_clause(column: str, values: Any) -> str:
    return f"{column} IN ({', '.join(repr(str(value)) for value in values)})"


class Base(DeclarativeBase):
    """Base of the rows; names every constraint, so that migrations can name them."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
