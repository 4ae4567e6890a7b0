# SPDX-License-Identifier: Apache-2.0
"""SQLite as this process's tests use it: many databases of one schema, and no power cut to outlive."""

import sqlite3
from typing import Any, ClassVar, Self

from sqlalchemy import Engine, event
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite


class OneDialect(SQLiteDialect_pysqlite):
    """SQLAlchemy's own, one for all engines: what was compiled for one of them need not be compiled for the next."""

    supports_statement_cache = True
    _compiled: ClassVar[dict[Any, Any]] = {}
    _one: ClassVar[Self | None] = None

    def __new__(cls, **options: Any) -> Self:
        if cls._one is None:
            cls._one = super().__new__(cls)
            SQLiteDialect_pysqlite.__init__(cls._one, **options)
        return cls._one

    def __init__(self, **options: Any) -> None:
        """Made already, with the options that every engine has."""

    @classmethod
    def engine_created(cls, engine: Engine) -> None:
        """Give an engine what others have compiled."""
        engine.update_execution_options(compiled_cache=cls._compiled)


def install() -> None:
    """From now on engines on SQLite share a dialect, and a commit does not wait for the disk, most of its time."""
    for name in ("sqlite", "sqlite.pysqlite"):
        registry.register(name, __name__, OneDialect.__name__)
    event.listen(Engine, "connect", _without_waiting_for_the_disk)


def _without_waiting_for_the_disk(connection: Any, record: Any) -> None:
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA synchronous = OFF")
