# SPDX-License-Identifier: Apache-2.0
"""Files like those of apache/parquet-testing, generated: each engine keeps rows and types, or says why it can't.

``public_files`` runs the same over the public files themselves.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest
from parquet_footers import footer, with_footer
from public_files import by_duckdb, by_pyarrow, engines_in_process, outcome

from executors.datafiles.thrift import I64

#: the number of rows, a field of FileMetaData
_ROWS = 3
ALL_TYPES = pa.table(
    {
        "id": pa.array(range(8), pa.int32()),
        "flag": pa.array([True, False, None, True] * 2),
        "tiny": pa.array([1, None, -128, 127] * 2, pa.int8()),
        "big": pa.array([2**63 - 1, -(2**63), 0, None] * 2, pa.int64()),
        "unsigned": pa.array([2**64 - 1, 0, None, 2**63] * 2, pa.uint64()),
        "single": pa.array([1.5, None, -0.0, 3e38] * 2, pa.float32()),
        "double": pa.array([1.5, None, -0.0, 1e308] * 2, pa.float64()),
        "text": pa.array(["0", "ä", "", None] * 2),
        "bytes": pa.array([b"\x00\xff", b"", None, b"x"] * 2),
        "fixed": pa.array([b"abc", None, b"\xff\xff\xff", b"\x00\x00\x00"] * 2, pa.binary(3)),
        "day": pa.array([0, -100_000, None, 2_932_896] * 2, pa.date32()),
        "at": pa.array([0, None, -1, 2**50] * 2, pa.timestamp("us", "UTC")),
        "local": pa.array([0, None, -1, 2**40] * 2, pa.timestamp("ms")),
        "time": pa.array([0, None, 1, 86_399_999_999] * 2, pa.time64("us")),
        "amount": pa.array([1, None, -99_999, 99_999] * 2, pa.int32()).cast(pa.decimal128(18, 3)),
        "wide": pa.array([1, None, -99_999, 99_999] * 2, pa.int32()).cast(pa.decimal128(38, 3)),
    }
)
NESTED = pa.table(
    {
        "lists": pa.array([[[1, None], []], None, [], [None, [3]]], pa.list_(pa.list_(pa.int64()))),
        "maps": pa.array(
            [[("a", {"x": 1})], None, [], [("b", None)]], pa.map_(pa.string(), pa.struct({"x": pa.int32()}))
        ),
        "structs": pa.array([{"a": {"b": [1.0]}}, None, {"a": None}, {"a": {"b": None}}]),
        "nothing": pa.array([None] * 4, pa.int32()),
        "no_lists": pa.array([None] * 4, pa.list_(pa.string())),
    }
)
WORDS = pa.table({"word": [f"word {number % 300}" for number in range(3_000)], "n": range(3_000)})
NUMBERS = pa.table({"n": pa.array(np.arange(-500, 500) ** 3), "f": np.linspace(-1, 1, 1_000)})
HALVES = pa.table({"h": pa.array(np.array([1.0, -2.0, 0.0, -0.0, np.nan, np.inf], np.float16))})
NANS = pa.table({"f": [1.0, float("nan"), -1.0], "g": pa.array([float("nan")] * 3, pa.float32())})

Writing = Callable[[Path], None]


def plainly(rows: pa.Table, **options: Any) -> Writing:
    return lambda path: pq.write_table(rows, path, row_group_size=max(1, rows.num_rows // 2), **options)


def by_sql(query: str, options: str = "") -> Writing:
    def write(path: Path) -> None:
        with duckdb.connect() as connection:
            connection.sql(f"COPY ({query}) TO '{path}' (FORMAT parquet{options})")

    return write


def with_rows_stated(count: int) -> Writing:
    def write(path: Path) -> None:
        pq.write_table(NUMBERS, path)
        fields = footer(str(path))
        fields[_ROWS] = (I64, count)
        with_footer(str(path), fields)

    return write


def encrypted(path: Path) -> None:
    class Keys(pe.KmsClient):  # type: ignore[misc]
        def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
            return key_bytes.hex().encode()

        def unwrap_key(self, wrapped_key: bytes, master_key_identifier: str) -> bytes:
            return bytes.fromhex(wrapped_key.decode())

    keys = pe.EncryptionConfiguration(footer_key="k", column_keys={"k": ["n"]}, double_wrapping=False)
    properties = pe.CryptoFactory(lambda _: Keys()).file_encryption_properties(pe.KmsConnectionConfig(), keys)
    with pq.ParquetWriter(path, NUMBERS.schema, encryption_properties=properties) as writer:
        writer.write_table(NUMBERS)


KEPT: dict[str, Writing] = {
    "all types": plainly(ALL_TYPES),
    "all types, plain": plainly(ALL_TYPES, use_dictionary=False, compression="none"),
    "decimals as integers": plainly(ALL_TYPES, store_decimal_as_integer=True),
    "tiny pages with an index": plainly(WORDS, data_page_size=64, write_page_index=True, write_batch_size=16),
    "data pages of version 2": plainly(ALL_TYPES, data_page_version="2.0"),
    "nested": plainly(NESTED),
    "lists without the standard names": plainly(NESTED, use_compliant_nested_type=False),
    "dictionary that overflows": plainly(WORDS, dictionary_pagesize_limit=256),
    "delta binary packed": plainly(NUMBERS.select(["n"]), use_dictionary=False, column_encoding="DELTA_BINARY_PACKED"),
    "delta byte array": plainly(WORDS.select(["word"]), use_dictionary=False, column_encoding="DELTA_BYTE_ARRAY"),
    "delta length byte array": plainly(
        WORDS.select(["word"]), use_dictionary=False, column_encoding="DELTA_LENGTH_BYTE_ARRAY"
    ),
    "byte stream split": plainly(
        NUMBERS, use_dictionary=False, column_encoding="BYTE_STREAM_SPLIT", compression="zstd"
    ),
    **{codec: plainly(WORDS, compression=codec) for codec in ("snappy", "gzip", "brotli", "lz4", "zstd")},
    "checksums": plainly(WORDS, write_page_checksum=True),
    "halves with NaN": plainly(HALVES),
    "NaN": plainly(NANS),
    "nulls only": plainly(pa.table({"n": pa.array([None] * 6, pa.int32()), "t": pa.array([None] * 6, pa.string())})),
    "Bloom filters": plainly(WORDS, bloom_filter_options={"word": {"ndv": 300, "fpp": 0.01}}),
    "sorting columns": plainly(WORDS.select(["n"]), sorting_columns=[pq.SortingColumn(0)]),
    "of DuckDB": by_sql(
        "SELECT i, i::VARCHAR t, [i, NULL] l, {'a': i} s FROM range(2500) _(i)", ", ROW_GROUP_SIZE 2048"
    ),
    "of DuckDB, version 2": by_sql("SELECT i, 'word ' || i % 7 w FROM range(5000) _(i)", ", PARQUET_VERSION v2"),
}
REFUSED: dict[str, tuple[Writing, str]] = {
    "encrypted": (encrypted, "is encrypted|has encrypted columns"),
    "0 rows stated": (with_rows_stated(0), "rows"),
    "more rows stated": (with_rows_stated(1_001), "rows"),
    "wrong magic behind": (
        lambda path: path.write_bytes(b"PAR1" + bytes(64) + b"PAR2"),
        "does not end with the footer",
    ),
    "empty": (lambda path: path.write_bytes(b""), "can't be read"),
}


@pytest.fixture(params=engines_in_process(), ids=lambda engine: engine.name)
def engine(request: pytest.FixtureRequest) -> Any:
    return request.param


READERS = {"pyarrow": by_pyarrow, "DuckDB": by_duckdb}


@pytest.mark.parametrize("kind", KEPT)
def test_rows_and_types_are_kept_or_the_engine_gives_the_reason(tmp_path: Path, engine: Any, kind: str):
    path = tmp_path / "old.parquet"
    KEPT[kind](path)
    said = outcome(engine, str(path), READERS)
    if said != "same: pyarrow, DuckDB":
        # Files of DuckDB have orders of minima and maxima that pyarrow does not write.
        assert engine.name == "hybrid"
        assert "of DuckDB" in kind
        assert said.startswith("refused: row groups that pyarrow writes and those of …/0.parquet ")


@pytest.mark.parametrize("kind", REFUSED)
def test_an_unreadable_file_is_refused_with_the_reason(tmp_path: Path, engine: Any, kind: str):
    path = tmp_path / "old.parquet"
    write, why = REFUSED[kind]
    write(path)
    said = outcome(engine, str(path), {})
    assert said.startswith("refused: ")
    assert re.search(why, said), said
