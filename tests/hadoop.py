# SPDX-License-Identifier: Apache-2.0
"""A Hadoop cluster of the tests' own, in one JVM: HDFS, and YARN where it is asked for. Its jars come from Maven."""

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hive_metastore import end_with_parent
from maven import Artifact, class_path

from executors.spark import java_home

#: what the miniature cluster needs beside the jars of PySpark, whose Hadoop it is of
_ARTIFACTS = (
    Artifact("org.apache.hadoop", "hadoop-client-minicluster", "3.3.4"),
    Artifact("junit", "junit", "4.13.2"),
    Artifact("org.bouncycastle", "bcprov-jdk15on", "1.70"),
    Artifact("org.bouncycastle", "bcpkix-jdk15on", "1.70"),
    Artifact("org.bouncycastle", "bcutil-jdk15on", "1.70"),
    Artifact("javax.xml.bind", "jaxb-api", "2.3.1"),
    Artifact("javax.activation", "javax.activation-api", "1.2.0"),
    Artifact("com.sun.xml.bind", "jaxb-impl", "2.3.1"),
    Artifact("com.sun.xml.bind", "jaxb-core", "2.3.0.1"),
)
_MAIN = Path(__file__).with_name("HadoopMini.java")
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


@contextmanager
def known(cluster: HadoopCluster) -> Iterator[HadoopCluster]:
    """Let this process and those that it starts find the cluster, by ``HADOOP_CONF_DIR``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HADOOP_CONF_DIR", str(cluster.home / "conf"))
        yield cluster


@contextmanager
def running(*, yarn: bool = False) -> Iterator[HadoopCluster]:
    """A cluster for as long as it is needed."""
    jars = class_path("hadoop-3.3.4", _ARTIFACTS)
    home = Path(tempfile.mkdtemp(prefix="lakefold-hadoop-"))
    command = [
        *(str(java_home() / "bin" / "java"), f"-Xmx{700 if yarn else 300}m", "-XX:TieredStopAtLevel=1"),
        *("-XX:+UseSerialGC", "-XX:+DisplayVMOutputToStderr", "--add-opens", "java.base/java.lang=ALL-UNNAMED"),
        *("-cp", jars, str(_MAIN), str(home), *(["yarn"] if yarn else [])),
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
                preexec_fn=end_with_parent,
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
