# SPDX-License-Identifier: Apache-2.0
"""A Spark session that died is forgotten, and the next plan gets another one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPT = """
import os, signal, tempfile, time
from pathlib import Path
from executors.spark import drop_dead_session, spark_session
settings = {"spark.master": "local[1]", "spark.driver.memory": "512m"}
assert not drop_dead_session(), "there is no session yet"
first = spark_session(settings)
assert not drop_dead_session(), "it is alive"
jvm = first.sparkContext._gateway.proc
jvm.kill()
jvm.wait()
assert drop_dead_session()
second = spark_session(settings)
assert second.range(3).count() == 3
second.sparkContext._jsc.sc().stop()
assert drop_dead_session()
third = spark_session(settings)
assert third.range(4).count() == 4
(mine,) = Path(tempfile.gettempdir()).iterdir()
assert any(mine.rglob("blockmgr-*")), "the JVM keeps its files there"
third.stop()
print("recovered")
"""


START = """
import os, signal, sys, threading, time
from pathlib import Path
from pyspark import SparkContext
from executors import spark as module
from executors.spark import spark_session
from lake.errors import Transient
settings = {"spark.master": "local[1]", "spark.driver.memory": "512m"}

def told(path):
    try:
        return path.read_text()
    except OSError:  # it ended meanwhile
        return ""

def children():
    listed = [int(pid) for task in Path("/proc/self/task").iterdir() for pid in told(task / "children").split()]
    return [pid for pid in listed if ") Z" not in told(Path(f"/proc/{pid}/stat"))]

def jvm():
    # Not the one that is asked for its version, nor the script that becomes Spark's.
    return next((pid for pid in children() if "java\\0-cp" in told(Path(f"/proc/{pid}/cmdline"))), None)

def launched():
    return jvm() if SparkContext._gateway is None else None

def with_gateway():
    return jvm() if SparkContext._gateway is not None and SparkContext._jvm is not None else None

def meanwhile(when, number):
    done = threading.Event()
    def strike():
        while not done.is_set():
            child = when()
            if child is not None:
                os.kill(child, number)
                return
            time.sleep(0.001)
    threading.Thread(target=strike, daemon=True).start()
    try:
        spark_session(settings)
    except Transient as error:
        return str(error)
    finally:
        done.set()
    return "it started"

print("launched:", meanwhile(launched, signal.SIGKILL))
print("with a gateway:", meanwhile(with_gateway, signal.SIGKILL))
module.START_TIMEOUT_SECONDS = 6.0
print("stopped:", meanwhile(with_gateway, signal.SIGSTOP))
module.START_TIMEOUT_SECONDS = 600.0
session = spark_session(settings)
assert session.range(3).count() == 3
os.kill(jvm(), signal.SIGKILL)
while jvm() is not None:
    time.sleep(0.01)
assert spark_session(settings).range(4).count() == 4, "the next use starts another one"
assert children() == [jvm()], "no JVM of an earlier try is left"
spark_session(settings).stop()
print("recovered")
"""


def test_a_jvm_that_dies_or_hangs_at_any_moment_of_its_start_is_named_and_the_next_use_starts_another(
    tmp_path: Path,
):
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", START], env=environment, capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    died = "Spark could not start: its JVM was ended by SIGKILL, as the kernel does if memory runs out"
    expected = [f"launched: {died}", f"with a gateway: {died}", f"stopped: {died}", "recovered"]
    assert lines == expected, done.stderr[-3000:]
    assert len(list(tmp_path.iterdir())) == 1, "what five killed JVMs kept for themselves is gone"


def test_a_killed_jvm_and_a_stopped_context_are_each_replaced_with_all_that_it_kept_on_disk(tmp_path: Path):
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip().endswith("recovered"), done.stderr[-3000:]
