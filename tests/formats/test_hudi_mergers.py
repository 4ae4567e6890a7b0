# SPDX-License-Identifier: Apache-2.0
"""Merge-on-read tables whose records hudi-rs can't merge: rewritten like any other, the proof read by Hudi itself."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hudi_tables import copy, rows, write
from hudi_templates import edit_properties
from hudi_writing import FORMAT, Table, ignore
from kept_tables import kept

from executors.verification import verify_rewrite
from lake.errors import Integrity, Rejected
from lake.formats.hudi.rewrite import merged_rows

pytestmark = pytest.mark.spark
_MODEL = "org.apache.hudi.common.model."
_VERSION_6 = {"hoodie.write.table.version": "6", "hoodie.write.auto.upgrade": "false"}
_VERSION_8 = {"hoodie.write.table.version": "8", "hoodie.write.auto.upgrade": "false"}
MERGERS: Mapping[str, Mapping[str, str]] = {
    "partial update, version 6": _VERSION_6
    | {"hoodie.datasource.write.payload.class": f"{_MODEL}PartialUpdateAvroPayload"},
    "non-defaults, version 6": _VERSION_6
    | {"hoodie.datasource.write.payload.class": f"{_MODEL}OverwriteNonDefaultsWithLatestAvroPayload"},
    "partial update, version 8": _VERSION_8
    | {"hoodie.datasource.write.payload.class": f"{_MODEL}PartialUpdateAvroPayload"},
    "custom mode, version 8": _VERSION_8
    | {
        "hoodie.write.record.merge.mode": "CUSTOM",
        "hoodie.datasource.write.payload.class": f"{_MODEL}OverwriteNonDefaultsWithLatestAvroPayload",
    },
}


def _table(spark: Any, base: Path, merger: str) -> Table:
    """A new table with that merger."""
    build = partial(_build, spark, options=MERGERS[merger])
    return Table(spark, copy(kept(f"merger {merger}", "trips", build, __file__), base))


def _build(spark: Any, base: Path, options: Mapping[str, str]) -> None:
    """Two slices in one partition: updates of which some have nulls or come late, and deletes."""
    from pyspark.sql import functions as f

    def put(low: int, high: int, version: int, operation: str, tip: str = "tip") -> None:
        frame = rows(spark, low, high, version=version, partitions=1).withColumn("tip", f.expr(tip).cast("int"))
        write(frame.coalesce(1), base, operation, merge_on_read=True, options=options)

    put(0, 40, 5, "bulk_insert")
    put(40, 80, 5, "bulk_insert")
    put(0, 10, 7, "upsert", "if(id % 2 = 0, null, 1000)")
    put(5, 50, 3, "upsert", "if(id % 3 = 0, null, 2000)")
    put(70, 75, 9, "delete")


@pytest.mark.parametrize("merger", MERGERS)
@pytest.mark.crossed
def test_a_table_whose_merger_hudi_rs_can_not_run_is_clustered_and_compacted_with_a_proof(
    spark: Any, tmp_path: Path, merger: str
) -> None:
    trips = _table(spark, tmp_path / "trips", merger)
    before = trips.rows()
    assert {row[2] for row in before} >= {str(id_) for id_ in range(70)}
    assert any(1000 in row for row in before)
    with pytest.raises(Rejected, match=r"rows can't be counted, hudi-rs does not merge \S+ .*; count them with Spark"):
        FORMAT.verify(trips.ref, (), rows=True)
    commit = trips.proved(trips.compaction(most=1))
    assert trips.rows() == before
    assert len(commit.outputs) == 1
    commit = trips.proved(trips.plan())
    assert trips.rows() == before
    assert [output.rows for output in commit.outputs] == [len(before)]
    # Nothing is left to be merged, so hudi-rs reads every file now, another witness than the reader of the proof.
    result = FORMAT.verify(trips.ref, (), rows=True)
    assert result.rows == result.rows_expected == len(before)
    trips.upsert(0, 10, 11, "id % 2 = 0", **MERGERS[merger])
    assert len(trips.rows()) == len(before)


def test_a_defect_in_a_rewrite_that_only_hudi_can_read_again_is_found(spark: Any, tmp_path: Path) -> None:
    trips = _table(spark, tmp_path / "trips", "partial update, version 8")
    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(trips.plan(), 1), ignore)
        path = trips.base / rewrite.outputs[0].path  # type: ignore[operator]
        table = pq.read_table(path)
        position = table.schema.get_field_index("tip")
        tips = table["tip"].to_pylist()
        tips[7], tips[8] = tips[8], tips[7] if tips[7] != tips[8] else 5
        pq.write_table(table.set_column(position, table.schema.field(position), pa.array(tips, pa.int32())), path)
        with pytest.raises(Integrity, match="hash of"):
            verify_rewrite(rewrite, writer=writer)


def test_a_slice_larger_than_one_batch_is_read_in_parts(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trips = _table(spark, tmp_path / "trips", "partial update, version 8")
    before = trips.rows()
    monkeypatch.setattr(merged_rows, "_PART_BYTES", 4096)
    trips.proved(trips.plan())
    assert trips.rows() == before


def test_a_merger_whose_class_spark_lacks_is_refused_with_the_setting_to_add(spark: Any, tmp_path: Path) -> None:
    trips = _table(spark, tmp_path / "trips", "partial update, version 8")
    edit_properties(tmp_path / "trips", {"hoodie.compaction.payload.class": "com.example.OurPayload"})
    with trips.writer() as writer:
        prepared = writer.prepare(trips.plan(), 1)
        with pytest.raises(Rejected, match=r'com.example.OurPayload.*"spark.jars.packages"'):
            writer.rewrite(prepared, ignore)
        assert writer.withdraw(prepared.plan.plan_id, None) == 1
