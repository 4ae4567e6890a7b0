# SPDX-License-Identifier: Apache-2.0
"""The engine ``hybrid``: large row groups keep their bytes, small ones are merged, and all rows are there in order."""

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from any_tables import tables
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from parquet_footers import footer, with_footer
from support import SOAK
from test_parquet_stitch import _CHUNKS, _META, _ROW_GROUPS, _SIZE, task_of, text, write

from executors.datafiles.thrift import I64
from executors.engines.arrow import ArrowEngine
from executors.engines.backends import InProcessBackend
from executors.engines.inputs import UnsupportedInput
from executors.engines.stitch.compatibility import verify_compatible
from executors.engines.stitch.engine import HybridEngine, ParquetStitchEngine
from executors.engines.stitch.hybrid import Run, divide_runs, merged_row_group_rows
from executors.engines.stitch.parquet import SourceGroup, read_inputs, source_groups
from executors.engines.stitch.raw_file import RawParquetFile, RowGroup
from lake.engine_choice import choose_engines, engine_notes
from lake.engines import RewriteTask
from lake.errors import CancelRequested, Conflict
from lake.plan import AUTO, RewriteOptions

LEAST = 20_000
OPTIONS = RewriteOptions(target_file_max_bytes=1 << 30, engine="hybrid", min_row_group_bytes=LEAST)
ENGINE = HybridEngine(InProcessBackend(1))


def rewritten(task: RewriteTask, options: RewriteOptions = OPTIONS) -> list[str]:
    """The outputs of a group that the engine takes; nothing else is left beside them."""
    assert ENGINE.unsupported_reason(task, options) is None
    written = list(ENGINE.rewrite([task], options, lambda _: None, threading.Event()))
    assert [file.path for file in written] == list(task.outputs)
    left = sorted(path.name for path in Path(task.outputs[0]).parent.iterdir())
    assert left == sorted(Path(path).name for path in task.outputs)
    for file in written:
        assert (file.bytes, file.rows) == (Path(file.path).stat().st_size, pq.read_metadata(file.path).num_rows)
    return [file.path for file in written]


def numbers(start: int, end: int) -> pa.Table:
    ids = pa.array(range(start, end), pa.int64())
    return pa.table({"id": ids, "s": [f"value {number * 7919 % 10007}" for number in range(start, end)]})


def resident_bytes(key: str) -> int:
    """The resident memory of this process now (VmRSS), or its maximum since the last reset (VmHWM)."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key)]
    return int(line.split()[1]) * 1024


def chunks(path: str) -> list[tuple[int, bytes]]:
    """The size of each row group, and the bytes of its column chunks."""
    file, content = RawParquetFile.read(path), Path(path).read_bytes()
    return [
        (group.bytes, b"".join(content[chunk.start : chunk.end] for chunk in group.chunks)) for group in file.row_groups
    ]


def expected(paths: Sequence[str], least: int) -> list[bytes | None]:
    """What the outputs have to consist of: the bytes of row groups, and None for those that are merged."""
    found: list[bytes | None] = []
    all_groups = [one for path in paths for one in chunks(path)]
    for small, part in groupby(all_groups, key=lambda one: one[0] < least):
        run = list(part)
        found += [None] if small and len(run) > 1 else [content for _, content in run]
    return found


@pytest.mark.slow
@settings(max_examples=120 if SOAK else 50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=tables(), data=st.data())
def test_any_tables_have_their_rows_in_order_and_their_large_row_groups_byte_by_byte(
    tmp_path_factory: pytest.TempPathFactory, rows: pa.Table, data: st.DataObject
):
    folder = tmp_path_factory.mktemp("any")
    codec = data.draw(st.sampled_from(["none", "snappy", "gzip", "zstd", "brotli", "lz4"]))
    version = data.draw(st.sampled_from(["1.0", "2.0"]))
    counts = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    ends = [round(rows.num_rows * part / len(counts)) for part in range(len(counts) + 1)]
    has_index = data.draw(st.booleans())
    paths = [
        write(
            folder / f"{part}.parquet",
            rows.slice(ends[part], ends[part + 1] - ends[part]),
            row_groups=count,
            compression=codec,
            data_page_version=version,
            write_page_index=has_index,
        )
        for part, count in enumerate(counts)
    ]
    sizes = [size for path in paths for size, _ in chunks(path)]
    least = data.draw(st.sampled_from([0, *sizes, 1 << 40]))
    outputs = data.draw(st.integers(1, 2))
    task, options = task_of(paths, folder, outputs), replace(OPTIONS, min_row_group_bytes=least)
    if ENGINE.unsupported_reason(task, options) is not None:
        return
    wanted = expected(paths, least)
    new = rewritten(task, options)
    assert text(new) == text(paths)
    kept = [content for path in new for _, content in chunks(path)]
    position = 0
    for content in wanted:
        if content is not None:
            position = kept.index(content, position) + 1
    assert {str(pq.read_metadata(path).metadata) for path in new} == {str(pq.read_metadata(paths[0]).metadata)}


@dataclass(slots=True)
class NamedFile:
    """A file that records its keys, and whose rows have its name."""

    path: str
    keys: list[str] = field(default_factory=list)

    def verify_wanted(self) -> None:
        """It is wanted until its task ends."""

    def add(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        self.keys += rows.column("key").to_pylist()
        at = rows.schema.get_field_index("own")
        return rows.set_column(at, "own", pa.array([Path(self.path).name] * rows.num_rows))

    def footer_entries(self) -> Mapping[str, str]:
        return {"keys": " ".join(self.keys)}


class NamedFiles:
    """What a format may add to its files."""

    root_name, removed_keys = "schema", frozenset({"removed"})
    shared_entries: Mapping[str, str] = MappingProxyType({"writer": "unknown"})
    read_columns, replaced_columns = ("key",), ("own",)

    def create_file(self, path: str) -> NamedFile:
        return NamedFile(f"{path}-attempt")


@pytest.mark.slow
@settings(max_examples=120 if SOAK else 30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=tables(), data=st.data())
def test_columns_that_a_format_replaces_are_replaced_among_any_others(
    tmp_path_factory: pytest.TempPathFactory, rows: pa.Table, data: st.DataObject
):
    folder = tmp_path_factory.mktemp("any")
    for name, values in (("key", [f"k{n}" for n in range(rows.num_rows)]), ("own", ["old"] * rows.num_rows)):
        rows = rows.add_column(data.draw(st.integers(0, rows.num_columns)), name, pa.array(values, pa.string()))
    counts = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    ends = [round(rows.num_rows * part / len(counts)) for part in range(len(counts) + 1)]
    paths, has_index = [], data.draw(st.booleans())
    for part, count in enumerate(counts):
        own = {"removed": str(part), "kept": "k"} | ({"writer": f"writer {part}"} if part == 1 else {})
        some = rows.slice(ends[part], ends[part + 1] - ends[part])
        paths.append(str(folder / f"{part}.parquet"))
        written_as = {"write_page_index": has_index, "use_dictionary": data.draw(st.booleans())}
        with pq.ParquetWriter(paths[-1], some.schema, store_schema=False, **written_as) as writer:
            writer.write_table(some, row_group_size=max(1, -(-some.num_rows // count)))
            writer.add_key_value_metadata(own)
    sizes = [size for path in paths for size, _ in chunks(path)]
    options = replace(OPTIONS, min_row_group_bytes=data.draw(st.sampled_from([0, *sizes, 1 << 40])))
    task = replace(task_of(paths, folder, data.draw(st.integers(1, 2))), additions=NamedFiles())
    if ENGINE.unsupported_reason(task, options) is not None:
        return
    written = list(ENGINE.rewrite([task], options, lambda _: None, threading.Event()))
    assert sorted(os.listdir(folder / "new")) == sorted(Path(file.path).name for file in written)
    new = [pq.ParquetFile(file.path).read() for file in written]
    assert sum(file.rows for file in written) == rows.num_rows
    for file, content in zip(written, new, strict=True):
        assert set(content["own"].to_pylist()) == {Path(file.path).name}
        known = pq.read_metadata(file.path).metadata
        wanted = {b"kept": b"k", b"keys": " ".join(content["key"].to_pylist()).encode()}
        wanted[b"writer"] = b"writer 1" if len(paths) > 1 else b"unknown"
        assert known == wanted
        assert (file.bytes, file.rows) == (Path(file.path).stat().st_size, content.num_rows)
    if new:
        kept = [folder / f"without-{number}.parquet" for number in range(2)]
        for path, content in zip(kept, (pa.concat_tables(new), rows), strict=True):
            pq.write_table(content.drop_columns("own").replace_schema_metadata(None), path, store_schema=False)
        assert text([str(kept[0])]) == text([str(kept[1])])


def test_runs_of_small_row_groups_are_merged_and_a_single_one_between_large_ones_is_copied(tmp_path: Path):
    layout = [2, 9000, 30, 40, 50, 9000, 9000, 60, 9000, 70, 80]
    paths, start = [], 0
    for number, rows in enumerate(layout):
        paths.append(write(tmp_path / f"{number}.parquet", numbers(start, start + rows), row_groups=1))
        start += rows
    (new,) = rewritten(task_of(paths, tmp_path))
    metadata = pq.read_metadata(new)
    rows = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    assert rows == [2, 9000, 120, 9000, 9000, 60, 9000, 150]
    assert text([new]) == text(paths)
    kept = [content for _, content in chunks(new)]
    assert [one for one in expected(paths, LEAST) if one is not None] == [kept[at] for at in (0, 1, 3, 4, 5, 6)]
    with duckdb.connect() as connection:
        asked = (
            "SELECT count(*), min(id), max(id) FROM read_parquet({}) WHERE id BETWEEN 9010 AND 9110 OR s = 'value 7'"
        )
        before, after = (connection.sql(asked.format(some)).fetchall() for some in (paths, [new]))
        assert before == after


@pytest.mark.parametrize("outputs", [1, 2])
def test_merged_row_groups_can_have_views_in_structs(tmp_path: Path, outputs: int):
    kind, paths = pa.struct([("a", pa.string_view())]), []
    for number, rows in enumerate((70, 90, 30)):
        values = pa.array([{"a": f"value number {value} of {number}"} for value in range(rows)], kind)
        paths.append(write(tmp_path / f"{number}.parquet", pa.table({"s": values}), row_groups=1))
    new = rewritten(task_of(paths, tmp_path, outputs))
    assert [len(chunks(path)) for path in new] == [1] * outputs
    assert text(new) == text(paths)
    assert pq.ParquetFile(new[0]).schema_arrow.field("s").type == kind


def test_a_damaged_input_is_put_into_quarantine_and_nothing_is_left(tmp_path: Path):
    paths = [write(tmp_path / f"{number}.parquet", numbers(number, number + 90)) for number in range(4)]
    content = bytearray(Path(paths[2]).read_bytes())
    content[4:200] = os.urandom(196)
    Path(paths[2]).write_bytes(bytes(content))
    with pytest.raises(Conflict) as raised:
        list(ENGINE.rewrite([task_of(paths, tmp_path)], OPTIONS, lambda _: None, threading.Event()))
    (skipped,) = raised.value.args[1]
    assert skipped.quarantine == (paths[2],), skipped.reason
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.parametrize("kind", [ParquetStitchEngine, HybridEngine, ArrowEngine])
def test_columns_of_one_name_keep_their_values(tmp_path: Path, kind: type[ParquetStitchEngine]):
    first, second = list(range(5)), list(range(5, 10))
    paths = [str(tmp_path / f"{number}.parquet") for number in range(2)]
    for path in paths:
        pq.write_table(pa.Table.from_arrays([pa.array(first), pa.array(second)], ["a", "a"]), path)
    engine, task = kind(InProcessBackend(1)), task_of(paths, tmp_path)
    assert engine.unsupported_reason(task, OPTIONS) is None
    (written,) = engine.rewrite([task], OPTIONS, lambda _: None, threading.Event())
    file = pq.ParquetFile(written.path)
    found = pa.concat_tables([file.read_row_group(number) for number in range(file.num_row_groups)])
    assert [column.to_pylist() for column in found.columns] == [first * 2, second * 2]


@pytest.mark.parametrize("kind", [ParquetStitchEngine, HybridEngine, ArrowEngine])
def test_a_column_chunk_with_a_hole_of_4_gb_takes_little_memory_and_is_refused_or_read_as_before(
    tmp_path: Path, kind: type[ParquetStitchEngine]
):
    paths = [write(tmp_path / f"{number}.parquet", numbers(0, 300), row_groups=1) for number in range(2)]
    rows, hole = text(paths), 4 << 30
    content = Path(paths[1]).read_bytes()
    data = content[: -int.from_bytes(content[-8:-4], "little") - 8]
    fields = footer(paths[1])
    *_, last = fields[_ROW_GROUPS][1][1][0][_CHUNKS][1][1]
    last[_META][1][_SIZE] = (I64, last[_META][1][_SIZE][1] + hole)
    changed = Path(with_footer(paths[1], fields)).read_bytes()
    with open(paths[1], "wb") as file:
        file.write(data)
        file.seek(hole, os.SEEK_CUR)
        file.write(changed[len(data) :])
    engine, task = kind(InProcessBackend(1)), task_of(paths, tmp_path)
    options = replace(OPTIONS, target_file_max_bytes=2 * hole)
    Path("/proc/self/clear_refs").write_text("5")
    before = resident_bytes("VmRSS")
    try:
        assert engine.unsupported_reason(task, options) is None
        (written,) = engine.rewrite([task], options, lambda _: None, threading.Event())
    except Conflict as error:
        (skipped,) = error.args[1]
        assert skipped.quarantine == (paths[1],)
        assert list((tmp_path / "new").iterdir()) == []
    else:
        assert text([written.path]) == rows
    assert resident_bytes("VmHWM") - before < 256 << 20
    assert Path(paths[1]).stat().st_size == len(changed) + hole


def test_a_cancelled_merge_leaves_nothing(tmp_path: Path):
    paths = [write(tmp_path / f"{number}.parquet", numbers(number, number + 90)) for number in range(4)]
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(CancelRequested):
        list(ENGINE.rewrite([task_of(paths, tmp_path)], OPTIONS, lambda _: None, cancelled))
    assert list((tmp_path / "new").iterdir()) == []


def test_auto_takes_the_engine_that_decodes_least_and_keeps_no_small_row_groups(tmp_path: Path):
    large = [write(tmp_path / f"large{n}.parquet", numbers(n, n + 9000), row_groups=1) for n in range(2)]
    small = [write(tmp_path / f"small{n}.parquet", numbers(n, n + 90), row_groups=1) for n in range(3)]
    backend = InProcessBackend(1)
    engines = ParquetStitchEngine(backend), HybridEngine(backend), ArrowEngine(backend)
    kinds = (large, large + small, [*large[:1], *small * 200])
    tasks = [replace(task_of(paths, tmp_path), group=number) for number, paths in enumerate(kinds)]
    chosen = choose_engines(tasks, engines, replace(OPTIONS, engine=AUTO), "t")
    assert [chosen[group].engine.name for group in range(3)] == ["stitch", "hybrid", "arrow"]
    notes = "; ".join(engine_notes(chosen))
    assert "stitch can't: 3 row groups have less than 19.5 KiB (min_row_group) and can be merged" in notes
    assert "so a copy would save little" in notes


def test_auto_reads_no_footer_of_a_group_that_is_smaller_than_one_large_row_group(tmp_path: Path):
    missing = [str(tmp_path / f"{number}.parquet") for number in range(2)]
    task = RewriteTask(group=0, inputs=tuple(missing), outputs=(str(tmp_path / "new"),), bytes=LEAST - 1)
    reason = ENGINE.unsupported_reason(task, replace(OPTIONS, engine=AUTO))
    assert reason is not None
    assert reason.startswith("0 B of 19.5 KiB are in row groups of 19.5 KiB (min_row_group) or more")
    # A larger group is looked at: of missing files no row group is small.
    reason = ENGINE.unsupported_reason(replace(task, bytes=LEAST), replace(OPTIONS, engine=AUTO))
    assert reason == "no row groups of less than 19.5 KiB (min_row_group) follow another"


def row_group(number: int, *, rows: int, size: int) -> RowGroup:
    return RowGroup(number, 0, 0, rows, (), (), size, frozenset())


def test_runs_keep_the_order_of_all_row_groups():
    file = SimpleNamespace(row_groups=[row_group(number, rows=1, size=0) for number in range(5)])
    groups = source_groups([file])  # type: ignore[list-item]
    (run,) = divide_runs(groups, 1)
    assert run.is_merged
    assert list(run.groups) == groups
    assert [one.is_merged for one in divide_runs(groups[:1], 1)] == [False]
    assert [one.is_merged for one in divide_runs(groups, 0)] == [False]


def test_row_groups_that_are_merged_have_their_size_per_file_however_many_files_a_run_becomes():
    # The writer holds a row group in memory until it is complete.
    groups = [SourceGroup(None, row_group(0, rows=1_000, size=1 << 20)) for _ in range(2_000)]  # type: ignore[arg-type]
    run = Run(groups, True)
    for outputs in (1, 2, 4):
        assert merged_row_group_rows(run, outputs, run.bytes) == run.rows // (10 * outputs)
    assert merged_row_group_rows(run, 1, 5 * run.bytes) == run.rows // 10
    assert merged_row_group_rows(Run(groups[:12], True), 1, 12 << 20) == 12_000


def test_positions_in_files_of_small_row_groups_are_left_out_until_one_of_them_is_copied(tmp_path: Path):
    paths = [write(tmp_path / f"{rows}.parquet", numbers(0, rows), row_groups=2) for rows in (40, 20_000)]
    whole = [RawParquetFile.read(path) for path in paths]
    small, large = read_inputs(task_of(paths, tmp_path), LEAST)
    assert large == whole[1]
    assert [(list(group.chunks), list(group.found)) for group in small.row_groups] == [([], []), ([], [])]
    assert [(group.bytes, group.rows) for group in small.row_groups] == [
        (group.bytes, group.rows) for group in whole[0].row_groups
    ]
    assert small.with_positions() == whole[0]


def test_an_offset_index_in_some_files_of_small_row_groups_only_is_a_reason_to_refuse_them(tmp_path: Path):
    paths = [str(tmp_path / f"{index}.parquet") for index in (True, False)]
    for path, index in zip(paths, (True, False), strict=True):
        pq.write_table(numbers(0, 40), path, write_page_index=index)
    with pytest.raises(UnsupportedInput, match="have an offset index and others do not"):
        verify_compatible(read_inputs(task_of(paths, tmp_path), LEAST))
