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


@contextmanager
def running() -> Iterator[str]:
    """The address of a server for as long as it is needed."""
    jars, port = class_path(f"iceberg-rest-{_ICEBERG}", _ARTIFACTS), free_port()
    home = Path(tempfile.mkdtemp(prefix="lakefold-iceberg-rest-"))
    command = [
        *(str(java_home() / "bin" / "java"), "-Xmx300m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
        *("-cp", jars, _CLASS),
    ]
    settings = {
        "CATALOG_URI": f"jdbc:sqlite:{home}/catalog.db",
        "CATALOG_JDBC_SCHEMA__VERSION": "V1",
        "CATALOG_WAREHOUSE": f"file:{home}/warehouse",
        "CATALOG_CLIENTS": "1",  # two connections to one SQLite file lock each other out
        "CATALOG_REST_PORT": str(port),
    }
    process = None
    try:
        with (home / "log").open("wb") as log:
            process = subprocess.Popen(
                command, cwd=home, env=os.environ | settings, stdout=log, stderr=log, preexec_fn=end_with_parent
            )
        uri, deadline = f"http://127.0.0.1:{port}", time.monotonic() + _START_SECONDS
        while not _answers(uri):
            assert process.poll() is None, (home / "log").read_text()[-3000:]
            assert time.monotonic() < deadline, (home / "log").read_text()[-3000:]
            time.sleep(0.1)
        yield uri
    finally:
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.wait()
        shutil.rmtree(home)


def _answers(uri: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(f"{uri}/v1/config", timeout=5):
        return True
    return False
