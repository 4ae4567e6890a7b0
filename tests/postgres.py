# SPDX-License-Identifier: Apache-2.0
"""A PostgreSQL server of the tests' own: a fresh cluster on a free loopback port, gone at the end."""

import ctypes
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import make_url

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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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


@contextmanager
def server() -> Iterator[str]:
    """Start a server; its URL (``postgresql+psycopg://…/postgres``, a superuser). Its data does not survive."""
    directory = binaries()
    if directory is None:
        raise RuntimeError(INSTALL)
    # Not pytest's temporary directory, which only its owner may enter.
    home = Path(tempfile.mkdtemp(prefix="lakefold-postgres-"))
    process: subprocess.Popen[bytes] | None = None
    try:
        password = secrets.token_urlsafe(12)
        data, log, secret = home / "data", home / "log", home / "password"
        secret.write_text(password)
        log.touch()
        if os.geteuid() == 0:
            for path in (home, secret, log):
                shutil.chown(path, "postgres", "postgres")
        subprocess.run(
            [directory / "initdb", "-D", data, "-U", "lakefold", "-A", "scram-sha-256", f"--pwfile={secret}",
             "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"],
            check=True, capture_output=True, cwd=home, **_as_whom(),
        )  # fmt: skip
        for _ in range(3):  # the free port may be taken by the time the server asks for it
            port = _free_port()
            url = f"postgresql://lakefold:{password}@127.0.0.1:{port}/postgres"
            with log.open("ab") as sink:
                process = subprocess.Popen(
                    [directory / "postgres", "-D", data, "-h", "127.0.0.1", "-p", str(port), "-k", home, "-F",
                     "-c", "synchronous_commit=off", "-c", "full_page_writes=off", "-c", "max_connections=200"],
                    stdout=sink, stderr=sink, cwd=home, preexec_fn=_end_with_parent, **_as_whom(),
                )  # fmt: skip
            if _wait(process, url, log):
                break
        else:
            raise RuntimeError(f"PostgreSQL does not start: {log.read_text()[-2000:]}")
        yield url.replace("postgresql://", "postgresql+psycopg://", 1)
    finally:
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGINT)  # its fast shutdown
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGQUIT)
                process.wait(timeout=20)
        shutil.rmtree(home, ignore_errors=True)


def new_database(server_url: str, name: str, template: str = "template1") -> str:
    """Create database ``name`` as a copy of ``template`` on the server; its URL."""
    base = server_url.replace("+psycopg", "", 1)
    with psycopg.connect(base, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
    return make_url(server_url).set(database=name).render_as_string(hide_password=False)


def drop_database(server_url: str, name: str) -> None:
    """Drop database ``name``, whoever is still connected."""
    with psycopg.connect(server_url.replace("+psycopg", "", 1), autocommit=True) as connection:
        connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
