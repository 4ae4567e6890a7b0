# SPDX-License-Identifier: Apache-2.0
"""Real processes whose SQLite file is deleted, put back or replaced.

They change nothing, and log and /-/ready name the file at once.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from daemon_toys import write_config
from installation import started
from toy_homes import files_on_disk, live_files, table_at
from toys.timeline_tables import create, table_rows
from waiting import wait_for

from lake.plan import PlanState
from service.problems import ExitCode

pytestmark = pytest.mark.slow

GONE = "is gone; lakefold changes nothing without it"


class Served:
    """A process of ``lakefold serve`` in a home, and its HTTP."""

    def __init__(self, home: Path, failpoints: str = "", **settings: object) -> None:
        self.home, self.database = home, home / "lakefold.db"
        config = write_config(home, **settings)
        self.process, self._log = started(home, config, failpoints=failpoints)

    @property
    def log(self) -> str:
        return self._log.read_text()

    def url(self) -> str:
        found: str = wait_for(lambda: re.search(r"listening on (\S+)", self.log), "listening", 60)[1]
        return found

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"{self.url()}{path}", headers={"Accept": "text/html"}, timeout=20)


@pytest.fixture
def serve(home: Path) -> Iterator[Callable[..., Served]]:
    served: list[Served] = []

    def start(failpoints: str = "", **settings: object) -> Served:
        served.append(Served(home, failpoints, **settings))
        return served[-1]

    yield start
    for one in served:
        if one.process.poll() is None:
            one.process.kill()
        one.process.wait()


def test_ready_turns_red_at_once_no_file_is_created_and_no_table_changed_until_the_file_is_back(
    home, store, serve, run, toys, monkeypatch
):
    served = serve()
    wait_for(lambda: store.plans(state=PlanState.COMPLETED), "compacted", 60)
    assert served.get("/-/ready").status_code == 200
    away = served.database.rename(home / "away.db")
    answer = served.get("/-/ready")
    assert (answer.status_code, GONE in answer.text) == (503, True)
    create(home / "lake" / "t2", name="t2")
    before = {name: files_on_disk(home, name) for name in ("t1", "t2")}
    wait_for(lambda: GONE in served.log, "said in the log", 30)
    page = served.get("/")
    assert page.status_code == 503
    assert "docs/operations.md#restore" in page.text
    monkeypatch.setenv("LAKEFOLD_CONFIG", str(home / "lakefold.toml"))
    for command in (("status",), ("db", "check"), ("serve",), ("serve", "--once"), ("tables", "list")):
        code, out, err = run(*command)
        assert (code, out) == (ExitCode.DATABASE, ""), command
        assert "restore its backup (docs/operations.md#restore)" in err, command
        assert len(err.splitlines()) == 1, command
    assert not served.database.exists()
    assert {name: files_on_disk(home, name) for name in before} == before
    assert served.process.poll() is None
    away.rename(served.database)
    wait_for(lambda: served.get("/-/ready").status_code == 200, "ready again", 30)
    assert len([line for line in served.log.splitlines() if GONE in line and "ERROR" in line]) == 1, served.log


def test_a_plan_is_not_committed_during_a_database_outage(home, store, serve):
    gate = home / "gate"
    rows = table_rows(table_at(home))
    served = serve(failpoints=f"before_verify=wait:{gate}", policy={"lease": "2s", "heartbeat": "300ms"})
    wait_for((home / "gate.reached").exists, "a plan before its commit", 60)
    live = live_files(home)
    store.close()
    away = served.database.rename(home / "away.db")
    wait_for(lambda: GONE in served.log, "said in the log", 30)
    gate.touch()
    wait_for(lambda: "before its commit" in served.log or "could not be" in served.log, "it stopped", 30)
    assert live_files(home) == live
    away.rename(served.database)
    wait_for(lambda: store.plans(state=PlanState.COMPLETED), "compacted after all", 60)
    assert table_rows(table_at(home)) == rows


def test_a_process_ends_when_its_file_is_replaced_and_the_next_one_uses_the_copy(home, store, serve):
    served = serve(mode="observe")
    wait_for(lambda: store.last_scan("t1"), "a scan", 60)
    store.close()
    shutil.copyfile(served.database, home / "copy.db")
    os.replace(home / "copy.db", served.database)
    assert served.process.wait(120) == ExitCode.DATABASE, served.log
    told = [line for line in served.log.splitlines() if "was replaced by another file" in line]
    assert len([line for line in told if "ERROR" in line]) == 1, served.log
    assert "Traceback" not in served.log
    again = serve(mode="observe")
    assert wait_for(lambda: again.get("/-/ready").status_code == 200, "ready", 60)


def test_a_first_start_needs_only_db_upgrade(toys, tmp_path, run, monkeypatch):
    create(tmp_path / "lake" / "t1", name="t1")
    monkeypatch.setenv("LAKEFOLD_CONFIG", str(write_config(tmp_path)))
    code, out, err = run("serve", "--once")
    assert (code, out) == (ExitCode.DATABASE, "")
    assert "For a new installation, run: lakefold db upgrade" in err
    assert run("db", "upgrade", "--no-create")[0] == ExitCode.DATABASE
    assert not (tmp_path / "lakefold.db").exists()
    assert run("db", "upgrade")[0] == ExitCode.OK
    assert run("db", "upgrade", "--no-create")[0] == ExitCode.OK
    code, out, _ = run("db", "check")
    assert (code, "database is writable" in out) == (ExitCode.OK, True)
