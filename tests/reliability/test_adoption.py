# SPDX-License-Identifier: Apache-2.0
"""Writers that schedule their table services inline and never execute them: adoption alone keeps the table healthy."""

from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from hudi_tables import FS_LOCK, rows, write
from support import record_figure

from executors.context import RunContext
from executors.outcome import RunResult
from executors.worker import Worker
from lake.formats import load_format
from lake.plan import PlanState
from service.control.config.loader import load_config
from service.control.config.table_settings import ConfiguredTable, configure_table
from service.control.planning.scan import scan_and_plan
from service.control.wiring import create_store

pytestmark = pytest.mark.spark
FORMAT = load_format("hudi")
COMMITS = 24
KEYS = 400
SCHEDULES = {
    "mor": {"hoodie.compact.schedule.inline": "true", "hoodie.compact.inline.max.delta.commits": "2"},
    "cow": {"hoodie.clustering.schedule.inline": "true", "hoodie.clustering.async.max.commits": "2"},
}
CONFIG = """
[database]
url = "sqlite:///{home}/lakefold.db"
[[sources]]
path = "{base}"
[defaults]
# nothing is small or old enough for plans of our own
small_file_limit = "1KiB"
compaction = false
adopt_pending = true
quiet_period = "0s"
[[tables]]
match = "*"
mode = "compact"
concurrency = "occ"
[tables.write_options]
"""


class Lake:
    """One table with its writer's ledger, and lakefold beside it."""

    def __init__(self, spark: Any, home: Path, kind: str) -> None:
        self.spark, self.base, self.merge_on_read = spark, home / kind, kind == "mor"
        self.options, self.versions = FS_LOCK | SCHEDULES[kind], dict[int, int]()
        locks = "\n".join(f'{key} = "{value}"' for key, value in FS_LOCK.items())
        (home / "lakefold.toml").write_text(CONFIG.format(home=home, base=self.base) + locks)
        self.config = load_config(home / "lakefold.toml")
        self.store = create_store(self.config)
        self.store.upgrade()
        self.commits = 0
        #: the longest list of log files that a slice had after each commit
        self.logs: list[int] = []

    def commit(self, keys: Collection[int], version: int, operation: str) -> None:
        """One commit of the writer, which may schedule; then one scan and whatever there is to execute."""
        frame = rows(self.spark, 0, KEYS, version=version).where(f"id in ({','.join(map(str, keys))})").coalesce(1)
        write(frame, self.base, operation, merge_on_read=self.merge_on_read, options=self.options)
        if operation == "delete":
            self.versions = {key: known for key, known in self.versions.items() if key not in keys}
        else:
            self.versions |= dict.fromkeys(keys, version)
        self.commits += 1
        scan_and_plan(self.config, self.store, self.table, actor="test")
        tally = Worker(RunContext(store=self.store, spark=lambda: self.spark)).run_once()
        assert set(tally) <= {RunResult.COMPLETED}
        slices = FORMAT.snapshot(self.table.ref).slices
        self.logs.append(max((len(names) for names in slices["log_files"].to_pylist()), default=0))

    @property
    def table(self) -> ConfiguredTable:
        (found,) = FORMAT.discover(str(self.base))
        return configure_table(self.config, found)

    def expected(self) -> list[str]:
        """Every row that the ledger says, sorted."""
        frames = [
            rows(self.spark, 0, KEYS, version=version).where(
                f"id in ({','.join(str(key) for key, known in self.versions.items() if known == version)})"
            )
            for version in sorted(set(self.versions.values()))
        ]
        return sorted(repr(tuple(row)) for frame in frames for row in frame.collect())

    def shown(self) -> list[str]:
        """Every row that Spark reads, sorted, without Hudi's meta columns."""
        frame = self.spark.read.format("hudi").load(str(self.base))
        columns = rows(self.spark, 0, 1).columns
        return sorted(repr(tuple(row)) for row in frame.select(*columns).collect())


@pytest.mark.parametrize("kind", SCHEDULES)
@pytest.mark.shown_by(
    "tests/formats/test_hudi_adopt.py::test_a_compaction_that_a_writer_scheduled_is_executed_while_it_writes_on"
)
def test_a_writer_that_only_schedules_keeps_its_table_healthy_through_adoption(
    spark: Any, tmp_path: Path, kind: str
) -> None:
    lake = Lake(spark, tmp_path, kind)
    lake.commit(range(40), 0, "bulk_insert")
    version = 0
    while lake.commits < COMMITS:
        version += 1
        old = [key for key in lake.versions if key % 5 == version % 5]
        lake.commit([*range(40 + version * 10, 50 + version * 10), *old], version, "upsert")
        if version % 3 == 2:
            lake.commit([key for key in lake.versions if key % 7 == version % 7], version, "delete")

    plans = lake.store.plans(limit=1000)
    lake.store.close()
    assert {(view.state, view.adopted is not None, view.adopted == view.instant) for view in plans} == {
        (PlanState.COMPLETED, True, True)
    }
    assert FORMAT.pending_actions(lake.table.ref) == []
    expected = lake.expected()
    assert lake.shown() == expected
    assert hudi_rs(lake.base) == Counter(lake.versions.items())
    found = FORMAT.verify(lake.table.ref, (), rows=False)
    assert (found.missing, found.wrong_size, found.resurrected) == ((), (), ())
    if lake.merge_on_read:
        assert max(lake.logs) <= 4, f"log files of a slice after each commit: {lake.logs}"
    else:
        assert found.files <= 2 * COMMITS, "clustered again and again"
    name = "merge-on-read" if lake.merge_on_read else "copy-on-write"
    record_figure(
        f"{lake.commits} commits of a {name} writer that schedules its table services and executes none",
        f"{len(plans)} plans adopted and completed, {len(expected)} rows equal the ledger, nothing pending",
    )


def hudi_rs(base: Path) -> Counter[tuple[int, int]]:
    """Key and version of every row as hudi-rs reads them."""
    import hudi
    import pyarrow as pa

    batches = hudi.HudiTableBuilder.from_base_uri(str(base)).build().read()
    table = pa.Table.from_batches([pa.record_batch(batch) for batch in batches])
    return Counter(zip(table["id"].to_pylist(), table["ts"].to_pylist(), strict=True))
