# SPDX-License-Identifier: Apache-2.0
"""Files like those of apache/parquet-testing, generated: the engine ``spark`` keeps rows and types, or says why not.

``public_files --spark`` runs the same over the public files themselves.
"""

import json
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from parquet_footers import footer, with_footer
from public_files import by_duckdb, by_pyarrow_without_part_names, by_spark, outcome, schema_by_spark
from test_public_files import ALL_TYPES, HALVES, KEPT, NUMBERS, REFUSED, WORDS, Writing, plainly

from executors.datafiles.thrift import BINARY, I32, I64, LIST, STRUCT, Struct
from executors.engines.spark_sql import SparkEngine, _raise_for_undecodable
from lake.engines import RewriteTask
from lake.errors import Conflict

pytestmark = pytest.mark.spark
#: fields of FileMetaData, of SchemaElement, of RowGroup, of ColumnChunk and of ColumnMetaData
_SCHEMA, _GROUPS, _CREATED_BY = 2, 4, 6
_TYPE, _REPETITION, _NAME, _CONVERTED, _SCALE, _PRECISION, _LOGICAL = 1, 3, 4, 6, 7, 8, 10
_COLUMNS, _META, _PATH, _CODEC, _TOTAL = 1, 3, 3, 4, 7
_REPEATED, _BYTE_ARRAY, _FIXED = 2, 6, 7
#: converted types
_ENUM, _DECIMAL, _JSON, _BSON, _INTERVAL = 4, 5, 19, 20, 21
Change = Callable[[Struct], None]


def with_schema(rows: pa.Table, change: Change, **options: Any) -> Writing:
    """Writes a file and changes its footer, not its pages."""

    def write(path: Path) -> None:
        pq.write_table(rows, path, store_schema=False, **options)
        fields = footer(str(path))
        change(fields)
        with_footer(str(path), fields)

    return write


def elements(fields: Struct) -> list[Struct]:
    return list(fields[_SCHEMA][1][1])


def chunks(fields: Struct) -> list[Struct]:
    return [chunk[_META][1] for group in fields[_GROUPS][1][1] for chunk in group[_COLUMNS][1][1]]


def annotated(converted: int, kind: int | None = None, **decimal: int) -> Change:
    """Gives the first column a converted type, and ``kind`` as its physical type."""

    def change(fields: Struct) -> None:
        column = elements(fields)[1]
        column.pop(_LOGICAL, None)
        column[_CONVERTED] = (I32, converted)
        for key, value in ((_TYPE, kind), (_SCALE, decimal.get("scale")), (_PRECISION, decimal.get("precision"))):
            if value is not None:
                column[key] = (I32, value)

    return change


def restructured(keep: Collection[str], path: list[str], *, repeated: str, annotated: bool) -> Change:
    """Replaces the three levels of the list ``l`` by those of ``keep``, of which ``repeated`` is repeated."""

    def change(fields: Struct) -> None:
        root, *levels = elements(fields)
        kept = [level for level in levels if level[_NAME][1].decode() in keep]
        for level, name in zip(kept, path, strict=True):
            level[_NAME] = (BINARY, name.encode())
            if name == repeated:
                level[_REPETITION] = (I32, _REPEATED)
            if not annotated:
                level.pop(_CONVERTED, None)
                level.pop(_LOGICAL, None)
        fields[_SCHEMA] = (LIST, (STRUCT, [root, *kept]))
        for chunk in chunks(fields):
            chunk[_PATH] = (LIST, (BINARY, [name.encode() for name in path]))

    return change


def compressed_as(codec: int) -> Change:
    def change(fields: Struct) -> None:
        for chunk in chunks(fields):
            chunk[_CODEC] = (I32, codec)

    return change


def cut_short(fields: Struct) -> None:
    """The chunks end before their last page does, which pyarrow tolerates from an old writer."""
    fields[_CREATED_BY] = (BINARY, b"parquet-mr version 1.2.8")
    for chunk in chunks(fields):
        chunk[_TOTAL] = (I64, chunk[_TOTAL][1] - 15)


def with_broken_page(path: Path) -> None:
    pq.write_table(WORDS.select(["n"]), path, use_dictionary=False, compression="none", write_page_checksum=True)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def required(kind: pa.DataType, values: list[Any]) -> pa.Table:
    return pa.table([pa.array(values, kind)], schema=pa.schema([pa.field("l", kind, nullable=False)]))


LISTS = required(pa.list_(pa.field("element", pa.int32(), nullable=False)), [[1, 2], [], [3]])
IN_UTC = pa.timestamp("ms", "UTC")
ALL_BUT = ALL_TYPES.drop_columns(["unsigned", "fixed", "time", "local"])
INSTANTS = pa.table({"at": pa.array([0, None, -1], IN_UTC), "n": [1, 2, 3]})
WITH_IDS = pa.table(
    [[1, 2], [{"x": 1}, None]],
    schema=pa.schema(
        [
            pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"}),
            pa.field(
                "s",
                pa.struct([pa.field("x", pa.int32(), metadata={"PARQUET:field_id": "3"})]),
                metadata={"PARQUET:field_id": "2"},
            ),
        ]
    ),
)
REQUIRED = pa.table(
    [
        [1, 2],
        ["a", "b"],
        [{"x": 1, "y": None}, {"x": 2, "y": [1]}],
        [[("k", 1)], []],
    ],
    schema=pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("t", pa.string(), nullable=False),
            pa.field("s", pa.struct([pa.field("x", pa.int32(), nullable=False), ("y", pa.list_(pa.int8()))])),
            pa.field("m", pa.map_(pa.string(), pa.field("value", pa.int16(), nullable=False)), nullable=False),
        ]
    ),
)
#: kinds with types, an encoding or a codec that ``NOT`` has one by one
_ONE_BY_ONE = {"all types", "all types, plain", "decimals as integers", "data pages of version 2"}
_ONE_BY_ONE |= {"halves with NaN", "byte stream split", "brotli"}
SAME: dict[str, Writing] = {
    **{kind: write for kind, write in KEPT.items() if kind not in _ONE_BY_ONE},
    "types that Spark has": plainly(ALL_BUT),
    "types that Spark has, as Spark writes decimals": plainly(ALL_BUT, store_decimal_as_integer=True),
    "types that Spark has, in data pages of version 2": plainly(ALL_BUT, data_page_version="2.0"),
    "required columns": plainly(REQUIRED),
    "field ids": plainly(WITH_IDS),
    "instants in milliseconds": plainly(INSTANTS),
    "local timestamps in microseconds": plainly(pa.table({"at": pa.array([0, None, -1], pa.timestamp("us"))})),
    "a required list": plainly(LISTS),
    "a list of two levels": with_schema(
        LISTS, restructured({"l", "element"}, ["l", "array"], repeated="array", annotated=True)
    ),
    "a list of Hive": with_schema(
        LISTS, restructured({"l", "list", "element"}, ["l", "bag", "array"], repeated="bag", annotated=True)
    ),
    "a repeated field outside of a list": with_schema(
        LISTS, restructured({"element"}, ["l"], repeated="l", annotated=False)
    ),
    "LZ4 of many values": plainly(
        pa.table({"w": [f"word {n * 7919 % 100_003}" for n in range(40_000)]}), compression="lz4"
    ),
}
#: for each kind what writes it, the reason, and the type of column ``n`` in a table of files that Spark can't describe
NOT: dict[str, tuple[Writing, str, str | None]] = {
    **{kind: (write, why, "long") for kind, (write, why) in REFUSED.items()},
    "unsigned integers": (plainly(pa.table({"n": pa.array([1, 2**31], pa.uint32())})), "Int.*, which Spark", None),
    "times of day": (plainly(pa.table({"n": pa.array([1], pa.time64("us"))})), "Time.*, which Spark", "long"),
    "times of day in milliseconds": (plainly(pa.table({"n": pa.array([1], pa.time32("ms"))})), "Time.*, which", "long"),
    "halves": (plainly(HALVES.rename_columns(["n"])), "Float16, which Spark does not read", "float"),
    "nanoseconds": (plainly(pa.table({"n": pa.array([1], pa.timestamp("ns"))})), "nanoseconds.*, which Spark", "long"),
    "INT96": (
        plainly(pa.table({"n": pa.array([1], pa.timestamp("ns"))}), use_deprecated_int96_timestamps=True),
        "INT96 timestamps of another writer",
        None,
    ),
    "local timestamps in milliseconds": (
        plainly(pa.table({"n": pa.array([1], pa.timestamp("ms"))})),
        "which Spark would write in microseconds",
        None,
    ),
    "instants in milliseconds and microseconds": (
        plainly(INSTANTS.append_column("us", pa.array([1, 2, None], pa.timestamp("us", "UTC")))),
        "has timestamps as TIMESTAMP_MICROS and TIMESTAMP_MILLIS, and Spark writes all in one way",
        None,
    ),
    "bytes of fixed length": (
        plainly(ALL_TYPES.select(["fixed"])),
        r"column fixed is fixed\(3\) in .* and binary",
        None,
    ),
    "UUIDs": (
        plainly(pa.table({"n": pa.array([bytes(16)], pa.uuid())})),
        "column n is uuid in .* and binary",
        "binary",
    ),
    "intervals": (
        with_schema(pa.table({"n": pa.array([bytes(12)], pa.binary(12))}), annotated(_INTERVAL, _FIXED)),
        "column n is unknown in .* and binary",
        "binary",
    ),
    "JSON": (with_schema(pa.table({"n": ["{}"]}), annotated(_JSON)), "column n is json in .* and string", None),
    "BSON": (with_schema(pa.table({"n": [b"{}"]}), annotated(_BSON)), "column n is bson in .* and binary", None),
    "enumerations": (
        with_schema(pa.table({"n": ["A", "B"]}), annotated(_ENUM)),
        "column n is a Enum, which Spark would write as a string",
        None,
    ),
    "nulls without a type": (plainly(pa.table({"n": pa.nulls(3)})), "column n is (null|unknown) in .* and", "long"),
    "decimals in bytes of any length": (
        with_schema(
            pa.table({"n": [b"\x01", b"\x02"]}),
            annotated(_DECIMAL, _BYTE_ARRAY, scale=2, precision=4),
            use_dictionary=False,
        ),
        "in bytes of any length, which Spark's vectorized reader does not read",
        None,
    ),
    "byte stream split": (KEPT["byte stream split"], "is encoded as BYTE_STREAM_SPLIT, which Spark's", None),
    "Brotli": (KEPT["brotli"], "is compressed as brotli, which Spark does not support without further libraries", None),
    "the LZ4 of Hadoop": (
        with_schema(NUMBERS, compressed_as(5), compression="lz4"),
        "is compressed as the LZ4 of Hadoop, which Spark does not support without further libraries",
        None,
    ),
    "chunks that end too early": (
        with_schema(NUMBERS.select(["n"]), cut_short, compression="none", use_dictionary=False),
        "Spark can't read .*: ",
        None,
    ),
    "a page that differs from its checksum": (with_broken_page, r"can't read .*CRC checksum verification failed", None),
}


@pytest.fixture
def run(spark: Any, tmp_path: Path) -> Callable[..., str]:
    """Writes a file, and has the engine rewrite two copies by the table's schema; the outcome."""
    readers = {"pyarrow": by_pyarrow_without_part_names, "DuckDB": by_duckdb, "Spark": by_spark(spark)}

    def of(write: Writing, column: str | None = None) -> str:
        path = tmp_path / "old.parquet"
        write(path)
        fields = [{"name": "n", "type": column, "nullable": True, "metadata": {}}]
        schema = schema_by_spark(spark)(str(path)) or json.dumps({"type": "struct", "fields": fields})
        return outcome(SparkEngine(lambda: spark), str(path), readers, schema)

    return of


@pytest.mark.parametrize("kind", SAME)
def test_the_engine_spark_keeps_rows_and_types(run: Callable[..., str], kind: str):
    assert run(SAME[kind]) == "same: pyarrow, DuckDB, Spark"


@pytest.mark.parametrize("kind", NOT)
def test_the_engine_spark_gives_the_reason_against_a_file_that_it_would_change(run: Callable[..., str], kind: str):
    write, why, column = NOT[kind]
    said = run(write, column)
    assert said.startswith("refused: ")
    assert re.search(why, said), said


def left_out_by(error: str, *inputs: str) -> tuple[str, ...]:
    """The inputs of a group that are left alone because of Spark's ``error``."""
    task = RewriteTask(group=7, inputs=inputs, outputs=("new",), bytes=1)
    try:
        _raise_for_undecodable(task, error)
    except Conflict as conflict:
        (left_out,) = conflict.args[1]
        assert left_out.group == 7
        return left_out.quarantine
    return ()


def spark_error(named: str, frame: str = "org.apache.parquet.bytes.SingleBufferInputStream.slice") -> str:
    """As Spark reports an error in a file; ``frame`` threw it."""
    return f"""org.apache.spark.SparkException: Job aborted due to stage failure
Caused by: org.apache.spark.SparkException: Encountered error while reading file {named}. Details:
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.cannotReadFilesError(QueryExecutionErrors.scala:864)
Caused by: java.io.EOFException: Unexpected EOF
\tat {frame}(Reader.java:151)
\tat org.apache.hadoop.fs.FSDataInputStream.read(FSDataInputStream.java:97)
\tat org.apache.parquet.hadoop.ParquetFileReader.readNextRowGroup(ParquetFileReader.java:1)
\tat java.base/java.lang.Thread.run(Thread.java:829)"""


@pytest.mark.parametrize(
    "frame",
    [
        "org.apache.hadoop.hdfs.DFSInputStream.read",
        "org.apache.hadoop.fs.s3a.S3AInputStream.read",
        "org.apache.hadoop.fs.azurebfs.services.AbfsInputStream.read",
        "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFSInputStream.read",
        "software.amazon.awssdk.http.Reader.read",
        "java.base/java.net.SocketInputStream.read",
    ],
)
def test_an_error_of_a_connection_leaves_no_file_alone(frame: str):
    """The data node of HDFS that ends a connection causes the same exception as pages that are too short."""
    assert left_out_by(spark_error("hdfs://n/t/x.parquet", frame), "hdfs://n/t/x.parquet", "hdfs://n/t/y") == ()


@pytest.mark.parametrize(
    ("named", "path"),
    [
        ("hdfs://n/t/x.parquet", "hdfs://n/t/x.parquet"),
        ("file:///t/x.parquet", "/t/x.parquet"),
        ("file:/t/a%20b.parquet", "/t/a b.parquet"),
        ("file:///t/dt=a%253Ab/x.parquet", "/t/dt=a%3Ab/x.parquet"),
        ("file:///t/dt=a%3Ab/x.parquet", "/t/dt=a%3Ab/x.parquet"),
        ("s3a://amazon-java.net.de/amazon_orders/x.parquet", "s3://amazon-java.net.de/amazon_orders/x.parquet"),
    ],
)
def test_an_error_in_the_content_of_a_file_leaves_the_file_alone(named: str, path: str):
    assert left_out_by(spark_error(named), "/t/other.parquet", path) == (path,)


def test_an_error_leaves_only_the_file_alone_that_it_names():
    inputs = ("/t/1.parquet", "/t/11.parquet", "/t/a=1/11.parquet", "/t/a b", "/t/a%20b")
    for path in inputs[:3]:
        assert left_out_by(spark_error(f"file://{path}"), *inputs) == (path,)
    assert left_out_by(spark_error("file:///t/a%20b"), *inputs) == ()  # it names one of two


def test_the_exception_of_an_earlier_stack_trace_is_not_that_of_the_named_file():
    earlier = "Caused by: java.io.EOFException: x\n\tat org.apache.hadoop.hdfs.DFSInputStream.read(A.java:1)\n"
    other = spark_error("file:///t/x").replace("java.io.EOFException", "java.lang.IllegalStateException")
    assert left_out_by(earlier + other, "/t/x") == ()
    assert left_out_by(earlier + spark_error("file:///t/x"), "/t/x") == ("/t/x",)
