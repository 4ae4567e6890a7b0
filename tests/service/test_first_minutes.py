# SPDX-License-Identifier: Apache-2.0
"""From a newly written table to its first plan: lakefold waits only as settings require, and says until when."""

import json
import logging
import os
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from api_toys import client_of, context_at
from daemon_toys import running, write_config
from databases import store_at
from hudi_by_hand import T1, ByHand
from toy_homes import completed, daemon_at
from waiting import wait_for

from service.control.config.catalog import Catalog
from service.control.config.loader import load_config
from service.control.store import DatabaseUnreachable
from service.server.daemon.scheduler import Scheduler

#: the date before a time that is not of today
TOMORROW = r"(\d{4}-\d\d-\d\d )?"
RULES = '[[tables]]\nmatch = "orders"\nmode = "compact"\nconcurrency = "single_writer"\n'


@pytest.fixture
def fresh(clean_environment, tmp_path):
    """The database of a configuration with one Hudi table of three small files, written now."""
    base = tmp_path / "lake/orders"
    base.mkdir(parents=True)
    made = ByHand(base)
    made.complete(T1, "deltacommit", *(made.base_file(T1, f"p/f-{number}") for number in range(3)))
    for path in base.glob("p/*.parquet"):
        os.utime(path)
    store = store_at(tmp_path)
    (tmp_path / "lakefold.toml").write_text(
        f'[database]\nurl = "sqlite:///{tmp_path}/lakefold.db"\n[[sources]]\npath = "lake"\n{RULES}'
    )
    yield store
    store.close()


@pytest.mark.slow
def test_serve_scans_at_start_after_a_dry_run_and_after_an_earlier_process(toys, home, store, run):
    """The next scan of the interval would be in an hour, and the mode has changed since the last one."""
    config = write_config(home, mode="observe", policy={"scan_interval": "1h"})
    assert run("plans", "request", "t1", "-n", "--config", str(config))[0] == 0
    assert store.last_scan("t1") is not None
    with running(daemon_at(home, policy={"scan_interval": "1h"})):
        wait_for(completed(store), "a completed plan")


@pytest.mark.slow
def test_a_table_is_planned_as_soon_as_its_quiet_period_ends_and_the_log_states_the_time(toys, home, store, caplog):
    caplog.set_level(logging.INFO)
    with running(daemon_at(home, policy={"scan_interval": "1h", "quiet_period": "3s"})):
        wait_for(completed(store), "a completed plan")
    words = [record.getMessage() for record in caplog.records if "waiting" in record.getMessage()]
    assert len(words) == 1
    until = rf"until {TOMORROW}\d\d:\d\d:\d\d UTC"
    assert re.fullmatch(rf"table t1: waiting: 6 files modified \d s ago, {until} \(quiet_period is 3 s\)", words[0])


def test_a_table_is_scanned_when_its_settings_change_and_else_once_an_interval(toys, home, store, metrics, monkeypatch):
    config = load_config(write_config(home, mode="observe", policy={"scan_interval": "1h"}))
    catalog = Catalog(config)
    scheduler = Scheduler(config, store, catalog, metrics, is_leader=lambda: True, actor="test")

    def scans():
        scheduler.request_discovery()
        scheduler.tick()
        scheduler.wait()
        return len(store.scans("t1"))

    try:
        assert [scans(), scans()] == [1, 1]
        changed = write_config(home, mode="observe", policy={"scan_interval": "1h", "target_file_max": "5MiB"})
        monkeypatch.setattr(catalog, "tables", Catalog(load_config(changed)).tables)
        assert [scans(), scans()] == [2, 2]
    finally:
        scheduler.stop()


def test_a_table_that_is_written_all_the_time_is_not_scanned_all_the_time(toys, home, store, metrics):
    """A scan that finds another youngest file than the scan before leaves the next one to the interval."""
    config = load_config(write_config(home, policy={"scan_interval": "1h", "quiet_period": "1min"}))
    scheduler = Scheduler(config, store, Catalog(config), metrics, is_leader=lambda: True, actor="test")
    try:
        scheduler.tick()
        scheduler.wait()
        soon = scheduler._due_at["t1"]
        now = store.last_scan("t1")
        assert now.waiting_seconds is not None
        scheduler._due_at["t1"] += 3600
        store.record_scan(replace(now, taken_at=datetime.now(UTC) + timedelta(seconds=30)))
        scheduler._scan_after_quiet_period(scheduler._tables["t1"])
        assert scheduler._due_at["t1"] == pytest.approx(soon + 3600)
        scheduler._scan_after_quiet_period(scheduler._tables["t1"])
        assert scheduler._due_at["t1"] < soon + 60, "nothing was written since"
    finally:
        scheduler.stop()


def test_a_database_outage_right_after_a_scan_is_no_unexpected_error(toys, home, store, metrics, monkeypatch, caplog):
    config = load_config(write_config(home, policy={"scan_interval": "1h", "quiet_period": "1min"}))
    scheduler = Scheduler(config, store, Catalog(config), metrics, is_leader=lambda: True, actor="test")

    def last_scan(*_, **__):
        raise DatabaseUnreachable("the database does not answer")

    monkeypatch.setattr(store, "last_scan", last_scan)
    try:
        scheduler.tick()
        scheduler.wait()
    finally:
        scheduler.stop()
    assert len(store.scans("t1")) == 1
    assert "unexpected error" not in caplog.text


def test_every_view_shows_the_time_until_which_a_table_waits(fresh, run, tmp_path):
    code, out, _ = run("plans", "request", "orders", "-n")
    until = rf"until {TOMORROW}\d\d:\d\d UTC"
    waits = rf"waiting: modified \d+ s ago, {until} \(quiet_period is 15 min\)"
    assert (code, re.search(waits, out) is not None) == (0, True), out
    assert re.search(waits, run("tables", "explain", "orders")[1])
    assert re.search(rf"^Waiting: 3 files modified \d+ s ago, {until}", run("tables", "show", "orders")[1], re.M)
    assert re.search(rf"^orders waits {until} for the quiet_period", run("status")[1], re.M)
    found = json.loads(run("status", "--json")[1])
    assert (found["waiting_tables"], found["next_waiting"]["table"]) == (1, "orders")
    context = context_at(tmp_path, rules='[[sources]]\npath = "lake"\n' + RULES)
    try:
        with client_of(context) as client:
            assert re.search(rf"waits {until}", client.get("/").text)
            assert re.search(r"<b>Waiting</b> 3 files modified", client.get("/tables/orders").text)
    finally:
        context.store.close()


def test_a_table_that_is_only_observed_does_not_wait(fresh, run, tmp_path):
    config = tmp_path / "lakefold.toml"
    config.write_text(config.read_text().replace("compact", "observe"))
    run("plans", "request", "orders", "-n")
    assert "waits" not in run("status")[1]
    assert "Waiting" not in run("tables", "show", "orders")[1]
