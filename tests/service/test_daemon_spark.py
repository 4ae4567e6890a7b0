# SPDX-License-Identifier: Apache-2.0
"""A daemon whose Spark can't be started: what it leaves to others, what it says, and that it works again by itself."""

import socket
import subprocess
import urllib.error
import urllib.request
from unittest.mock import Mock

import pytest
from daemon_toys import known, running, write_config
from toys.timeline import ToyFormat
from toys.timeline_tables import create
from waiting import wait_for

from executors import shared_session
from lake.errors import Transient
from lake.plan import PlanState
from service.control import serializers
from service.control.config.loader import load_config
from service.control.lake_cache import read_lake_state
from service.control.leadership import CLEAN_ROLE, SWEEP_ROLE
from service.server.daemon.process import Daemon

pytestmark = pytest.mark.slow

DIED = "Spark could not start: its JVM was ended by SIGKILL, as the kernel does if memory runs out"


class WithSpark(ToyFormat):
    """Toy tables that can't be changed without a session."""

    def writer(self, table, spark, engines=()):
        spark()
        return super().writer(table, spark)


@pytest.fixture
def toys():
    with known(WithSpark()) as toys:
        yield toys


@pytest.fixture
def store(store, tmp_path):
    create(tmp_path / "lake" / "t1", name="t1")
    return store


@pytest.mark.parametrize("role", ["all", "executor"])
@pytest.mark.usefixtures("toys")
def test_without_spark_a_daemon_takes_no_plan_gives_up_cleaning_and_sweeping_and_is_not_ready(
    tmp_path, store, monkeypatch, role
):
    dead, tries = [True], []

    def start(config, **_):
        tries.append(1)
        if dead:
            raise Transient(DIED)
        return Mock(sparkContext=Mock(uiWebUrl="http://127.0.0.1:4040"))

    monkeypatch.setattr("service.server.daemon.process.start_spark", start)
    monkeypatch.setattr(shared_session, "_BACKOFF_SECONDS", 0.2)
    config = load_config(write_config(tmp_path, policy={"backoff": "1s", "max_attempts": 100}))
    if role == "executor":
        with Daemon(config, "scheduler") as scheduler:
            scheduler.run_once()
    daemon = Daemon(config, role)
    with running(daemon):
        wait_for(lambda: daemon.readiness_problem() == DIED, "a start that fails")
        wait_for(
            lambda: [(p.spark, p.problem) for p in store.processes() if p.can_execute] == [("broken", DIED)], "told"
        )
        assert DIED in (serializers.status(read_lake_state(store))["no_executor_reason"] or "")
        roles = {CLEAN_ROLE, SWEEP_ROLE}
        wait_for(lambda: not roles & {leader.role for leader in store.leaders() if leader.live}, "both given up")
        assert all(store.acquire_leader(name, "another", daemon.config.daemon.leader_ttl) for name in roles)
        assert (role == "all") == daemon.leadership.is_leader("scan")
        (plan,) = store.plans()
        seen = len(tries)
        wait_for(lambda: len(tries) >= seen + 2, "it tries again by itself")
        assert store.plan(plan.plan_id).epoch == 1, "no plan is taken for the length of a lease"
        dead.clear()
        wait_for(lambda: store.figures().count(PlanState.COMPLETED) == 1, "the plan after Spark has started")
        for name in roles:
            store.release_leader(name, "another")
        wait_for(lambda: all(map(daemon.leadership.is_leader, roles)), "both taken again")
        wait_for(lambda: daemon.readiness_problem() is None, "ready again")
        wait_for(lambda: store.processes()[0].spark_ui == "http://127.0.0.1:4040", "where its jobs are seen")
    assert store.processes() == [], "it took leave"


def readiness(port):
    """What ``/-/ready`` answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return None


@pytest.mark.usefixtures("toys")
def test_a_jvm_that_ends_later_on_makes_the_process_not_ready_until_another_one_runs(tmp_path, store, monkeypatch):
    jvms, lets_start = [], [True]

    def start(config, **_):
        if not jvms or jvms[-1].poll() is not None:
            if not lets_start:
                raise Transient(DIED)
            jvms.append(subprocess.Popen(["sleep", "600"]))
        return Mock(sparkContext=Mock(uiWebUrl=None))

    monkeypatch.setattr("service.server.daemon.process.start_spark", start)
    monkeypatch.setattr(shared_session, "jvm_process", lambda: jvms[-1])
    monkeypatch.setattr(shared_session, "_BACKOFF_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    try:
        with running(Daemon(load_config(write_config(tmp_path, http={"port": port})), "all")):
            wait_for(lambda: store.figures().count(PlanState.COMPLETED) == 1, "a plan")
            wait_for(lambda: readiness(port) == (200, "ready\n"), "ready")
            lets_start.clear()
            jvms[-1].kill()
            jvms[-1].wait()
            status, why = readiness(port)
            assert (status, "Spark" in why) == (503, True), "at once, not only when a session is needed"
            wait_for(lambda: [process.spark for process in store.processes()] == ["broken"], "told to others")
            lets_start.append(True)
            wait_for(lambda: readiness(port) == (200, "ready\n"), "ready again")
        assert len(jvms) == 2
    finally:
        for jvm in jvms:
            jvm.kill()
            jvm.wait()
