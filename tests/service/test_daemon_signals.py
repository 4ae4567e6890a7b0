# SPDX-License-Identifier: Apache-2.0
"""The daemon in a process of its own, which signals tell to end: soon, at once, or now."""

import signal
import urllib.request

import installation
import pytest
from daemon_toys import write_config
from toy_homes import files_on_disk, live_files, table_at
from toys.timeline_tables import table_rows
from waiting import wait_for

from lake.plan import PlanState
from service.problems import ExitCode

pytestmark = pytest.mark.slow


@pytest.fixture
def process(home):
    """Starts ``serve`` as a process; kills it at the end if it is still there."""
    started = []

    def start(role="all", failpoints="", **settings):
        process, _ = installation.started(home, write_config(home, **settings), role, failpoints)
        started.append(process)
        return process

    yield start
    for one in started:
        if one.poll() is None:
            one.kill()
        one.wait()


def log_of(home):
    return (home / "serve.log").read_text()


def test_sigterm_lets_the_plan_under_way_end(home, store, process):
    gate = home / "gate"
    daemon = process(failpoints=f"before_verify=wait:{gate}")
    wait_for((home / "gate.reached").exists, "a plan in its receipt")
    url = log_of(home).partition("listening on ")[2].split()[0] + "/metrics"

    def is_busy():
        with urllib.request.urlopen(url, timeout=10) as page:
            return b'lakefold_executor_slots{state="busy"} 1.0' in page.read()

    wait_for(is_busy, "the next refresh of the metrics")
    daemon.send_signal(signal.SIGTERM)
    wait_for(lambda: "draining" in log_of(home), "draining")
    wait_for(lambda: store.leaders() == [], "the leader rows given up before the plan ends")
    assert daemon.poll() is None
    gate.touch()
    assert daemon.wait(30) == ExitCode.OK, log_of(home)
    assert [plan.state for plan in store.plans()] == [PlanState.COMPLETED]
    assert "Traceback" not in log_of(home)


def test_a_second_sigterm_stops_the_plan_before_its_commit_and_requeues_it(home, store, process):
    rows = table_rows(table_at(home))
    gate = home / "gate"
    daemon = process(failpoints=f"before_verify=wait:{gate}")
    wait_for((home / "gate.reached").exists, "a plan in its receipt")
    daemon.send_signal(signal.SIGTERM)
    wait_for(lambda: "draining" in log_of(home), "draining")
    daemon.send_signal(signal.SIGTERM)
    wait_for(lambda: "again: stopping" in log_of(home), "aborting")
    gate.touch()
    assert daemon.wait(30) == ExitCode.INTERRUPTED, log_of(home)
    assert [plan.state for plan in store.plans()] == [PlanState.REQUESTED]
    assert table_rows(table_at(home)) == rows
    assert list((home / "lake" / "t1" / "pending").iterdir()) == []
    assert files_on_disk(home) == set(live_files(home))


def test_a_third_signal_ends_the_process_at_once(home, process):
    gate = home / "gate"
    daemon = process(failpoints=f"before_verify=wait:{gate}")
    wait_for((home / "gate.reached").exists, "a plan in its receipt")
    for said in ("draining", "again: stopping"):
        daemon.send_signal(signal.SIGTERM)
        wait_for(lambda said=said: said in log_of(home), said)
    daemon.send_signal(signal.SIGTERM)
    assert daemon.wait(30) == -signal.SIGTERM


def test_an_idle_daemon_ends_at_once_on_sigint(home, store, process):
    daemon = process(mode="observe")
    wait_for(lambda: store.last_scan("t1"), "a scan")
    daemon.send_signal(signal.SIGINT)
    assert daemon.wait(15) == ExitCode.OK
    assert store.leaders() == []
