# SPDX-License-Identifier: Apache-2.0
"""The engine ``stitch`` for Parquet files: new files have the bytes of the old ones, and readers find all of them."""

import errno
import os
import re
import shutil
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from any_tables import tables
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from parquet_footers import footer, with_footer
from support import SOAK

from executors.datafiles.thrift import BINARY, I16, I32, I64, LIST, STRUCT, Struct, decode, decode_integer, encode
from executors.engines.arrow import ArrowEngine
from executors.engines.backends import InProcessBackend
from executors.engines.stitch import copying
from executors.engines.stitch.engine import HybridEngine, ParquetStitchEngine
from executors.engines.stitch.parquet import _page_locations, plan_outputs, source_groups
from executors.engines.stitch.raw_file import RawParquetFile
from lake.engine_choice import choose_engines, engine_notes
from lake.engines import RewriteTask
from lake.errors import CancelRequested, Conflict, Rejected, Transient
from lake.plan import AUTO, RewriteOptions

OPTIONS = RewriteOptions(target_file_max_bytes=1 << 30, engine="stitch")
ENGINE = ParquetStitchEngine(InProcessBackend(1))
#: fields of FileMetaData, RowGroup, ColumnChunk and ColumnMetaData
_ROW_GROUPS, _KEY_VALUES, _CREATED_BY = 4, 5, 6
_CHUNKS, _SORTING, _FILE_OFFSET, _ORDINAL = 1, 4, 5, 7
_FILE_PATH, _META, _OFFSET_INDEX, _COLUMN_INDEX = 1, 3, 4, 6
_SIZE, _DATA, _DICTIONARY, _BLOOM, _BLOOM_SIZE = 7, 9, 11, 14, 15


def write(path: Path, rows: pa.Table, *, row_groups: int = 2, **options: Any) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, path, row_group_size=max(1, -(-rows.num_rows // row_groups)), **options)
    return str(path)


def task_of(inputs: Sequence[str], folder: Path, outputs: int = 1) -> RewriteTask:
    (folder / "new").mkdir(parents=True, exist_ok=True)
    names = tuple(str(folder / "new" / f"{number}.parquet") for number in range(outputs))
    size = sum(Path(path).stat().st_size for path in inputs if Path(path).exists())
    return RewriteTask(group=0, inputs=tuple(inputs), outputs=names, bytes=size)


def stitch(task: RewriteTask, options: RewriteOptions = OPTIONS) -> list[str]:
    """The outputs of a group that the engine takes."""
    assert ENGINE.unsupported_reason(task, options) is None
    written = list(ENGINE.rewrite([task], options, lambda _: None, threading.Event()))
    assert [file.path for file in written] == list(task.outputs)
    assert sorted(path.name for path in Path(task.outputs[0]).parent.iterdir()) == sorted(
        Path(path).name for path in task.outputs
    )
    for file in written:
        assert (file.bytes, file.rows) == (Path(file.path).stat().st_size, pq.read_metadata(file.path).num_rows)
    return [file.path for file in written]


def text(paths: Sequence[str]) -> list[str]:
    """The columns of some files as text, where one NaN is another one."""
    rows = pa.concat_tables([pq.ParquetFile(path).read() for path in paths]).combine_chunks()
    return [str(column.type) + column.to_string(window=1000, container_window=1000) for column in rows.columns]


def groups(path: str) -> list[Struct]:
    found: list[Struct] = footer(path)[_ROW_GROUPS][1][1]
    return found


def parts(path: str) -> Iterator[dict[str, Any]]:
    """Each column chunk of a file as it is stored: its bytes, Bloom filter, column index, sizes of pages, statistics.

    Positions in the offset index must be those of pages that follow each other.
    """
    content = Path(path).read_bytes()
    for group in groups(path):
        for chunk in group[_CHUNKS][1][1]:
            meta = chunk[_META][1]
            start = min(meta[field][1] for field in (_DATA, _DICTIONARY) if field in meta)
            end = start + meta[_SIZE][1]
            found: dict[str, Any] = {"bytes": content[start:end]}
            if _BLOOM in meta:
                found["bloom"] = content[meta[_BLOOM][1] :][: meta[_BLOOM_SIZE][1]]
            if _COLUMN_INDEX in chunk:
                found["column index"] = content[chunk[_COLUMN_INDEX][1] :][: chunk[_COLUMN_INDEX + 1][1]]
            if _OFFSET_INDEX in chunk:
                index = decode(content[chunk[_OFFSET_INDEX][1] :][: chunk[_OFFSET_INDEX + 1][1]])
                pages = [(page[1][1], page[2][1], page[3][1]) for page in index[1][1][1]]
                if pages:
                    assert pages[0][0] == meta[_DATA][1]
                    assert pages[-1][0] + pages[-1][1] == end
                assert all(one[0] + one[1] == other[0] for one, other in pairwise(pages))
                found["pages"] = [page[1:] for page in pages]
                found["rest of offset index"] = {key: value for key, value in index.items() if key != 1}
            found["meta"] = {key: value for key, value in meta.items() if key not in (_DATA, _DICTIONARY, _BLOOM)}
            yield found


_PAGES = (
    {"data_page_version": "2.0"},
    {"data_page_version": "1.0"},
    {"data_page_version": "1.0", "data_page_size": 64},
)


@pytest.mark.slow
@settings(max_examples=120 if SOAK else 60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=tables(), data=st.data())
def test_any_tables_chunks_indexes_filters_and_statistics_are_copied_byte_by_byte(
    tmp_path_factory: pytest.TempPathFactory, rows: pa.Table, data: st.DataObject
):
    folder = tmp_path_factory.mktemp("any")
    options = {
        "compression": data.draw(st.sampled_from(["none", "snappy", "gzip", "zstd", "brotli", "lz4"])),
        # pyarrow can't read its own small pages of version 2.0 where a list has nulls only.
        **data.draw(st.sampled_from(_PAGES)),
        "write_page_index": data.draw(st.booleans()),
        "use_dictionary": data.draw(st.booleans()),
        "write_page_checksum": data.draw(st.booleans()),
    }
    cuts = sorted(data.draw(st.lists(st.integers(0, rows.num_rows), max_size=3)))
    slices = [rows.slice(a, b - a) for a, b in zip([0, *cuts], [*cuts, rows.num_rows], strict=True)]
    paths = [write(folder / f"{n}.parquet", part, **options) for n, part in enumerate(slices)]
    filled = [group for path in paths for group in groups(path) if group[3][1]]
    written = stitch(task_of(paths, folder, data.draw(st.integers(1, max(1, min(3, len(filled)))))))
    assert text(written) == text(paths)
    before = [part for path in paths for part, group in _with_groups(path) if group[3][1]]
    assert [part for path in written for part, _ in _with_groups(path)] == before
    for path in written:
        assert {key: value for key, value in footer(path).items() if key not in (3, _ROW_GROUPS)} == {
            key: value for key, value in footer(paths[0]).items() if key not in (3, _ROW_GROUPS)
        }


def _with_groups(path: str) -> Iterator[tuple[dict[str, Any], Struct]]:
    found = parts(path)
    for group in groups(path):
        for _ in group[_CHUNKS][1][1]:
            yield next(found), group


def numbers(low: int, high: int) -> pa.Table:
    values = range(low, high)
    names = pa.array([f"name {value % 1000}" for value in values], pa.string())
    return pa.table({"id": pa.array(values, pa.int64()), "name": names})


def test_bloom_filters_page_indexes_sorting_columns_and_field_ids_serve_readers_as_before(tmp_path: Path):
    rows = numbers(0, 20_000)
    ids = [column.with_metadata({"PARQUET:field_id": str(7 + n)}) for n, column in enumerate(rows.schema)]
    rows = rows.cast(pa.schema(ids))
    paths = [
        write(
            tmp_path / f"{part}.parquet",
            rows.slice(5000 * part, 5000),
            write_page_index=True,
            data_page_size=4096,
            sorting_columns=[pq.SortingColumn(0)],
            bloom_filter_options={"id": {"ndv": 5000, "fpp": 0.01}},
        )
        for part in range(4)
    ]
    written = stitch(task_of(paths, tmp_path, 2))
    assert [pq.read_metadata(path).num_row_groups for path in written] == [4, 4]
    for path in written:
        assert all(_SORTING in group for group in groups(path))
        assert pq.ParquetFile(path).schema_arrow.field("id").metadata == {b"PARQUET:field_id": b"7"}
    probed = f"SELECT row_group_id, bloom_filter_excludes FROM parquet_bloom_probe('{written[1]}', 'id', 12_500)"
    excluding = dict(duckdb.sql(probed).fetchall())
    assert not excluding[1], "the row group that has the value"
    assert sum(excluding.values()) >= 2
    found = duckdb.sql(f"SELECT count(*), sum(id) FROM read_parquet({written}) WHERE name = 'name 7'").fetchall()
    assert found == duckdb.sql(f"SELECT count(*), sum(id) FROM read_parquet({paths}) WHERE name = 'name 7'").fetchall()


def test_bloom_filters_without_a_recorded_size_are_copied(tmp_path: Path):
    """As parquet-java wrote them before version 1.14."""
    options = {"bloom_filter_options": {"id": {"ndv": 500, "fpp": 0.01}}}
    paths = [write(tmp_path / f"{part}.parquet", numbers(part, part + 500), **options) for part in range(2)]
    for path in paths:
        fields = footer(path)
        for group in fields[_ROW_GROUPS][1][1]:
            group[_CHUNKS][1][1][0][_META][1].pop(_BLOOM_SIZE)
        with_footer(path, fields)
    (written,) = stitch(task_of(paths, tmp_path))
    probed = f"SELECT bloom_filter_excludes FROM parquet_bloom_probe('{written}', 'id', 499)"
    assert duckdb.sql(probed).fetchall() == [(True,), (False,), (True,), (False,)]


@pytest.mark.parametrize("numbered", range(3))
def test_all_row_groups_have_an_ordinal_if_one_has(tmp_path: Path, numbered: int):
    """parquet-java writes them, pyarrow does not, and parquet-rs refuses files with both kinds of row groups."""
    paths = [write(tmp_path / f"{part}.parquet", numbers(part, part + 9)) for part in range(3)]
    for path in paths[:numbered]:
        fields = footer(path)
        for number, group in enumerate(fields[_ROW_GROUPS][1][1]):
            group[_ORDINAL] = (I16, number)
        with_footer(path, fields)
    for ordered in (paths, paths[::-1]):
        (written,) = stitch(task_of(ordered, tmp_path))
        expected = [(I16, number) for number in range(6)] if numbered else [None] * 6
        assert [group.get(_ORDINAL) for group in groups(written)] == expected
        assert text([written]) == text(ordered)
        shutil.rmtree(tmp_path / "new")


def test_fields_that_this_code_does_not_know_stay(tmp_path: Path):
    paths = [write(tmp_path / f"{part}.parquet", numbers(part, part + 9)) for part in range(2)]
    for path in paths:
        fields = footer(path)
        fields[77] = (BINARY, b"of the file")
        for number, group in enumerate(fields[_ROW_GROUPS][1][1]):
            group[_ORDINAL] = (I16, number)
            group[40] = (STRUCT, {3: (LIST, (I64, [1, 2, 3]))})
            for chunk in group[_CHUNKS][1][1]:
                chunk[2000] = (BINARY, os.fsencode(path))
                chunk[_META][1][50] = (I32, 12)
        with_footer(path, fields)
    (written,) = stitch(task_of(paths, tmp_path))
    assert footer(written)[77] == (BINARY, b"of the file")
    assert [group[40] for group in groups(written)] == [(STRUCT, {3: (LIST, (I64, [1, 2, 3]))})] * 4
    assert [group[_ORDINAL] for group in groups(written)] == [(I16, number) for number in range(4)]
    named = [chunk[2000][1] for group in groups(written) for chunk in group[_CHUNKS][1][1]]
    assert named == [os.fsencode(path) for path in paths for _ in range(4)]


def test_positions_that_writers_leave_out_or_set_to_0_stay_so_and_that_of_a_row_group_is_shifted(tmp_path: Path):
    paths = [write(tmp_path / f"{part}.parquet", numbers(part, part + 9), use_dictionary=False) for part in range(2)]
    for path in paths:
        fields = footer(path)
        for group in fields[_ROW_GROUPS][1][1]:
            first = group[_CHUNKS][1][1][0][_META][1][_DATA][1]
            group[_FILE_OFFSET] = (I64, first)
            for chunk in group[_CHUNKS][1][1]:
                chunk[_META][1][_DICTIONARY] = (I64, 0)
        with_footer(path, fields)
    (written,) = stitch(task_of(paths, tmp_path))
    for group in groups(written):
        first = group[_CHUNKS][1][1][0][_META][1]
        assert group[_FILE_OFFSET][1] == first[_DATA][1]
        assert first[_DICTIONARY][1] == 0
    assert duckdb.sql(f"SELECT sum(id) FROM '{written}'").fetchall() == [(81,)]


@settings(deadline=None)
@given(st.lists(st.integers(1, 1000), min_size=1, max_size=30), st.integers(1, 8))
@example([1000, 1, 1, 1], 2)
def test_row_groups_are_divided_in_order_and_the_largest_output_is_as_small_as_can_be(sizes: list[int], outputs: int):
    file = _FileOfSizes(sizes)
    if outputs > len(sizes):
        with pytest.raises(Exception, match=f"{len(sizes)} row groups can't be divided into {outputs} files"):
            plan_outputs(source_groups([file]), outputs, 10**9)  # type: ignore[list-item]
        return
    found = plan_outputs(source_groups([file]), outputs, 10**9)  # type: ignore[list-item]
    assert len(found) == outputs
    assert all(found)
    assert [one.group.bytes for part in found for one in part] == sizes
    largest = max(sum(one.group.bytes for one in part) for part in found)
    assert largest == _smallest_maximum(sizes, outputs)
    if any(len(part) > 1 and sum(one.group.bytes for one in part) == largest for part in found):
        with pytest.raises(Exception, match="target_file_max"):
            plan_outputs(source_groups([file]), outputs, largest - 1)  # type: ignore[list-item]


def _smallest_maximum(sizes: list[int], outputs: int) -> int:
    """By trying every bound."""
    for bound in sorted({sum(sizes[a:b]) for a in range(len(sizes)) for b in range(a + 1, len(sizes) + 1)}):
        parts_needed, size = 1, 0
        for one in sizes:
            if one > bound:
                break
            if size + one > bound:
                parts_needed, size = parts_needed + 1, 0
            size += one
        else:
            if parts_needed <= outputs:
                return bound
    raise AssertionError


class _FileOfSizes:
    """A file, of which only the sizes of its row groups are known."""

    def __init__(self, sizes: list[int]) -> None:
        self.row_groups = [_GroupOfSize(size) for size in sizes]


class _GroupOfSize:
    def __init__(self, size: int) -> None:
        self.bytes = size


def with_writer(path: str, created_by: bytes) -> str:
    return with_footer(path, footer(path) | {_CREATED_BY: (BINARY, created_by)})


def with_metadata(path: str, **pairs: str) -> str:
    stored = list(footer(path)[_KEY_VALUES][1][1])
    added = [{1: (BINARY, key.encode()), 2: (BINARY, value.encode())} for key, value in pairs.items()]
    return with_footer(path, footer(path) | {_KEY_VALUES: (LIST, (STRUCT, stored + added))})


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda path: write(Path(path), pa.table({"id": ["1"], "name": ["x"]})), "have different schemas"),
        (lambda path: with_metadata(path, era="old"), "differ in metadata era, which can change how values are read"),
        (lambda path: with_writer(path, b"parquet-mr version 1.8.1 (build x)"), "are of different writers"),
        (lambda path: with_writer(path, b"impala version 3.2.0"), "are of different writers"),
        (
            lambda path: with_footer(path, {key: value for key, value in footer(path).items() if key != 7}),
            "differ in column_orders",
        ),
    ],
    ids=["schema", "metadata", "old writer", "other writer", "column orders"],
)
def test_files_that_readers_would_read_differently_together_are_refused(tmp_path: Path, change: Any, why: str):
    paths = [write(tmp_path / f"{part}.parquet", numbers(part, part + 9)) for part in range(3)]
    change(paths[1])
    assert why in str(ENGINE.unsupported_reason(task_of(paths, tmp_path), OPTIONS))


@pytest.mark.parametrize("indexed", [[True, False], [False, True], [False, False, True]])
def test_files_with_an_offset_index_and_files_without_one_are_refused_and_arrow_takes_them(
    tmp_path: Path, indexed: list[bool]
):
    """Older releases of parquet-rs can't read a file with an offset index in some column chunks only."""
    paths = [
        write(tmp_path / f"{part}.parquet", numbers(part, part + 9), write_page_index=has_index)
        for part, has_index in enumerate(indexed)
    ]
    task, backend = task_of(paths, tmp_path), InProcessBackend(1)
    for engine in (ENGINE, HybridEngine(backend)):
        assert "have an offset index and others do not" in str(engine.unsupported_reason(task, OPTIONS))
    with pytest.raises(Conflict, match="have an offset index and others do not"):
        list(ENGINE.rewrite([task], OPTIONS, lambda _: None, threading.Event()))
    assert list((tmp_path / "new").iterdir()) == []
    arrow = ArrowEngine(backend)
    assert arrow.unsupported_reason(task, OPTIONS) is None
    (written,) = arrow.rewrite([task], OPTIONS, lambda _: None, threading.Event())
    chunks = [chunk for group in groups(written.path) for chunk in group[_CHUNKS][1][1]]
    assert all(_OFFSET_INDEX in chunk for chunk in chunks)


def test_a_file_without_an_offset_index_in_one_column_is_refused(tmp_path: Path):
    path = write(tmp_path / "0.parquet", numbers(0, 9), write_page_index=True)
    fields = footer(path)
    for field in (_OFFSET_INDEX, _OFFSET_INDEX + 1):
        fields[_ROW_GROUPS][1][1][1][_CHUNKS][1][1][0].pop(field)
    with_footer(path, fields)
    assert "have an offset index and others do not" in str(
        ENGINE.unsupported_reason(task_of([path], tmp_path), OPTIONS)
    )


def test_files_of_which_only_some_have_a_column_index_and_files_without_rows_are_stitched(tmp_path: Path):
    """A writer leaves out the column index of a chunk with NaN, and a file without rows has no index."""
    paths = [write(tmp_path / f"{part}.parquet", numbers(part, part + 9), write_page_index=True) for part in range(2)]
    paths.append(write(tmp_path / "empty.parquet", numbers(0, 0)))
    fields = footer(paths[1])
    for field in (_COLUMN_INDEX, _COLUMN_INDEX + 1):
        fields[_ROW_GROUPS][1][1][0][_CHUNKS][1][1][0].pop(field)
    with_footer(paths[1], fields)
    assert text(stitch(task_of(paths, tmp_path))) == text(paths)


def test_files_of_writers_that_readers_read_alike_are_stitched(tmp_path: Path):
    paths = [write(tmp_path / f"{part}.parquet", numbers(part, part + 9)) for part in range(4)]
    with_writer(paths[1], b"parquet-mr version 1.13.1 (build x)")
    with_writer(paths[2], b"DuckDB version v1.4.0 (build y)")
    with_metadata(paths[3], **{"org.apache.spark.version": "3.5.9"})
    with_metadata(paths[0], **{"org.apache.spark.version": "4.0.1"})
    for path in paths[1:3]:
        with_metadata(path, **{"org.apache.spark.version": "3.1.0"})
    assert text(stitch(task_of(paths, tmp_path))) == text(paths)


def test_int96_timestamps_of_two_writers_are_refused_since_readers_shift_them_by_the_writer(tmp_path: Path):
    rows = pa.table({"at": pa.array([1, 2], pa.timestamp("ns"))})
    paths = [
        write(tmp_path / f"{n}.parquet", rows, use_deprecated_int96_timestamps=True, store_schema=False)
        for n in range(2)
    ]
    with_writer(paths[1], b"parquet-mr version 1.13.1 (build x)")
    assert "created_by" in str(ENGINE.unsupported_reason(task_of(paths, tmp_path), OPTIONS))


def test_encryption_and_chunks_in_other_files_are_refused(tmp_path: Path):
    path = write(tmp_path / "0.parquet", numbers(0, 9))
    plain = footer(path)
    with_footer(path, plain | {8: (STRUCT, {1: (STRUCT, {})})})
    assert "encrypted columns" in str(ENGINE.unsupported_reason(task_of([path], tmp_path), OPTIONS))
    for field, value, why in ((8, (STRUCT, {}), "encrypted columns"), (_FILE_PATH, (BINARY, b"x"), "in other files")):
        fields = decode(encode(plain))
        fields[_ROW_GROUPS][1][1][0][_CHUNKS][1][1][1][field] = value
        with_footer(path, fields)
        assert why in str(ENGINE.unsupported_reason(task_of([path], tmp_path), OPTIONS))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"sort_columns": ("id",)}, "can't sort by id; unset sort_columns"),
        ({"compression": "zstd"}, "can't compress them with zstd; unset compression"),
        ({"compression": "snappy"}, None),
        (
            {"engine": AUTO},
            r"files average \S+ KiB, so a copy would keep row groups too small \(needs 8.0 MiB, min_row_group\)",
        ),
    ],
)
def test_settings_that_a_copy_can_not_follow_are_refused_with_the_setting(tmp_path: Path, options: Any, why: Any):
    paths = [write(tmp_path / f"{part}.parquet", numbers(part, part + 900)) for part in range(2)]
    reason = ENGINE.unsupported_reason(task_of(paths, tmp_path), replace(OPTIONS, **options))
    assert reason == why if why is None else re.search(why, str(reason))


def test_auto_stitches_large_row_groups_and_lets_arrow_merge_small_ones(tmp_path: Path):
    big = pa.table({"x": [os.urandom(9 << 20)]})
    engines = (ENGINE, ArrowEngine(InProcessBackend(1)))
    healthy = [write(tmp_path / f"big{n}.parquet", big, row_groups=1) for n in range(2)]
    small = [write(tmp_path / f"small{n}.parquet", numbers(n, n + 9)) for n in range(2)]
    tasks = [task_of(healthy, tmp_path), replace(task_of(small, tmp_path), group=1)]
    notes = engine_notes(choose_engines(tasks, engines, replace(OPTIONS, engine=AUTO), "t"))
    assert notes[0].startswith("engine arrow (1 group): stitch can't: files average")
    assert notes[1] == "engine stitch (1 group): the fastest engine available"
    with pytest.raises(Rejected, match=r"t: engine = stitch can't rewrite this plan: it copies row groups"):
        choose_engines(tasks, engines, replace(OPTIONS, sort_columns=("x",)), "t")


def damaged(tmp_path: Path, what: str) -> str:
    path = write(tmp_path / "1.parquet", numbers(0, 900), write_page_index=True)
    content = bytearray(Path(path).read_bytes())
    if what == "cut short":
        content = content[:-20]
    elif what == "empty":
        content = bytearray()
    elif what == "other bytes":
        content = bytearray(os.urandom(5000))
    elif what == "a footer longer than the file":
        content[-8:-4] = (1 << 30).to_bytes(4, "little")
    Path(path).write_bytes(bytes(content))
    if content[-4:] != b"PAR1" or what == "a footer longer than the file":
        return path
    fields = footer(path)
    chunks = [chunk for group in fields[_ROW_GROUPS][1][1] for chunk in group[_CHUNKS][1][1]]
    if what == "a chunk behind the end":
        chunks[1][_META][1][_SIZE] = (I64, 1 << 40)
    elif what == "chunks that overlap":
        chunks[1][_META][1][_SIZE] = (I64, chunks[1][_META][1][_SIZE][1] + 3)
    elif what == "a chunk before the beginning":
        chunks[0][_META][1][_DICTIONARY] = (I64, 1)
    elif what == "an index behind the end":
        chunks[2][_COLUMN_INDEX] = (I64, len(content))
    elif what == "an index that is none":
        chunks[2][_OFFSET_INDEX] = (I64, 4)
    elif what == "another number of rows":
        fields[3] = (I64, 899)
    return with_footer(path, fields)


@pytest.mark.parametrize(
    "what",
    [
        "cut short",
        "empty",
        "other bytes",
        "a footer longer than the file",
        "a chunk behind the end",
        "chunks that overlap",
        "a chunk before the beginning",
        "an index behind the end",
        "an index that is none",
        "another number of rows",
    ],
)
def test_damaged_files_are_put_into_quarantine_and_nothing_is_left(tmp_path: Path, what: str):
    good = write(tmp_path / "0.parquet", numbers(0, 9), write_page_index=True)
    bad = damaged(tmp_path, what)
    before = Path(bad).read_bytes()
    task = task_of([good, bad], tmp_path)
    with pytest.raises(Conflict) as raised:
        list(ENGINE.rewrite([task], OPTIONS, lambda _: None, threading.Event()))
    (skipped,) = raised.value.args[1]
    assert skipped.quarantine == (bad,), skipped.reason
    assert list((tmp_path / "new").iterdir()) == []
    assert Path(bad).read_bytes() == before


@pytest.mark.parametrize("answer", [0, errno.EXDEV, errno.EPERM, errno.EIO])
def test_without_copies_by_the_kernel_the_bytes_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: int
):
    paths = [write(tmp_path / f"{part}.parquet", numbers(part, part + 9000)) for part in range(3)]
    (first,) = stitch(task_of(paths, tmp_path / "kernel"))

    def refuse(*_: object) -> int:
        if not answer:
            return 0  # as some mounts do
        raise OSError(answer, os.strerror(answer))

    monkeypatch.setattr(os, "copy_file_range", refuse)
    monkeypatch.setattr(copying, "_READ_BYTES", 1000)
    (second,) = stitch(task_of(paths, tmp_path / "reads"))
    assert Path(first).read_bytes() == Path(second).read_bytes()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_is_full_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int):
    paths = [write(tmp_path / f"{part}.parquet", numbers(part, part + 900)) for part in range(2)]
    task = task_of(paths, tmp_path)

    def fail(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "copy_file_range", fail)
    with pytest.raises(Transient, match=os.strerror(number)):
        list(ENGINE.rewrite([task], OPTIONS, lambda _: None, threading.Event()))
    assert list((tmp_path / "new").iterdir()) == []


def test_a_copy_by_the_kernel_with_other_bytes_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    paths = [write(tmp_path / f"{part}.parquet", numbers(part, part + 900)) for part in range(2)]

    def copy_zeros(source: int, target: int, count: int, start: int) -> int:
        return os.write(target, bytes(count))

    monkeypatch.setattr(os, "copy_file_range", copy_zeros)
    with pytest.raises(Transient, match="bytes that the kernel copied differ"):
        list(ENGINE.rewrite([task_of(paths, tmp_path)], OPTIONS, lambda _: None, threading.Event()))
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.parametrize("missing", [1, 14])
def test_a_chunk_whose_footer_states_fewer_bytes_than_its_pages_have_is_not_cut_off(tmp_path: Path, missing: int):
    paths = [write(tmp_path / f"{part}.parquet", numbers(part, part + 900), row_groups=1) for part in range(2)]
    for path in paths:
        fields = footer(path)
        for chunk in fields[_ROW_GROUPS][1][1][0][_CHUNKS][1][1]:
            chunk[_META][1][_SIZE] = (I64, chunk[_META][1][_SIZE][1] - missing)
        with_footer(path, fields)
    with pytest.raises(Conflict, match="the pages of a column chunk end at"):
        list(ENGINE.rewrite([task_of(paths, tmp_path)], OPTIONS, lambda _: None, threading.Event()))
    assert list((tmp_path / "new").iterdir()) == []


def test_a_chunk_whose_footer_states_other_values_than_its_pages_have_is_not_copied(tmp_path: Path):
    path = write(tmp_path / "0.parquet", numbers(0, 900), row_groups=1)
    fields = footer(path)
    fields[_ROW_GROUPS][1][1][0][_CHUNKS][1][1][1][_META][1][5] = (I64, 899)
    with_footer(path, fields)
    with pytest.raises(Conflict, match="have 900 values instead of 899"):
        list(ENGINE.rewrite([task_of([path], tmp_path)], OPTIONS, lambda _: None, threading.Event()))


def test_a_rewrite_that_is_cancelled_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    paths = [write(tmp_path / f"{part}.parquet", numbers(part, part + 900)) for part in range(3)]
    cancelled, copied = threading.Event(), os.copy_file_range

    def cancel(*given: Any) -> int:
        cancelled.set()
        return copied(*given)

    monkeypatch.setattr(os, "copy_file_range", cancel)
    with pytest.raises(CancelRequested):
        list(ENGINE.rewrite([task_of(paths, tmp_path)], OPTIONS, lambda _: None, cancelled))
    assert list((tmp_path / "new").iterdir()) == []


def test_files_without_rows_give_no_row_groups(tmp_path: Path):
    paths = [write(tmp_path / f"{part}.parquet", numbers(0, rows)) for part, rows in enumerate((0, 9, 0))]
    (written,) = stitch(task_of(paths, tmp_path))
    assert text([written]) == text(paths)
    assert all(group[3][1] for group in groups(written))
    (nothing,) = stitch(task_of(paths[:1], tmp_path / "empty"))
    assert pq.read_metadata(nothing).num_rows == 0
    assert RawParquetFile.read(nothing).row_groups == []


def test_positions_of_pages_are_found_in_plain_offset_indexes_and_left_to_the_general_code_in_others():
    def pages(*sizes: int) -> list[dict[int, tuple[int, Any]]]:
        return [{1: (I64, at), 2: (I32, size), 3: (I64, 7 * at)} for at, size in enumerate(sizes, 1 << 20)]

    for many in (0, 1, 14, 15, 300):
        content = encode({1: (LIST, (STRUCT, pages(*range(many))))})
        found = _page_locations(content)
        assert found is not None
        assert [decode_integer(page[1]) for page in found] == list(range(1 << 20, (1 << 20) + many))
    with_sizes = encode({1: (LIST, (STRUCT, pages(1, 2))), 2: (LIST, (I64, [3, 4]))})
    negative = {**pages(1)[0], 4: (I32, -1)}
    for other in (with_sizes, encode({1: (LIST, (STRUCT, [negative]))}), content[:-1], content + b"\0", b"\x19", b""):
        assert _page_locations(other) is None


def test_groups_are_checked_in_this_process_if_spark_fails_to_check_them(tmp_path: Path):
    class FailingBackend(InProcessBackend):
        def map(self, function: Any, items: Any, *, files: int) -> Any:
            raise Transient("Spark could not run the tasks")

    paths = [str(tmp_path / f"{name}.parquet") for name in "abc"]
    for path, column in zip(paths, "xxy", strict=True):
        pq.write_table(pa.table({column: range(3)}), path)
    tasks = [task_of(paths[:2], tmp_path), task_of(paths[1:], tmp_path)]
    reasons = ParquetStitchEngine(FailingBackend(1)).unsupported_reasons(tasks, replace(OPTIONS, engine="stitch"))
    assert (reasons[0], reasons[1] is None) == (None, False)
    assert reasons == ENGINE.unsupported_reasons(tasks, replace(OPTIONS, engine="stitch"))
