# SPDX-License-Identifier: Apache-2.0
"""The function that docs/scripting.md gives to Airflow and Dagster asks, waits and fails as the page says."""

import re
import socket
import time
import urllib.error

import pytest
from api_toys import add_token
from daemon_toys import running, write_config
from pages import ROOT
from toys.files import rows
from toys.timeline_tables import create, write
from waiting import wait_for

from service.control.config.loader import load_config
from service.server.daemon.process import Daemon

pytestmark = pytest.mark.slow

PAGE = (ROOT / "docs" / "scripting.md").read_text()


@pytest.fixture
def compact(monkeypatch):
    """The page's function, which waits a hundredth of the time."""
    (text,) = [block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "def compact(" in block]
    names: dict = {}
    exec(text, names)
    pause = time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: pause(seconds / 100))
    return names["compact"]


@pytest.fixture
def table(toys, tmp_path, store, monkeypatch):
    """A table of a running lakefold that has become worth a plan since its only scan."""
    table = create(tmp_path / "lake" / "t1", name="t1", files=1)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setenv("LAKEFOLD_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("LAKEFOLD_TOKEN", add_token(store, "write"))
    config = load_config(write_config(tmp_path, http={"port": port}, policy={"scan_interval": "1h", "max_attempts": 1}))
    with running(Daemon(config, "all")):
        wait_for(lambda: store.last_scan("t1") is not None, "the first scan")
        write(table, "dt=0", rows(1000, 1009))
        yield table


def test_the_task_returns_when_the_partition_is_compacted_and_its_retries_make_one_request(compact, table, store):
    compact("t1", "dt=0", "run 1")
    assert [plan.state for plan in store.plans()] == ["completed"]
    compact("t1", "dt=0", "run 1")
    assert len(store.plans()) == 1


def test_the_task_fails_where_its_plan_fails_or_the_table_is_not_to_be_planned(compact, table, store):
    store.pause("t1", "somebody")
    with pytest.raises(urllib.error.HTTPError, match="409"):
        compact("t1", "dt=0", "run 1")
    store.resume("t1", "somebody")
    with pytest.raises(RuntimeError, match="no partition 'dt=9'"):
        compact("t1", "dt=9", "run 2")
    write(table, "dt=0", rows(2000, 2009).set_column(0, "id", [["not a number"] * 9]))
    with pytest.raises(RuntimeError, match=r"plan \S+ failed"):
        compact("t1", "dt=0", "run 3")
