# SPDX-License-Identifier: Apache-2.0
"""Tables on a real HDFS, rewritten by Spark on a real YARN that loses containers and ApplicationMasters meanwhile."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hadoop
import pyspark
import pytest
from hadoop import HadoopCluster
from harness import Installation, stop_group
from hdfs_paths import place
from hive_case import DATABASE, HiveCase, table_name
from hive_metastore import MetastoreServer
from hudi_tables import small_files, table_rows
from support import jvm_options
from waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]

MASTER, EXECUTOR, PYTHON = "ExecutorLauncher", "YarnCoarseGrainedExecutorBackend", "pyspark.daemon"


@pytest.fixture(scope="module")
def yarn() -> Iterator[HadoopCluster]:
    with hadoop.running(yarn=True) as cluster, hadoop.known(cluster):
        yield cluster


def containers(cluster: HadoopCluster, what: str) -> list[int]:
    """The processes of the cluster's containers that run ``what``."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            inside = os.readlink(entry / "cwd")
        except (OSError, ValueError):
            continue
        # The shell that a container begins with has the same words in its command.
        if entry.name.isdigit() and inside.startswith(str(cluster.home)) and what in command and "bash" not in command:
            found.append(int(entry.name))
    return found


def kill(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def home(yarn: HadoopCluster, metastore: MetastoreServer, tmp_path: Path) -> Installation:
    made = Installation(home=tmp_path, url=f"sqlite:///{tmp_path}/lakefold.db")
    jars = Path(pyspark.__file__).parent / "jars"
    settings = {
        "master": "yarn",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "700m",
        "spark.executor.instances": "1",
        "spark.executor.cores": "2",
        "spark.executor.memory": "600m",
        "spark.executor.extraJavaOptions": jvm_options(),
        "spark.pyspark.python": sys.executable,
        "spark.yarn.am.memory": "512m",
        "spark.yarn.am.extraJavaOptions": jvm_options(),
        # They are on every host of this cluster: nothing is uploaded.
        "spark.yarn.jars": f"local:{jars}/*",
        "spark.yarn.maxAppAttempts": "4",
        "spark.sql.shuffle.partitions": "2",
    }
    spark = "\n".join(f'"{key}" = "{value}"' for key, value in settings.items())
    made.config.write_text(
        f'[database]\nurl = "{made.url}"\n[spark]\n{spark}\n[http]\nport = 0\n'
        f'[[sources]]\npath = "{yarn.uri}/lake"\n'
        f'[[sources]]\nmetastore = "{metastore.uri}"\ndatabase = "{DATABASE}"\n'
        '[defaults]\nquiet_period = "0s"\nretention = "1h"\nverification = "hash"\nbackoff = "1s"\n'
        '[[tables]]\nmatch = "trips"\nmode = "compact"\nconcurrency = "single_writer"\n'
        f'[[tables]]\nmatch = "{DATABASE}.*"\nmode = "compact"\naccess = "catalog"\n'
    )
    return made


def test_a_plan_of_hudi_and_one_of_hive_outlive_their_containers_and_application_masters(
    yarn: HadoopCluster, home: Installation, metastore: MetastoreServer, spark: Any, tmp_path: Path
):
    trips = f"{yarn.uri}/lake/trips"
    small_files(spark, trips, commits=3, rows_each=60)
    case = HiveCase(uri=metastore.uri, root=yarn.uri)
    orders = case.create(tmp_path / "orders", name="orders")
    name = f"{DATABASE}.{table_name(orders)}"
    before = table_rows(spark, trips), case.rows(orders)

    (hudi,) = home.json("plans", "request", trips)[0]["plan_ids"]
    gate = tmp_path / "gate"
    log = tmp_path / "worker.log"
    worker = home.start("worker", "--once", failpoints=f"before_rewrite=wait:{gate}", log=log)
    try:

        def wait_for_worker(condition: Callable[[], Any], what: str) -> None:
            """Wait for ``condition``; fail at once, with the worker's log, if the worker ends before that."""

            def holds() -> Any:
                value = condition()
                assert value or worker.poll() is None, f"the worker ended without {what}:\n{log.read_text()[-20000:]}"
                return value

            wait_for(holds, lambda: f"{what}:\n{log.read_text()[-20000:]}", 240)

        wait_for_worker((tmp_path / "gate.reached").exists, "a plan that was prepared")
        wait_for_worker(lambda: containers(yarn, EXECUTOR), "a container")
        stopped, masters = containers(yarn, EXECUTOR), containers(yarn, MASTER)
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        (hive,) = home.json("plans", "request", name)[0]["plan_ids"]
        gate.touch()
        # What is sent to a stopped container is under way, as far as Spark knows; nothing else tells when it was sent.
        time.sleep(3)
        kill([*stopped, *masters])
        # Tasks of the other one are Python's: where there is one it has begun.
        wait_for_worker(lambda: containers(yarn, PYTHON), "a task in Python")
        kill([*containers(yarn, EXECUTOR), *containers(yarn, MASTER)])
        assert worker.wait(timeout=300) == 0, log.read_text()[-5000:]
    finally:
        stop_group(worker)

    told = {plan["plan_id"]: plan for plan in home.json("plans", "list")}
    assert {told[hudi]["state"], told[hive]["state"]} == {"completed"}, log.read_text()[-5000:]
    assert (table_rows(spark, trips), case.rows(orders)) == before
    home.config.write_text(home.config.read_text().replace('retention = "1h"', 'retention = "0s"'))
    home.run("clean")
    files = [path.name for path in place(trips).rglob("*.parquet") if ".hoodie" not in str(path)]
    assert len(files) == 2
    assert len(case.stored(orders)) == 2
    assert (table_rows(spark, trips), case.rows(orders)) == before
