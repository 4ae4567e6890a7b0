# SPDX-License-Identifier: Apache-2.0
"""Parquet files with other bytes in their footers or page headers: no crash, no hang, no large allocation.

The rewrites run in another process. pyarrow can end the process in which it reads such a file.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from parquet_footers import footer, with_footer
from rewriting_process import ENGINES, RewritingProcess
from support import SOAK
from test_public_files import ALL_TYPES, NESTED, WORDS

from executors.datafiles.thrift import BINARY, BYTE, I32, I64, LIST, TRUE, Struct
from executors.engines.inputs import ParquetInput
from executors.engines.stitch.raw_file import RawParquetFile

MOMENTS = pa.table({"at": pa.array([1, None, 3] * 9, pa.timestamp("ns")), "s": ["a", None, "b"] * 9})
FROM_DUCKDB = "SELECT range AS id, 'x' || range % 7 AS s, [range, NULL] AS l, {'a': range} AS st FROM range(300)"
MOST_BYTES = 128 << 20
#: fields of FileMetaData, SchemaElement, RowGroup, ColumnChunk, ColumnMetaData and Statistics
SCHEMA, ROW_GROUPS, CREATED_BY = 2, 4, 6
TYPE_LENGTH, REPETITION, NAME = 2, 3, 4
CHUNKS, TOTAL_BYTES, META = 1, 6, 3
TYPE, CODEC, STATISTICS, LEVELS = 1, 4, 12, 16
MINIMUM, DEFINITIONS = 6, 3


def by_duckdb(path: Path) -> None:
    with duckdb.connect() as connection:
        connection.sql(f"COPY ({FROM_DUCKDB}) TO '{path}' (FORMAT parquet)")


FILES: Mapping[str, Callable[[Path], None]] = {
    "nested": lambda path: pq.write_table(NESTED, path, row_group_size=2, write_page_index=True),
    "words": lambda path: pq.write_table(
        WORDS.slice(0, 400), path, row_group_size=200, compression="zstd", bloom_filter_options={"word": {"ndv": 300}}
    ),
    "every type": lambda path: pq.write_table(
        ALL_TYPES, path, row_group_size=4, data_page_version="2.0", write_page_checksum=True
    ),
    "INT96": lambda path: pq.write_table(MOMENTS, path, use_deprecated_int96_timestamps=True),
    "DuckDB": by_duckdb,
}


@pytest.fixture(scope="module")
def process() -> Iterator[RewritingProcess]:
    made = RewritingProcess()
    yield made
    made.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    folder = tmp_path_factory.mktemp("files")
    made = {name: folder / f"{number}.parquet" for number, name in enumerate(FILES)}
    for name, path in made.items():
        FILES[name](path)
    return made


def footer_bytes(path: Path) -> Sequence[int]:
    """The positions of a footer, of its length and of the magic bytes behind it."""
    content = path.read_bytes()
    return range(len(content) - int.from_bytes(content[-8:-4], "little") - 8, len(content))


def header_bytes(path: Path) -> Sequence[int]:
    """The positions of the beginnings of pages, whose headers have about this length."""
    found = pq.read_metadata(path)
    chunks = [
        found.row_group(group).column(column)
        for group in range(found.num_row_groups)
        for column in range(found.num_columns)
    ]
    starts = [at for one in chunks for at in (one.dictionary_page_offset, one.data_page_offset) if at is not None]
    return [start + offset for start in starts for offset in range(25)]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("part", [footer_bytes, header_bytes])
@settings(max_examples=1000 if SOAK else 60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_other_bytes_are_refused_or_read_as_a_reader_reads_them_in_bounded_time_and_memory(
    tmp_path_factory: pytest.TempPathFactory,
    process: RewritingProcess,
    files: Mapping[str, Path],
    engine: str,
    part: Callable[[Path], Sequence[int]],
    data: st.DataObject,
):
    folder = tmp_path_factory.mktemp("other")
    good = files[data.draw(st.sampled_from(sorted(files)))]
    content, positions = bytearray(good.read_bytes()), part(good)
    for _ in range(data.draw(st.integers(1, 4))):
        at = positions[data.draw(st.integers(0, len(positions) - 1))]
        content[at] = data.draw(st.sampled_from([0, 127, 255]) | st.integers(0, 255))
    bad = folder / "bad.parquet"
    bad.write_bytes(content)
    (folder / "new").mkdir()
    inputs = [str(bad), str(good)][: data.draw(st.integers(1, 2))]
    found = process.rewrite(engine, inputs, str(folder / "new" / "0.parquet"))
    assert found["ended"] in ("refused", "written"), found
    assert found["left"] == ([] if found["ended"] == "refused" else ["0.parquet"])
    assert found["memory"] < MOST_BYTES, found
    assert "alloc" not in found["reason"], found
    assert bad.read_bytes() == bytes(content)


def element(fields: Struct, number: int) -> Struct:
    """An element of the schema; the first one is the root."""
    found: Struct = fields[SCHEMA][1][1][number]
    return found


def meta(fields: Struct) -> Struct:
    found: Struct = fields[ROW_GROUPS][1][1][0][CHUNKS][1][1][0][META][1]
    return found


def change(of: Callable[[Struct], Struct], field: int, kind: int, value: Any) -> Callable[[Struct], None]:
    return lambda fields: of(fields).__setitem__(field, (kind, value))


def shorter_bound(fields: Struct) -> None:
    meta(fields)[STATISTICS][1][MINIMUM] = (BINARY, b"")


def longer_histogram(fields: Struct) -> None:
    meta(fields)[LEVELS][1][DEFINITIONS] = (LIST, (I64, [1, 2, 3]))


CONTRADICTIONS: Mapping[str, tuple[Callable[[Struct], None], str]] = {
    "another type": (change(meta, TYPE, I32, 2), "has type 2, the column has 1"),
    "no known codec": (change(meta, CODEC, I32, 99), "has the unknown codec 99"),
    "a bound of no value": (shorter_bound, "a bound of column id is shorter than a value"),
    "a level too many": (longer_histogram, "have another number of definitions"),
    "no known type": (lambda fields: change(lambda all: element(all, 1), TYPE, I32, 9)(fields), "unknown type 9"),
    "no known repetition": (lambda fields: change(lambda all: element(all, 1), REPETITION, I32, -1)(fields), "-1"),
    "a name that is no text": (
        lambda fields: change(lambda all: element(all, 1), NAME, BINARY, b"\xff")(fields),
        "invalid start byte",
    ),
    "a writer that is no text": (lambda fields: fields.__setitem__(CREATED_BY, (BINARY, b"\xff")), "invalid start"),
    "a column too few": (lambda fields: fields[SCHEMA][1][1].pop(), "lacks a column"),
    "a chunk too few": (lambda fields: fields[ROW_GROUPS][1][1][0][CHUNKS][1][1].pop(), "column chunks for"),
}


@pytest.mark.parametrize("what", CONTRADICTIONS)
def test_a_footer_that_ends_the_process_of_pyarrow_is_refused_before_pyarrow_shows_it(tmp_path: Path, what: str):
    path, (alter, why) = str(tmp_path / "0.parquet"), CONTRADICTIONS[what]
    pq.write_table(ALL_TYPES, path)
    ParquetInput.read(path)
    fields = footer(path)
    alter(fields)
    with_footer(path, fields)
    with pytest.raises(pa.ArrowInvalid, match=why):
        ParquetInput.read(path)


@pytest.mark.parametrize("kind", [TRUE, BYTE, BINARY])
def test_a_position_of_another_type_that_readers_ignore_is_not_replaced(tmp_path: Path, kind: int):
    """The bytes of an integer in its place would make the rest of the new footer unreadable."""
    path = str(tmp_path / "0.parquet")
    pq.write_table(ALL_TYPES, path)
    fields = footer(path)
    group = fields[ROW_GROUPS][1][1][0]
    group[TOTAL_BYTES + 1] = (kind, {TRUE: None, BYTE: 1, BINARY: b"x"}[kind])
    with_footer(path, fields)
    pq.read_metadata(path)
    with pytest.raises(pa.ArrowInvalid, match=f"field 7 has the unexpected type {kind}"):
        RawParquetFile.read(path)
