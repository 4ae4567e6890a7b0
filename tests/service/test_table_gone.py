# SPDX-License-Identifier: Apache-2.0
"""A table whose directory is gone: explain, verify and scans say so, whatever its format and source make of it."""

import shutil
from dataclasses import replace
from datetime import timedelta

import pytest
from daemon_toys import known, write_config
from databases import store_at
from toys.timeline import ToyFormat
from toys.timeline_tables import create

from service.control.config.catalog import Catalog
from service.control.config.loader import load_config
from service.control.planning import scan
from service.control.store import ScanRecord
from service.server.daemon.scheduler import Scheduler
from service.server.observability.metrics import Metrics


class Catalogued(ToyFormat):
    """For this format, as for Hive's, a table without a directory is an empty one."""

    def check(self, table):
        pass

    def live(self, table):
        try:
            return super().live(table)
        except Exception:
            return []

    def newest(self, table):
        return ""

    def verify(self, table, superseded, *, rows):
        self.live(table)
        return replace(super().verify(table, superseded, rows=rows), files=len(self.live(table)))


@pytest.fixture(params=[ToyFormat, Catalogued])
def lost(request, tmp_path, monkeypatch, clean_environment):
    """A registered table ``sales.orders`` under a directory that is searched; its directory is gone."""
    folder = tmp_path / "lake" / "sales.orders"
    create(folder, name="sales.orders")
    config = write_config(tmp_path)
    config.write_text(config.read_text().replace(str(folder), str(tmp_path / "lake" / "*")))
    monkeypatch.setenv("LAKEFOLD_CONFIG", str(config))
    with known(request.param()):
        store = store_at(tmp_path)
        loaded = load_config(config)
        (table,) = Catalog(loaded).tables()
        scan.scan_and_plan(loaded, store, table, actor="a")
        shutil.rmtree(folder)
        yield folder, loaded, store
        store.close()


@pytest.mark.parametrize("command", [("tables", "explain"), ("verify",), ("plans", "request", "-n")])
def test_commands_report_a_missing_directory_for_full_name_end_of_name_and_path(lost, run, command):
    folder, _, _ = lost
    for name in ("sales.orders", "orders", str(folder)):
        code, out, err = run(*command[:2], name, *command[2:])
        assert (code, out) == (1, ""), (command, name)
        assert err == f"lakefold: sales.orders: its directory {folder} does not exist\n"


def test_a_search_that_no_longer_finds_the_table_records_why_once(lost):
    folder, config, store = lost
    scheduler = Scheduler(
        config,
        store,
        Catalog(config, registered=store.table_states),
        Metrics("scheduler"),
        is_leader=lambda: True,
        actor="a",
    )
    (folder.parent / "other").mkdir()
    create(folder.parent / "t2", name="t2")
    for _ in range(2):
        scheduler.discover()
    scheduler.stop()
    last = store.last_scan("sales.orders")
    assert (last.outcome, last.is_gone) == ("error", True)
    assert last.error == f"sales.orders: its directory {folder} does not exist"
    assert len(store.scans("sales.orders")) == 2, "the good one, and one that says it is gone"
    create(folder, name="sales.orders")
    store.record_scan(ScanRecord(table="sales.orders", taken_at=last.taken_at + timedelta(seconds=1)))
    assert store.last_scan("sales.orders").outcome == "ok"
