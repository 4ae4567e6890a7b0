# SPDX-License-Identifier: Apache-2.0
"""Access to SQLite and PostgreSQL: connections, transactions, and the translation of database errors."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import URL, BigInteger, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from service.control.store.errors import ConstraintViolated, DatabaseUnreachable, SchemaMismatch, StoreError
from service.control.store.sqlite_file import SqliteFile

logger = logging.getLogger(__name__)

URL_SETTING = "database.url"
UPGRADE_HINT = "run: lakefold db upgrade"
#: how long a transaction waits for a lock, and a caller for a connection; lakefold's own transactions are shorter
LOCK_WAIT_SECONDS = 15
#: the transaction of a stopped process ends after this time, before processes that wait for its locks give up
_IDLE_TRANSACTION_SECONDS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionTimeouts:
    """Time limits for PostgreSQL: for a connection, for a statement, and for any response.

    This process enforces the last limit itself. TCP timeouts are not enough, because the kernel of a stopped server, or
    a proxy in front of it, still acknowledges packets.
    """

    connect_seconds: int = 10
    statement_seconds: int = 30
    response_seconds: float = 35.0


DEFAULT_TIMEOUTS = ConnectionTimeouts()
#: time limits of heartbeats: two attempts fit into a lease of the default length
HEARTBEAT_TIMEOUTS = ConnectionTimeouts(connect_seconds=5, statement_seconds=10, response_seconds=12.0)
#: the kernel closes a connection whose other end is silent for this time
_TCP_TIMEOUT_SECONDS = 10
_SECRET_PARAMETERS = frozenset({"password", "passfile", "sslpassword", "sslkey"})
#: the SQLSTATEs of a missing table and of a missing column
_MISSING_STATES = frozenset({"42P01", "42703"})
_MISSING_TEXTS = ("no such table", "no such column", "has no column named")


def parse_url(text: str) -> URL:
    """Return ``text`` as the URL of a supported database. Raises StoreError with a message of one line."""
    try:
        url = make_url(text)
    except ArgumentError as error:
        raise StoreError(
            f"{URL_SETTING} is not a database URL; write sqlite:////path/to/file or postgresql+psycopg://user@host/name"
        ) from error
    if url.get_backend_name() == "postgresql":
        return url.set(drivername="postgresql+psycopg")
    if url.get_backend_name() != "sqlite":
        raise StoreError(f"{URL_SETTING}: lakefold works with sqlite and postgresql, not with {url.get_backend_name()}")
    if not url.database or url.database == ":memory:":
        raise StoreError(
            f"{URL_SETTING}: SQLite needs a file that all threads and processes share: sqlite:////path/to/file"
        )
    return url


def redacted_url(url: URL) -> str:
    """Return ``url`` without secrets."""
    return url.difference_update_query(sorted(_SECRET_PARAMETERS)).render_as_string()


class DatabaseObserver:
    """Base class of observers of database calls; does nothing itself. Implementations are thread-safe and fast."""

    def call_succeeded(self, began: float) -> None:
        """A transaction that began at ``began`` (seconds, monotonic) ended without a database error."""

    def call_failed(self, error: StoreError) -> None:
        """A transaction ended with a database error."""


class Database:
    """Connections to one database. Thread-safe; connects at the first use."""

    def __init__(self, url: str) -> None:
        self.observer = DatabaseObserver()
        self.url = parse_url(url)
        self.display_url = redacted_url(self.url)
        self.dialect = self.url.get_backend_name()
        #: None unless it is SQLite
        self.sqlite_file = SqliteFile(Path(self.url.database or ""), URL_SETTING) if self.dialect == "sqlite" else None
        self._engine = self._create_engine(DEFAULT_TIMEOUTS)
        self._writer = self._engine.execution_options(lakefold_write=True)
        # A pool of its own without a limit, so that a lease is renewed even while other calls hang.
        self._urgent_writer = self._create_engine(HEARTBEAT_TIMEOUTS, pool_size=1, max_overflow=-1).execution_options(
            lakefold_write=True
        )
        self._sqlite_lock = threading.Lock()
        self._reader = self._engine
        if self.dialect == "postgresql":
            self._reader = self._engine.execution_options(
                isolation_level="REPEATABLE READ", postgresql_readonly=True
            )  # all queries of a transaction see the same snapshot, as they do on SQLite

    def _create_engine(self, timeouts: ConnectionTimeouts | None, **pool: int) -> Engine:
        if self.sqlite_file is not None:
            return _sqlite_engine(self.url, self.sqlite_file, pool_timeout=LOCK_WAIT_SECONDS, **pool)
        return _postgresql_engine(self.url, timeouts, pool_timeout=LOCK_WAIT_SECONDS, **pool)

    def check_file(self) -> None:
        """Raise DatabaseUnreachable or DatabaseReplaced if the SQLite file is not the one that was opened."""
        if self.sqlite_file is not None:
            self.sqlite_file.check()

    def _checked(self, engine: Engine) -> Engine:
        """Return ``engine``. Raises as ``check_file`` does."""
        self.check_file()
        return engine

    @contextmanager
    def write(self, *, urgent: bool = False) -> Iterator[Connection]:
        """A transaction that may write: committed at the end of the block, rolled back by any exception.

        With ``urgent`` it does not wait for a free connection, and its time limits are shorter; on SQLite it still
        waits for the writes of other threads. On SQLite it takes the database's only write lock at its start (BEGIN
        IMMEDIATE), so that the rows it reads can't change before it writes. Raises DatabaseUnreachable, SchemaMismatch,
        ConstraintViolated, StoreError.
        """
        engine = self._urgent_writer if urgent else self._writer
        with self.translated_errors(), self._sqlite_write_turn():
            with self._checked(engine).begin() as connection:
                yield connection
            self.check_file()  # a commit to a file that has disappeared is lost

    @contextmanager
    def write_without_timeout(self) -> Iterator[Connection]:
        """Do the same as ``write``, without time limits for statements and responses."""
        engine = self._create_engine(None)
        try:
            with (
                self.translated_errors(),
                self._sqlite_write_turn(),
                self._checked(engine).execution_options(lakefold_write=True).begin() as connection,
            ):
                yield connection
        finally:
            engine.dispose()

    @contextmanager
    def _sqlite_write_turn(self) -> Iterator[None]:
        """On SQLite, let the threads of this process request the write lock one by one.

        SQLite's lock is not fair: a thread that finds it taken sleeps, and other threads may take it in the meantime.
        On a busy machine, a thread could wait for seconds, even the thread that renews leadership.
        """
        if self.dialect != "sqlite":
            yield
            return
        if not self._sqlite_lock.acquire(timeout=LOCK_WAIT_SECONDS):
            raise DatabaseUnreachable(self._unreachable_text("database is locked"))
        try:
            yield
        finally:
            self._sqlite_lock.release()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction in which all queries see the same snapshot of the database.

        Raises DatabaseUnreachable, SchemaMismatch, StoreError.
        """
        with self.translated_errors(), self._checked(self._reader).begin() as connection:
            yield connection

    @contextmanager
    def outside_transaction(self) -> Iterator[Connection]:
        """A connection that commits each statement by itself."""
        with (
            self.translated_errors(),
            self._checked(self._engine).execution_options(isolation_level="AUTOCOMMIT").connect() as connection,
        ):
            yield connection

    def close(self) -> None:
        """Close every idle connection."""
        self._engine.dispose()
        self._urgent_writer.dispose()
        if self.sqlite_file is not None:
            self.sqlite_file.close()

    @contextmanager
    def translated_errors(self) -> Iterator[None]:
        """Translate the library's errors into the store's, and notify the observer of the outcome."""
        began = time.monotonic()
        try:
            with self._translating():
                yield
        except StoreError as error:
            self.observer.call_failed(error)
            raise
        self.observer.call_succeeded(began)

    @contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            yield
        except IntegrityError as error:
            raise ConstraintViolated(f"the database refused a write: {_first_line(error)}") from error
        except DBAPIError as error:
            translated = self._translate(error)
            if self.dialect == "sqlite" and isinstance(translated, (DatabaseUnreachable, SchemaMismatch)):
                # An open connection would keep using the old file after the file was replaced.
                self.close()
            raise translated from error
        except PoolTimeout as error:
            raise DatabaseUnreachable(self._unreachable_text("no connection became free in time")) from error

    def _translate(self, error: DBAPIError) -> StoreError:
        text = _first_line(error)
        if getattr(error.orig, "sqlstate", None) in _MISSING_STATES or any(part in text for part in _MISSING_TEXTS):
            return SchemaMismatch(
                f"the schema of database {self.display_url} is behind this lakefold ({text}); {UPGRADE_HINT}"
            )
        unusable = isinstance(error, (OperationalError, InterfaceError)) or error.connection_invalidated
        if unusable or "file is not a database" in text:
            return DatabaseUnreachable(self._unreachable_text(text))
        return StoreError(f"database {self.display_url}: {text}")

    def _unreachable_text(self, text: str) -> str:
        return f"database {self.display_url} can't be used: {text}; the setting is {URL_SETTING}"


def _first_line(error: DBAPIError) -> str:
    lines = str(error.orig).strip().splitlines()
    return lines[0].strip().rstrip(".;") if lines else type(error.orig).__name__


def _sqlite_engine(url: URL, file: SqliteFile, **pool: int) -> Engine:
    opened = url.set(database=file.address).update_query_dict({"uri": "true", "mode": "rw"})
    engine = create_engine(opened, connect_args={"timeout": LOCK_WAIT_SECONDS}, hide_parameters=True, **pool)

    @event.listens_for(engine, "connect")
    def _connect(connection: Any, record: Any) -> None:
        file.record_opened()
        # The driver would begin a transaction only at the first write; instead, _begin begins each transaction.
        connection.isolation_level = None
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute(f"PRAGMA busy_timeout = {LOCK_WAIT_SECONDS * 1000}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        if connection.get_execution_options().get("isolation_level") != "AUTOCOMMIT":
            writes = connection.get_execution_options().get("lakefold_write", False)
            connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _postgresql_engine(url: URL, timeouts: ConnectionTimeouts | None, **pool: int) -> Engine:
    defaults = {
        "connect_timeout": (timeouts or DEFAULT_TIMEOUTS).connect_seconds,
        "application_name": "lakefold",
        # A server that disappeared is detected in seconds instead of the kernel's default of 15 minutes.
        "tcp_user_timeout": _TCP_TIMEOUT_SECONDS * 1000,
        "keepalives_idle": _TCP_TIMEOUT_SECONDS // 2,
        "keepalives_interval": _TCP_TIMEOUT_SECONDS // 2,
        "keepalives_count": 2,
    }
    engine = create_engine(
        url,
        hide_parameters=True,  # they may contain a writer's options
        pool_pre_ping=True,
        pool_recycle=1800,
        connect_args={name: value for name, value in defaults.items() if name not in url.query},
        **pool,
    )

    @event.listens_for(engine, "do_connect")
    def _open(dialect: Any, record: Any, arguments: Any, options: Any) -> Any:
        return _connection_class(timeouts).connect(*arguments, **options)

    @event.listens_for(engine, "connect")
    def _connect(connection: Any, record: Any) -> None:
        # The transaction of a stopped process ends before processes that wait for its locks give up.
        connection.execute(f"SET idle_in_transaction_session_timeout = '{_IDLE_TRANSACTION_SECONDS}s'")
        connection.execute(f"SET lock_timeout = '{LOCK_WAIT_SECONDS}s'")
        if timeouts is not None:
            connection.execute(f"SET statement_timeout = '{timeouts.statement_seconds}s'")
        connection.commit()

    return engine


def _connection_class(timeouts: ConnectionTimeouts | None) -> Any:
    """Return the driver's connection class; with ``timeouts`` it limits the time until the server's response."""
    import psycopg

    if timeouts is None:
        return psycopg.Connection
    longest = timeouts.response_seconds

    class BoundedConnection(psycopg.Connection[Any]):
        def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
            began = time.monotonic()
            try:
                return super().wait(gen, interval, longest if timeout is None else timeout)
            except psycopg.OperationalError:
                waited = time.monotonic() - began
                if timeout is None and waited >= longest:
                    self.pgconn.finish()  # otherwise the next query could receive the late response to this one
                    raise psycopg.OperationalError(f"no answer within {longest:g} s") from None
                raise

    return BoundedConnection


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class db_now(FunctionElement[int]):  # noqa: N801 - reads as the SQL function it stands for
    """Milliseconds since 1970 in UTC by the database's clock when the statement runs."""

    type = BigInteger()
    inherit_cache = True
    name = "db_now"


@compiles(db_now, "sqlite")
def _sqlite_now(element: db_now, compiler: SQLCompiler, **kw: Any) -> str:
    # 2440587.5 is the Julian day of 1970-01-01. A double holds a Julian day of today with an error below 40 µs.
    return "CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)"


@compiles(db_now, "postgresql")
def _postgresql_now(element: db_now, compiler: SQLCompiler, **kw: Any) -> str:
    # now() would be the start of the transaction, which may have waited long for a lock. A subquery is evaluated only
    # once per statement, so comparisons can use an index.
    return "(SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT))"


def timedelta_to_ms(span: timedelta) -> int:
    """Return ``span`` in whole milliseconds."""
    return span // timedelta(milliseconds=1)


def datetime_to_ms(moment: datetime) -> int:
    """Return a timezone-aware time as the database stores it."""
    return timedelta_to_ms(moment - _EPOCH)


def datetime_from_ms(ms: int) -> datetime:
    """Return a stored time as a datetime in UTC."""
    return _EPOCH + timedelta(milliseconds=ms)


def optional_datetime_from_ms(ms: int | None) -> datetime | None:
    """Return a stored time as a datetime in UTC; None for None."""
    return None if ms is None else datetime_from_ms(ms)
