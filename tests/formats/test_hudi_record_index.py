# SPDX-License-Identifier: Apache-2.0
"""The record index that looks up a key in one partition: after a rewrite it leads writers and readers to the rows."""

from pathlib import Path
from typing import Any

import pytest
from hudi_tables import METADATA, copy, rows, write
from hudi_writing import Table, make_table
from kept_tables import kept

from executors.engines.arrow import ArrowEngine
from executors.engines.backends import InProcessBackend
from lake.errors import Rejected
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.jvm.bundle import Bundle10, bundle_of
from lake.formats.hudi.timeline.metadata_table import is_record_index_partitioned

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("nothing_unseen")]
BY_PARTITION = METADATA | {
    "hoodie.metadata.record.level.index.enable": "true",
    "hoodie.index.type": "RECORD_LEVEL_INDEX",
    "hoodie.metadata.record.level.index.min.filegroup.count": "2",
}
GLOBAL = METADATA | {
    "hoodie.metadata.global.record.level.index.enable": "true",
    "hoodie.index.type": "GLOBAL_RECORD_LEVEL_INDEX",
    "hoodie.metadata.global.record.level.index.min.filegroup.count": "2",
}


def indexed(spark: Any, base: Path, *, merge_on_read: bool) -> Table:
    """Three files in each of two partitions, and where there are logs, one for every file."""

    def build(base: Path) -> None:
        for low in (0, 60, 120):
            write(
                rows(spark, low, low + 60).coalesce(1),
                base,
                "insert",
                merge_on_read=merge_on_read,
                options=BY_PARTITION,
            )
        if merge_on_read:
            updated = rows(spark, 0, 180, version=1).where("id % 3 = 0")
            write(updated.coalesce(1), base, "upsert", merge_on_read=True, options=BY_PARTITION)

    kind = "merge-on-read" if merge_on_read else "copy-on-write"
    return Table(spark, copy(kept(f"indexed by partition, {kind}", "trips", build, __file__), base))


def found_by_index(trips: Table) -> list[object]:
    """The versions of a few rows that Spark finds by their keys."""
    reader = trips.spark.read.format("hudi").options(
        **METADATA, **{"hoodie.enable.data.skipping": "true", "hoodie.metadata.record.level.index.enable": "true"}
    )
    frame = reader.load(str(trips.base))
    return [
        row["ts"]
        for key in (0, 7, 64, 179)
        for row in frame.where(f"id = {key} and dt = '2026-01-0{key % 2 + 1}'").collect()
    ]


@pytest.mark.parametrize("how", ["spark", "arrow", "compaction"])
def test_an_upsert_by_a_partitioned_record_index_finds_the_rows_that_a_rewrite_moved(
    spark: Any, tmp_path: Path, how: str
) -> None:
    trips = indexed(spark, tmp_path / "trips", merge_on_read=how == "compaction")
    trips.engines = (ArrowEngine(InProcessBackend()),)
    before = trips.rows(), found_by_index(trips)
    assert len(before[1]) == 4
    if how == "compaction":
        trips.run(trips.compaction())
        trips.run(trips.plan())
    else:
        trips.run(trips.plan(engine=how))
    assert (trips.rows(), found_by_index(trips)) == before
    trips.upsert(0, 180, 2, **BY_PARTITION)
    after = trips.rows()
    assert [row[5] for row in after] == [2] * 180
    assert len({row[4] for row in after}) == 180, "no key twice"
    assert found_by_index(trips) == [2] * 4


def test_a_record_index_that_became_partitioned_is_updated_as_a_partitioned_one(spark: Any, tmp_path: Path) -> None:
    trips = make_table(spark, tmp_path)
    trips.upsert(0, 60, 1, **GLOBAL)
    plan = trips.plan()
    with trips.writer() as writer:
        prepared = writer.prepare(plan, 1)
        rewrite = writer.rewrite(prepared, lambda progress: None)
        write(rows(spark, 500, 502).coalesce(1), trips.base, "insert", options={"hoodie.metadata.enable": "false"})
        write(rows(spark, 502, 504).coalesce(1), trips.base, "insert", options=BY_PARTITION)
        writer.commit(rewrite)
    trips.upsert(0, 180, 2, **BY_PARTITION)
    assert sorted(row[5] for row in trips.rows()) == [0] * 4 + [2] * 180


@pytest.mark.parametrize(
    ("name", "is_partitioned"),
    [
        ("record-index-0000-0_0-12-3_20260101000000000.hfile", False),
        (".record-index-0011-0_20260101000000000.log.1_0-0-0", False),
        (".record-index-dt%3D2026%2D01%2D01-0000-0_20260101000000000.log.1_0-0-0", True),
        ("record-index-2026-0000-0_0-12-3_20260101000000000.hfile", True),
        ("record-index--0000-0_0-12-3_20260101000000000.hfile", True),
    ],
)
def test_file_groups_of_a_record_index_show_its_kind(tmp_path: Path, name: str, is_partitioned: bool) -> None:
    index = tmp_path / ".hoodie/metadata/record_index"
    index.mkdir(parents=True)
    (index / name).touch()
    properties = {"hoodie.table.metadata.partitions": "files,record_index"}
    assert is_record_index_partitioned(TableStorage(str(tmp_path)), properties) is is_partitioned


def test_a_bundle_that_does_not_know_the_index_is_refused(spark: Any) -> None:
    bundle_of(spark).require_partitioned_record_index("trips")
    with pytest.raises(
        Rejected, match=r"its record index .* needs Hudi bundle 1\.1 or newer, this session has 1\.0\.2"
    ):
        Bundle10(spark, "1.0.2").require_partitioned_record_index("trips")
