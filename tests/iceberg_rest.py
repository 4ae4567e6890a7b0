# SPDX-License-Identifier: Apache-2.0
"""Iceberg's own REST fixture server in a process of its own; its jars come from Maven.

It is ``org.apache.iceberg.rest.RESTCatalogServer`` of ``iceberg-open-api``'s jar ``test-fixtures``, over a JDBC catalog
on SQLite. Maven does not have the jar with everything in it (``test-fixtures-runtime``), so the libraries are named.
"""

import fcntl
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
from xml.sax.saxutils import quoteattr

import pyspark
from hive_metastore import end_with_parent
from support import free_port, needs_server

from executors.jars import cache_dir
from executors.spark import java_home

_ICEBERG, _JACKSON, _JETTY = "1.10.1", "2.19.2", "11.0.26"
#: group, name, version and classifiers
_JARS = (
    ("org.apache.iceberg", "iceberg-core", _ICEBERG, ("", "tests")),
    ("org.apache.iceberg", "iceberg-open-api", _ICEBERG, ("test-fixtures",)),
    *(("org.apache.iceberg", f"iceberg-{name}", _ICEBERG, ("",)) for name in ("api", "common", "bundled-guava")),
    ("org.apache.avro", "avro", "1.12.0", ("",)),
    *(("com.fasterxml.jackson.core", f"jackson-{one}", _JACKSON, ("",)) for one in ("core", "databind", "annotations")),
    ("com.github.ben-manes.caffeine", "caffeine", "2.9.3", ("",)),
    ("org.roaringbitmap", "RoaringBitmap", "1.3.0", ("",)),
    ("org.apache.httpcomponents.client5", "httpclient5", "5.5", ("",)),
    ("org.apache.httpcomponents.core5", "httpcore5", "5.3.4", ("",)),
    *(
        ("org.eclipse.jetty", f"jetty-{name}", _JETTY, ("",))
        for name in ("servlet", "server", "security", "http", "io", "util")
    ),
    ("org.eclipse.jetty.toolchain", "jetty-jakarta-servlet-api", "5.0.2", ("",)),
    ("org.xerial", "sqlite-jdbc", "3.49.1.0", ("",)),
)
_OF_PYSPARK = (
    *("hadoop-client-api", "hadoop-client-runtime", "slf4j-api", "jcl-over-slf4j"),
    *("log4j-1.2-api", "log4j-api", "log4j-core", "log4j-slf4j2-impl"),
)
_PYSPARK = Path(pyspark.__file__).parent / "jars"
_CLASS = "org.apache.iceberg.rest.RESTCatalogServer"
_START_SECONDS = 60


def _jars() -> Path:
    """The directory of the jars, filled by Ivy once for all clones."""
    place = cache_dir() / f"iceberg-rest-{_ICEBERG}"
    place.mkdir(parents=True, exist_ok=True)
    names = [f"{name}-{version}{'-' if kind else ''}{kind}.jar" for _, name, version, kinds in _JARS for kind in kinds]
    with (place / "lock").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if all((place / name).exists() for name in names):
            return place
        (place / "ivy.xml").write_text(_ivy_module())
        (ivy,) = _PYSPARK.glob("ivy-*.jar")
        done = subprocess.run(
            [
                *(str(java_home() / "bin" / "java"), "-jar", str(ivy), "-cache", str(place / "ivy")),
                *("-ivy", str(place / "ivy.xml"), "-types", "jar", "bundle"),
                *("-retrieve", f"{place}/[artifact]-[revision](-[classifier]).[ext]"),
            ],
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode != 0:
            needs_server(f"the jars of Iceberg's REST server could not be fetched: {done.stdout.strip()[-300:]}")
    return place


def _ivy_module() -> str:
    wanted = ""
    for group, name, version, kinds in _JARS:
        files = "".join(
            f"<artifact name={quoteattr(name)} type='jar' ext='jar'"
            + (f" e:classifier={quoteattr(kind)}/>" if kind else "/>")
            for kind in kinds
        )
        where = f"org={quoteattr(group)} name={quoteattr(name)} rev={quoteattr(version)}"
        wanted += f"<dependency {where} transitive='false'>{files}</dependency>"
    return (
        "<ivy-module version='2.0' xmlns:e='http://ant.apache.org/ivy/extra'><info organisation='lakefold'"
        " module='rest'/><configurations><conf name='default'/></configurations>"
        f"<dependencies defaultconf='default->master,default'>{wanted}</dependencies></ivy-module>"
    )


@contextmanager
def running() -> Iterator[str]:
    """The address of a server for as long as it is needed."""
    jars, port = _jars(), free_port()
    home = Path(tempfile.mkdtemp(prefix="lakefold-iceberg-rest-"))
    own = [next(iter(_PYSPARK.glob(f"{name}-[0-9]*.jar"))) for name in _OF_PYSPARK]
    command = [
        *(str(java_home() / "bin" / "java"), "-Xmx300m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
        *("-cp", ":".join([f"{jars}/*", *map(str, own)]), _CLASS),
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
