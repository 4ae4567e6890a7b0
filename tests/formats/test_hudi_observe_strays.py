# SPDX-License-Identifier: Apache-2.0
"""What lies about in a table's directory without being a part of it: directories and files of others."""

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hudi_tables import table_rows
from hudi_templates import Templates, data_files, ref, replace, timeline_file

from lake.errors import Transient
from lake.formats.hudi import FORMAT
from lake.model import SearchFailure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("name", ["plain", "cow", "unpartitioned"])
def test_a_directory_in_a_partition_hides_no_file_of_it(
    spark: "SparkSession", templates: Templates, tmp_path: Path, name: str
) -> None:
    base = templates.copy(name, tmp_path / "t")
    before = FORMAT.snapshot(ref(base)).slices
    partition = Path(max(data_files(base))).parent
    (base / partition / "_temporary/0").mkdir(parents=True)
    after = FORMAT.snapshot(ref(base))
    assert after.slices.equals(before)
    assert after.damaged == ()
    verified = FORMAT.verify(ref(base), (), rows=True)
    assert (verified.missing, verified.resurrected) == ((), ())
    assert verified.rows == verified.rows_expected == len(table_rows(spark, base))


@pytest.mark.parametrize("name", ["plain", "cow", "mor"])
def test_a_directory_of_hudi_files_that_hudi_does_not_call_a_partition_is_none(
    spark: "SparkSession", templates: Templates, tmp_path: Path, name: str
) -> None:
    base = templates.copy(name, tmp_path / "t")
    before, rows = FORMAT.snapshot(ref(base)).slices, table_rows(spark, base)
    partition = Path(max(data_files(base))).parent
    shutil.copytree(base / partition, base / "backup", ignore=shutil.ignore_patterns(".hoodie_partition_metadata*"))
    assert table_rows(spark, base) == rows
    assert FORMAT.snapshot(ref(base)).slices.equals(before)
    assert FORMAT.snapshot(ref(base)).damaged == ()
    shutil.copytree(base / "backup", base / partition / "copy")
    assert FORMAT.snapshot(ref(base)).slices.equals(before)


def test_a_partition_that_is_marked_in_the_format_of_its_base_files_is_one(
    templates: Templates, tmp_path: Path
) -> None:
    base = templates.copy("plain", tmp_path / "t")
    before = FORMAT.snapshot(ref(base)).slices
    for marker in base.glob("*/.hoodie_partition_metadata"):
        marker.rename(marker.with_name(".hoodie_partition_metadata.parquet"))
    assert FORMAT.snapshot(ref(base)).slices.equals(before)


def test_a_copied_partition_that_readers_count_is_reported_and_left_alone(templates: Templates, tmp_path: Path) -> None:
    base = templates.copy("plain", tmp_path / "t")
    partition = min(base.glob("2026-*"))
    shutil.copytree(partition, base / "2026-09-09")
    damaged = {(entry.partition, Path(entry.path).name) for entry in FORMAT.snapshot(ref(base)).damaged}
    assert damaged == {("2026-09-09", file.name) for file in partition.glob("*.parquet")}


@pytest.mark.parametrize("name", ["plain", "cow", "mor"])
def test_a_foreign_parquet_file_refuses_no_table_and_is_named(templates: Templates, tmp_path: Path, name: str) -> None:
    base = templates.copy(name, tmp_path / "t")
    before = FORMAT.snapshot(ref(base)).slices
    partition = Path(max(data_files(base))).parent
    for directory in ("exports", f"{partition}/exports"):
        (base / directory).mkdir()
        pq.write_table(pa.table({"id": [1]}), base / directory / "part-00000.parquet")
    assert FORMAT.snapshot(ref(base)).slices.equals(before)
    strays = FORMAT.verify(ref(base), (), rows=False).unowned
    assert strays == tuple(sorted(("exports/part-00000.parquet", f"{partition}/exports/part-00000.parquet")))


def test_a_commit_with_an_empty_file_is_named_and_the_table_left_alone_until_its_repair(
    templates: Templates, tmp_path: Path
) -> None:
    base = templates.copy("cow", tmp_path / "t")
    newest = timeline_file(base, "*.commit")
    content = newest.read_bytes()
    replace(newest, b"")
    message = rf"{newest} is empty: the files that commit .* wrote are unknown; restore the file"
    with pytest.raises(Transient, match=message):
        FORMAT.snapshot(ref(base))
    with pytest.raises(Transient, match=f"{newest} is empty"):
        FORMAT.verify(ref(base), (), rows=False)
    described = FORMAT.describe(ref(base))["timeline"]
    assert f"empty, so the files they wrote are unknown: .hoodie/timeline/{newest.name}" in described
    replace(newest, content)
    assert FORMAT.snapshot(ref(base)).slices.num_rows == 6


@pytest.mark.parametrize("pattern", ["*.commit", "history/*.parquet", "history/manifest_*"])
def test_an_unreadable_file_of_the_timeline_is_named_with_the_remedy(
    templates: Templates, tmp_path: Path, pattern: str
) -> None:
    base = templates.copy("archived", tmp_path / "t")
    for torn in (base / ".hoodie/timeline").glob(pattern):
        replace(torn, torn.read_bytes()[:20])
    with pytest.raises(Transient, match=rf"{base}/\.hoodie/timeline/.*: .*; put it back from a backup|can't be read"):
        FORMAT.verify(ref(base), (), rows=False)


def test_discovery_names_a_table_without_its_properties(templates: Templates, tmp_path: Path) -> None:
    sound, lost = templates.copy("plain", tmp_path / "a"), templates.copy("plain", tmp_path / "b/c")
    (lost / ".hoodie/hoodie.properties").unlink()
    found = list(FORMAT.discover(str(tmp_path)))
    assert [entry.location for entry in found] == [str(sound), str(lost)]
    unsearched = found[1]
    assert isinstance(unsearched, SearchFailure)
    assert re.search(rf"{lost} has a directory \.hoodie and no .*; restore that file", unsearched.reason)


def test_files_of_archived_commits_are_listed_while_an_older_clean_stays_on_the_timeline(
    templates: Templates, tmp_path: Path
) -> None:
    base = templates.copy("plain", tmp_path / "t")
    before = FORMAT.snapshot(ref(base)).slices["path"]
    timeline = base / ".hoodie/timeline"
    first, _ = sorted(path.name.partition("_")[0] for path in timeline.glob("*.commit"))
    for path in timeline.glob(f"*{first}*"):
        path.unlink()
    older = f"{int(first) - 1}"
    for name in (f"{older}.clean.requested", f"{older}.clean.inflight", f"{older}_{older}.clean"):
        (timeline / name).touch()
    assert any(f"_{first}." in path for path in data_files(base))
    assert FORMAT.snapshot(ref(base)).slices["path"].equals(before)
