# SPDX-License-Identifier: Apache-2.0
"""Adopted plans in the database: one live plan for an instant, and who may take one over."""

import os
import socket
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta

import pytest
from store_plans import TRIPS, make_plan, sql
from support import needs_server

from lake.plan import Plan
from lake.process_identity import Process, executor_name, has_executor_ended
from service.control.store import ConstraintViolated, Store
from service.control.store.leases import ADOPTED_GRACE

pytestmark = pytest.mark.paired("database_url")


def adopted(store: Store, *partitions: str, instant: str = "7") -> Plan:
    plan = replace(make_plan(*partitions), adopted_instant=instant)
    store.add_plan(plan, request_id=None, actor="scheduler", estimate={})
    return plan


def test_an_adopted_plan_is_stored_with_its_instant(store: Store) -> None:
    plan = adopted(store, "dt=1")
    claim = store.claim("e")
    assert claim is not None
    assert claim.plan == plan
    assert store.plan(plan.plan_id).adopted == "7"
    assert store.plan_events(plan.plan_id)[0].reason == "adopted instant 7"
    assert store.locked_partitions(TRIPS.name) == {"dt=1": plan.plan_id}


def test_an_instant_has_one_live_plan_and_is_known_after_that_plan_ended(store: Store) -> None:
    plan = adopted(store, "dt=1")
    with pytest.raises(ConstraintViolated):
        adopted(store, "dt=2")
    store.request_cancel(plan.plan_id, "operator")
    assert store.adopted_plans(TRIPS.name, ["7", "8"]) == {"7": plan.plan_id}
    assert store.adopted_plans("other", ["7"]) == {}
    again = adopted(store, "dt=2")
    assert store.adopted_plans(TRIPS.name, ["7"]) == {"7": again.plan_id}


def silent(store: Store, url: str, executor: str, ago: timedelta) -> None:
    """``executor`` claims a plan and its lease ran out that long ago."""
    assert store.claim(executor) is not None
    sql(url, f"UPDATE plan SET lease_until_ms = lease_until_ms - {60_000 + int(ago.total_seconds() * 1000)}")


def test_an_adopted_plan_stays_with_an_executor_that_may_only_be_suspended(store: Store, database_url: str) -> None:
    adopted(store, "dt=1")
    asleep = executor_name()  # this very process: alive
    silent(store, database_url, asleep, timedelta(minutes=1))
    assert store.take_over_expired("rescuer") is None
    sql(
        database_url,
        f"UPDATE plan SET lease_until_ms = lease_until_ms - {ADOPTED_GRACE / timedelta(milliseconds=1):.0f}",
    )
    claim = store.take_over_expired("rescuer")
    assert claim is not None
    assert claim.epoch == 2


@pytest.mark.parametrize("executor", ["elsewhere/1/19bb0000000", "a name of another make"])
def test_nothing_is_known_of_an_executor_on_another_host(store: Store, database_url: str, executor: str) -> None:
    adopted(store, "dt=1")
    silent(store, database_url, executor, timedelta(minutes=1))
    assert store.take_over_expired("rescuer") is None
    assert store.take_over_expired(executor) is not None, "an executor takes its own plan back"


def test_an_adopted_plan_of_a_process_that_is_gone_is_taken_over_at_once(store: Store, database_url: str) -> None:
    adopted(store, "dt=1")
    ended = subprocess.Popen(["true"])
    ended.wait()
    silent(store, database_url, another(executor_name(), ended.pid), timedelta(0))
    assert store.take_over_expired("rescuer") is not None


def test_a_suspended_executor_with_an_adopted_plan_does_not_hide_other_silent_executors(
    store: Store, database_url: str
) -> None:
    adopted(store, "dt=1")
    own = make_plan("dt=2")
    silent(store, database_url, executor_name(), timedelta(minutes=1))
    store.add_plan(own, request_id=None, actor="scheduler", estimate={})
    other = Store(database_url, replace(store._settings, max_inflight_per_table=2))
    assert other.claim("dead") is not None
    sql(database_url, f"UPDATE plan SET lease_until_ms = lease_until_ms - 61000 WHERE id = '{own.plan_id}'")
    claim = other.take_over_expired("rescuer")
    assert claim is not None
    assert claim.plan.plan_id == own.plan_id
    other.close()


def another(name: str, pid: int, started: int | None = None) -> str:
    """The name that another process of this host and namespace gives itself, which began at ``started`` if at all."""
    host, _, moment, mark = name.split("/")
    return f"{host}/{pid}/{moment}/{mark.split('.')[0]}.{started or 1}"


def test_a_process_is_gone_when_it_ended_or_its_number_was_given_to_a_younger_one() -> None:
    name = executor_name()
    assert not has_executor_ended(name)
    assert has_executor_ended(another(name, os.getpid())), "this process did not start with the machine"
    unwaited = subprocess.Popen(["sleep", "60"])
    process = Process.of(unwaited.pid)
    assert process is not None
    other = another(name, unwaited.pid, process.started)
    assert not has_executor_ended(other)
    unwaited.kill()
    os.waitid(os.P_PID, unwaited.pid, os.WEXITED | os.WNOWAIT)
    assert has_executor_ended(other), "it ended and was only not waited for"
    unwaited.wait()
    assert has_executor_ended(other)
    assert not has_executor_ended("nonsense")
    assert not has_executor_ended(f"{socket.gethostname()}/{unwaited.pid}/19bb0000000"), "a name of an earlier release"


def test_plus_an_executor_in_another_container_with_the_same_host_name_does_not_count_as_dead() -> None:
    """Real processes in a process namespace of their own, where ids begin at 1 again, and the same host name."""
    own = "import lake.process_identity as i; print(i.executor_name(), flush=True); input()"
    command = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", sys.executable, "-c", own]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as container:
        assert container.stdin is not None
        assert container.stdout is not None
        name = container.stdout.readline().strip()
        if not name:
            needs_server("the kernel allows no process namespaces here")
        host, pid, *_ = name.split("/")
        assert (host, pid) == (socket.gethostname(), "1")
        assert not has_executor_ended(name)
        # And from inside: this process has an id that no process has there.
        ask = f"import lake.process_identity as i; print(i.has_executor_ended({executor_name()!r}))"
        inside = subprocess.run([*command[:-1], ask], capture_output=True, text=True, check=True)
        assert inside.stdout.strip() == "False"
        assert has_executor_ended(executor_name().replace(f"/{os.getpid()}/", "/1/")), "what its name would mean here"
        container.stdin.close()
