# SPDX-License-Identifier: Apache-2.0
"""The Hudi writer on real tables: what it prepares, rewrites and commits, and whom it waits for."""

import itertools
import os
import threading
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hudi_tables import small_files
from hudi_writing import FORMAT, QUICK_LOCK, NewTable, Table, ignore, superseded

from lake.errors import Conflict, Rejected
from lake.formats.hudi.jvm.bundle import require_symbols
from lake.formats.hudi.plans import publication
from lake.formats.hudi.timeline.timeline import EPOCH_KEY, PLAN_KEY, extra_metadata
from lake.plan import RewriteProgress, VerificationLevel

pytestmark = pytest.mark.spark


def test_a_clustered_table_has_the_same_rows_types_and_meta_columns_for_spark_and_hudi_rs(table: NewTable) -> None:
    trips = table()
    rows, other = trips.rows(), trips.other_rows()
    plan = trips.plan(receipt=VerificationLevel.HASH)
    reports: list[RewriteProgress] = []
    with trips.writer() as writer:
        prepared = writer.prepare(plan, 3)
        assert (prepared.live_groups, prepared.skipped) == ((0, 1), ())
        began = time.monotonic()
        rewrite = writer.rewrite(prepared, reports.append)
        took = time.monotonic() - began
        assert trips.rows() == rows, "a rewrite is invisible before its commit"
        written = {path: (trips.base / path).stat().st_mtime_ns for path in trips.files_of(prepared.instant)}
        assert set(written) == {output.path for output in rewrite.outputs}
        commit = writer.commit(rewrite)
    assert trips.rows() == rows
    assert trips.other_rows() == other
    assert {path: (trips.base / path).stat().st_mtime_ns for path in trips.files_of(commit.instant)} == written
    assert commit.outputs == rewrite.outputs
    for output in commit.outputs:
        path = trips.base / output.path
        assert (path.stat().st_size, pq.ParquetFile(path).metadata.num_rows) == (output.bytes, output.rows)
    assert sum(output.rows for output in commit.outputs) == len(rows)
    assert sorted(commit.superseded, key=lambda v: v.path) == sorted(
        superseded(plan, commit.instant), key=lambda v: v.path
    )
    assert FORMAT.find_commit(trips.ref, plan.plan_id) == commit
    timeline = trips.timeline()
    record = extra_metadata(timeline.metadata(timeline.commits[-1]))
    assert (record[PLAN_KEY], record[EPOCH_KEY]) == (plan.plan_id, "3")
    assert not timeline.pending
    assert trips.temporary() == []
    done = [report.bytes_done for report in reports]
    assert done == sorted(done)
    counted = [report.cpu_seconds or 0.0 for report in reports]
    assert counted == sorted(counted)
    assert 0 < reports[-1].cpu_seconds < took * os.cpu_count(), "as Spark counts it"
    assert replace(reports[-1], cpu_seconds=None) == RewriteProgress(
        bytes_done=plan.bytes, bytes_total=plan.bytes, rows_done=len(rows)
    )


def test_slices_with_logs_are_clustered_without_losing_an_update_or_reviving_a_delete(table: NewTable) -> None:
    trips = table("mor")
    rows, other = trips.rows(), trips.other_rows()
    plan = trips.plan(receipt=VerificationLevel.HASH)
    logs = {f"{s.partition}/{name}" for g in plan.groups for s in g.slices for name in s.log_files}
    assert logs
    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(plan, 1), ignore)
        for partition in plan.partitions:
            merged = pa.Table.from_batches(writer.read_inputs(rewrite.prepared, partition)).to_pylist()
            written = [
                row
                for output in rewrite.outputs
                if output.partition == partition
                for row in pq.read_table(trips.base / output.path).to_pylist()
            ]
            for row in (*merged, *written):
                row.pop("_hoodie_file_name")
            assert sorted(map(repr, merged)) == sorted(map(repr, written))
        commit = writer.commit(rewrite)
    assert trips.rows() == rows
    assert trips.other_rows() == other
    assert logs <= {version.path for version in commit.superseded}
    assert all(version.bytes == (trips.base / version.path).stat().st_size for version in commit.superseded)
    assert FORMAT.find_commit(trips.ref, plan.plan_id) == commit
    with trips.writer() as writer:
        assert writer.delete(commit.superseded).bytes_freed == sum(version.bytes for version in commit.superseded)
    assert set(trips.data_files()) == {output.path for output in commit.outputs}
    assert trips.rows() == rows
    trips.upsert(0, 120, 5, "id % 11 = 0 and id % 7 != 0")
    changed = [row for row in trips.rows() if row not in set(rows)]
    assert len(changed) == len([i for i in range(120) if i % 11 == 0 and i % 7 != 0])


def test_a_table_without_partitions_is_clustered(spark: Any, tmp_path: Path) -> None:
    small_files(spark, tmp_path / "flat", commits=2, rows_each=20, partitioned=False)
    flat = Table(spark, tmp_path / "flat")
    rows = flat.rows()
    commit = flat.run(flat.plan())
    assert flat.rows() == rows
    assert [output.partition for output in commit.outputs] == [""]


def test_sorted_groups_have_as_many_files_as_planned_each_with_its_own_range(table: NewTable) -> None:
    trips = table()
    rows = trips.rows()
    settings = {key: trips.spark.conf.get(key) for key in ("spark.sql.shuffle.partitions",)}
    commit = trips.run(trips.plan(partitions=["dt=2026-01-01"], outputs=3, sort_columns=("id",)))
    assert {key: trips.spark.conf.get(key) for key in settings} == settings
    ids = [pq.read_table(trips.base / output.path)["id"].to_pylist() for output in commit.outputs]
    assert len(ids) == 3
    assert all(part == sorted(part) for part in ids)
    ranges = sorted((part[0], part[-1]) for part in ids)
    assert all(low[1] < high[0] for low, high in itertools.pairwise(ranges))
    assert trips.rows() == rows


def test_a_stale_group_is_left_out_and_the_other_groups_commit(table: NewTable) -> None:
    trips = table()
    plan = trips.plan()
    trips.upsert(0, 60, 9, "dt = '2026-01-01'")
    rows = trips.rows()
    with trips.writer() as writer:
        prepared = writer.prepare(plan, 1)
        assert prepared.live_groups == (1,)
        assert [left.group for left in prepared.skipped] == [0]
        assert "has base file" in prepared.skipped[0].reason
        commit = writer.commit(writer.rewrite(prepared, ignore))
    assert {output.partition for output in commit.outputs} == {"dt=2026-01-02"}
    assert trips.rows() == rows


def _pending_commit(trips: Table, partition: str, operation: str = "UPSERT") -> None:
    """Leave the timeline as a writer does that is working on ``partition``."""
    directory = trips.base / ".hoodie/timeline"
    (directory / "20260101000000000.commit.requested").touch()
    stat = f'{{"fileId": "f", "path": null, "partitionPath": "{partition}"}}'
    (directory / "20260101000000000.inflight").write_text(
        f'{{"partitionToWriteStats": {{"{partition}": [{stat}]}}, "operationType": "{operation}"}}'
    )


def test_a_plan_waits_for_a_writer_that_is_inflight_on_its_partitions_only(
    table: NewTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publication, "WRITER_GAP_TIMEOUT", timedelta(seconds=1))
    trips = table()
    plan = trips.plan(partitions=["dt=2026-01-01"])
    _pending_commit(trips, "dt=2026-01-01")
    with trips.writer() as writer:
        with pytest.raises(Conflict, match=r"a writer is inflight \(commit 20260101000000000 on partition 'dt=2026"):
            writer.prepare(plan, 1)
        (trips.base / ".hoodie/timeline/20260101000000000.inflight").unlink()
        with pytest.raises(Conflict, match="partitions it does not name yet"):
            writer.prepare(plan, 1)
        _pending_commit(trips, "dt=2026-01-02")
        writer.prepare(plan, 1)
        assert writer.withdraw(plan.plan_id, None) == 1


def test_a_plan_takes_the_gap_that_a_writer_leaves(table: NewTable) -> None:
    trips = table()
    plan = trips.plan(partitions=["dt=2026-01-01"])
    _pending_commit(trips, "dt=2026-01-01")
    timeline = trips.base / ".hoodie/timeline"

    def end_the_write() -> None:
        (timeline / "20260101000000000.inflight").unlink()
        (timeline / "20260101000000000.commit.requested").unlink()

    writing = threading.Timer(1.5, end_the_write)
    writing.start()
    with trips.writer() as writer:
        prepared = writer.prepare(plan, 1)
        assert not writing.is_alive()
        assert writer.withdraw(plan.plan_id, [prepared.instant]) == 1


def test_a_dead_writer_of_an_optimistic_table_does_not_hold_a_plan_up(
    table: NewTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publication, "WRITER_GAP_TIMEOUT", timedelta(seconds=1))
    trips = table(**QUICK_LOCK)
    rows = trips.rows()
    plan = trips.plan(partitions=["dt=2026-01-01"])
    _pending_commit(trips, "dt=2026-01-01")
    heartbeats = trips.base / ".hoodie/.heartbeat"
    heartbeats.mkdir(exist_ok=True)
    (heartbeats / "20260101000000000").touch()
    with trips.writer() as writer, pytest.raises(Conflict, match="a writer is inflight"):
        writer.prepare(plan, 1)
    (heartbeats / "20260101000000000").unlink()
    trips.run(plan)
    assert trips.rows() == rows
    assert trips.timeline().pending[0].time == "20260101000000000", "rolling it back is its owner's business"


def test_only_the_writer_that_wrote_the_files_can_commit_them(table: NewTable) -> None:
    trips = table()
    plan = trips.plan(partitions=["dt=2026-01-01"])
    with trips.writer() as first, trips.writer() as second:
        rewrite = first.rewrite(first.prepare(plan, 1), ignore)
        with pytest.raises(Rejected, match="not written by this process"):
            second.commit(rewrite)


def test_a_bundle_without_a_symbol_is_refused_by_its_name(spark: Any) -> None:
    with pytest.raises(
        Rejected, match=r"lacks classes that lakefold calls \(client.NoSuchClient, common.util.Option.gone\); set"
    ):
        require_symbols(spark._jvm, {"client.NoSuchClient": ("a",)}, {"common.util.Option": ("of", "gone")})
