# SPDX-License-Identifier: Apache-2.0
"""A configuration file that is edited while a process runs.

Status, page and metric name the edit until SIGHUP loads the file.
"""

import re
import signal

import httpx
import pytest
from daemon_toys import write_config
from installation import started
from waiting import wait_for

from lake.plan import PlanState

pytestmark = pytest.mark.slow


@pytest.fixture
def served(home):
    """A process on a table that is only observed: its configuration file, its log, and its process."""
    config = write_config(home, mode="observe", policy={"scan_interval": "1h"})
    process, log = started(home, config)
    yield config, log, process
    if process.poll() is None:
        process.kill()
    process.wait()


def test_an_edited_file_is_reported_until_sighup_loads_it_and_its_rules_are_in_force(
    home, store, served, run, monkeypatch
):
    config, log, process = served
    monkeypatch.setenv("LAKEFOLD_CONFIG", str(config))
    wait_for(lambda: store.last_scan("t1"), "a scan", 60)
    url = re.search(r"listening on (\S+)", log.read_text())[1]
    loaded = config.read_text()

    def problems():
        return [one["problem"] for one in httpx.get(f"{url}/v1/status").json()["config_problems"]]

    def metric():
        return float(re.search(r"^lakefold_config_not_loaded (\S+)$", httpx.get(f"{url}/metrics").text, re.M)[1])

    assert (problems(), metric()) == ([], 0.0)
    config.write_text(loaded.replace('"observe"', '"compact"'))
    wait_for(problems, "the edit in the status", 30)
    assert re.fullmatch(rf"{config} was edited at .* UTC and is not loaded; SIGHUP loads it .*", problems()[0])
    assert problems()[0] in run("status")[1]
    wait_for(lambda: metric() == 1.0, "the metric", 30)
    assert "is not loaded; SIGHUP loads it" in httpx.get(url, headers={"Accept": "text/html"}).text
    assert store.plans() == []

    config.write_text(loaded.replace('"observe"', '"compakt"'))
    process.send_signal(signal.SIGHUP)
    wait_for(lambda: "the configuration before it stays in force" in log.read_text(), "refused", 30)
    wait_for(lambda: "compakt" in "".join(problems()), "the refusal in the status", 30)
    assert re.search(r"ERROR.*lakefold\.toml.*was not loaded.*mode", log.read_text()), log.read_text()
    assert "Traceback" not in log.read_text()
    assert httpx.get(f"{url}/v1/tables/t1").json()["mode"] == "observe"

    config.write_text(loaded.replace('"observe"', '"compact"'))
    process.send_signal(signal.SIGHUP)
    wait_for(lambda: store.plans(state=PlanState.COMPLETED), "the new rule is in force at once", 60)
    wait_for(lambda: (problems(), metric()) == ([], 0.0), "no problem is left", 30)
    assert httpx.get(f"{url}/v1/tables/t1").json()["mode"] == "compact"
    assert httpx.get(f"{url}/v1/settings?table=t1").json()["items"][0]["value"] == "compact"
    assert process.poll() is None


def test_settings_that_need_a_restart_are_named_until_then(home, store, served):
    config, log, process = served
    wait_for(lambda: store.last_scan("t1"), "a scan", 60)
    loaded = config.read_text()
    edited = loaded.replace("port = 0", "port = 1").replace('"1h"\n', '"1h"\nlease = "90s"\n', 1)
    config.write_text(f"{edited}\n[cost]\ncpu_hour = 2\n")
    process.send_signal(signal.SIGHUP)
    wait_for(lambda: "is loaded; after a restart: http.port, defaults.lease" in log.read_text(), "loaded", 30)
    found = wait_for(lambda: store.processes()[0].config_problem, "the settings in the status", 30)
    assert found == f"{config} was loaded, but http.port, defaults.lease wait for a restart"
    config.write_text(loaded)
    process.send_signal(signal.SIGHUP)
    wait_for(lambda: store.processes()[0].config_problem is None, "no problem is left", 30)
