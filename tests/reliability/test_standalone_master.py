# SPDX-License-Identifier: Apache-2.0
"""A plan on a real cluster manager whose worker knows nothing of this checkout."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pyspark
import pytest
from harness import Installation
from hudi_tables import table_rows
from invariants import check_plan_landed_once, ids_in_hudi_rs
from support import free_port, jvm_options
from waiting import wait_for

from executors.spark import java_home


@pytest.fixture
def spark_master(tmp_path):
    """Address of a standalone master with one worker, started elsewhere with an empty PYTHONPATH."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    port, web_master, web_worker = free_port(), free_port(), free_port()
    address = f"spark://127.0.0.1:{port}"
    spark_class = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(elsewhere),
        "JAVA_HOME": str(java_home()),
        "PYTHONPATH": "",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": jvm_options(),
    }
    package = "org.apache.spark.deploy"
    commands = [
        [f"{package}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(web_master)],
        [
            *[f"{package}.worker.Worker", "--host", "127.0.0.1", "--webui-port", str(web_worker)],
            *["--cores", "2", "--memory", "2g", "--work-dir", str(elsewhere / "work"), address],
        ],
    ]
    running = []
    log = tmp_path / "cluster.log"
    try:
        for command in commands:
            with log.open("ab") as sink:
                running.append(
                    subprocess.Popen(
                        [spark_class, *command],
                        cwd=elsewhere,
                        env=env,
                        stdout=sink,
                        stderr=sink,
                        start_new_session=True,
                    )
                )
        wait_for(lambda: "Registering worker" in log.read_text(), lambda: f"a cluster:\n{log.read_text()[-3000:]}", 60)
        yield address
    finally:
        for process in running:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.mark.spark
@pytest.mark.shown_by(
    "tests/reliability/test_yarn.py::test_a_plan_of_hudi_and_one_of_hive_outlive_their_containers_and_application_masters"
)
def test_a_plan_runs_on_a_standalone_master_with_a_worker_in_another_directory(spark, spark_master, template, tmp_path):
    base = tmp_path / "lake" / "remote"
    shutil.copytree(template, base)
    before = table_rows(spark, base)
    installation = Installation(
        home=tmp_path,
        url=f"sqlite:///{tmp_path}/lakefold.db",
        tables={"t.remote": base},
        spark={
            "master": spark_master,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "1g",
            "spark.executor.extraJavaOptions": jvm_options(),
            # The worker does not have the class of the tests either.
            "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem",
        },
    )
    plan = installation.json("plans", "request", "t.remote")[0]["plan_ids"][0]
    installation.run("worker", "--once")
    check_plan_landed_once(installation, "t.remote", base, plan)
    assert table_rows(spark, base) == before
    assert ids_in_hudi_rs(base) == list(range(600))
