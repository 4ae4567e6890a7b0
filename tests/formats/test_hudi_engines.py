# SPDX-License-Identifier: Apache-2.0
"""Hudi's copy of row groups and its layouts on real tables."""

import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hudi_tables import small_files, write
from hudi_writing import NewTable, Table, ignore

from executors.verification import verify_rewrite
from lake.errors import Integrity, Rejected
from lake.formats.hudi.inputs import plan_engine
from lake.plan import Commit, VerificationLevel

pytestmark = pytest.mark.spark


def row_groups(trips: Table, path: str) -> int:
    return int(pq.read_metadata(trips.base / path).num_row_groups)


def test_copied_row_groups_stay_as_they_are_under_new_file_names_and_a_later_upsert_is_right(table: NewTable) -> None:
    trips = table()
    before, other = trips.rows(), trips.other_rows()
    inputs = trips.data_files()
    plan = trips.plan(engine="stitch", receipt=VerificationLevel.HASH)
    with trips.writer() as writer:
        prepared = writer.prepare(plan, 1)
        assert prepared.notes == ("engine stitch: as set",)
        rewrite = writer.rewrite(prepared, ignore)
        verify_rewrite(rewrite, writer=writer)
        copied = trips.base / rewrite.outputs[0].path
        kept = shutil.copy(copied, trips.base.parent / "kept")
        shutil.copy(trips.base / min(inputs), copied)
        with pytest.raises(Integrity, match="rows reported"):
            verify_rewrite(rewrite, writer=writer)
        shutil.copy(kept, copied)
        commit = writer.commit(rewrite)
    assert trips.rows() == before
    assert trips.other_rows() == other
    for output in commit.outputs:
        sources = [path for path in inputs if path.startswith(output.partition)]
        assert row_groups(trips, output.path) == sum(row_groups(trips, path) for path in sources) == 3
        names = pq.read_table(trips.base / output.path, columns=["_hoodie_file_name"])["_hoodie_file_name"]
        assert set(names.to_pylist()) == {output.path.rsplit("/", 1)[-1]}
    trips.upsert(0, 180, 5, "id % 11 = 0")
    assert len(set(trips.rows()) - set(before)) == len([i for i in range(180) if i % 11 == 0])
    assert len(trips.rows()) == len(before)


@pytest.mark.parametrize("engine", ["spark", "stitch"])
@pytest.mark.crossed
def test_a_table_without_meta_columns_is_rewritten_by_both_engines(spark: Any, tmp_path: Path, engine: str) -> None:
    virtual_keys = {
        "hoodie.populate.meta.fields": "false",
        "hoodie.datasource.write.keygenerator.class": "org.apache.hudi.keygen.SimpleKeyGenerator",
    }
    small_files(spark, tmp_path / "trips", commits=2, rows_each=20, partitions=1, options=virtual_keys)
    trips = Table(spark, tmp_path / "trips")
    before = trips.rows()
    plan = trips.plan(engine=engine, receipt=VerificationLevel.HASH)
    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(plan, 1), ignore)
        verify_rewrite(rewrite, writer=writer)
        writer.commit(rewrite)
    assert trips.rows() == before
    assert len(rewrite.outputs) == 1


def test_a_file_that_a_repeated_task_left_is_gone_before_a_copy_becomes_visible(table: NewTable) -> None:
    trips = table()
    before = trips.rows()
    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(trips.plan(engine="stitch"), 1), ignore)
        written = trips.base / rewrite.outputs[0].path
        first_try = written.with_name(f"first-try-0_7-7-7_{rewrite.prepared.instant}.parquet")
        shutil.copy(written, first_try)
        writer.commit(rewrite)
    assert not first_try.exists()
    assert trips.rows() == before


@pytest.mark.parametrize("engine", ["spark", "arrow", "hybrid"])
@pytest.mark.crossed
def test_a_large_file_is_split_into_file_groups_that_later_upserts_find(table: NewTable, engine: str) -> None:
    trips = table()
    before, other = trips.rows(), trips.other_rows()
    trips.run(trips.plan("0198-merge", engine="stitch"))
    plan = trips.plan("0198-split", engine=engine, outputs=3, receipt=VerificationLevel.HASH, min_row_group_bytes=1)
    assert all(group.is_split for group in plan.groups)
    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(plan, 1), ignore)
        verify_rewrite(rewrite, writer=writer)
        writer.commit(rewrite)
    assert len(rewrite.outputs) == 3 * len(plan.groups)
    assert (trips.rows(), trips.other_rows()) == (before, other)
    trips.upsert(0, 180, 5, "id % 11 = 0")
    assert len(set(trips.rows()) - set(before)) == len([i for i in range(180) if i % 11 == 0])
    assert len(trips.rows()) == len(before)


def test_files_of_different_schemas_are_not_copied_and_nothing_is_published_where_they_must_be(
    table: NewTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql import functions as f

    monkeypatch.setattr(plan_engine, "HEALTHY_ROW_GROUP_BYTES", 0)
    trips = table()
    frame = trips.spark.read.format("hudi").load(str(trips.base)).where("id < 20")
    added = frame.select([c for c in frame.columns if not c.startswith("_hoodie")]).withColumn("id", f.col("id") + 1000)
    write(added.withColumn("rating", f.when(f.col("id") > 0, f.col("id"))), trips.base)
    before = trips.rows()
    timeline = trips.timeline().instants
    with trips.writer() as writer:
        with pytest.raises(
            Rejected, match=r"engine = stitch can't rewrite this plan: \S+ has another schema than \S+;"
        ):
            writer.prepare(trips.plan(engine="stitch"), 1)
        assert trips.timeline().instants == timeline
        plan = trips.plan()
        prepared = writer.prepare(plan, 1)
        assert prepared.notes[0].startswith("engine spark: no copy, ")
        assert "has another schema than" in prepared.notes[0]
        commit = writer.commit(writer.rewrite(prepared, ignore))
    assert trips.rows() == before
    assert all(row_groups(trips, output.path) == 1 for output in commit.outputs)


def test_the_copy_is_taken_by_itself_where_row_groups_are_healthy(
    table: NewTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    trips = table()
    plan = trips.plan(partitions=["dt=2026-01-01"])
    with trips.writer() as writer:
        prepared = writer.prepare(plan, 1)
        assert prepared.notes[0].startswith("engine spark: no copy, row groups of group 0 average ")
        writer.withdraw(plan.plan_id, None)
    monkeypatch.setattr(plan_engine, "HEALTHY_ROW_GROUP_BYTES", 1)
    before = trips.rows()
    commit = trips.run(plan)
    assert [row_groups(trips, output.path) for output in commit.outputs] == [3]
    assert trips.rows() == before


def _shares(trips: Table, commit: Commit, column: str) -> float:
    """The mean share of the column's distinct values that lie within one new file's range."""
    parts = [pq.read_table(trips.base / output.path)[column].to_pylist() for output in commit.outputs]
    ranks = {value: rank for rank, value in enumerate(sorted({value for part in parts for value in part}))}
    return sum(ranks[max(part)] - ranks[min(part)] + 1 for part in parts) / len(parts) / len(ranks)


@pytest.mark.parametrize("layout", ["zorder", "hilbert"])
@pytest.mark.crossed
def test_every_named_column_takes_part_in_a_curve_and_each_group_has_the_files_planned(
    spark: Any, tmp_path: Path, layout: str
) -> None:
    from pyspark.sql import functions as f

    frame = spark.range(2000).select(
        "id",
        f.lit(0).cast("long").alias("ts"),
        f.lit("a").alias("dt"),
        (f.abs(f.hash("id")) % 8).cast("int").alias("small"),
        (f.abs(f.xxhash64("id")) % 1_000_000_000_000).alias("large"),
    )
    write(frame.repartition(2), tmp_path / "trips", files=2)
    trips = Table(spark, tmp_path / "trips")
    before = trips.rows()
    commit = trips.run(trips.plan(outputs=4, layout=layout, sort_columns=("small", "large")))
    assert len(commit.outputs) == 4
    assert trips.rows() == before
    assert sum(trips.other_rows()[1].values()) == 2000
    # With four files a curve that both take part in halves each range; 1 is no part in it.
    for column in ("small", "large"):
        assert _shares(trips, commit, column) < 0.85, column
