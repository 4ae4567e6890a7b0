# SPDX-License-Identifier: Apache-2.0
"""A Hive metastore of the tests' own: the one that the PySpark wheel carries, on Derby, in a JVM of its own."""

import ctypes
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support import LOCAL_FILES, free_port

from lake.errors import LakefoldError
from lake.metastore import MetastoreClient
from service.cli.demo.metastore import server_command

_NO_CHANGES = "hive.metastore.disallow.incompatible.col.type.changes"
#: by default each of the first 200 connections gets a new thread, and each thread a new connection to Derby
_FEWEST_THREADS = "hive.metastore.server.min.threads"
_PARENT_DIED = 1  # PR_SET_PDEATHSIG


def end_with_parent() -> None:
    """A killed test run must not leave a server behind."""
    ctypes.CDLL(None).prctl(_PARENT_DIED, signal.SIGKILL)


class MetastoreServer:
    """A metastore that can be stopped and started again; its database lives until ``remove``.

    ``locks``: it has the database tables of Hive's locks, and columns may be dropped, as Iceberg needs.
    """

    def __init__(self, *, locks: bool = False) -> None:
        self._locks = locks
        self.home = Path(tempfile.mkdtemp(prefix="lakefold-metastore-"))
        self.port = free_port()
        self.uri = f"thrift://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def place(self) -> Path:
        """Where tables are made."""
        return self.home / "place"

    def start(self) -> None:
        """Start it and wait until it answers."""
        command = server_command(self.home, self.port, self.place / "warehouse")
        properties = {_FEWEST_THREADS: "4"}
        if self._locks:
            java, path = command[0], command[command.index("-cp") + 1]
            source = Path(__file__).with_name("MetastoreLocks.java")
            made = [java, "-cp", path, f"-Dderby.stream.error.file={self.home}/derby.log", str(source)]
            subprocess.run(made, cwd=self.home, check=True, capture_output=True)
            # By default Hive refuses to drop a column, as Iceberg does in the metastore too.
            properties[_NO_CHANGES] = "false"
        listed = "".join(
            f"<property><name>{name}</name><value>{value}</value></property>" for name, value in properties.items()
        )
        site = self.home / "hive-site.xml"
        site.write_text(site.read_text().replace("</configuration>", f"{listed}</configuration>"))
        if LOCAL_FILES.exists():  # else it runs a program for each directory that it makes
            classes = command.index("-cp") + 1
            command[classes] = f"{LOCAL_FILES}:{command[classes]}"
        with (self.home / "log").open("ab") as log:
            self._process = subprocess.Popen(command, cwd=self.home, stdout=log, stderr=log, preexec_fn=end_with_parent)
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                with MetastoreClient(self.uri) as metastore:
                    metastore.databases()
                return
            except LakefoldError:
                time.sleep(0.2)
        raise RuntimeError(f"the metastore did not start: {(self.home / 'log').read_text()[-2000:]}")

    def spark(self, *statements: str) -> None:
        """Run statements, or without any those that make the tables of the tests, in a Spark of another process."""
        script = [sys.executable, str(Path(__file__).with_name("hive_tables.py")), self.uri, str(self.place)]
        done = subprocess.run([*script, *statements], cwd=self.home, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process is not None
        return self._process.pid

    def signal(self, number: signal.Signals) -> None:
        """Send its process a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self) -> None:
        """Kill it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def remove(self) -> None:
        """Stop it and delete all it had."""
        self.stop()
        shutil.rmtree(self.home)


@contextmanager
def running(*, locks: bool = False) -> Iterator[MetastoreServer]:
    """A server for as long as it is needed."""
    server = MetastoreServer(locks=locks)
    try:
        server.start()
        yield server
    finally:
        server.remove()
