# SPDX-License-Identifier: Apache-2.0
"""What tests of every folder import: how long to run, and what to do without a server."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

#: the long versions of the tests were asked for (``make soak``)
SOAK = os.environ.get("LAKEFOLD_SOAK") == "1"

#: the Hudi bundle of this run; a JVM has one, so `make soak` runs the conformance suite again for each of the others
BUNDLE = os.environ.get("LAKEFOLD_TEST_BUNDLE", "1.2.0")

#: this is that part of `make soak`: every test of the suite on one bundle, and nothing else
ONE_BUNDLE = "LAKEFOLD_TEST_BUNDLE" in os.environ

#: classes of Spark and Hudi as a JVM has them in memory, made by ``class_archive.py``
CLASS_ARCHIVE = Path(sys.prefix) / "classes.jsa"

#: ``QuickLocalFiles.java`` for the tests' JVMs, compiled by ``class_archive.py``
LOCAL_FILES = Path(sys.prefix) / "local-files.jar"

#: in a heap that starts small, collections are a tenth of a test JVM's CPU time
HEAP = {
    "spark.driver.memory": "2g",
    "spark.driver.extraJavaOptions": "-Xms1700m -Xmn1200m -XX:MetaspaceSize=400m",
}


def jvm_options() -> str:
    """What the tests' JVMs are started with.

    One that lives for minutes earns nothing back of what the optimising compiler costs: half of its CPU time.
    """
    # Hadoop without its native library runs chmod for each file that it creates.
    options = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable -Djdk.lang.Process.launchMechanism=VFORK"
    # Without it the room for code is 48 MB and full in minutes: what is needed again is thrown away and compiled anew.
    options += " -XX:ReservedCodeCacheSize=240m"
    # How large records are in memory Hudi wants to know exactly, and starts three JVMs that look at its own: in vain.
    options += " -Djol.skipDynamicAttach=true -Djol.skipHotspotSAAttach=true"
    # Without it Hudi's writers can't look up keys in the Bloom filters of a metadata table on Java 17.
    options += " --add-opens=java.base/java.util.concurrent.locks=ALL-UNNAMED"
    return f"{options} -XX:SharedArchiveFile={CLASS_ARCHIVE}" if _has_classes() else options


def _has_classes() -> bool:
    return CLASS_ARCHIVE.exists() and CLASS_ARCHIVE.stat().st_size > 0


def free_port() -> int:
    """A free loopback port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def needs_server(reason: str) -> None:
    """Skip with ``reason`` printed, or fail where skipping is not allowed (``CI=true``)."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI must not skip this: {reason}")
    pytest.skip(reason)


def passed_in_its_own_process(*arguments: str, **environment: str) -> int:
    """How many tests pass in a pytest of its own with these ``arguments`` and variables; none may fail."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    child = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stdout[-8000:]
    passed = re.search(r"(\d+) passed", child.stdout)
    assert passed is not None, child.stdout[-8000:]
    return int(passed.group(1))


_figures: list[tuple[str, str]] = []


def record_figure(subject: str, figure: str) -> None:
    """Keep a measured figure for the end of the run; ``make soak`` writes them into ``docs/reliability.md``."""
    _figures.append((subject, figure))


def take_figures() -> list[tuple[str, str]]:
    """What ``record_figure`` was told in this process since the last call."""
    taken = list(_figures)
    _figures.clear()
    return taken
