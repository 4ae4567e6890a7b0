# SPDX-License-Identifier: Apache-2.0
"""The engine ``arrow``: what it writes has the rows, their order, and everything that the files said of themselves."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from any_tables import tables
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import SOAK
from toys.engine import CopyRows
from verification_case import Case, table

from executors.datafiles.thrift import BINARY, I32, STRUCT, Struct, decode, encode
from executors.engines.arrow import ArrowEngine
from executors.engines.backends import InProcessBackend, bundle_tasks
from executors.engines.footer import FooterReplacingStream, RawParquetFooter
from executors.engines.group_rewrite import rows_per_output
from executors.engines.inputs import ParquetInput, common_layout
from lake.engine_choice import choose_engines, engine_notes
from lake.engines import RewriteTask
from lake.errors import CancelRequested, Conflict, Transient
from lake.plan import OutputFile, RewriteOptions, RewriteProgress

OPTIONS = RewriteOptions(target_file_max_bytes=1 << 30)
ENGINE = ArrowEngine(InProcessBackend(1))
SPARK = {"org.apache.spark.version": "3.5.9"}


def write(path: Path, rows: pa.Table, says: dict[str, str] | None = None, **options: Any) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(path, rows.schema, **options) as writer:
        writer.write_table(rows, row_group_size=max(1, rows.num_rows // 2))
        writer.add_key_value_metadata(says or {})
    return str(path)


def task_of(inputs: Sequence[str], folder: Path, outputs: int = 1, group: int = 0) -> RewriteTask:
    (folder / "new").mkdir(parents=True, exist_ok=True)
    names = tuple(str(folder / "new" / f"{group}-{number}.parquet") for number in range(outputs))
    size = sum(Path(path).stat().st_size for path in inputs if Path(path).exists())
    return RewriteTask(group=group, inputs=tuple(inputs), outputs=names, bytes=size)


def rewrite(task: RewriteTask, options: RewriteOptions = OPTIONS) -> list[str]:
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


def read(path: str) -> pa.Table:
    return pq.ParquetFile(path, coerce_int96_timestamp_unit="us").read()


def text(paths: Sequence[str]) -> list[str]:
    """The columns of some files as text, where one NaN is another one."""
    rows = pa.concat_tables(map(read, paths)).combine_chunks()
    return [str(column.type) + column.to_string(window=1000, container_window=1000) for column in rows.columns]


def says(path: str) -> tuple[Any, Any]:
    """The schema of a file and its key-value metadata, as they are stored."""
    fields = RawParquetFooter(ParquetInput.read(path).footer)._fields
    return fields[2], fields.get(5)


@pytest.mark.slow
@settings(max_examples=120 if SOAK else 60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=tables(), data=st.data())
def test_any_table_keeps_its_rows_their_order_and_the_metadata_of_its_files(
    tmp_path_factory: pytest.TempPathFactory, rows: pa.Table, data: st.DataObject
):
    folder = tmp_path_factory.mktemp("any")
    options = {
        "compression": data.draw(st.sampled_from(["none", "snappy", "gzip", "zstd", "brotli", "lz4"])),
        "store_decimal_as_integer": data.draw(st.booleans()),
        "store_schema": data.draw(st.booleans()),
        "use_compliant_nested_type": data.draw(st.booleans()),
        "data_page_version": data.draw(st.sampled_from(["1.0", "2.0"])),
        "write_page_index": data.draw(st.booleans()),
        "use_dictionary": data.draw(st.booleans()),
    }
    cuts = sorted(data.draw(st.lists(st.integers(0, rows.num_rows), max_size=3)))
    parts = [rows.slice(a, b - a) for a, b in zip([0, *cuts], [*cuts, rows.num_rows], strict=True)]
    paths = [write(folder / "t" / f"{n}.parquet", part, {"k": "v"}, **options) for n, part in enumerate(parts)]
    written = rewrite(task_of(paths, folder / "t", data.draw(st.integers(1, 3))))
    assert text(written) == text(paths)
    for path in written:
        assert says(path) == says(paths[0])
        metadata = pq.read_metadata(path)
        for number in range(metadata.num_row_groups):
            chunk = metadata.row_group(number).column(0)
            kept = {"none": "UNCOMPRESSED"}.get(options["compression"], options["compression"].upper())
            assert (chunk.compression, chunk.has_offset_index) == (kept, options["write_page_index"])
    case = Case(folder)
    for path in paths:
        case.input(read(path))
    for path in written:
        name = str(Path(path).relative_to(folder))
        case.outputs.append(OutputFile(partition="p", path=name, bytes=1, rows=pq.read_metadata(path).num_rows))
    case.prove()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.none() | st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999), min_size=1, max_size=9))
@pytest.mark.slow
def test_int96_and_other_timestamps_keep_their_types_from_year_1_to_9999(tmp_path_factory, moments):
    folder = tmp_path_factory.mktemp("int96")
    old = pa.table(
        {
            "at": pa.array(moments, pa.timestamp("us")),
            "nested": pa.array([moments] * len(moments), pa.list_(pa.timestamp("us"))),
        }
    )
    paths = [
        write(folder / f"{n}.parquet", old, SPARK, use_deprecated_int96_timestamps=True, store_schema=False)
        for n in range(2)
    ]
    (path,) = rewrite(task_of(paths, folder))
    assert read(path).equals(pa.concat_tables([old, old]))
    schema = pq.read_metadata(path).schema
    assert [schema.column(n).physical_type for n in range(2)] == ["INT96", "INT96"]
    assert says(path) == says(paths[0])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.none() | st.integers(-(2**63) + 10**9, 2**63 - 1), min_size=1, max_size=9))
@pytest.mark.slow
def test_int96_of_other_writers_keeps_its_nanoseconds(tmp_path_factory, moments):
    folder = tmp_path_factory.mktemp("int96")
    kind = pa.timestamp("ns")
    nested = pa.struct([("a", pa.list_(kind)), ("b", pa.map_(pa.string(), kind)), ("c", pa.timestamp("ms"))])
    values = [{"a": [at, None], "b": [("k", at)], "c": 5} if at else None for at in moments]
    rows = pa.table({"at": pa.array(moments, kind), "nested": pa.array(values, nested)})
    path = write(folder / "impala", rows, use_deprecated_int96_timestamps=True, store_schema=False)
    (new,) = rewrite(task_of([path, path], folder))
    before, after = (pq.ParquetFile(one).read() for one in (path, new))
    assert after.equals(pa.concat_tables([before, before]))
    assert before["at"].cast(pa.int64()).to_pylist() == moments
    assert says(new) == says(path)


def test_int96_inside_of_lists_that_arrow_s_schema_calls_large_stays_int96(tmp_path: Path):
    kind = pa.timestamp("ns")
    events = pa.large_list(pa.struct([("at", kind), ("number", pa.int64())]))
    columns = {"lists": pa.array([[{"at": 1, "number": 7}], None], events), "at": pa.array([2, None], kind)}
    fixed = pa.array([[3, 4], [5, 6]], pa.list_(kind, 2))
    rows = pa.table(columns | {"fixed": fixed})
    path = write(tmp_path / "pandas", rows, use_deprecated_int96_timestamps=True)
    (new,) = rewrite(task_of([path, path], tmp_path))
    before, after = (pq.ParquetFile(one).read() for one in (path, new))
    assert before.schema.types == rows.schema.types
    assert after.equals(pa.concat_tables([before, before]))
    assert says(new) == says(path)


@pytest.mark.parametrize("year_in_microseconds", [253_402_300_799_999_999, -62_135_596_800_000_000])
@pytest.mark.parametrize("nested", [True, False])
def test_a_file_with_years_beyond_nanoseconds_is_left_out_and_reported(tmp_path, year_in_microseconds, nested):
    moments = pa.array([0, None, year_in_microseconds], pa.timestamp("us"))
    column = pa.ListArray.from_arrays([0, 1, 2, 3], moments) if nested else moments
    path = write(
        tmp_path / "x.parquet", pa.table({"at": column}), use_deprecated_int96_timestamps=True, store_schema=False
    )
    task = task_of([path], tmp_path)
    assert ENGINE.unsupported_reason(task, OPTIONS) is None
    with pytest.raises(Conflict, match="column at has timestamps of years that nanoseconds do not reach") as raised:
        list(ENGINE.rewrite([task], OPTIONS, lambda _: None, threading.Event()))
    assert raised.value.args[1][0].quarantine == (path,)


def test_a_file_of_spark_with_a_day_beyond_microseconds_is_left_out_and_reported(tmp_path: Path):
    """Spark writes a negative Julian day for its last years, which Arrow reads as one of the far future."""
    rows = pa.table({"at": pa.array([0, 86_400_000_000], pa.timestamp("us"))})
    path = write(
        tmp_path / "x.parquet",
        rows,
        SPARK,
        use_deprecated_int96_timestamps=True,
        store_schema=False,
        use_dictionary=False,
        compression="none",
    )
    day = (2_440_589).to_bytes(4, "little")
    content = Path(path).read_bytes()
    assert content.count(day) == 1
    Path(path).write_bytes(content.replace(day, (2**32 - 5).to_bytes(4, "little")))
    with pytest.raises(Conflict, match="column at has timestamps of years that microseconds do not reach") as raised:
        rewrite(task_of([path], tmp_path))
    assert raised.value.args[1][0].quarantine == (path,)


def test_metadata_codecs_and_bloom_filters_of_files_are_kept(tmp_path: Path):
    ids = [pa.field("id", pa.int64(), False, {"PARQUET:field_id": "7"}), pa.field("name", pa.string())]
    rows = pa.table([range(5000), [f"n{n % 9}" for n in range(5000)]], pa.schema(ids, {"owner": "me"}))
    options = {"bloom_filter_options": {"id": {"ndv": 5000}}, "write_page_index": True}
    paths = [
        write(tmp_path / f"{n}.parquet", rows, compression={"id": "zstd", "name": "gzip"}, **options) for n in range(3)
    ]
    (path,) = rewrite(task_of(paths, tmp_path))
    metadata = pq.read_metadata(path)
    (chunks,) = [[metadata.row_group(0).column(n) for n in range(2)]]
    assert metadata.num_row_groups == 1
    assert [chunk.bloom_filter_offset is not None for chunk in chunks] == [True, False]
    assert [chunk.has_offset_index and chunk.has_column_index for chunk in chunks] == [True, True]
    assert [chunk.compression for chunk in chunks] == ["ZSTD", "GZIP"]
    assert metadata.metadata == pq.read_metadata(paths[0]).metadata
    assert read(path).schema.field("id").metadata == {b"PARQUET:field_id": b"7"}
    assert says(path) == says(paths[0])
    assert duckdb.sql(f"SELECT count(*) FROM '{path}' WHERE id = 4999").fetchall() == [(3,)]
    (asked,) = rewrite(task_of(paths, tmp_path / "zstd"), replace(OPTIONS, compression="uncompressed"))
    assert pq.read_metadata(asked).row_group(0).column(0).compression == "UNCOMPRESSED"


def test_columns_of_few_words_are_rewritten_as_dictionaries_with_their_bounds_and_filters(tmp_path: Path):
    parts = [
        pa.table(
            {
                "word": [f"{name}{n % 5}" if n % 7 else None for n in range(4000)],
                "long": [f"{name}{n}" for n in range(4000)],
            }
        )
        for name in ("a", "b", "c")
    ]
    filters = {"word": {"ndv": 5}}
    paths = [write(tmp_path / f"{n}.parquet", part, bloom_filter_options=filters) for n, part in enumerate(parts)]
    inputs = [ParquetInput.read(path) for path in paths]
    assert common_layout(inputs).dictionary_columns == ["word"]
    written = rewrite(task_of(paths, tmp_path, outputs=2))
    assert pa.concat_tables(map(read, written)).equals(pa.concat_tables(parts))
    chunks = [pq.read_metadata(path).row_group(0).column(0) for path in written]
    assert [(chunk.statistics.min, chunk.statistics.max) for chunk in chunks] == [("a0", "b4"), ("b0", "c4")]
    assert [chunk.bloom_filter_offset is not None for chunk in chunks] == [True, True]
    for path, expected in zip(written, (3428, 0), strict=True):
        assert duckdb.sql(f"SELECT count(*) FROM '{path}' WHERE word[1] = 'a'").fetchall() == [(expected,)]
    assert duckdb.sql(f"SELECT count(*) FROM '{written[1]}' WHERE word = 'c3'").fetchall() == [(686,)]


def test_bounds_are_those_of_the_values_although_pyarrow_takes_a_null_for_one_more_used_value(tmp_path: Path):
    """Each half of the file has nulls and lacks one value of the dictionary, the greatest or the smallest."""
    words = [None if number % 3 == 0 else f"word {number % 5}" for number in range(4000)]
    words[1:100], words[3901:] = ["the first"] * 99, ["zz"] * 99
    path = str(tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": range(4000), "word": words}), path)
    for outputs in (1, 2):
        for new in rewrite(task_of([path], tmp_path / str(outputs), outputs)):
            file = pq.ParquetFile(new)
            for group in range(file.num_row_groups):
                values = [one for one in file.read_row_group(group)["word"].to_pylist() if one is not None]
                bounds = file.metadata.row_group(group).column(1).statistics
                assert (bounds.min, bounds.max) == (min(values), max(values))


def test_a_column_that_writers_found_no_dictionary_worth_for_gets_none_unless_they_had_too_few_values(tmp_path: Path):
    def encoded(rows: int, files: int) -> list[bool]:
        parts = [pa.table({"word": [f"w{n % 5}" for n in range(rows)], "key": [f"{n}" for n in range(rows)]})] * files
        folder = tmp_path / f"{rows}"
        paths = [
            write(folder / f"{number}.parquet", part, use_dictionary=["word"]) for number, part in enumerate(parts)
        ]
        (path,) = rewrite(task_of(paths, folder))
        assert read(path).equals(pa.concat_tables(parts))
        group = pq.read_metadata(path).row_group(0)
        return ["RLE_DICTIONARY" in group.column(index).encodings for index in range(2)]

    assert (encoded(20_000, 2), encoded(20, 10)) == ([True, False], [True, True])


def test_the_writer_of_int96_timestamps_is_kept_because_readers_shift_them_by_it(tmp_path: Path):
    rows = pa.table({"at": pa.array([1], pa.timestamp("us"))})
    old = [
        write(tmp_path / f"{n}.parquet", rows, SPARK, use_deprecated_int96_timestamps=True, store_schema=False)
        for n in range(2)
    ]
    by_spark = [signed(path, b"parquet-mr version 1.13.1") for path in old]
    (path,) = rewrite(task_of(by_spark, tmp_path))
    assert pq.read_metadata(path).created_by == "parquet-mr version 1.13.1"
    signed(by_spark[1], b"impala version 4.0")
    assert "differ in metadata created_by" in str(ENGINE.unsupported_reason(task_of(by_spark, tmp_path), OPTIONS))


def signed(path: str, author: bytes) -> str:
    """The file at ``path`` as if ``author`` had written it."""
    return altered(path, lambda fields: fields.update({6: (BINARY, author)}))


def altered(path: str, change: Callable[[Struct], None]) -> str:
    """The file at ``path`` with another footer."""
    data = Path(path).read_bytes()
    length = int.from_bytes(data[-8:-4], "little")
    fields = decode(data[-8 - length : -8])
    change(fields)
    footer = encode(fields)
    Path(path).write_bytes(data[: -8 - length] + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    return path


def rows_by_duckdb(paths: Sequence[str]) -> list[tuple[str]]:
    """The rows of files as text."""
    return duckdb.sql(f"SELECT t::VARCHAR FROM read_parquet({list(paths)}) t").fetchall()


def test_rows_are_found_by_another_reader_as_the_same_multiset(tmp_path: Path):
    paths = [write(tmp_path / f"{n}.parquet", table(range(n * 100, n * 100 + 100))) for n in range(4)]
    written = rewrite(task_of(paths, tmp_path, outputs=3))
    found = [Counter(row for (row,) in rows_by_duckdb(some)) for some in (paths, written)]
    assert found[0] == found[1]
    assert found[0].total() == 400


def test_outputs_share_the_bytes_and_every_one_is_written_even_without_rows(tmp_path: Path):
    assert rows_per_output([(10, 100), (10, 300)], 2) == [13, 7]
    assert rows_per_output([(1, 10)], 3) == [0, 1, 0]
    assert rows_per_output([(0, 50), (0, 50)], 2) == [0, 0]
    assert rows_per_output([(3, 0), (4, 0)], 2) in ([0, 7], [7, 0], [3, 4])
    empty = write(tmp_path / "empty.parquet", table(range(0)), SPARK)
    written = rewrite(task_of([empty, empty], tmp_path, outputs=2))
    assert [read(path).num_rows for path in written] == [0, 0]
    assert says(written[1]) == says(empty)


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), min_size=1, max_size=8), st.integers(1, 9))
def test_shares_never_lose_a_row(files, outputs):
    counts = rows_per_output(files, outputs)
    assert len(counts) == outputs
    assert sum(counts) == sum(rows for rows, _ in files)
    assert min(counts) >= 0


ROWS = pa.table({"id": [1, 2]})


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"rows": pa.table({"id": [1], "new": [1]})}, "other.parquet has another schema than .*first.parquet"),
        ({"rows": pa.table({"id": pa.array([1], pa.int32())})}, "other.parquet has another schema"),
        ({"says": {"k": "v"}}, "differ in metadata k, which can change how values are read"),
        ({"says": {"org.apache.spark.version": "2.4.8"}}, "differ in metadata org.apache.spark.version"),
    ],
)
def test_a_group_that_is_not_to_be_concatenated_goes_to_the_next_engine_with_the_reason(tmp_path, other, why):
    first = write(tmp_path / "first.parquet", ROWS, SPARK if "spark" in why else {})
    task = task_of([first, write(tmp_path / "other.parquet", **({"rows": ROWS} | other))], tmp_path)
    (note,) = engine_notes(choose_engines([task], [ENGINE, CopyRows("spark")], OPTIONS, "t"))
    assert note.startswith("engine spark (1 group): arrow can't: ")
    with pytest.raises(AssertionError, match=why):
        assert not ENGINE.unsupported_reason(task, OPTIONS)


def test_files_of_releases_of_spark_that_write_values_alike_are_one_kind(tmp_path: Path):
    paths = [
        write(tmp_path / f"{version}.parquet", ROWS, {"org.apache.spark.version": version})
        for version in ("3.2.1", "3.5.9", "4.0.1")
    ]
    assert rewrite(task_of(paths, tmp_path))


def test_other_kinds_of_files_are_refused(tmp_path: Path):
    orc.write_table(ROWS, tmp_path / "000000_0")
    other = task_of([str(tmp_path / "000000_0")], tmp_path)
    assert str(ENGINE.unsupported_reason(other, OPTIONS)).endswith("000000_0 is no Parquet file")
    (tmp_path / "secret").write_bytes(b"PARE" + bytes(100) + b"PARE")
    assert str(ENGINE.unsupported_reason(task_of([str(tmp_path / "secret")], tmp_path), OPTIONS)).endswith(
        "is encrypted"
    )


def test_hadoops_lz4_and_encrypted_columns_are_known_by_the_footer(tmp_path: Path):
    def hadoops(fields: Struct) -> None:
        fields[4][1][1][0][1][1][1][0][3][1][4] = (I32, 5)

    lz4 = altered(write(tmp_path / "lz4.parquet", ROWS, compression="lz4"), hadoops)
    assert "compressed as Hadoop's LZ4" in str(ENGINE.unsupported_reason(task_of([lz4], tmp_path), OPTIONS))
    assert ENGINE.unsupported_reason(task_of([lz4], tmp_path), replace(OPTIONS, compression="zstd")) is None
    secret = altered(
        write(tmp_path / "secret.parquet", ROWS), lambda fields: fields.update({8: (STRUCT, {1: (STRUCT, {})})})
    )
    assert "encrypted" in str(ENGINE.unsupported_reason(task_of([secret], tmp_path), OPTIONS))


def test_inputs_that_cant_be_read_leave_their_groups_out_after_all_others_are_written(tmp_path: Path):
    paths = [write(tmp_path / f"{n}.parquet", table(range(500)), write_page_checksum=True) for n in range(4)]
    spoiled = bytearray(Path(paths[1]).read_bytes())
    spoiled[2000] ^= 255
    Path(paths[1]).write_bytes(spoiled)
    Path(paths[2]).write_bytes(b"PAR1" + bytes(50))
    Path(paths[3]).unlink()
    tasks = [task_of([path], tmp_path, group=number) for number, path in enumerate(paths)]
    assert [ENGINE.unsupported_reason(task, OPTIONS) for task in tasks] == [None] * 4
    told: list[RewriteProgress] = []
    written = []
    with pytest.raises(Conflict) as raised:
        written.extend(ENGINE.rewrite(tasks, OPTIONS, told.append, threading.Event()))
    left_out = {item.group: item for item in raised.value.args[1]}
    assert {group: item.quarantine for group, item in left_out.items()} == {1: (paths[1],), 2: (paths[2],), 3: ()}
    assert left_out[3].reason == f"{paths[3]} is gone from storage"
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["0-0.parquet"]
    assert told[-1].rows_done == 500


@pytest.mark.slow
def test_cpu_time_is_counted_by_group_and_never_exceeds_the_process(tmp_path: Path):
    paths = [write(tmp_path / f"{n}.parquet", table(range(20_000))) for n in range(4)]
    tasks = [task_of([path], tmp_path, group=number) for number, path in enumerate(paths)]
    told: list[RewriteProgress] = []
    began = time.process_time()
    list(ArrowEngine(InProcessBackend(2)).rewrite(tasks, OPTIONS, told.append, threading.Event()))
    used = [progress.cpu_seconds or 0.0 for progress in told]
    assert used == sorted(used)
    assert 0 < used[0] < used[-1] <= time.process_time() - began


def test_a_file_that_changed_since_the_engine_was_chosen_is_a_conflict(tmp_path: Path):
    paths = [write(tmp_path / f"{n}.parquet", ROWS) for n in range(2)]
    task = task_of(paths, tmp_path)
    assert ENGINE.unsupported_reason(task, OPTIONS) is None
    write(Path(paths[1]), table(range(3)))
    with pytest.raises(Conflict, match=r"changed since the engine was chosen: .* has another schema") as raised:
        list(ENGINE.rewrite([task], OPTIONS, lambda _: None, threading.Event()))
    assert [(item.group, item.quarantine) for item in raised.value.args[1]] == [(0, ())]
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.slow
def test_a_rewrite_that_is_cancelled_or_has_no_room_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    paths = [write(tmp_path / f"{n}.parquet", table(range(5000))) for n in range(4)]
    tasks = [task_of([path], tmp_path, group=number) for number, path in enumerate(paths)]
    cancelled = threading.Event()
    running = ENGINE.rewrite(tasks, OPTIONS, lambda _: None, cancelled)
    next(running)
    cancelled.set()
    with pytest.raises(CancelRequested):
        list(running)
    after = list((tmp_path / "new").iterdir())
    assert all(path.name in {f"{n}-0.parquet" for n in range(4)} for path in after)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(FooterReplacingStream, "write", full)
    with pytest.raises(Transient, match=r"can't be written: .*No space left"):
        list(ENGINE.rewrite([task_of(paths, tmp_path, group=9)], OPTIONS, lambda _: None, threading.Event()))
    assert sorted((tmp_path / "new").iterdir()) == sorted(after)


def test_many_small_groups_are_bundled_and_large_ones_stand_alone():
    def task(group: int, size: int) -> RewriteTask:
        return RewriteTask(group=group, inputs=("x",), outputs=("y",), bytes=size)

    tiny = bundle_tasks([task(n, 1000) for n in range(200)], parallelism=8)
    assert [len(some) for some in tiny] == [25] * 8
    assert sorted(one.group for some in tiny for one in some) == list(range(200))
    assert len(bundle_tasks([task(n, 1 << 30) for n in range(3)], parallelism=2)) == 3
    assert bundle_tasks([], parallelism=2) == []
