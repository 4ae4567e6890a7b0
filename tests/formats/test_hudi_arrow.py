# SPDX-License-Identifier: Apache-2.0
"""Base files that an engine writes and Hudi commits: to every reader and index those of Hudi's row writer."""

import json
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from answers.spark import settings
from hudi_metadata_table import metadata_records
from hudi_tables import copy, run_service, small_files, write
from hudi_templates import Templates
from hudi_writing import ARCHIVING, FORMAT, INDEXES, NewTable, Table, ignore, insert, plan_of
from kept_tables import kept
from support import SOAK
from test_hudi_batches import EVERY_TYPE

from executors.engines import create_engines
from lake.errors import CancelRequested, Conflict, EngineUnavailable, Rejected, Transient
from lake.formats.hudi.client.client import HudiClient
from lake.formats.hudi.files.additions import BaseFileAdditions
from lake.formats.hudi.files.bloom_filter import SIMPLE, BloomFilterSettings
from lake.formats.hudi.files.names import parse_file_name
from lake.formats.hudi.inputs.plan_engine import WRITERS, EngineChoice
from lake.formats.hudi.jvm.bundle import Bundle, Bundle10
from lake.formats.hudi.rewrite.engine_files import find_writers
from lake.formats.hudi.timeline.timeline import write_stats
from lake.model import FileSlice
from lake.plan import Commit, Plan, VerificationLevel
from lake.ports import Rewrite

pytestmark = pytest.mark.spark
#: what is the same for files of every engine
by_one_engine = pytest.mark.paired("engine")


@pytest.fixture(params=WRITERS)
def engine(request: pytest.FixtureRequest) -> str:
    """The name of an engine."""
    return str(request.param)


def by_engines(table: Table) -> Table:
    """The table with a writer that has all engines."""
    spark = table.spark
    table.engines = create_engines(lambda: spark)
    return table


def of_every_type(spark: Any, tmp_path: Path, *names: str) -> list[Table]:
    """Copies of a table with a metadata table and all its indexes."""

    def build(base: Path) -> None:
        for commit in range(3):
            frame = spark.range(commit * 1000, commit * 1000 + 90 * (3 - commit)).selectExpr(*EVERY_TYPE)
            write(frame.coalesce(1), base, options=INDEXES)

    template = kept("of every type with indexes", "trips", build, __file__)
    return [Table(spark, copy(template, tmp_path / name)) for name in names]


def content(table: Table, commit: Commit) -> tuple[str, dict[bytes, bytes], list[Any], pa.Table]:
    """Schema, key-value metadata, codecs and rows of the only new file, without its name."""
    (output,) = commit.outputs
    path = Path(table.base) / output.path
    metadata = pq.read_metadata(path)
    rows = pq.ParquetFile(path).read()
    assert set(rows["_hoodie_file_name"].to_pylist()) == {path.name}
    assert output.bytes == path.stat().st_size
    assert output.rows == rows.num_rows
    codecs = [metadata.row_group(0).column(n).compression for n in range(metadata.num_columns)]
    schema = str(metadata.schema).split("\n", 1)[1]
    return schema, dict(metadata.metadata), codecs, rows.drop_columns(["_hoodie_file_name"])


def statistics(table: Table, commit: Commit) -> Any:
    """What the commit says of its files, without names, sizes and times."""
    timeline = table.timeline()
    metadata = timeline.commit_metadata(timeline.find(commit.instant)) or {}
    stats = json.loads(json.dumps(metadata["partitionToWriteStats"], default=str))
    volatile = {"fileId", "path", "totalWriteBytes", "fileSizeInBytes", "runtimeStats"}
    return {
        partition: [{k: v for k, v in stat.items() if k not in volatile} for stat in found]
        for partition, found in stats.items()
    }


def test_files_commit_and_metadata_table_are_those_of_the_row_writer(spark: Any, tmp_path: Path, engine: str) -> None:
    table, other = of_every_type(spark, tmp_path, "trips", "copy")
    before, other_before = table.rows(), table.other_rows()
    by_engines(table)
    plan = plan_of(table, engine, receipt=VerificationLevel.HASH)
    commit, expected = table.proved(plan), other.run(plan_of(other, "spark"))
    (output,) = commit.outputs
    assert row_group_rows(table, output.path) == {"arrow": [540], "hybrid": [270, 270]}[engine]
    schema, says, codecs, rows = content(table, commit)
    other_schema, other_says, other_codecs, other_rows = content(other, expected)
    assert schema == other_schema
    assert says == other_says
    assert codecs == other_codecs
    assert repr(rows.to_pylist()) == repr(other_rows.to_pylist())  # by repr, for which NaN is NaN
    assert repr(table.rows()) == repr(before)
    assert table.other_rows() == other_before
    assert statistics(table, commit) == statistics(other, expected)
    assert metadata_records(spark, table.base) == metadata_records(spark, other.base)
    assert table.temporary() == []


def row_group_rows(table: Table, path: str) -> list[int]:
    metadata = pq.read_metadata(Path(table.base) / path)
    return [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]


INDEX_TYPES = {
    "bloom": {"hoodie.index.type": "BLOOM"},
    "bloom of the metadata table": {"hoodie.index.type": "BLOOM", "hoodie.bloom.index.use.metadata": "true"},
    "record index": {"hoodie.index.type": "RECORD_INDEX"},
    "simple": {"hoodie.index.type": "SIMPLE"},
}


@by_one_engine
def test_writers_find_every_record_by_every_index(table: NewTable, engine: str) -> None:
    trips = by_engines(table("indexed", **INDEXES))
    before = {row[4]: row for row in trips.rows()}
    commit = trips.proved(plan_of(trips, engine))
    for which, options in enumerate(INDEX_TYPES.values()):
        trips.upsert(0, 120, which + 1, f"id % {len(INDEX_TYPES)} = {which}", **options)
    after = {row[4]: row for row in trips.rows()}
    assert len(trips.rows()) == len(after) == len(before)
    assert {id_: row[5] for id_, row in after.items()} == {id_: id_ % len(INDEX_TYPES) + 1 for id_ in before}
    assert sum(trips.other_rows()[1].values()) == len(before)
    # Not one record was inserted a second time: an update keeps the file group.
    groups = {(output.partition, Path(output.path).name.partition("_")[0]) for output in commit.outputs}
    assert {(one.partition, one.file_id) for one in live_slices(trips)} == groups


#: in Java a letter beyond U+FFFF comes before those from U+E000 on, in UTF-8 after them
ODD_KEYS = [["a\uff01", "a\U0001f600", "a\ue000", "aa"], ["az", "a\uffe5x", "b\U0001f601", "b\uff02"]]


@by_one_engine
def test_a_writer_finds_keys_with_letters_beyond_the_basic_ones_by_bounds(
    spark: Any, tmp_path: Path, engine: str
) -> None:
    options = {"hoodie.index.type": "BLOOM", "hoodie.datasource.write.recordkey.field": "key"}

    def put(keys: Sequence[str], version: int) -> None:
        frame = spark.createDataFrame([(key, version, "2026") for key in keys], "key string, ts long, dt string")
        write(frame.coalesce(1), tmp_path / "trips", "upsert", options=options)

    for keys in ODD_KEYS:
        put(keys, 0)
    trips = by_engines(Table(spark, tmp_path / "trips", options))
    trips.proved(plan_of(trips, engine))
    put([key for keys in ODD_KEYS for key in keys], 1)
    found = sorted((row["key"], row["ts"]) for row in spark.read.format("hudi").load(str(trips.base)).collect())
    assert found == sorted((key, 1) for keys in ODD_KEYS for key in keys)


def live_slices(trips: Table) -> list[FileSlice]:
    return [one for group in trips.plan().groups for one in group.slices]


def test_slices_without_logs_of_a_merge_on_read_table_get_logs_and_are_compacted_after_it(
    spark: Any, tmp_path: Path, engine: str
) -> None:
    small_files(spark, tmp_path / "trips", commits=2, rows_each=40, merge_on_read=True)
    trips = by_engines(Table(spark, tmp_path / "trips"))
    before, other = trips.rows(), trips.other_rows()
    least = {"arrow": 8 << 20, "hybrid": 1}[engine]
    plan = trips.plan(receipt=VerificationLevel.HASH, min_row_group_bytes=least)
    with trips.writer() as writer:
        (note,) = (prepared := writer.prepare(plan, 1)).notes
        no_copy = "no copy, Hudi copies files of copy-on-write tables only, this one is merge-on-read"
        if engine == "hybrid":
            assert note == f"engine hybrid: {no_copy}"
        else:
            assert note.startswith(f"engine arrow: {no_copy}; hybrid can't: 0 B of ")
            assert note.endswith(" are in row groups of 8.0 MiB (min_row_group) or more, so a copy would save little")
        writer.commit(writer.rewrite(prepared, ignore))
    assert (trips.rows(), trips.other_rows()) == (before, other)
    trips.upsert(0, 80, 5, "id % 3 = 0")
    assert all(one.log_files for one in live_slices(trips))
    updated = trips.rows()
    with trips.writer() as writer:
        assert (
            writer.prepare(trips.plan("0198-logs"), 1)
            .notes[0]
            .endswith("; hybrid and arrow can't: logs have to be merged, which is done row by row")
        )
        writer.withdraw("0198-logs", None)
    trips.proved(trips.compaction())
    assert trips.rows() == updated
    assert sum(trips.other_rows()[1].values()) == len(before)


if SOAK:

    @pytest.mark.soak
    def test_hudis_own_services_work_on_the_files(table: NewTable, nothing_unseen: None, engine: str) -> None:
        trips = by_engines(table("metadata", **ARCHIVING))
        commit = trips.run(plan_of(trips, engine))
        trips.upsert(0, 180, 1, "id % 9 = 0")
        rows, other = trips.rows(), trips.other_rows()
        time = trips.timeline().completed[-1].time
        trips.spark.sql(f"CREATE TABLE saved USING hudi LOCATION '{trips.base}'")
        try:
            trips.spark.sql(f"CALL create_savepoint(table => 'saved', commit_time => '{time}')").collect()
            trips.upsert(0, 180, 2, "id % 7 = 0")
            trips.spark.sql(f"CALL rollback_to_savepoint(table => 'saved', instant_time => '{time}')").collect()
            assert (trips.rows(), trips.other_rows()) == (rows, other)
            trips.spark.sql(f"CALL delete_savepoint(table => 'saved', instant_time => '{time}')").collect()
        finally:
            trips.spark.sql("DROP TABLE saved")
        run_service(trips.spark, "run_clustering", Path(trips.base), "scheduleAndExecute")
        assert (trips.rows(), trips.other_rows()) == (rows, other)
        insert(trips, 5, **{"hoodie.clean.automatic": "true"})
        assert trips.timeline().find(commit.instant) is None, "archived"
        assert not {output.path for output in commit.outputs} & set(trips.data_files()), "cleaned"
        assert [row for row in trips.rows() if row in set(rows)] == rows
        verified = FORMAT.verify(trips.ref, (), rows=True)
        assert (verified.missing, verified.wrong_size, verified.unowned) == ((), (), ())
        assert verified.rows == verified.rows_expected == len(rows) + 10


@pytest.mark.parametrize("kind", ["flat", "encoded"])
@pytest.mark.crossed
def test_markers_name_the_files_of_every_kind_of_partition(
    spark: Any, tmp_path: Path, templates: Templates, kind: str, engine: str
) -> None:
    """Hudi deletes, in its commit, each file with a marker that the statistics do not name."""
    if kind == "flat":
        small_files(spark, tmp_path / "trips", commits=2, rows_each=20, partitioned=False)
        trips = by_engines(Table(spark, tmp_path / "trips"))
    else:
        trips = by_engines(Table(spark, templates.copy("encoded", tmp_path / "trips")))
    before = trips.rows()
    commit = trips.run(plan_of(trips, engine))
    assert trips.rows() == before
    assert trips.files_of(commit.instant) == {output.path for output in commit.outputs}
    assert trips.temporary() == []


@pytest.fixture
def trips(table: NewTable) -> Table:
    """A table that is listed by its directories: a visible file is read."""
    return by_engines(table())


@by_one_engine
def test_files_of_repeated_tasks_are_deleted_before_the_commit_and_files_of_late_tasks_soon_after_it(
    trips: Table, engine: str
) -> None:
    before = trips.rows()
    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(plan_of(trips, engine), 1), ignore)
        instant = rewrite.prepared.instant
        assert writer._client is not None
        assert writer._client.inflight_file is not None
        began = writer._client.inflight_file.own_file
        early = repeated(trips, rewrite, inflight_file=began)
        assert trips.rows() == before
        commit = writer.commit(rewrite)
        assert not (trips.base / early).exists()
        assert trips.rows() == before
        with pytest.raises(Transient, match=f"{instant} is no longer pending"):
            repeated(trips, rewrite, inflight_file=began)
        late = repeated(trips, rewrite)
        assert len(trips.rows()) == len(before), "two files of one file group: no reader reads both"
        assert FORMAT.instants_with_stragglers(trips.ref) == [instant]
        assert writer.remove_straggler_files([instant]) == [late]
    assert trips.files_of(instant) == {output.path for output in commit.outputs}
    assert trips.rows() == before
    assert trips.temporary() == []


def repeated(trips: Table, rewrite: Rewrite, inflight_file: tuple[str, datetime] | None = None) -> str:
    """The path of a file that another attempt at the first output's task has written; it asks once, at its start."""
    output = rewrite.outputs[0]
    file = parse_file_name(output.path)
    assert file is not None
    additions = BaseFileAdditions(
        location=str(trips.base),
        instant=file.instant,
        partition=file.partition,
        bloom_filter=BloomFilterSettings(entries=10, false_positive_rate=0.1, max_entries=10, type=SIMPLE),
        spark_version="",
        inflight_file=inflight_file,
    )
    path = additions.create_file(f"{trips.base}/{file.partition}/{file.file_id}").path
    shutil.copyfile(Path(trips.base) / output.path, path)
    return str(Path(path).relative_to(trips.base))


@by_one_engine
def test_after_a_withdrawal_no_file_of_the_attempt_becomes_visible(trips: Table, engine: str) -> None:
    before = trips.rows()
    plan = plan_of(trips, engine)
    with trips.writer() as sleeper, trips.writer() as successor:
        rewrite = sleeper.rewrite(sleeper.prepare(plan, 1), ignore)
        instant = rewrite.prepared.instant
        sleeper._end_attempt()  # as if it had died
        assert successor.withdraw(plan.plan_id, [instant], epoch=2) == 1
        assert trips.files_of(instant) == set()
        assert trips.temporary() == []
        late = repeated_after(trips, rewrite)
        with pytest.raises(Conflict):
            sleeper.commit(rewrite)
        commit = successor.commit(successor.rewrite(successor.prepare(plan, 2), ignore))
        assert trips.rows() == before
        assert FORMAT.instants_with_stragglers(trips.ref) == [instant]
        assert successor.remove_straggler_files([instant]) == [late]
    assert trips.rows() == before
    assert set(trips.data_files()) - {v.path for v in commit.superseded} == {o.path for o in commit.outputs}
    assert trips.temporary() == []


def repeated_after(trips: Table, rewrite: Rewrite) -> str:
    """The path of a file that a task writes although the files of its attempt are gone."""
    planned = rewrite.prepared.plan.groups[0].slices[0]
    (trips.base / rewrite.outputs[0].path).parent.mkdir(exist_ok=True)
    shutil.copyfile(trips.base / (planned.path or ""), trips.base / rewrite.outputs[0].path)
    late = repeated(trips, rewrite)
    (trips.base / rewrite.outputs[0].path).unlink()
    return late


@by_one_engine
def test_a_damaged_input_is_named_with_its_group_and_the_attempt_leaves_nothing(trips: Table, engine: str) -> None:
    before, plan = trips.rows(), plan_of(trips, engine)
    victim = plan.groups[0].slices[1].path or ""
    with trips.writer() as writer:
        prepared = writer.prepare(plan, 1)
        sound = (trips.base / victim).read_bytes()
        (trips.base / victim).write_bytes(sound[:-1000])
        with pytest.raises(Conflict, match="can't be read") as caught:
            writer.rewrite(prepared, ignore)
        (left_out,) = caught.value.args[1]
        assert (left_out.group, left_out.quarantine) == (0, (victim,))
        assert trips.files_of(prepared.instant) != set(), "those of the other group"
        assert writer.withdraw(plan.plan_id, [prepared.instant]) == 1
    (trips.base / victim).write_bytes(sound)
    assert trips.files_of(prepared.instant) == set()
    assert trips.rows() == before
    assert trips.temporary() == []


Rewriting = Callable[..., Any]


def around_rewrites(trips: Table, monkeypatch: pytest.MonkeyPatch, around: Rewriting) -> None:
    """Have ``around`` called instead of the engines' ``rewrite``, which is its first argument."""
    for engine in trips.engines:
        monkeypatch.setattr(engine, "rewrite", partial(around, engine.rewrite))


@by_one_engine
def test_a_cancelled_rewrite_ends_and_its_withdrawal_leaves_nothing(
    trips: Table, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    before, plan = trips.rows(), plan_of(trips, engine)
    with trips.writer() as writer:
        prepared = writer.prepare(plan, 1)

        def cancelled(rewrite: Rewriting, *arguments: Any) -> Any:
            for file in rewrite(*arguments):
                writer.cancel()
                yield file

        around_rewrites(trips, monkeypatch, cancelled)
        with pytest.raises(CancelRequested):
            writer.rewrite(prepared, ignore)
        assert writer.withdraw(plan.plan_id, [prepared.instant]) == 1
    assert trips.files_of(prepared.instant) == set()
    assert trips.rows() == before
    assert trips.temporary() == []


def test_an_instant_that_another_process_took_over_is_left_to_it(trips: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    before, plan = trips.rows(), trips.plan(engine="arrow")
    with trips.writer() as writer:
        prepared = writer.prepare(plan, 1)

        def meanwhile(rewrite: Rewriting, *arguments: Any) -> Any:
            with ThreadPoolExecutor() as pool:  # a job of this thread would carry the tag of ours
                pool.submit(run_service, trips.spark, "run_clustering", Path(trips.base), "execute").result()
            return rewrite(*arguments)

        around_rewrites(trips, monkeypatch, meanwhile)
        with pytest.raises(Conflict, match=f"another process took over {prepared.instant}"):
            writer.rewrite(prepared, ignore)
    found = trips.timeline().find(prepared.instant)
    assert found is not None
    committed = {stat["path"] for _, stat in write_stats(trips.timeline().metadata(found))}
    assert trips.files_of(prepared.instant) == committed
    assert trips.rows() == before


def chosen(trips: Table, plan: Plan | None = None) -> EngineChoice:
    """The engine that a plan of the table gets; nothing is published."""
    client = HudiClient(trips.ref, trips.spark, plan or trips.plan(), find_writers(trips.engines))
    try:
        return client.engine
    finally:
        client.close()


def obstacle(trips: Table, plan: Plan | None = None) -> str:
    """Why ``auto`` leaves a plan to the row writer; the other engines are refused with the same reasons if set."""
    choice, plan, found = chosen(trips, plan), plan or trips.plan(), dict[str, str]()
    assert choice.name == "spark"
    for engine in WRITERS:
        with pytest.raises(Rejected) as refused:
            chosen(trips, replace(plan, options=replace(plan.options, engine=engine)))
        before, why, behind = str(refused.value).partition(": ")[2].partition(" can't rewrite this plan: ")
        assert (before, why) == (f"engine = {engine}", " can't rewrite this plan: ")
        found[engine] = behind.removesuffix("; or set engine = auto")
    if len(set(found.values())) == 1:
        assert choice.reason.endswith(f"; hybrid and arrow can't: {found['arrow']}")
    else:
        assert choice.reason.endswith("".join(f"; {name} can't: {why}" for name, why in found.items()))
    return found["arrow"]


def test_the_row_writer_gets_plans_whose_settings_exclude_arrow_with_the_reason(table: NewTable, spark: Any) -> None:
    trips = by_engines(table())
    assert chosen(trips).name == "arrow"
    engines, trips.engines = trips.engines, ()
    assert obstacle(trips) == "this process does not have the engine"
    trips.engines = engines
    by_id = trips.plan(sort_columns=("id",))
    assert obstacle(trips, by_id) == "it can't sort by id; unset sort_columns"
    adopted = replace(trips.plan(), adopted_instant="20260101000000000")
    assert obstacle(trips, adopted).startswith("another process planned the rewrite")
    for options, reason in (
        ({"hoodie.parquet.compression.codec": "lz4"}, "files are compressed with lz4, it writes gzip, snappy, zstd, "),
        ({"hoodie.bloom.index.filter.type": "HIDDEN"}, "Bloom filters are of type HIDDEN, it writes SIMPLE and DYN"),
        ({"hoodie.parquet.spark.row.write.support.class": "x"}, "hoodie.parquet.spark.row.write.support.class names a"),
    ):
        trips.options = options
        assert obstacle(trips).startswith(reason)
    trips.options = {}
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    conf.set("parquet.crypto.factory.class", "x")
    try:
        assert obstacle(trips).startswith("parquet.crypto.factory.class ")
    finally:
        conf.unset("parquet.crypto.factory.class")
    assert chosen(trips).name == "arrow"


@pytest.mark.parametrize("version", ["1.0.2", "1.2.1", "1.2.0-vendor"])
def test_bundles_with_which_it_was_not_tested_are_left_to_the_row_writer(
    table: NewTable, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    trips = by_engines(table())
    monkeypatch.setattr(Bundle, "can_commit_files_of_engines", version == "")
    assert obstacle(trips) == "it was not tested with Hudi bundle 1.2.0"
    monkeypatch.undo()
    line = Bundle10 if version == "1.0.2" else Bundle
    assert not line(trips.spark, version).can_commit_files_of_engines


def test_the_row_writer_gets_files_that_hudis_reader_would_not_merely_decode(spark: Any, tmp_path: Path) -> None:
    trips = by_engines(Table(spark, tmp_path / "trips"))
    old = spark.range(30).selectExpr(
        "id", "0L ts", "if(id < 10, 'a', if(id < 20, 'b', 'c')) dt", "cast(id as int) tip", "array(id) list"
    )
    write(old.coalesce(1), trips.base)
    changed = spark.range(20, 23).selectExpr("id", "1L ts", "'c' dt", "cast(id as int) tip", "array(id) list")
    write(changed.coalesce(1), trips.base, "upsert")  # by Hudi's Avro writer, with lists of two levels
    (path,) = (trips.base / one.path for group in trips.plan(partitions=["dt=c"]).groups for one in group.slices)
    assert "repeated int64 field_id=-1 array" in str(pq.read_metadata(path).schema)
    before, other = trips.rows(), trips.other_rows()
    plan = trips.plan("0198-two", partitions=["dt=c"], engine="arrow", receipt=VerificationLevel.HASH)
    (output,) = trips.proved(plan).outputs
    assert "repeated int64 field_id=-1 array" in str(pq.read_metadata(trips.base / output.path).schema)
    assert (trips.rows(), trips.other_rows()) == (before, other)
    write(old.where("dt = 'c'").selectExpr("id + 50 id", "ts", "dt", "tip", "list").coalesce(1), trips.base)
    assert "has another schema than" in obstacle(trips, trips.plan(partitions=["dt=c"]))
    new = old.selectExpr("id + 100 id", "ts", "dt", "cast(tip as long) tip", "list", "if(id > 0, 'new', null) added")
    write(new.where("dt = 'b'").coalesce(1), trips.base)
    assert obstacle(trips, trips.plan(partitions=["dt=a"])).endswith("has another schema than the table")
    assert "has another schema than" in obstacle(trips, trips.plan(partitions=["dt=b"]))


def test_old_dates_of_a_writer_that_does_not_name_itself_are_left_to_the_row_writer(spark: Any, tmp_path: Path) -> None:
    trips = by_engines(Table(spark, tmp_path / "trips"))
    for day in ("1969-01-01", "0001-01-05"):
        for low, operation in ((0, "insert"), (20, "insert"), (40, "bulk_insert")):
            frame = spark.range(low, low + 20).selectExpr("id", "0L ts", f"'{day}' dt", f"date'{day}' day")
            with settings(spark):
                write(frame.coalesce(1), trips.base, operation)
    assert chosen(trips, trips.plan(partitions=["dt=1969-01-01"])).name == "arrow"
    found = obstacle(trips, trips.plan(partitions=["dt=0001-01-05"]))
    assert "does not name the Spark that wrote it, and column day may have dates before 1582" in found


def test_the_rules_compression_is_that_of_the_files_and_else_the_writers(table: NewTable) -> None:
    for options, rule, codec in (({}, None, "GZIP"), ({"hoodie.parquet.compression.codec": "snappy"}, "zstd", "ZSTD")):
        trips = by_engines(table(**options))
        (output, _) = trips.run(trips.plan(engine="arrow", compression=rule)).outputs
        metadata = pq.read_metadata(trips.base / output.path)
        assert {metadata.row_group(0).column(n).compression for n in range(metadata.num_columns)} == {codec}
        shutil.rmtree(trips.base)


def test_hybrid_keeps_the_codec_of_copied_row_groups_and_refuses_another_one(table: NewTable) -> None:
    trips = by_engines(table(**{"hoodie.parquet.compression.codec": "snappy"}))
    plan = plan_of(trips, "hybrid")
    for codec in (None, "gzip"):
        assert chosen(trips, replace(plan, options=replace(plan.options, compression=codec))).name == "hybrid"
    with pytest.raises(Rejected, match="can't compress them with zstd; unset compression; or set engine = auto"):
        chosen(trips, replace(plan, options=replace(plan.options, compression="zstd")))
    before, other = trips.rows(), trips.other_rows()
    for output in trips.run(plan).outputs:
        metadata = pq.read_metadata(trips.base / output.path)
        groups = map(metadata.row_group, range(metadata.num_row_groups))
        assert {group.column(n).compression for group in groups for n in range(metadata.num_columns)} == {"GZIP"}
    assert (trips.rows(), trips.other_rows()) == (before, other)


def test_hybrid_writes_the_planned_number_of_files_each_with_its_own_metadata(table: NewTable) -> None:
    trips = by_engines(table("indexed", **INDEXES))
    before, other = trips.rows(), trips.other_rows()
    plan = trips.plan(outputs=2, min_row_group_bytes=1, receipt=VerificationLevel.HASH)
    assert str(chosen(trips, plan)).startswith(
        "engine hybrid: no copy, a copy writes one file and group 0 is planned as 2"
    )
    commit = trips.proved(plan)
    assert len(commit.outputs) == 2 * len(plan.groups)
    assert (trips.rows(), trips.other_rows()) == (before, other)
    trips.upsert(0, 120, 1, "id % 2 = 0", **{"hoodie.index.type": "BLOOM"})
    assert len(trips.rows()) == len(before)
    assert {row[5] for row in trips.rows()} == {0, 1}


def test_the_row_writer_takes_over_where_executors_lack_python_unless_the_engine_is_set(
    trips: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unavailable(*_: Any) -> Any:
        raise EngineUnavailable("no Python")

    before = trips.rows()
    arrow = next(engine for engine in trips.engines if engine.name == "arrow")
    monkeypatch.setattr(arrow, "rewrite", unavailable)
    plan = trips.plan("0198-set", engine="arrow")
    with trips.writer() as writer:
        with pytest.raises(Rejected, match="no Python"):
            writer.rewrite(writer.prepare(plan, 1), ignore)
        writer.withdraw(plan.plan_id, None)
    commit = trips.run(trips.plan())
    assert trips.rows() == before
    assert {output.path for output in commit.outputs} == trips.files_of(commit.instant)
