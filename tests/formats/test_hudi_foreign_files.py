# SPDX-License-Identifier: Apache-2.0
"""Parquet files of others in a partition of a Hudi table: set aside by name, the rest is compacted."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hudi_tables import small_files
from hudi_writing import FORMAT, NewTable, Table, delete, ignore

from lake.errors import Transient
from lake.formats.hudi.files.names import is_foreign_file

pytestmark = pytest.mark.spark
NAMES = ("junk.parquet", "part-0000.snappy.parquet", ".hidden.parquet")


def add_foreign(trips: Table, *names: str) -> dict[Path, bytes]:
    """Foreign files in a partition, with their content."""
    files = [Path(trips.base) / "dt=2026-01-01" / name for name in names]
    for file in files:
        pq.write_table(pa.table({"id": [1, 2, 3]}), file)
    return {file: file.read_bytes() for file in files}


def assert_kept(foreign: dict[Path, bytes]) -> None:
    assert {file: file.read_bytes() for file in foreign} == foreign


def rows_without(trips: Table, foreign: dict[Path, bytes]) -> list[tuple[object, ...]]:
    """What Spark reads once the foreign files are out of its way; Hudi can't list a directory that has them."""
    for file in foreign:
        file.rename(Path(trips.base).parent / file.name)
    try:
        return trips.rows()
    finally:
        for file in foreign:
            (Path(trips.base).parent / file.name).rename(file)


@pytest.mark.parametrize("engine", ["spark", "stitch"])
def test_the_rest_of_a_partition_with_foreign_parquet_files_is_clustered_and_cleaned(
    table: NewTable, nothing_unseen: None, engine: str
) -> None:
    trips = table()
    before = trips.rows()
    slices = FORMAT.snapshot(trips.ref).slices
    foreign = add_foreign(trips, *NAMES)
    assert FORMAT.snapshot(trips.ref).slices.equals(slices)
    commit = trips.proved(trips.plan(engine=engine))
    assert len(commit.outputs) == 2
    assert rows_without(trips, foreign) == before
    delete(trips, commit)
    assert not {version.path for version in commit.superseded} & trips.data_files().keys()
    assert rows_without(trips, foreign) == before
    assert_kept(foreign)


def test_the_rest_of_a_partition_with_foreign_parquet_files_is_compacted(table: NewTable) -> None:
    trips = table("mor")
    before = trips.rows()
    foreign = add_foreign(trips, *NAMES)
    trips.proved(trips.compaction())
    assert rows_without(trips, foreign) == before
    assert FORMAT.snapshot(trips.ref).slices["log_bytes"].to_pylist() == [0] * 4
    assert_kept(foreign)


def test_a_rewrite_beside_foreign_parquet_files_is_withdrawn(table: NewTable) -> None:
    trips = table()
    before, files = trips.rows(), trips.data_files()
    foreign = add_foreign(trips, *NAMES)
    plan = trips.plan()
    with trips.writer() as writer:
        writer.rewrite(writer.prepare(plan, 1), ignore)
        assert writer.withdraw(plan.plan_id, None) == 1
    assert not trips.timeline().pending
    assert rows_without(trips, foreign) == before
    assert trips.data_files().keys() == files.keys() | {str(file.relative_to(trips.base)) for file in foreign}


def test_a_foreign_parquet_file_is_named_by_a_snapshot_and_is_no_damage(table: NewTable) -> None:
    trips = table()
    before = FORMAT.snapshot(trips.ref)
    assert before.foreign_files == ()
    add_foreign(trips, "part-0000.snappy.parquet", "junk.parquet", "a_b.parquet")
    exports = Path(trips.base) / "dt=2026-01-01/exports"
    exports.mkdir()
    pq.write_table(pa.table({"id": [1]}), exports / "export.parquet")
    found = FORMAT.snapshot(trips.ref)
    names = ("a_b.parquet", "junk.parquet", "part-0000.snappy.parquet")
    assert found.foreign_files == tuple(f"dt=2026-01-01/{name}" for name in names)
    assert (found.slices, found.damaged) == (before.slices, ())
    assert FORMAT.snapshot(trips.ref, ["dt=2026-01-02"]).foreign_files == ()


def test_the_partition_marker_in_the_format_of_base_files_is_not_foreign() -> None:
    assert not is_foreign_file("dt=1/.hoodie_partition_metadata.parquet")
    assert not is_foreign_file("dt=1/f_1-0-1_20260101000000000.parquet")
    assert is_foreign_file("dt=1/f_1-0-1_x.parquet")


def test_a_table_with_a_metadata_table_is_compacted_and_read_beside_foreign_files(table: NewTable) -> None:
    trips = table("metadata")
    before = trips.rows()
    foreign = add_foreign(trips, *NAMES)
    trips.proved(trips.plan())
    assert trips.rows() == before
    assert FORMAT.snapshot(trips.ref).foreign_files == tuple(f"dt=2026-01-01/{name}" for name in sorted(NAMES))
    assert_kept(foreign)


def test_a_table_without_partitions_is_clustered_beside_a_foreign_file_and_a_directory_named_like_one(
    spark: Any, tmp_path: Path
) -> None:
    trips = Table(spark, tmp_path / "trips")
    small_files(spark, trips.base, commits=2, rows_each=20, partitioned=False)
    before = trips.rows()
    directory = tmp_path / "trips/spark-output.parquet"
    directory.mkdir()
    pq.write_table(pa.table({"id": [1]}), directory / "part-0000.parquet")
    foreign = {tmp_path / "trips/junk.parquet": b"no Parquet at all"}
    for file, content in foreign.items():
        file.write_bytes(content)
    commit = trips.proved(trips.plan())
    assert len(commit.superseded) == 2
    assert rows_without(trips, foreign) == before
    assert_kept(foreign)
    assert FORMAT.snapshot(trips.ref).foreign_files == ("junk.parquet",)


def test_a_service_that_hudi_can_t_run_because_of_a_foreign_file_names_the_file(table: NewTable) -> None:
    trips = table(**{"hoodie.clean.commits.retained": "1"})
    trips.upsert(0, 20, 5)
    trips.upsert(0, 20, 6)
    foreign = add_foreign(trips, "junk.parquet")
    why = (
        "trips: Hudi can't list a partition while running the service clean, since dt=2026-01-01/junk.parquet in it is "
        "not a file of Hudi's; move it out of the table"
    )
    with trips.writer() as writer, pytest.raises(Transient) as caught:
        writer.maintain(["clean"], ())
    assert str(caught.value) == why
    assert_kept(foreign)
    for file in foreign:
        file.unlink()
    with trips.writer() as writer:
        assert writer.maintain(["clean"], ()) == ["the table's clean policy deleted 2 files"]
