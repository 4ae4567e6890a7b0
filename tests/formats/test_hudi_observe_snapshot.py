# SPDX-License-Identifier: Apache-2.0
"""Snapshots of real Hudi tables against what Spark and Hudi's own view say."""

import os
import shutil
import time
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow.compute as pc
import pytest
from hudi_tables import rows, write
from hudi_templates import Templates, data_files, edit_avro, edit_properties, ref, timeline_file
from s3_server import S3Server

from lake.errors import Transient
from lake.formats.hudi import FORMAT
from lake.formats.hudi.audit import damage
from lake.formats.hudi.files.names import parse_file_name
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.timeline.timeline import Timeline, instant_datetime
from lake.model import SLICES_SCHEMA, Snapshot
from lake.ports import TableVerification

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def base_files(snapshot: Snapshot) -> dict[str, int]:
    slices = snapshot.slices.filter(pc.is_valid(snapshot.slices["path"]))
    return dict(zip(slices["path"].to_pylist(), slices["bytes"].to_pylist(), strict=True))


def files_spark_reads(spark: "SparkSession", base: Path) -> set[str]:
    from pyspark.sql import functions as f

    frame = spark.read.format("hudi").load(str(base)).select(f.input_file_name()).distinct()
    return {unquote(row[0]).partition(f"{base}/")[2] for row in frame.collect()}


def slices_of_hudi(spark: "SparkSession", base: Path) -> dict[tuple[str, str], tuple[str, int, tuple[str, ...], int]]:
    """Base file, its size, log names oldest first and their bytes by file group, from Hudi's own view."""
    jvm = spark._jvm
    assert jvm is not None
    hudi, lists = jvm.org.apache.hudi, jvm.java.util.stream.Collectors
    java_context = spark.sparkContext._jsc
    conf = hudi.hadoop.fs.HadoopFSUtils.getStorageConfWithCopy(java_context.hadoopConfiguration())
    meta = hudi.common.table.HoodieTableMetaClient.builder().setConf(conf).setBasePath(str(base)).build()
    context = hudi.client.common.HoodieSparkEngineContext(java_context)
    config = hudi.common.config.HoodieMetadataConfig.newBuilder().enable(True).build()
    view = hudi.common.table.view.FileSystemViewManager.createInMemoryFileSystemView(context, meta, config)
    found = {}
    for partition in hudi.common.fs.FSUtils.getAllPartitionPaths(context, meta, True):
        for entry in view.getLatestFileSlices(partition).collect(lists.toList()):
            logs = list(entry.getLogFiles().collect(lists.toList()))[::-1]  # Hudi gives the newest first
            file = entry.getBaseFile()
            found[partition, entry.getFileId()] = (
                file.get().getFileName() if file.isPresent() else "",
                file.get().getFileSize() if file.isPresent() else 0,
                tuple(log.getFileName() for log in logs),
                sum(log.getFileSize() for log in logs),
            )
    view.close()
    return found


@pytest.mark.parametrize(
    "name", ["cow", "clustered", "plain", "unpartitioned", "levels", "encoded", "archived", "saved", "compacted"]
)
@pytest.mark.crossed(4)
def test_a_snapshot_has_exactly_the_files_that_spark_reads_with_their_sizes_on_disk(
    spark: "SparkSession", templates: Templates, name: str
) -> None:
    base = templates.get(name)
    found = base_files(FORMAT.snapshot(ref(base)))
    assert set(found) == files_spark_reads(spark, base)
    assert found.items() <= data_files(base).items()


@pytest.mark.parametrize(
    "name", ["cow", "plain", "unpartitioned", "levels", "encoded", "archived", "compaction_pending", "logs_only"]
)
@pytest.mark.crossed(2)
def test_on_s3_a_table_is_seen_as_on_a_disk(templates: Templates, name: str, bucket: str, s3_server: S3Server) -> None:
    base = templates.get(name)
    uploaded = ref(s3_server.upload(base, f"s3a://{bucket}/lake/{name}"))
    before = len(s3_server.requests())
    here, there = FORMAT.snapshot(ref(base)), FORMAT.snapshot(uploaded)
    listed_there = any(f"/{name}/.hoodie/metadata/files/" in request for request in s3_server.requests()[before:])
    assert listed_there is (base / ".hoodie/metadata").exists()
    assert there.slices.equals(here.slices)
    assert (there.instant, there.uncompacted_commits) == (here.instant, here.uncompacted_commits)
    first = set(here.slices["partition"].to_pylist()[:1])
    assert FORMAT.snapshot(uploaded, first).slices.equals(FORMAT.snapshot(ref(base), first).slices)
    local, remote = (FORMAT.verify(table, (), rows=name != "logs_only") for table in (ref(base), uploaded))
    assert remote == local


@pytest.mark.parametrize(
    ("name", "partitions"),
    [
        ("cow", {"dt=2026-01-01", "dt=2026-01-02"}),
        ("plain", {"2026-01-01", "2026-01-02"}),
        ("unpartitioned", {""}),
        (
            "levels",
            {
                f"region={region}/dt=2026-01-0{day}"
                for region in ("__HIVE_DEFAULT_PARTITION__", "r 1", "r 2")
                for day in (1, 2)
            },
        ),
        ("encoded", {"dt=a%2Fb%3Ac 0", "dt=a%2Fb%3Ac 1"}),
    ],
)
def test_partitions_are_paths_relative_to_the_table(templates: Templates, name: str, partitions: set[str]) -> None:
    snapshot = FORMAT.snapshot(ref(templates.get(name)))
    assert set(snapshot.slices["partition"].to_pylist()) == partitions


def test_a_snapshot_has_the_fixed_schema_no_guessed_rows_and_the_newest_instant(templates: Templates) -> None:
    base = templates.get("clustered")
    snapshot = FORMAT.snapshot(ref(base))
    assert snapshot.slices.schema.equals(SLICES_SCHEMA, check_metadata=True)
    assert snapshot.slices["rows"].null_count == snapshot.slices.num_rows == 2
    assert snapshot.instant == timeline_file(base, "*.replacecommit").name.partition("_")[0]


@pytest.mark.parametrize(
    "name",
    [
        "cow",
        "plain",
        "unpartitioned",
        "levels",
        "encoded",
        "archived",
        "clustering_pending",
        "mor",
        "compaction_pending",
        "logs_only",
    ],
)
def test_a_scan_of_some_partitions_finds_the_same_files_as_a_whole_scan(templates: Templates, name: str) -> None:
    table = ref(templates.get(name))
    whole = FORMAT.snapshot(table)
    there = sorted(set(whole.slices["partition"].to_pylist()))
    for wanted in ([], ["nowhere"], *([one] for one in there), there, [*there[1:], "nowhere"]):
        part = FORMAT.snapshot(table, wanted)
        found = [row for row in whole.slices.to_pylist() if row["partition"] in wanted]
        assert part.slices.to_pylist() == found
        assert (part.instant, part.uncompacted_commits) == (whole.instant, whole.uncompacted_commits)


@pytest.mark.parametrize("name", ["mor", "compaction_pending", "compacted", "logs_only"])
def test_slices_with_logs_equal_hudis_own_view(spark: "SparkSession", templates: Templates, name: str) -> None:
    base = templates.get(name)
    found = {}
    for row in FORMAT.snapshot(ref(base)).slices.to_pylist():
        file = (row["path"] or "").rpartition("/")[2]
        found[row["partition"], row["file_id"]] = (file, row["bytes"], tuple(row["log_files"]), row["log_bytes"])
    assert found == slices_of_hudi(spark, base)
    if name != "compacted":
        assert all(logs for _, _, logs, _ in found.values())


def test_a_snapshot_has_the_age_of_the_oldest_log_and_the_delta_commits_of_a_compaction(
    templates: Templates,
) -> None:
    before, after = (FORMAT.snapshot(ref(templates.get(name))) for name in ("mor", "compacted"))
    assert (before.uncompacted_commits, after.uncompacted_commits) == (3, 0), (
        "the first bulk insert completed as commit"
    )
    assert FORMAT.snapshot(ref(templates.get("cow"))).uncompacted_commits == 0
    timeline = Timeline(TableStorage(str(templates.get("mor"))))
    completed = {i.time: instant_datetime(i.completed_at or "", timeline.timezone) for i in timeline.commits}
    for row in before.slices.to_pylist():
        written = [parse_file_name(f"p/{name}") for name in row["log_files"]]
        assert row["oldest_log_at"] == min(completed[file.instant] for file in written if file)
    assert set(after.slices["oldest_log_at"].to_pylist()) == {None}


def test_slices_of_logs_only_are_listed_although_hudi_rs_leaves_them_out(templates: Templates) -> None:
    import hudi

    base = templates.get("logs_only")
    assert hudi.HudiTableBuilder.from_base_uri(str(base)).build().get_file_slices() == []
    slices = FORMAT.snapshot(ref(base)).slices
    assert slices["path"].to_pylist() == [None, None]
    assert slices["busy_reason"].to_pylist() == [None, None]
    assert slices["bytes"].to_pylist() == [0, 0]
    assert sum(slices["log_bytes"].to_pylist()) == sum(data_files(base).values())


def test_a_log_that_no_commit_completed_makes_no_slice(templates: Templates, tmp_path: Path) -> None:
    base = templates.copy("logs_only", tmp_path / "t")
    log = next((base / "dt=2026-01-01").glob(".*.log.*"))
    stranger = f".{uuid.uuid4()}-0_20991231235959999.log.1_0-1-1"
    shutil.copy(log, log.with_name(stranger))
    assert FORMAT.snapshot(ref(base)).slices.num_rows == 2


@pytest.mark.parametrize("kind", ["clustering", "compaction"])
def test_every_file_group_of_a_pending_plan_is_busy_with_its_instant(templates: Templates, kind: str) -> None:
    base = templates.get(f"{kind}_pending")
    time_of_plan = timeline_file(base, f"*.{kind}.requested").name.partition(".")[0]
    slices = FORMAT.snapshot(ref(base)).slices
    assert set(slices["busy_reason"].to_pylist()) == {f"pending {kind} {time_of_plan}"}


def test_logs_written_after_a_compaction_was_planned_stay_in_their_slice(
    spark: "SparkSession", templates: Templates, tmp_path: Path
) -> None:
    base = templates.copy("compaction_pending", tmp_path / "t")
    before = {row["path"]: row["log_files"] for row in FORMAT.snapshot(ref(base)).slices.to_pylist()}
    options = {"hoodie.table.name": "mor"}
    write(rows(spark, 0, 400, version=12).where("id % 11 = 0"), base, "upsert", merge_on_read=True, options=options)
    after = {row["path"]: row["log_files"] for row in FORMAT.snapshot(ref(base)).slices.to_pylist()}
    assert {path: logs[:-1] for path, logs in after.items()} == before
    verified = FORMAT.verify(ref(base), (), rows=True)
    assert verified == TableVerification(
        files=len(data_files(base)),
        bytes=sum(data_files(base).values()),
        rows=verified.rows,
        rows_expected=verified.rows,
    )
    # The deletes before were of ids divisible by 5 below 100; of those 0 and 55 came back.
    assert verified.rows == 382 == spark.read.format("hudi").load(str(base)).count()


def test_a_group_that_a_pending_plan_does_not_name_stays_free(templates: Templates, tmp_path: Path) -> None:
    base = templates.copy("clustering_pending", tmp_path / "t")

    def drop_the_second_group(record: dict) -> None:  # type: ignore[type-arg]
        del record["clusteringPlan"]["inputGroups"][1:]

    edit_avro(timeline_file(base, "*.clustering.requested"), drop_the_second_group)
    slices = FORMAT.snapshot(ref(base)).slices
    busy = slices.filter(pc.is_valid(slices["busy_reason"]))
    assert len(set(busy["partition"].to_pylist())) == 1
    assert busy.num_rows == 3
    assert slices.num_rows == 6


def test_groups_of_a_completed_clustering_are_free(templates: Templates) -> None:
    assert FORMAT.snapshot(ref(templates.get("clustered"))).slices["busy_reason"].null_count == 2


def test_groups_that_an_inflight_upsert_touches_are_busy(templates: Templates, tmp_path: Path) -> None:
    base = templates.copy("mor", tmp_path / "t")
    completed = timeline_file(base, "*.deltacommit")
    instant = completed.name.partition("_")[0]
    completed.unlink()
    slices = FORMAT.snapshot(ref(base)).slices
    touched = slices.filter(pc.is_valid(slices["busy_reason"]))
    # The delete was of ids below 100, all of them in the first commit's file of each partition.
    assert touched["partition"].to_pylist() == ["dt=2026-01-01", "dt=2026-01-02"]
    assert set(touched["busy_reason"].to_pylist()) == {f"inflight deltacommit {instant}"}
    assert slices.num_rows == 4


def test_partitions_that_an_inflight_overwrite_names_are_busy_and_all_are_when_it_names_none(
    templates: Templates, tmp_path: Path
) -> None:
    base = templates.copy("mor", tmp_path / "t")
    instant = "20991231235959999"
    inflight = base / f".hoodie/timeline/{instant}.replacecommit.inflight"

    def only_the_first_partition(record: dict) -> None:  # type: ignore[type-arg]
        record["partitionToWriteStats"] = {"dt=2026-01-01": record["partitionToWriteStats"]["dt=2026-01-01"][:1]}

    edit_avro(timeline_file(base, "*.deltacommit.inflight"), only_the_first_partition, to=inflight)
    slices = FORMAT.snapshot(ref(base)).slices
    reasons = {
        (row["partition"], row["busy_reason"]) for row in slices.select(["partition", "busy_reason"]).to_pylist()
    }
    assert reasons == {("dt=2026-01-01", f"inflight replacecommit {instant}"), ("dt=2026-01-02", None)}
    inflight.write_bytes(b"")
    assert set(FORMAT.snapshot(ref(base)).slices["busy_reason"].to_pylist()) == {f"inflight replacecommit {instant}"}


@pytest.mark.parametrize("name", ["cow", "plain"])
def test_files_of_an_uncommitted_write_are_in_no_slice(templates: Templates, tmp_path: Path, name: str) -> None:
    base = templates.copy(name, tmp_path / "t")
    before = base_files(FORMAT.snapshot(ref(base)))
    file = base / min(before)
    instant = "20991231235959999"
    shutil.copy(file, file.with_name(f"{uuid.uuid4()}-0_0-1-1_{instant}.parquet"))
    (base / f".hoodie/timeline/{instant}.commit.requested").touch()
    (base / f".hoodie/timeline/{instant}.inflight").touch()
    assert base_files(FORMAT.snapshot(ref(base))) == before


@pytest.mark.parametrize(("zone", "hours"), [("UTC", 0), ("LOCAL", 5)])
def test_files_are_as_old_as_the_completion_of_their_commit_in_the_timelines_zone(
    templates: Templates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zone: str, hours: int
) -> None:
    base = templates.copy("mor", tmp_path / "t")
    edit_properties(base, {"hoodie.table.timeline.timezone": zone})
    stamp = timeline_file(base, "*.deltacommit").name.partition("_")[2].partition(".")[0]
    wanted = datetime.strptime(stamp + "000", "%Y%m%d%H%M%S%f").replace(tzinfo=UTC) + timedelta(hours=hours)
    monkeypatch.setenv("TZ", "XXX+5")
    time.tzset()
    try:
        newest = max(FORMAT.snapshot(ref(base)).slices["modified_at"].to_pylist())
    finally:
        monkeypatch.undo()
        time.tzset()
    assert newest == wanted


def test_five_thousand_slices_are_listed_each_once(templates: Templates, tmp_path: Path) -> None:
    base = templates.copy("plain", tmp_path / "with a space")
    file = next((base / "2026-01-01").glob("*.parquet"))
    instant = file.stem.rpartition("_")[2]
    for day in range(50):
        partition = base / f"2026-02-{day:02}"
        partition.mkdir()
        shutil.copy(base / "2026-01-01/.hoodie_partition_metadata", partition)
        for _ in range(100):
            os.link(file, partition / f"{uuid.uuid4()}-0_0-1-1_{instant}.parquet")
    snapshot = FORMAT.snapshot(ref(base))
    assert base_files(snapshot) == data_files(base)
    assert snapshot.slices.num_rows == 5004


def test_a_listing_is_tried_again_when_a_file_vanished_and_then_given_up_as_transient(
    templates: Templates, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = ref(templates.get("cow"))
    real, failures = damage.list_latest_slices, [1]

    def vanishing(*args: object, **more: object) -> object:
        if failures[0] > 0:
            failures[0] -= 1
            raise FileNotFoundError(2, "gone", "x.parquet")
        return real(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(damage, "list_latest_slices", vanishing)
    assert FORMAT.snapshot(table).slices.num_rows == 6
    failures[0] = 2
    with pytest.raises(Transient, match=r"vanished twice.*x\.parquet"):
        FORMAT.snapshot(table)
