# SPDX-License-Identifier: Apache-2.0
"""The database's clock in SQL, and its milliseconds as datetimes and back.

Leases, backoff, retention and leaders compare with this clock only: the hosts of executors may disagree.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import BigInteger
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class db_now(FunctionElement[int]):  # noqa: N801 - reads as the SQL function it stands for
    """Milliseconds since 1970 in UTC as the database sees them when the statement runs."""

    type = BigInteger()
    inherit_cache = True
    name = "db_now"


@compiles(db_now, "sqlite")
def _sqlite_now(element: db_now, compiler: SQLCompiler, **kw: Any) -> str:
    # 2440587.5 is 1970-01-01 as a Julian day; a double holds today's to 40 microseconds.
    return "CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)"


@compiles(db_now, "postgresql")
def _postgresql_now(element: db_now, compiler: SQLCompiler, **kw: Any) -> str:
    # Not now(), which stands still from the transaction's start, however long it waited for a lock since. Inside a
    # subquery it is worked out once a statement, so that an index can serve the comparison.
    return "(SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT))"


def timedelta_to_ms(span: timedelta) -> int:
    """``span`` in whole milliseconds."""
    return span // timedelta(milliseconds=1)


def datetime_to_ms(moment: datetime) -> int:
    """A timezone-aware moment as the database keeps it."""
    return timedelta_to_ms(moment - _EPOCH)


def datetime_from_ms(ms: int) -> datetime:
    """What the database keeps as a moment in UTC."""
    return _EPOCH + timedelta(milliseconds=ms)


def optional_datetime_from_ms(ms: int | None) -> datetime | None:
    """``moment`` where there is one."""
    return None if ms is None else datetime_from_ms(ms)
