# SPDX-License-Identifier: Apache-2.0
"""A configuration that is loaded again while scans wait and while a round of cleaning runs."""

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from databases import store_at
from toys import files, timeline_tables
from toys.bench import Bench, bench_at
from toys.cases import no_spark
from waiting import wait_for

from executors.cleaner import CleanJob, clean_tables
from executors.observer import Observer
from executors.outcome import RunResult
from executors.relocation.partition_sweep import SweepReport
from lake.errors import Transient
from lake.model import Concurrency, TableRef
from service.control.config.catalog import Catalog
from service.control.config.loader import Config, load_config
from service.control.config.table_settings import ConfiguredTable, configure_table
from service.server.daemon.maintenance import Maintenance, clean_jobs
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


def _halt(bench: Bench, _: Path) -> None:
    bench.store.halt_table(bench.table, "rows differ")


def _pause(bench: Bench, _: Path) -> None:
    bench.store.pause("toy", "ada")


def _pause_all(bench: Bench, _: Path) -> None:
    bench.store.pause(None, "ada")


def _switch_off(_: Bench, home: Path) -> None:
    loaded(home, 'retention = "1h"', 'mode = "off"')


def _retain_for_longer(_: Bench, home: Path) -> None:
    loaded(home, 'retention = "30d"')


@pytest.mark.parametrize("is_last_look", [False, True])
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_halt, "halted: rows differ"),
        (_pause, "paused"),
        (_pause_all, "the service is paused"),
        (_switch_off, "mode off"),
        (_retain_for_longer, "its retention is longer now, 30 d; the next round uses it"),
    ],
)
def test_a_round_of_cleaning_deletes_no_further_file_of_a_table_that_is_held_or_retains_files_for_longer(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Bench, Path], None],
    reason: str,
    is_last_look: bool,
) -> None:
    monkeypatch.setattr("executors.cleaner._MAX_FILES_PER_DELETION", 1)
    loaded(tmp_path, 'retention = "1h"')
    with bench_at(tmp_path) as bench:
        for number in range(3):
            timeline_tables.write(bench.table, "dt=0", files.rows(10_000 + number, 10_001 + number))
            bench.request()
            assert bench.run().result is RunResult.COMPLETED
        bench.execute("UPDATE superseded_version SET superseded_at_ms = superseded_at_ms - 7200000")
        waiting, deletions, before = len(bench.store.awaiting_deletion(bench.table)), 0, bench.rows()

        def hook() -> None:
            nonlocal deletions
            deletions += 1
            if deletions == (2 if is_last_look else 1):  # the hook is followed by the look under the table's lock
                change(bench, tmp_path)

        if is_last_look:
            bench.format.hooks["delete"] = hook
        else:
            monkeypatch.setattr(bench.recorder, "files_deleted", lambda *_: hook())
        jobs = clean_jobs(lambda: load_config(tmp_path / "lakefold.toml"), bench.store)
        (report,) = clean_tables(jobs, bench.context())
        left = bench.store.awaiting_deletion(bench.table)
        assert (report.skip_reason, report.error, report.kept) == (reason, None, ())
        assert 0 < report.deleted_files == waiting - len(left) < waiting
        assert all((Path(bench.table.location) / one.version.path).exists() for one in left)
        assert bench.rows() == before


def test_no_partition_is_restored_in_a_table_that_was_halted_while_others_were_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bench_at(tmp_path) as bench:
        bench.add_table("other")
        restored: list[str] = []

        def restore(table: TableRef, *_: object, **__: object) -> SweepReport:
            restored.append(table.name)
            bench.store.halt_table(bench.table, "another process has moved a partition")
            return SweepReport()

        monkeypatch.setattr("service.server.daemon.maintenance.restore_original_locations", restore)
        monkeypatch.setattr("service.server.daemon.maintenance.load_format", lambda _: bench.format)
        monkeypatch.setattr(bench.store, "relocated_tables", lambda: frozenset({"other", "toy"}))
        Maintenance(loaded(tmp_path, 'mode = "compact"'), bench.store, no_spark, Observer()).restore_locations()
        assert restored == ["other"]
