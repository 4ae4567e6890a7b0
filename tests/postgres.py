# SPDX-License-Identifier: Apache-2.0
"""A PostgreSQL server of the tests' own: a fresh cluster on a free loopback port, gone at the end."""

import ctypes
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import make_url
from support import free_port

INSTALL = "no PostgreSQL server found (initdb and postgres): install Debian's package postgresql, or set PATH to one"
_PARENT_DIED = 1  # PR_SET_PDEATHSIG


def binaries() -> Path | None:
    """The directory of the newest ``initdb`` and ``postgres``: Debian's, which are not on the path, else the path's."""
    packaged = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: int(p.parent.name) if p.parent.name.isdigit() else 0
    )
    found = shutil.which("initdb")
    for directory in [*reversed(packaged), *([Path(found).resolve().parent] if found else [])]:
        if (directory / "initdb").exists() and (directory / "postgres").exists():
            return directory
    return None


def _as_whom() -> dict[str, Any]:
    """PostgreSQL refuses to run as root; its package brings a user for it."""
    return {"user": "postgres", "group": "postgres", "extra_groups": []} if os.geteuid() == 0 else {}


def _end_with_parent() -> None:
    """A killed test run must not leave a server behind."""
    ctypes.CDLL(None).prctl(_PARENT_DIED, signal.SIGINT)


def _wait(process: "subprocess.Popen[bytes]", url: str, log: Path) -> bool:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            psycopg.connect(url, connect_timeout=5).close()
            return True
        except psycopg.OperationalError:
            time.sleep(0.05)
    if process.poll() is None:
        raise RuntimeError(f"PostgreSQL did not answer within 60 s: {log.read_text()[-2000:]}")
    return False


class Server:
    """A server of its own, which can be stopped and started again. Its data does not survive ``remove``.

    ``durable``: what was committed outlives even a shutdown without warning.
    """

    def __init__(self, *, durable: bool = False) -> None:
        directory = binaries()
        if directory is None:
            raise RuntimeError(INSTALL)
        self._binaries, self._durable = directory, durable
        # Not pytest's temporary directory, which only its owner may enter.
        self._home = Path(tempfile.mkdtemp(prefix="lakefold-postgres-"))
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._create()
        except BaseException:
            self.remove()
            raise

    def _create(self) -> None:
        password = secrets.token_urlsafe(12)
        self._data, self._log, secret = self._home / "data", self._home / "log", self._home / "password"
        secret.write_text(password)
        self._log.touch()
        if os.geteuid() == 0:
            for path in (self._home, secret, self._log):
                shutil.chown(path, "postgres", "postgres")
        subprocess.run(
            [
                self._binaries / "initdb",
                "-D",
                self._data,
                "-U",
                "lakefold",
                "-A",
                "scram-sha-256",
                f"--pwfile={secret}",
                "-E",
                "UTF8",
                "--locale=C.UTF-8",
                "--no-sync",
            ],
            check=True,
            capture_output=True,
            cwd=self._home,
            **_as_whom(),
        )
        for _ in range(3):  # the free port may be taken by the time the server asks for it
            self._port = free_port()
            self._url = f"postgresql://lakefold:{password}@127.0.0.1:{self._port}/postgres"
            if self.start():
                return
        raise RuntimeError(f"PostgreSQL does not start: {self._log.read_text()[-2000:]}")

    @property
    def url(self) -> str:
        """``postgresql+psycopg://…/postgres``, a superuser."""
        return self._url.replace("postgresql://", "postgresql+psycopg://", 1)

    def start(self) -> bool:
        """Start the server at its port; False where it ended at once."""
        quick = () if self._durable else ("-c", "synchronous_commit=off")
        with self._log.open("ab") as sink:
            self._process = subprocess.Popen(
                [
                    self._binaries / "postgres",
                    "-D",
                    self._data,
                    "-h",
                    "127.0.0.1",
                    "-p",
                    str(self._port),
                    "-k",
                    self._home,
                    "-F",
                    "-c",
                    "full_page_writes=off",
                    "-c",
                    "max_connections=200",
                    *quick,
                ],
                stdout=sink,
                stderr=sink,
                cwd=self._home,
                preexec_fn=_end_with_parent,
                **_as_whom(),
            )
        return _wait(self._process, self._url, self._log)

    def stop(self, *, immediate: bool = False) -> None:
        """Stop the server with PostgreSQL's fast shutdown, or with its immediate one: as if it had crashed."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT if immediate else signal.SIGINT)
            try:
                self._process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self._process.send_signal(signal.SIGQUIT)
                self._process.wait(timeout=20)

    def remove(self) -> None:
        """Stop the server and delete its data."""
        self.stop()
        shutil.rmtree(self._home, ignore_errors=True)


@contextmanager
def server() -> Iterator[str]:
    """The URL of a server that is gone at the end."""
    running = Server()
    try:
        yield running.url
    finally:
        running.remove()


def new_database(server_url: str, name: str, template: str = "template1") -> str:
    """Create database ``name`` as a copy of ``template`` on the server; its URL."""
    base = server_url.replace("+psycopg", "", 1)
    with psycopg.connect(base, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
    return make_url(server_url).set(database=name).render_as_string(hide_password=False)


def drop_database(server_url: str, name: str) -> None:
    """Drop database ``name``, even if clients are still connected."""
    with psycopg.connect(server_url.replace("+psycopg", "", 1), autocommit=True) as connection:
        connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


class Databases:
    """Databases with our schema, lent to one test after another: emptying one is a tenth of the work of a new one."""

    def __init__(self, server_url: str, template: str) -> None:
        self._server, self._template = server_url, template
        with self._connect(template) as connection:
            self._schema = connection.execute(_SCHEMA).fetchall()
        self._free: list[str] = []

    @contextmanager
    def lend(self) -> Iterator[str]:
        """The URL of an empty one. Where a test changes its schema, no other test gets it."""
        if self._free:
            name = self._free.pop()
        else:
            name = f"lakefold_{uuid.uuid4().hex[:12]}"
            new_database(self._server, name, self._template)
        yield make_url(self._server).set(database=name).render_as_string(hide_password=False)
        if self._emptied(name):
            self._free.append(name)
        else:
            drop_database(self._server, name)

    def drop(self) -> None:
        """Drop the databases that no test uses now."""
        while self._free:
            drop_database(self._server, self._free.pop())

    def _connect(self, name: str) -> "psycopg.Connection[Any]":
        url = make_url(self._server.replace("+psycopg", "", 1)).set(database=name)
        return psycopg.connect(url.render_as_string(hide_password=False), autocommit=True)

    def _emptied(self, name: str) -> bool:
        with self._connect(name) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            if connection.execute(_SCHEMA).fetchall() != self._schema:
                return False
            tables = [table for kind, _, table, *_ in self._schema if kind == "r" and table != "alembic_version"]
            ((*filled,),) = connection.execute(
                "SELECT " + ", ".join(f"EXISTS (SELECT FROM {table})" for table in tables)
            ).fetchall()
            if used := [table for table, is_filled in zip(tables, filled, strict=True) if is_filled]:
                connection.execute(f"TRUNCATE {', '.join(used)} RESTART IDENTITY CASCADE")
        return True


#: all that a test may have changed of a copy of the template, in which everything has the same number
_SCHEMA = """
    SELECT relkind::text, oid::bigint, relname::text, relchecks, relnatts
        FROM pg_class WHERE relnamespace = 'public'::regnamespace
    UNION ALL SELECT 'constraint', oid::bigint, conname::text, convalidated::int, 0 FROM pg_constraint
    UNION ALL SELECT 'trigger', oid::bigint, tgname::text || tgenabled::text, 0, 0 FROM pg_trigger
    UNION ALL SELECT 'function', oid::bigint, proname::text, 0, 0 FROM pg_proc WHERE oid >= 16384
    UNION ALL SELECT 'column', attrelid::bigint, attname::text, atttypid::int, attnotnull::int + 2 * atthasdef::int
        FROM pg_attribute WHERE attrelid >= 16384
    UNION ALL SELECT 'version', 0, version_num, 0, 0 FROM alembic_version
    ORDER BY 1, 2, 3
"""
