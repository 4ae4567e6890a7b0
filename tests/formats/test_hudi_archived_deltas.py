# SPDX-License-Identifier: Apache-2.0
"""Logs of a delta commit that began before a compaction and completed after it, once it was archived."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hudi_tables import COMPACT_NOW, rows, run_service, write
from hudi_templates import ref, timeline_file
from test_hudi_observe_snapshot import slices_of_hudi

from lake.formats.hudi import FORMAT
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.timeline.timeline import Timeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ARCHIVING = COMPACT_NOW | {"hoodie.keep.min.commits": "2", "hoodie.keep.max.commits": "3"}
"""A writer that archives as soon as it may."""


@pytest.mark.spark
def test_a_log_belongs_to_the_slice_of_its_completion_after_its_delta_commit_was_archived_too(
    spark: "SparkSession", tmp_path: Path
) -> None:
    base = tmp_path / "t"
    write(rows(spark, 0, 60).coalesce(1), base, merge_on_read=True)
    write(rows(spark, 0, 60, version=1).where("id % 3 = 0").coalesce(1), base, "upsert", merge_on_read=True)
    slow = rows(spark, 0, 60, version=5).where("id % 5 = 0").coalesce(1)
    write(slow, base, "upsert", merge_on_read=True)
    completed = timeline_file(base, "*.deltacommit")
    time = completed.name.partition("_")[0]
    content = completed.read_bytes()
    completed.unlink()  # as if that writer were still at work
    for step in ("schedule", "run"):
        run_service(spark, "run_compaction", base, step, **COMPACT_NOW)
    compacted = timeline_file(base, "*.commit").name
    assert compacted > time
    later = str(int(compacted.partition("_")[2].partition(".")[0]) + 1)
    completed.with_name(f"{time}_{later}.deltacommit").write_bytes(content)
    expected = {row.id: row.ts for row in spark.read.format("hudi").load(str(base)).collect()}
    assert set(expected.values()) == {0, 1, 5}
    for low in range(1000, 1012, 2):
        write(rows(spark, low, low + 2).coalesce(1), base, "insert", merge_on_read=True, options=ARCHIVING)
    timeline = Timeline(TableStorage(str(base)))
    assert timeline.find(time) is None
    assert [entry.completed_at for entry in timeline.archived({"deltacommit"}, times={time})] == [later]
    found = {}
    for row in FORMAT.snapshot(ref(base)).slices.to_pylist():
        name = (row["path"] or "").rpartition("/")[2]
        found[row["partition"], row["file_id"]] = (name, row["bytes"], tuple(row["log_files"]), row["log_bytes"])
    assert sum(bool(logs) for _, _, logs, _ in found.values()) == 2, "in each of the two partitions"
    assert found == slices_of_hudi(spark, base)
    assert expected.items() <= {row.id: row.ts for row in spark.read.format("hudi").load(str(base)).collect()}.items()
