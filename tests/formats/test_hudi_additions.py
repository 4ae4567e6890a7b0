# SPDX-License-Identifier: Apache-2.0
"""What Hudi adds to base files that ``arrow`` and ``hybrid`` write: names, markers, footers, Bloom filters and keys."""

import base64
import os
import pickle
import shutil
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from parquet_footers import footer, with_footer

from executors.datafiles.thrift import BINARY
from executors.engines import create_engines
from executors.engines.arrow import ArrowEngine
from executors.engines.backends import InProcessBackend
from executors.engines.stitch import parquet
from executors.engines.stitch.copying import RangeWriter
from executors.engines.stitch.engine import HybridEngine
from executors.engines.stitch.raw_file import RawParquetFile
from lake.engine_choice import choose_engines
from lake.engines import NO_ADDITIONS, EngineOutput, RewriteTask
from lake.errors import Conflict, Rejected, Transient
from lake.formats.hudi.files.additions import BaseFile, BaseFileAdditions
from lake.formats.hudi.files.bloom_filter import DYNAMIC, SIMPLE, BloomFilter, BloomFilterSettings
from lake.formats.hudi.files.names import parse_file_name
from lake.formats.hudi.files.storage import TableStorage
from lake.plan import RewriteOptions

OPTIONS = RewriteOptions(target_file_max_bytes=1 << 30, min_row_group_bytes=1200)
ENGINES = {"arrow": ArrowEngine(InProcessBackend(1)), "hybrid": HybridEngine(InProcessBackend(1))}
INSTANT = "20261126101112131"
BLOOM = BloomFilterSettings(entries=100, false_positive_rate=0.01, max_entries=300, type=DYNAMIC)
#: what Hudi's two writers say of their files, beside the filter and the bounds of the keys
BY_ROW_WRITER = {"org.apache.spark.version": "3.5.1", "hoodie_bloom_filter_type_code": DYNAMIC}
BY_AVRO_WRITER = {"parquet.avro.schema": "{}", "writer.model.name": "avro"}


class Lake:
    """Base files of a partition, written by pyarrow instead of Hudi, and the engine that rewrites them."""

    def __init__(self, base: Path, engine: str, partition: str = "dt=a/hour=1") -> None:
        self.base, self.partition = base, partition
        self.engine, self.options = ENGINES[engine], replace(OPTIONS, engine=engine)
        (base / ".hoodie").mkdir(parents=True)
        (base / partition).mkdir(parents=True, exist_ok=True)
        self.inputs: list[str] = []

    def add(self, keys: Sequence[str | None], says: dict[str, str]) -> None:
        """A file of rows with these keys."""
        name = f"in{len(self.inputs)}-0_1-2-3_1.parquet"
        rows = pa.table(
            {
                "_hoodie_record_key": pa.array(keys, pa.string()),
                "_hoodie_file_name": pa.array([name] * len(keys), pa.string()),
                "n": pa.array(range(len(keys)), pa.int64()),
            }
        )
        path = self.base / self.partition / name
        own = {"org.apache.hudi.bloomfilter": name, "hoodie_min_record_key": name, "hoodie_max_record_key": name}
        settings = {"compression": "gzip", "write_page_index": True, "store_schema": False}
        settings["bloom_filter_options"] = {name: {"ndv": 10, "fpp": 0.1} for name in rows.column_names}
        with pq.ParquetWriter(path, rows.schema, **settings) as writer:
            writer.write_table(rows)
            writer.add_key_value_metadata(says | own)
        self.inputs.append(str(path))

    def task(self, outputs: int = 1, bloom: BloomFilterSettings = BLOOM) -> RewriteTask:
        additions = BaseFileAdditions(
            location=str(self.base),
            instant=INSTANT,
            partition=self.partition,
            bloom_filter=bloom,
            spark_version="3.5.9",
        )
        names = tuple(str(self.base / self.partition / f"new-{number}") for number in range(outputs))
        sent = pickle.loads(pickle.dumps(additions))  # as a task of Spark gets it
        return RewriteTask(group=0, inputs=tuple(self.inputs), outputs=names, bytes=1, additions=sent)

    def rewrite(self, task: RewriteTask) -> list[EngineOutput]:
        assert self.engine.unsupported_reason(task, self.options) is None
        return self.rewrite_unasked(task)

    def rewrite_unasked(self, task: RewriteTask) -> list[EngineOutput]:
        """As after the engine was chosen."""
        return list(self.engine.rewrite([task], self.options, lambda _: None, threading.Event()))

    def markers(self) -> list[str]:
        found = (self.base / ".hoodie/.temp").rglob("*")
        return sorted(str(path.relative_to(self.base / ".hoodie/.temp")) for path in found if path.is_file())


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    """The name of an engine."""
    return str(request.param)


@pytest.fixture
def lake(tmp_path: Path, engine: str) -> Lake:
    """Three files of Hudi's two writers, with keys whose order by bytes is not that of their characters.

    ``hybrid`` merges the first two and copies the third.
    """
    made = Lake(tmp_path, engine)
    made.add(["b", "ab", "z"], BY_ROW_WRITER)
    made.add(["\U0001f642", "\uff5e", "c"], BY_AVRO_WRITER)
    made.add([f"k{number}" for number in range(200)], BY_ROW_WRITER)
    return made


def says(path: str | Path) -> dict[str, str]:
    return {key.decode(): value.decode() for key, value in pq.read_metadata(path).metadata.items()}


def test_a_file_has_the_name_and_the_metadata_of_hudis_row_writer(lake: Lake) -> None:
    (file,) = lake.rewrite(lake.task())
    name = parse_file_name(str(Path(file.path).relative_to(lake.base)))
    assert name is not None
    assert (name.partition, name.file_id, name.instant) == (lake.partition, "new-0", INSTANT)
    rows = pq.ParquetFile(file.path).read()
    before = pa.concat_tables([pq.ParquetFile(path).read() for path in lake.inputs])
    assert rows.drop_columns("_hoodie_file_name").equals(before.drop_columns("_hoodie_file_name"))
    assert set(rows["_hoodie_file_name"].to_pylist()) == {name.name}
    keys = before["_hoodie_record_key"].combine_chunks()
    bloom = BloomFilter(BLOOM)
    bloom.add(keys)
    assert says(file.path) == {
        "org.apache.spark.version": "3.5.1",
        "org.apache.hudi.bloomfilter": bloom.serialize(),
        "hoodie_bloom_filter_type_code": DYNAMIC,
        "hoodie_min_record_key": "ab",
        "hoodie_max_record_key": "\uff5e",  # in the order of Java, where the row writer has that of UTF-8
    }
    metadata = pq.read_metadata(file.path)
    assert str(metadata.schema).split("\n")[1].startswith("required group field_id=-1 spark_schema {")
    assert metadata.row_group(0).column(0).compression == "GZIP"
    assert (file.rows, file.bytes) == (206, Path(file.path).stat().st_size)


def test_a_marker_exists_before_its_file_and_each_attempt_has_its_own(lake: Lake) -> None:
    task = lake.task(outputs=2)
    first, second = lake.rewrite(task), lake.rewrite(task)
    paths = [file.path for file in (*first, *second)]
    assert len(set(paths)) == 4
    assert {Path(path).name.partition("_")[0] for path in paths} == {"new-0", "new-1"}
    assert lake.markers() == sorted(f"{INSTANT}/{lake.partition}/{Path(path).name}.marker.CREATE" for path in paths)
    seen = []
    addition = BaseFileAdditions.create_file
    with pytest.MonkeyPatch.context() as patch:

        def announced(additions: BaseFileAdditions, path: str) -> Any:
            made = addition(additions, path)
            marked = f"{INSTANT}/{lake.partition}/{Path(made.path).name}.marker.CREATE" in lake.markers()
            seen.append((marked, Path(made.path).exists()))
            return made

        patch.setattr(BaseFileAdditions, "create_file", announced)
        lake.rewrite_unasked(task)
    assert seen == [(True, False)] * 2


def test_files_of_one_writer_without_spark_get_the_release_of_this_one_and_a_simple_filter_no_type(
    tmp_path: Path, engine: str
) -> None:
    lake = Lake(tmp_path, engine, "")
    lake.add(["b", "a"], BY_AVRO_WRITER)
    simple = BloomFilterSettings(entries=100, false_positive_rate=0.01, max_entries=100, type=SIMPLE)
    (file,) = lake.rewrite(lake.task(bloom=simple))
    told = says(file.path)
    assert sorted(told) == [
        "hoodie_max_record_key", "hoodie_min_record_key", "org.apache.hudi.bloomfilter", "org.apache.spark.version",
    ]  # fmt: skip
    assert told["org.apache.spark.version"] == "3.5.9"
    assert len(base64.b64decode(told["org.apache.hudi.bloomfilter"])) == 13 + -(-simple.bits // 8)
    assert lake.markers() == [f"{INSTANT}/{Path(file.path).name}.marker.CREATE"]


def test_more_outputs_than_rows_are_not_written(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "arrow")
    lake.add(["a"], BY_ROW_WRITER)
    lake.add([], BY_ROW_WRITER)
    files = lake.rewrite(lake.task(outputs=3))
    assert [file.rows for file in files] == [1]
    assert len(lake.markers()) == 1


def test_files_that_differ_otherwise_are_not_joined(lake: Lake) -> None:
    lake.add(["d"], BY_ROW_WRITER | {"org.apache.spark.version": "2.4.8"})
    assert "differ in metadata org.apache.spark.version" in str(
        lake.engine.unsupported_reason(lake.task(), lake.options)
    )


@pytest.mark.parametrize(("key", "why"), [(None, "without a record key"), ("", "an empty record key")])
def test_a_row_without_a_key_ends_the_rewrite_and_leaves_no_file(
    tmp_path: Path, engine: str, key: str | None, why: str
) -> None:
    lake = Lake(tmp_path, engine)
    lake.add(["a", key], BY_ROW_WRITER)
    with pytest.raises(Rejected, match=f"{why}; set engine = spark"):
        lake.rewrite(lake.task())
    assert [path.name for path in (tmp_path / lake.partition).iterdir()] == [Path(lake.inputs[0]).name]


def test_a_dropped_table_does_not_appear_again(lake: Lake, tmp_path: Path) -> None:
    task = lake.task()
    shutil.rmtree(tmp_path / ".hoodie")
    with pytest.raises(Transient, match=r"marker\.CREATE can't be written"):
        lake.rewrite_unasked(task)
    assert not (tmp_path / ".hoodie").exists()
    shutil.rmtree(tmp_path / "dt=a")
    with pytest.raises(Conflict, match="is gone from storage"):
        lake.rewrite_unasked(task)
    assert list(tmp_path.iterdir()) == []


def begun(lake: Lake, tmp_path: Path) -> tuple[RewriteTask, BaseFileAdditions, Path]:
    """A task of a rewrite that has begun, with its additions and the inflight file."""
    inflight = tmp_path / f".hoodie/timeline/{INSTANT}.clustering.inflight"
    inflight.parent.mkdir()
    inflight.touch()
    path = str(inflight.relative_to(tmp_path))
    task = lake.task()
    assert isinstance(task.additions, BaseFileAdditions)
    additions = replace(task.additions, inflight_file=(path, TableStorage(str(tmp_path)).info(path).mtime))
    return replace(task, additions=additions), additions, inflight


@pytest.mark.parametrize("when", ["before the file", "before its footer"])
@pytest.mark.parametrize("end", ["withdrawn", "taken over", "committed", "committed, layout 1"])
def test_a_task_whose_instant_ended_or_was_taken_over_finishes_no_file(
    lake: Lake, tmp_path: Path, end: str, when: str
) -> None:
    task, additions, inflight = begun(lake, tmp_path)
    (inflight.parent / f"1{INSTANT[1:-1]}0_{INSTANT}.replacecommit").touch()  # of another instant
    assert len(lake.rewrite(task)) == 1
    files = sorted((tmp_path / lake.partition).iterdir())
    file = additions.create_file(task.outputs[0])
    match end:
        case "withdrawn":
            inflight.unlink()
        case "taken over":
            os.utime(inflight, (1, 1))
        case "committed":  # the inflight file stays until the archiver deletes it
            (inflight.parent / f"{INSTANT}_20261126101112999.replacecommit").touch()
        case _:
            (inflight.parent / f"{INSTANT}.replacecommit").touch()
    act = file.footer_entries if when == "before its footer" else partial(lake.rewrite_unasked, task)
    with pytest.raises(Transient, match="no longer pending, or another process executes it"):
        act()
    assert sorted((tmp_path / lake.partition).iterdir()) == files


def test_a_task_whose_instant_ends_while_it_decodes_creates_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``hybrid`` decodes between the marker and the file: a commit in between has deleted all files that it drops."""
    lake = Lake(tmp_path, "hybrid")
    lake.add([f"k{number}" for number in range(200)], BY_ROW_WRITER)
    task, _, inflight = begun(lake, tmp_path)
    add, opened = BaseFile.add, []

    def commit_meanwhile(file: BaseFile, rows: pa.RecordBatch) -> pa.RecordBatch:
        (inflight.parent / f"{INSTANT}_20261126101112999.replacecommit").touch()
        return add(file, rows)

    class Watched(RangeWriter):
        def __enter__(self) -> Any:
            opened.append(self)
            return super().__enter__()

    monkeypatch.setattr(BaseFile, "add", commit_meanwhile)
    monkeypatch.setattr(parquet, "RangeWriter", Watched)
    with pytest.raises(Transient, match="no longer pending, or another process executes it"):
        lake.rewrite(task)
    assert opened == []
    assert len(lake.markers()) == 1
    assert [str(path) for path in (tmp_path / lake.partition).iterdir()] == lake.inputs


def test_every_other_engine_refuses_a_task_with_additions(lake: Lake) -> None:
    engines = create_engines(lambda: pytest.fail("no session is needed"))
    task = lake.task()
    refused = {engine.name: engine.unsupported_reason(task, lake.options) for engine in engines}
    assert refused.pop("arrow") is None
    assert refused.pop("hybrid") is None
    assert refused == dict.fromkeys(("stitch", "spark"), NO_ADDITIONS)
    for least, chosen in ((1 << 23, "arrow"), (1200, "hybrid"), (0, "hybrid")):
        options = replace(OPTIONS, min_row_group_bytes=least)
        assert choose_engines([task], engines, options, "t")[0].engine.name == chosen


def test_copied_row_groups_keep_every_byte_but_that_of_the_files_name(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "hybrid")
    for number in (3, 200, 2, 3, 4, 300, 250):
        lake.add([f"{number}-{key:03}" for key in range(number)], BY_ROW_WRITER)
    first, second = (Path(file.path) for file in lake.rewrite(lake.task(outputs=2)))
    assert chunks(first)[:2] == [*chunks(lake.inputs[0]), *chunks(lake.inputs[1])]
    assert chunks(first)[3:] + chunks(second) == [*chunks(lake.inputs[5]), *chunks(lake.inputs[6])]
    for path in (first, second):
        metadata, rows = pq.read_metadata(path), pq.ParquetFile(path).read()
        assert set(rows["_hoodie_file_name"].to_pylist()) == {path.name}
        keys = rows["_hoodie_record_key"].to_pylist()
        assert says(path)["hoodie_min_record_key"] == min(keys)
        bloom = BloomFilter(BLOOM)
        bloom.add(rows["_hoodie_record_key"].combine_chunks())
        assert says(path)["org.apache.hudi.bloomfilter"] == bloom.serialize()
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            columns = [group.column(index) for index in range(metadata.num_columns)]
            assert [one.path_in_schema for one in columns] == rows.column_names
            assert columns[1].statistics.min == columns[1].statistics.max == path.name
            assert group.total_byte_size == sum(one.total_uncompressed_size for one in columns)
            at = columns[0].dictionary_page_offset or columns[0].data_page_offset
            for one in columns:  # without gaps, in the order of the schema
                assert (one.dictionary_page_offset or one.data_page_offset) == at
                assert (one.has_offset_index, one.has_column_index, one.bloom_filter_length > 0) == (True, True, True)
                at += one.total_compressed_size
    both = f"read_parquet({[str(first), str(second)]})"
    assert duckdb.sql(f"SELECT count(*), count(DISTINCT n) FROM {both}").fetchall() == [(762, 300)]
    for key in ("300-299", "4-003", "250-017"):
        asked = f"_hoodie_record_key = '{key}' AND _hoodie_file_name IN ('{first.name}', '{second.name}')"
        assert len(duckdb.sql(f"SELECT n FROM {both} WHERE {asked}").fetchall()) == 1


@pytest.mark.parametrize("by_spark", [True, False])
def test_temporary_files_are_in_sparks_directory_until_a_task_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_spark: bool
) -> None:
    lake = Lake(tmp_path / "lake", "hybrid")
    for number in (3, 200, 2, 3):
        lake.add([f"{number}-{key:03}" for key in range(number)], BY_ROW_WRITER)
    used, others = tmp_path / "used", tmp_path / "others"
    used.mkdir()
    others.mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{used},{others}" if by_spark else "")
    monkeypatch.setattr("tempfile.tempdir", str(others if by_spark else used))
    seen: list[list[Path]] = []
    footer_entries = BaseFile.footer_entries

    def watched(file: BaseFile) -> Mapping[str, str]:
        seen.append([path for path in used.rglob("*") if path.is_file()])
        return footer_entries(file)

    monkeypatch.setattr(BaseFile, "footer_entries", watched)
    (written,) = lake.rewrite(lake.task())
    assert [len(files) for files in seen] == [2], "the merged row groups, and the replaced columns"
    assert [*used.iterdir(), *others.iterdir()] == []
    folder = lake.base / lake.partition
    assert {str(path) for path in folder.iterdir()} == {*lake.inputs, written.path}


def chunks(path: str | Path) -> list[list[bytes]]:
    """The bytes of the column chunks of each row group, but those of the file's name."""
    file, content = RawParquetFile.read(str(path)), Path(path).read_bytes()
    return [
        [content[group.chunks[index].start : group.chunks[index].end] for index in (0, 2)] for group in file.row_groups
    ]


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"replaced_columns": ("n",)}, "column n is not text, so it can't be replaced"),
        ({"read_columns": ("missing",)}, "column missing is missing, nested or INT96"),
    ],
)
def test_columns_that_can_not_be_replaced_alone_are_named(tmp_path: Path, columns: Any, why: str) -> None:
    lake = Lake(tmp_path, "hybrid")
    lake.add(["a"], BY_ROW_WRITER)
    task = lake.task()
    task = replace(task, additions=replace(task.additions, **columns))  # type: ignore[type-var]
    assert lake.engine.unsupported_reason(task, lake.options) == why


def test_a_task_verifies_again_that_columns_can_be_replaced_under_the_footer(tmp_path: Path) -> None:
    """Its files may have changed since the engine was chosen. No file is announced, since none can be written."""
    lake = Lake(tmp_path, "hybrid")
    lake.add([f"k{number}" for number in range(200)], BY_ROW_WRITER)
    task = lake.task()
    other = replace(task, additions=replace(task.additions, replaced_columns=("n",)))  # type: ignore[type-var]
    with pytest.raises(Conflict, match="since the engine was chosen: column n is not text, so it can't be replaced"):
        lake.rewrite_unasked(other)
    assert lake.engine.unsupported_reason(task, lake.options) is None
    with_footer(lake.inputs[0], footer(lake.inputs[0]) | {6: (BINARY, b"parquet-mr version 1.8.1 (build x)")})
    why = "readers treat one of these writers differently"
    assert why in str(lake.engine.unsupported_reason(task, lake.options))
    with pytest.raises(Conflict, match=f"changed since the engine was chosen: .* {why}"):
        lake.rewrite_unasked(task)
    assert lake.markers() == []
    assert [str(path) for path in (tmp_path / lake.partition).iterdir()] == lake.inputs
