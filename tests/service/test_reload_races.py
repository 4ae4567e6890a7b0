# SPDX-License-Identifier: Apache-2.0
"""A configuration that is loaded again while scans wait and while a round of cleaning runs."""

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from databases import store_at
from toys.bench import bench_at
from toys.cases import no_spark
from waiting import wait_for

from executors.cleaner import CleanJob
from executors.observer import Observer
from lake.errors import Transient
from lake.model import Concurrency, TableRef
from service.control.config.catalog import Catalog
from service.control.config.loader import Config, load_config
from service.control.config.table_settings import ConfiguredTable, configure_table
from service.server.daemon.maintenance import Maintenance
from service.server.daemon.scheduler import Scheduler
from service.server.observability.metrics import Metrics

TABLES = [TableRef(name=f"t{number}", format="hudi", location=f"/lake/t{number}") for number in range(6)]


class SixTables(Catalog):
    """Tables whose sources are not read."""

    def tables(self) -> list[ConfiguredTable]:
        return [configure_table(self.config, ref) for ref in TABLES]


def loaded(home: Path, *rule: str) -> Config:
    path = home / "lakefold.toml"
    path.write_text("\n".join([f'[database]\nurl = "sqlite:///{home}/lakefold.db"', '[[tables]]\nmatch = "*"', *rule]))
    return load_config(path)


def test_a_scan_that_waited_since_before_a_reload_does_not_write_the_old_settings_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, begun, goes_on = store_at(tmp_path), list[str](), threading.Event()

    def listing(table: ConfiguredTable, partitions: object = None) -> None:
        begun.append(table.name)
        goes_on.wait(30)
        raise Transient("the storage does not answer")

    monkeypatch.setattr("service.control.planning.observation.list_table", listing)
    before = loaded(tmp_path, 'mode = "compact"', 'concurrency = "single_writer"')
    catalog = SixTables(before)
    scheduler = Scheduler(before, store, catalog, Metrics("all"), is_leader=lambda: True, actor="test")
    scheduler.tick()
    wait_for(lambda: len(begun) == 4, "four scans run, and two wait", 30)
    scheduler.use_config(loaded(tmp_path, 'mode = "observe"', 'concurrency = "occ"'))
    scheduler.tick()
    goes_on.set()
    scheduler.wait()
    assert {(one.mode, one.ref.concurrency) for one in store.table_states()} == {("observe", Concurrency.OCC)}
    assert len(begun) == 4, "the waiting scans are left to the next tick"
    scheduler.tick()
    scheduler.wait()
    scheduler.stop()
    assert set(begun) == {ref.name for ref in TABLES}
    store.close()


def test_a_round_of_cleaning_uses_each_tables_settings_in_force_at_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[timedelta] = []

    def clean(jobs: Iterator[CleanJob], _: object) -> list[object]:
        for job in jobs:
            seen.append(job.retention)
            maintenance.use_config(loaded(tmp_path, 'retention = "30d"'))
        return []

    with bench_at(tmp_path) as bench:
        for table in (bench.table, bench.add_table("other")):
            bench.request(table)
            bench.run()
        monkeypatch.setattr("service.server.daemon.maintenance.clean_tables", clean)
        maintenance = Maintenance(loaded(tmp_path, 'retention = "1d"'), bench.store, no_spark, Observer())
        maintenance.clean()
    assert seen == [timedelta(days=1), timedelta(days=30)]
