# SPDX-License-Identifier: Apache-2.0
"""A Spark session that died is forgotten, and the next plan gets another one."""

import os
import subprocess
import sys

SCRIPT = """
import os, signal, time
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
third.stop()
print("recovered")
"""


def test_a_killed_jvm_and_a_stopped_context_are_each_replaced():
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=os.environ, capture_output=True, text=True, check=False)
    assert done.stdout.strip().endswith("recovered"), done.stderr[-3000:]
