# SPDX-License-Identifier: Apache-2.0
"""One door to SQLite and PostgreSQL: connections, transactions, and database errors in one clear line."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from service.store.errors import ConstraintViolated, DatabaseUnreachable, SchemaBehind, StoreError

logger = logging.getLogger(__name__)

SETTING = "database.url"
UPGRADE = "run: lakefold db upgrade"
#: how long a writer waits for another's transaction, and any caller for a connection; all of ours are short
LOCK_WAIT_SECONDS = 15
#: what a stopped process loses its transaction after, before those who wait for its locks give up
_IDLE_SECONDS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long PostgreSQL may take, each on its own: to connect, to run a statement, and to say anything at all.

    The last one is this side's: a server that is stopped, or a proxy before it, still acknowledges what it is sent.
    """

    connect_seconds: int = 10
    statement_seconds: int = 30
    answer_seconds: float = 35.0


ORDINARY = Limits()
#: what says that this process is alive: two tries of it pass before a lease of the default length has run out
URGENT = Limits(connect_seconds=5, statement_seconds=10, answer_seconds=12.0)
#: the kernel gives up a connection whose other end is silent after so long
_SILENT_SECONDS = 10
_SECRETS = frozenset({"password", "passfile", "sslpassword", "sslkey"})
#: SQLSTATEs of a table and of a column that does not exist
_MISSING_STATES = frozenset({"42P01", "42703"})
_MISSING_TEXTS = ("no such table", "no such column", "has no column named")


def parse_url(text: str) -> URL:
    """``text`` as a URL of a database that lakefold works with. Raises StoreError in one line."""
    try:
        url = make_url(text)
    except ArgumentError as error:
        raise StoreError(
            f"{SETTING} is not a database URL; write sqlite:////path/to/file or postgresql+psycopg://user@host/name"
        ) from error
    if url.get_backend_name() == "postgresql":
        return url.set(drivername="postgresql+psycopg")
    if url.get_backend_name() != "sqlite":
        raise StoreError(f"{SETTING}: lakefold works with sqlite and postgresql, not with {url.get_backend_name()}")
    if not url.database or url.database == ":memory:":
        raise StoreError(
            f"{SETTING}: SQLite needs a file that all threads and processes share: sqlite:////path/to/file"
        )
    return url


def display_url(url: URL) -> str:
    """``url`` without anything secret."""
    return url.difference_update_query(sorted(_SECRETS)).render_as_string()


class Watcher:
    """Base of whoever is told how calls to a database end; by itself it ignores everything. Thread-safe, and quick."""

    def answered(self, began: float) -> None:
        """A transaction that began at ``began`` (seconds, monotonic) ended without an error of the database."""

    def failed(self, error: StoreError) -> None:
        """A transaction ended in an error of the database."""


class Database:
    """Connections to one database. Thread-safe; connects at the first use."""

    def __init__(self, url: str) -> None:
        self.watcher = Watcher()
        self.url = parse_url(url)
        self.shown = display_url(self.url)
        self.dialect = self.url.get_backend_name()
        self._engine = self._make(ORDINARY)
        self._writer = self._engine.execution_options(lakefold_write=True)
        # Connections of their own, as many as ask for one: calls that hang must not keep a lease from being renewed.
        self._lifeline = self._make(URGENT, pool_size=1, max_overflow=-1).execution_options(lakefold_write=True)
        self._turn = threading.Lock()
        self._reader = self._engine
        if self.dialect == "postgresql":
            self._reader = self._engine.execution_options(
                isolation_level="REPEATABLE READ", postgresql_readonly=True
            )  # several queries of one view see one moment, as they do on SQLite

    def _make(self, limits: Limits | None, **pool: int) -> Engine:
        make = _sqlite_engine if self.dialect == "sqlite" else _postgresql_engine
        return make(self.url, limits, pool_timeout=LOCK_WAIT_SECONDS, **pool)

    @property
    def sqlite_file(self) -> Path | None:
        """The database's file where it is SQLite."""
        return Path(self.url.database) if self.dialect == "sqlite" and self.url.database else None

    @contextmanager
    def write(self, *, urgent: bool = False) -> Iterator[Connection]:
        """A transaction that may write: committed at the end of the block, rolled back by any exception.

        With ``urgent`` it waits for no other thread's connection, and not as long for the server. On SQLite it holds
        the database's one write lock from its first line (BEGIN IMMEDIATE), so that what it reads cannot change before
        it writes. Raises DatabaseUnreachable, SchemaBehind, ConstraintViolated, StoreError.
        """
        engine = self._lifeline if urgent else self._writer
        with self.errors(), self._in_turn(), engine.begin() as connection:
            yield connection

    @contextmanager
    def write_at_leisure(self) -> Iterator[Connection]:
        """``write`` for what may take as long as it likes: nothing but a silent network ends it."""
        engine = self._make(None)
        try:
            with self.errors(), self._in_turn(), engine.execution_options(lakefold_write=True).begin() as connection:
                yield connection
        finally:
            engine.dispose()

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        """On SQLite one thread of this process at a time asks for the write lock.

        SQLite gives it to whoever happens to ask while it is free, and who found it taken sleeps before he asks again:
        among a daemon's many threads on a busy machine one could wait for seconds, a renewal of its leadership too.
        """
        if self.dialect != "sqlite":
            yield
            return
        if not self._turn.acquire(timeout=LOCK_WAIT_SECONDS):
            raise DatabaseUnreachable(self._unreachable("database is locked"))
        try:
            yield
        finally:
            self._turn.release()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that sees one moment of the database. Raises DatabaseUnreachable, SchemaBehind, StoreError."""
        with self.errors(), self._reader.begin() as connection:
            yield connection

    @contextmanager
    def outside_transaction(self) -> Iterator[Connection]:
        """A connection that commits each statement by itself."""
        with self.errors(), self._engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
            yield connection

    def close(self) -> None:
        """Close every idle connection."""
        self._engine.dispose()
        self._lifeline.dispose()

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn the library's errors into the store's, and tell the watcher how it ended."""
        began = time.monotonic()
        try:
            with self._translation():
                yield
        except StoreError as error:
            self.watcher.failed(error)
            raise
        self.watcher.answered(began)

    @contextmanager
    def _translation(self) -> Iterator[None]:
        try:
            yield
        except IntegrityError as error:
            raise ConstraintViolated(f"the database refused a write: {_first_line(error)}") from error
        except DBAPIError as error:
            translated = self._translated(error)
            if self.dialect == "sqlite" and isinstance(translated, (DatabaseUnreachable, SchemaBehind)):
                # A connection stays with the file that it has opened, even where that file has been replaced since.
                self.close()
            raise translated from error
        except PoolTimeout as error:
            raise DatabaseUnreachable(self._unreachable("no connection became free in time")) from error

    def _translated(self, error: DBAPIError) -> StoreError:
        text = _first_line(error)
        if getattr(error.orig, "sqlstate", None) in _MISSING_STATES or any(part in text for part in _MISSING_TEXTS):
            return SchemaBehind(f"the schema of database {self.shown} is behind this lakefold ({text}); {UPGRADE}")
        unusable = isinstance(error, (OperationalError, InterfaceError)) or error.connection_invalidated
        if unusable or "file is not a database" in text:
            return DatabaseUnreachable(self._unreachable(text))
        return StoreError(f"database {self.shown}: {text}")

    def _unreachable(self, text: str) -> str:
        return f"database {self.shown} can't be used: {text}; the setting is {SETTING}"


def _first_line(error: DBAPIError) -> str:
    lines = str(error.orig).strip().splitlines()
    return lines[0].strip().rstrip(".;") if lines else type(error.orig).__name__


def _sqlite_engine(url: URL, limits: Limits | None, **pool: int) -> Engine:
    engine = create_engine(url, connect_args={"timeout": LOCK_WAIT_SECONDS}, hide_parameters=True, **pool)

    @event.listens_for(engine, "connect")
    def _connect(connection: Any, record: Any) -> None:
        # The driver would begin transactions by itself, at the first write and never before a read; _begin does.
        connection.isolation_level = None
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute(f"PRAGMA busy_timeout = {LOCK_WAIT_SECONDS * 1000}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        if connection.get_execution_options().get("isolation_level") != "AUTOCOMMIT":
            writes = connection.get_execution_options().get("lakefold_write", False)
            connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _postgresql_engine(url: URL, limits: Limits | None, **pool: int) -> Engine:
    defaults = {
        "connect_timeout": (limits or ORDINARY).connect_seconds,
        "application_name": "lakefold",
        # A server that vanished without a word is noticed in seconds, not after the kernel's quarter of an hour.
        "tcp_user_timeout": _SILENT_SECONDS * 1000,
        "keepalives_idle": _SILENT_SECONDS // 2,
        "keepalives_interval": _SILENT_SECONDS // 2,
        "keepalives_count": 2,
    }
    engine = create_engine(
        url,
        hide_parameters=True,  # options of a writer are among them
        pool_pre_ping=True,
        pool_recycle=1800,
        connect_args={name: value for name, value in defaults.items() if name not in url.query},
        **pool,
    )

    @event.listens_for(engine, "do_connect")
    def _open(dialect: Any, record: Any, arguments: Any, options: Any) -> Any:
        return _bounded(limits).connect(*arguments, **options)

    @event.listens_for(engine, "connect")
    def _connect(connection: Any, record: Any) -> None:
        # A process stopped in the middle of a transaction loses it before those who wait for its locks give up.
        connection.execute(f"SET idle_in_transaction_session_timeout = '{_IDLE_SECONDS}s'")
        connection.execute(f"SET lock_timeout = '{LOCK_WAIT_SECONDS}s'")
        if limits is not None:
            connection.execute(f"SET statement_timeout = '{limits.statement_seconds}s'")
        connection.commit()

    return engine


def _bounded(limits: Limits | None) -> Any:
    """The driver's connection; with ``limits`` it does not wait longer than that for the server to say anything."""
    import psycopg

    if limits is None:
        return psycopg.Connection
    longest = limits.answer_seconds

    class Bounded(psycopg.Connection[Any]):
        def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
            began = time.monotonic()
            try:
                return super().wait(gen, interval, longest if timeout is None else timeout)
            except psycopg.OperationalError:
                waited = time.monotonic() - began
                if timeout is None and waited >= longest:
                    self.pgconn.finish()  # nobody knows what it would answer to the next question
                    raise psycopg.OperationalError(f"no answer within {longest:g} s") from None
                raise

    return Bounded
