# SPDX-License-Identifier: Apache-2.0
"""The demo's writer against real Hudi: its ledger is right after commits, lost races and a death in between."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from service.cli.demo import trips
from service.cli.demo.hudi import LOCK_OPTIONS, HudiTrips, read_table, table_options
from service.cli.demo.ledger import LedgerBatch, WriterLedger, compare
from service.cli.demo.writer import TripsWriter, generate_batches

pytestmark = pytest.mark.spark


class Desk:
    """A writer with its table and ledger in ``home``, and everything it said."""

    def __init__(self, spark: Any, home: Path, *, merge_on_read: bool = False) -> None:
        self.spark, self.table, self.ledger = spark, home / "trips", WriterLedger(home / "ledger")
        self.said: list[dict[str, Any]] = []
        self.attempts_allowed = 10
        self.target = HudiTrips(spark, self.table, table_options(merge_on_read=merge_on_read))
        self.writer = TripsWriter(self.target, self.ledger, emit=self._say, should_stop=self._stopping)

    def _say(self, event: str, **facts: Any) -> None:
        self.said.append({"event": event, **facts})

    def _stopping(self) -> bool:
        return len(self.said) >= self.attempts_allowed

    def fill(self, rows: int = 300) -> pa.Table:
        new = trips.new_trips(np.random.default_rng(1), 0, rows, 2, newest_day_only=False)
        assert self.writer.send(LedgerBatch(number=0, operation="fill", rows=new), files=2)
        return new

    def check(self) -> None:
        """Ledger, hudi-rs and Spark agree on every value."""
        expected = self.ledger.rows()
        native = compare(expected, read_table(str(self.table)))
        assert native.equal, f"hudi-rs: {native}"
        self.spark.catalog.clearCache()
        frame = self.spark.read.format("hudi").load(str(self.table)).select(*trips.TRIPS.names)
        classic = pa.Table.from_pylist([row.asDict(recursive=True) for row in frame.collect()], schema=trips.TRIPS)
        assert compare(expected, classic).equal, f"Spark: {compare(expected, classic)}"


@pytest.mark.parametrize("merge_on_read", [False, True], ids=["copy_on_write", "merge_on_read"])
@pytest.mark.crossed
@pytest.mark.shown_by("tests/reliability/test_races.py::test_a_writers_ledger_equals_the_table_after_every_plan")
def test_upserts_inserts_and_deletes_leave_the_table_equal_to_the_ledger(spark, tmp_path, merge_on_read):
    desk = Desk(spark, tmp_path, merge_on_read=merge_on_read)
    rows = desk.fill()
    stream = generate_batches(np.random.default_rng(2), rows, 1, 40, 2, HudiTrips.operations)
    sent = [next(stream) for _ in range(4)]
    assert [batch.operation for batch in sent] == ["insert", "upsert", "delete", "upsert"]
    for batch in sent:
        assert desk.writer.send(batch)
    desk.check()
    assert [event["event"] for event in desk.said] == ["commit"] * 5
    assert desk.ledger.rows().num_rows not in (0, rows.num_rows)


def test_an_unconfirmed_batch_that_was_committed_is_found_on_the_timeline(spark, tmp_path):
    desk = Desk(spark, tmp_path)
    rows = desk.fill()
    stream = generate_batches(np.random.default_rng(3), rows, 2, 40, 2, HudiTrips.operations)
    landed, never_sent = next(stream), next(stream)
    # A writer that died between its commit and the confirmation, and one that died before it sent anything.
    desk.target.write(landed, desk.ledger.propose(landed), 1)
    desk.ledger.propose(never_sent)
    successor = Desk(spark, tmp_path)
    successor.writer.resolve_pending()
    assert [(event["batch"], event["committed"]) for event in successor.said] == [
        (landed.label, True),
        (never_sent.label, False),
    ]
    assert successor.ledger.pending() == []
    successor.check()


@pytest.mark.shown_by("tests/reliability/test_races.py::test_a_writers_ledger_equals_the_table_after_every_plan")
def test_a_batch_that_lost_to_a_pending_clustering_is_counted_and_not_in_the_ledger(spark, tmp_path):
    desk = Desk(spark, tmp_path)
    rows = desk.fill()
    lock = ",".join(f"{key}={value}" for key, value in LOCK_OPTIONS.items())
    spark.sql(f"CALL run_clustering(path => '{desk.table}', op => 'schedule', options => '{lock}')").collect()
    desk.attempts_allowed = len(desk.said) + 2
    changed = LedgerBatch(number=1, operation="upsert", rows=trips.next_versions(rows, np.random.default_rng(4)))
    assert not desk.writer.send(changed)
    assert [event["event"] for event in desk.said] == ["commit", "conflict", "conflict"]
    assert {event["error"] for event in desk.said[1:]} == {"HoodieClusteringUpdateException"}
    assert desk.writer.conflicts == 2
    assert desk.ledger.pending() == []
    desk.check()
    spark.sql(f"CALL run_clustering(path => '{desk.table}', op => 'execute', options => '{lock}')").collect()
    assert desk.writer.send(changed)
    desk.check()
