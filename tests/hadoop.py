# SPDX-License-Identifier: Apache-2.0
"""A Hadoop cluster of the tests' own, in one JVM: HDFS, and YARN where it is asked for. Its jars come from Maven."""

import ctypes
import fcntl
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.sax.saxutils import quoteattr

import pyspark
import pytest
from support import needs_server

from executors.jars import cache_dir
from executors.spark import java_home

#: what the miniature cluster needs beside the jars of PySpark, whose Hadoop it is of
_JARS = (
    ("org.apache.hadoop", "hadoop-client-minicluster", "3.3.4"),
    ("junit", "junit", "4.13.2"),
    ("org.bouncycastle", "bcprov-jdk15on", "1.70"),
    ("org.bouncycastle", "bcpkix-jdk15on", "1.70"),
    ("org.bouncycastle", "bcutil-jdk15on", "1.70"),
    ("javax.xml.bind", "jaxb-api", "2.3.1"),
    ("javax.activation", "javax.activation-api", "1.2.0"),
    ("com.sun.xml.bind", "jaxb-impl", "2.3.1"),
    ("com.sun.xml.bind", "jaxb-core", "2.3.0.1"),
)
_OF_PYSPARK = (
    *("hadoop-client-api", "hadoop-client-runtime", "slf4j-api", "jcl-over-slf4j"),
    *("log4j-1.2-api", "log4j-api", "log4j-core", "log4j-slf4j2-impl"),
)
_PYSPARK = Path(pyspark.__file__).parent / "jars"
_MAIN = Path(__file__).with_name("HadoopMini.java")
_PARENT_DIED = 1  # PR_SET_PDEATHSIG
_START_SECONDS = 120


class HadoopCluster:
    """A running cluster; ``uri`` is that of its HDFS."""

    def __init__(self, home: Path, process: "subprocess.Popen[str]", uri: str) -> None:
        self.home, self.process, self.uri = home, process, uri

    def set_quota(self, path: str, *, names: int | None) -> None:
        """Let a directory hold so many files and directories, itself among them; None for any number."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"quota {-1 if names is None else names} {path}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "DONE\n", (self.home / "log").read_text()[-2000:]


def _jars() -> Path:
    """The directory of the jars, filled by Ivy once for all clones."""
    place = cache_dir() / "hadoop-3.3.4"
    place.mkdir(parents=True, exist_ok=True)
    with (place / "lock").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if all((place / f"{name}-{version}.jar").exists() for _, name, version in _JARS):
            return place
        wanted = "".join(
            f"<dependency org={quoteattr(group)} name={quoteattr(name)} rev={quoteattr(version)} transitive='false'/>"
            for group, name, version in _JARS
        )
        (place / "ivy.xml").write_text(
            "<ivy-module version='2.0'><info organisation='lakefold' module='hadoop'/><configurations>"
            "<conf name='default'/></configurations><dependencies defaultconf='default->master,default'>"
            f"{wanted}</dependencies></ivy-module>"
        )
        (ivy,) = _PYSPARK.glob("ivy-*.jar")
        done = subprocess.run(
            [
                *(str(java_home() / "bin" / "java"), "-jar", str(ivy), "-cache", str(place / "ivy")),
                *("-ivy", str(place / "ivy.xml"), "-types", "jar", "bundle"),
                *("-retrieve", f"{place}/[artifact]-[revision].[ext]"),
            ],
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode != 0:
            needs_server(f"Hadoop's jars could not be fetched from Maven: {done.stdout.strip()[-300:]}")
    return place


def _end_with_parent() -> None:
    """A killed test run must not leave a cluster behind."""
    ctypes.CDLL(None).prctl(_PARENT_DIED, signal.SIGKILL)


@contextmanager
def known(cluster: HadoopCluster) -> Iterator[HadoopCluster]:
    """Let this process and those that it starts find the cluster, by ``HADOOP_CONF_DIR``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HADOOP_CONF_DIR", str(cluster.home / "conf"))
        yield cluster


@contextmanager
def running(*, yarn: bool = False) -> Iterator[HadoopCluster]:
    """A cluster for as long as it is needed."""
    jars = _jars()
    home = Path(tempfile.mkdtemp(prefix="lakefold-hadoop-"))
    own = [next(iter(_PYSPARK.glob(f"{name}-[0-9]*.jar"))) for name in _OF_PYSPARK]
    command = [
        *(str(java_home() / "bin" / "java"), f"-Xmx{700 if yarn else 300}m", "-XX:TieredStopAtLevel=1"),
        *("-XX:+UseSerialGC", "-XX:+DisplayVMOutputToStderr", "--add-opens", "java.base/java.lang=ALL-UNNAMED"),
        *("-cp", ":".join([f"{jars}/*", *map(str, own)]), str(_MAIN), str(home), *(["yarn"] if yarn else [])),
    ]
    process = None
    try:
        with (home / "log").open("wb") as log:
            process = subprocess.Popen(
                command,
                cwd=home,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                preexec_fn=_end_with_parent,
            )
        assert process.stdout is not None
        deadline = time.monotonic() + _START_SECONDS
        line = ""
        while not line.startswith("READY ") and time.monotonic() < deadline:
            line = process.stdout.readline()
            assert line, (home / "log").read_text()[-3000:]
        yield HadoopCluster(home, process, line.split()[1])
    finally:
        if process is not None:
            process.kill()
            process.communicate()
        shutil.rmtree(home)
