# SPDX-License-Identifier: Apache-2.0
"""A Hive metastore of the tests' own: the one that the PySpark wheel carries, on Derby, in a JVM of its own."""

import ctypes
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from executors.spark import java_home
from lake.errors import LakefoldError
from lake.metastore import Metastore

_CLASS = "org.apache.hadoop.hive.metastore.HiveMetaStore"
_PARENT_DIED = 1  # PR_SET_PDEATHSIG
_SETTINGS = {
    "javax.jdo.option.ConnectionURL": "jdbc:derby:;databaseName={home}/derby;create=true",
    "datanucleus.schema.autoCreateAll": "true",
    "hive.metastore.schema.verification": "false",
    # Else it wants a class that the wheel does not have.
    "hive.async.log.enabled": "false",
    "hive.metastore.warehouse.dir": "file://{home}/place/warehouse",
}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _end_with_parent() -> None:
    """A killed test run must not leave a server behind."""
    ctypes.CDLL(None).prctl(_PARENT_DIED, signal.SIGKILL)


class MetastoreServer:
    """A metastore that can be stopped and started again; its database lives until ``remove``."""

    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="lakefold-metastore-"))
        self.port = _free_port()
        self.uri = f"thrift://127.0.0.1:{self.port}"
        properties = "".join(
            f"<property><name>{name}</name><value>{value.format(home=self.home)}</value></property>"
            for name, value in _SETTINGS.items()
        )
        (self.home / "hive-site.xml").write_text(f"<configuration>{properties}</configuration>")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def place(self) -> Path:
        """Where tables are made."""
        return self.home / "place"

    def start(self) -> None:
        """Start it and wait until it answers."""
        jars = Path(pyspark.__file__).parent / "jars"
        command = [
            *(str(java_home() / "bin" / "java"), "-Xmx512m", "-XX:TieredStopAtLevel=1"),
            *("-cp", f"{self.home}:{jars}/*", _CLASS, "-p", str(self.port)),
        ]
        with (self.home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self.home, stdout=log, stderr=log, preexec_fn=_end_with_parent
            )  # fmt: skip
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                with Metastore(self.uri) as metastore:
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
def running() -> Iterator[MetastoreServer]:
    """A server for as long as it is needed."""
    server = MetastoreServer()
    try:
        server.start()
        yield server
    finally:
        server.remove()
