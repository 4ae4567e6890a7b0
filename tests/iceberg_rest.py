# SPDX-License-Identifier: Apache-2.0
"""Iceberg's own REST fixture server in a process of its own; its jars come from Maven.

It is ``org.apache.iceberg.rest.RESTCatalogServer`` of ``iceberg-open-api``'s jar ``test-fixtures``, over a JDBC catalog
on SQLite. Maven does not have the jar with everything in it (``test-fixtures-runtime``), so the libraries are named.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hive_metastore import end_with_parent
from maven import Artifact, class_path
from support import free_port

from executors.spark import java_home

#: the version of the server, which may differ from that of its clients
_ICEBERG, _JACKSON, _JETTY = "1.10.1", "2.19.2", "11.0.26"
_ARTIFACTS = (
    Artifact("org.apache.iceberg", "iceberg-core", _ICEBERG, ("", "tests")),
    Artifact("org.apache.iceberg", "iceberg-open-api", _ICEBERG, ("test-fixtures",)),
    *(Artifact("org.apache.iceberg", f"iceberg-{name}", _ICEBERG) for name in ("api", "common", "bundled-guava")),
    Artifact("org.apache.avro", "avro", "1.12.0"),
    *(
        Artifact("com.fasterxml.jackson.core", f"jackson-{one}", _JACKSON)
        for one in ("core", "databind", "annotations")
    ),
    Artifact("com.github.ben-manes.caffeine", "caffeine", "2.9.3"),
    Artifact("org.roaringbitmap", "RoaringBitmap", "1.3.0"),
    Artifact("org.apache.httpcomponents.client5", "httpclient5", "5.5"),
    Artifact("org.apache.httpcomponents.core5", "httpcore5", "5.3.4"),
    *(
        Artifact("org.eclipse.jetty", f"jetty-{name}", _JETTY)
        for name in ("servlet", "server", "security", "http", "io", "util")
    ),
    Artifact("org.eclipse.jetty.toolchain", "jetty-jakarta-servlet-api", "5.0.2"),
    Artifact("org.xerial", "sqlite-jdbc", "3.49.1.0"),
)
_CLASS = "org.apache.iceberg.rest.RESTCatalogServer"
_START_SECONDS = 60


class Server:
    """A server with a directory of its own for its database, which outlives ``stop``."""

    def __init__(self) -> None:
        self._jars, port = class_path(f"iceberg-rest-{_ICEBERG}", _ARTIFACTS), free_port()
        self._home = Path(tempfile.mkdtemp(prefix="lakefold-iceberg-rest-"))
        self.uri = f"http://127.0.0.1:{port}"
        self._process: subprocess.Popen[bytes] | None = None
        self._settings = {
            "CATALOG_URI": f"jdbc:sqlite:{self._home}/catalog.db",
            "CATALOG_JDBC_SCHEMA__VERSION": "V1",
            "CATALOG_WAREHOUSE": f"file:{self._home}/warehouse",
            "CATALOG_CLIENTS": "1",  # two connections to one SQLite file lock each other out
            "CATALOG_REST_PORT": str(port),
        }

    def start(self) -> None:
        """Start it, and wait until it answers."""
        command = [
            *(str(java_home() / "bin" / "java"), "-Xmx300m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
            *("-cp", self._jars, _CLASS),
        ]
        place, log = self._home, self._home / "log"
        with log.open("ab") as sink:
            self._process = subprocess.Popen(
                command,
                cwd=place,
                env=os.environ | self._settings,
                stdout=sink,
                stderr=sink,
                preexec_fn=end_with_parent,
            )
        deadline = time.monotonic() + _START_SECONDS
        while not _answers(self.uri):
            assert self._process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.1)

    def stop(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def remove(self) -> None:
        """End it, and delete its database."""
        self.stop()
        shutil.rmtree(self._home)


@contextmanager
def running() -> Iterator[str]:
    """The address of a server for as long as it is needed."""
    server = Server()
    try:
        server.start()
        yield server.uri
    finally:
        server.remove()


def _answers(uri: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(f"{uri}/v1/config", timeout=5):
        return True
    return False
