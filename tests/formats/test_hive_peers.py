# SPDX-License-Identifier: Apache-2.0
"""Hive tables with every type that Spark writes there, compacted: other readers find what they found before."""

from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from contract.attempts import run
from contract.plans import plan_all
from hive_case import HiveCase
from hive_metastore import MetastoreServer
from pyarrow import orc
from toys.engine import StitchAny

from executors.engines import create_engines
from executors.engines.backends import InProcessBackend
from lake.formats.hive import FORMAT
from lake.model import TableRef

#: columns by type, each with the expression for its value
VALUES = {
    "b BOOLEAN": "id % 2 = 0",
    "i8 TINYINT": "CAST(id AS TINYINT)",
    "i16 SMALLINT": "CAST(-id AS SMALLINT)",
    "i32 INT": "CAST(id * 1000 AS INT)",
    "i64 BIGINT": "id * 10000000000",
    "f32 FLOAT": "CAST(id / 3 AS FLOAT)",
    "f64 DOUBLE": "CASE id WHEN 1 THEN double('NaN') WHEN 2 THEN double('-Infinity') ELSE id / 3D END",
    "d9 DECIMAL(9,2)": "CAST(id / 4 AS DECIMAL(9,2))",
    "d18 DECIMAL(18,4)": "CAST(-id / 8 AS DECIMAL(18,4))",
    "d38 DECIMAL(38,10)": "CAST(id AS DECIMAL(38,10)) * 1000000000000000",
    "s STRING": "concat('ä\\n', id)",
    "v VARCHAR(9)": "concat('v', id)",
    "c CHAR(4)": "concat('c', id % 10)",
    "x BINARY": "CAST(concat('\\\\x00', id) AS BINARY)",
    "d DATE": "date_add(DATE'1899-12-31', CAST(id * 1000 AS INT))",
    "t TIMESTAMP": "timestamp_micros(id * 100000000000001 - 1000000000000000)",
    "a ARRAY<INT>": "IF(id % 3 = 0, array(), array(CAST(id AS INT), NULL))",
    "m MAP<STRING, DECIMAL(9,2)>": "map('k', CAST(id AS DECIMAL(9,2)), 'n', NULL)",
    "n STRUCT<Inner: STRUCT<x: BIGINT, y: STRING>, l: ARRAY<STRUCT<z: TIMESTAMP>>>": (
        "named_struct('Inner', IF(id % 4 = 0, NULL, named_struct('x', id, 'y', 'y')), 'l', "
        "array(named_struct('z', timestamp_seconds(id))))"
    ),
}
#: of no Hive's, so in tables of Spark's only
OF_SPARK = {"tn TIMESTAMP_NTZ": "CAST(timestamp_seconds(id) AS TIMESTAMP_NTZ)"}


def made(name: str, how: str) -> tuple[str, ...]:
    """Statements that make a table of six files with nulls in every column but that of its number."""
    by_spark = how.startswith("USING")
    values = VALUES | (OF_SPARK if by_spark else {})
    columns = ", ".join(values)
    nullable = ", ".join(f"IF(id % 7 = {number % 7}, NULL, {value})" for number, value in enumerate(values.values()))
    return (
        f"CREATE TABLE peers.{name} (Id BIGINT, {columns}, dt STRING) {how} PARTITIONED BY (dt)"
        if by_spark
        else f"CREATE TABLE peers.{name} (Id BIGINT, {columns}) PARTITIONED BY (dt STRING) {how}",
        f"INSERT INTO peers.{name} SELECT /*+ REPARTITION(3) */ id, {nullable}, concat('d', id % 2) FROM range(0, 60)",
    )


@pytest.fixture(scope="module")
def peers(metastore: MetastoreServer) -> MetastoreServer:
    metastore.spark(
        "CREATE DATABASE peers",
        "SET hive.exec.dynamic.partition.mode=nonstrict",
        *made("of_hive", "STORED AS PARQUET"),
        *made("stitched", "STORED AS PARQUET"),
        *made("striped", "STORED AS ORC"),
        *made("striped_by_spark", "USING orc"),
        "SET spark.sql.parquet.outputTimestampType=TIMESTAMP_MICROS",
        *made("of_spark", "USING parquet"),
        "SET spark.sql.parquet.outputTimestampType=TIMESTAMP_MILLIS",
        "SET spark.sql.parquet.writeLegacyFormat=true",
        *made("of_old", "USING parquet"),
    )
    return metastore


def files(table: TableRef) -> list[str]:
    rows = FORMAT.snapshot(table).slices.to_pylist()
    return [str(Path(table.location) / row["path"]) for row in rows]


def rows(paths: list[str]) -> Counter[str]:
    if paths[0].endswith(".orc"):
        return Counter(repr(row) for path in paths for row in orc.ORCFile(path).read().to_pylist())
    with duckdb.connect() as connection:
        found = connection.sql(f"SELECT * FROM read_parquet({paths}, hive_partitioning = false)")
        return Counter(map(repr, found.to_arrow_table().to_pylist()))


def says(path: str) -> Any:
    """What a file says of its columns and of itself."""
    if path.endswith(".orc"):
        file = orc.ORCFile(path)
        return file.schema, file.compression
    metadata = pq.read_metadata(path)
    columns = [metadata.schema.column(index) for index in range(metadata.num_columns)]
    kinds = [(one.path, one.physical_type, one.logical_type.to_json(), one.converted_type) for one in columns]
    ids = [field.metadata for field in metadata.schema.to_arrow_schema()]
    codecs = [metadata.row_group(0).column(index).compression for index in range(metadata.num_columns)]
    return kinds, ids, codecs, metadata.metadata


@pytest.mark.spark
@pytest.mark.parametrize("name", ["of_hive", "of_spark", "of_old", "striped", "striped_by_spark", "stitched"])
def test_other_readers_find_the_same_rows_and_files_with_the_same_metadata(
    spark: Any, peers: MetastoreServer, name: str
):
    table = next(FORMAT.discover_in_metastore(peers.uri, "peers", name))
    before = files(table)
    expected, said = rows(before), says(before[0])
    assert (len(before), expected.total()) == (6, 60)
    stitch = StitchAny(InProcessBackend(1))
    engines = (stitch,) if name == "stitched" else create_engines(lambda: spark)
    commit = run(HiveCase(uri=peers.uri, engines=engines), plan_all(FORMAT, table, name))
    assert commit.skipped == ()
    after = files(table)
    assert len(after) == 2
    assert rows(after) == expected
    assert [says(path) for path in after] == [said, said]
