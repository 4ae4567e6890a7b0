# SPDX-License-Identifier: Apache-2.0
"""The tools that write and read Hive tables, what a move does to each, and the signs that they leave.

Where a sign is from, and what was not taken for one, says ``docs/formats.md``.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lake.model import words_of


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool. ``consequence`` and ``remedy`` are as in ``lake.optional.LikelyWriter``."""

    name: str
    consequence: str | None = None
    remedy: str = ""


_BY_PATH = (
    "It knows no metastore and goes by path. What it writes where a partition was is read late, or halts the "
    "partition. What it reads there is old, and is deleted after the retention."
)
_INSERT = "Have it load through Spark or Hive (INSERT, LOAD DATA), or leave access unset."
_CACHING = "it reads and writes on where a partition was"
_TRINO = (
    "It asks the metastore in each query. But with hive.metastore-cache-ttl above 0 " + _CACHING + " until that has "
    "passed."
)
_NO_CACHE = "Set hive.metastore-cache-ttl to 0s, or far below the retention, or leave access unset."

SPARK = Tool("Spark")
HIVE = Tool("Hive")
FLINK_BATCH = Tool("Flink in batch mode")
FLINK = Tool(
    "Flink",
    "A streaming sink writes below the table's directory, wherever a partition is, and points a partition back there "
    "when it commits it. Until the sweep has moved it again, readers miss the rows that came after the first move.",
    "Leave access unset while a streaming job writes the table.",
)
IMPALA = Tool(
    "Impala",
    f"Its catalog caches places and lists of files. Until it has heard of a move, {_CACHING}.",
    "Have catalogd poll the metastore's events (hms_event_polling_interval_s above 0), or leave access unset.",
)
TRINO = Tool("Trino", _TRINO, _NO_CACHE)
PRESTO = Tool("Presto", _TRINO, _NO_CACHE)
ARROW = Tool("pyarrow, pandas or another program on Arrow C++", _BY_PATH, _INSERT)
DUCKDB = Tool("DuckDB", _BY_PATH, _INSERT)
POLARS = Tool("Polars", _BY_PATH, _INSERT)
FASTPARQUET = Tool("fastparquet", _BY_PATH, _INSERT)
RUST = Tool("a program on parquet-rs", _BY_PATH, _INSERT)
KAFKA_CONNECT = Tool(
    "Kafka Connect",
    "It writes below its own topics.dir, wherever a partition is. What it writes where one was is read late.",
    "Leave access unset for tables that it writes.",
)
AVRO = Tool(
    "a program that writes Avro records as Parquet, such as Kafka Connect or a MapReduce job", _BY_PATH, _INSERT
)
MAPREDUCE = Tool(
    "a MapReduce job, such as Sqoop's",
    "With --target-dir it goes by path: what it writes where a partition was is read late, or halts the partition. "
    "What --hive-import loads is where it belongs.",
    "Have it load by --hive-import, --hcatalog-table or LOAD DATA, or leave access unset.",
)
DATAX = Tool("DataX", _BY_PATH, _INSERT)
PUT = Tool("hdfs dfs -put", _BY_PATH, "Put files elsewhere and have LOAD DATA INPATH bring them in.")
MARKER = Tool(
    "a job that was given a path (Spark's df.write.parquet, MapReduce)",
    "It writes where a partition was, and readers look there no more. Its rows are read late, and in mode overwrite it "
    "takes the partition back.",
    "Have it write by the table's name (insertInto, INSERT), or leave access unset.",
)
OTHER = Tool(
    "another program",
    "No engine that is known to ask the metastore leaves such footers. It likely goes by path: what it writes where a "
    "partition was is read late, or halts the partition.",
    _INSERT,
)

Sign = tuple[Tool, str]
"""A tool, and what was seen of it."""

#: properties of tables and partitions by how they begin: whose they are
_PROPERTIES: Mapping[str, Tool] = {
    "spark.sql.create.version": SPARK,
    "spark.sql.sources.": SPARK,
    "spark.sql.partitionProvider": SPARK,
    "spark.sql.statistics.": SPARK,
    "sink.partition-commit.": FLINK,
    "sink.rolling-policy.": FLINK,
    "sink.shuffle-by-partition.": FLINK,
    "streaming-source.": FLINK,
    "partition.time-extractor.": FLINK,
    "flink.": FLINK,
    "connector": FLINK,
    "is_generic": FLINK,
    "impala.": IMPALA,
    "impala_intermediate_stats_": IMPALA,
    "trino_": TRINO,
    "presto_": PRESTO,
    "last_modified_by": HIVE,
}
#: those of which the value tells something; others may hold a password, or a schema
_TELLING = frozenset(
    {"spark.sql.create.version", "sink.partition-commit.policy.kind", "connector", "trino_version", "presto_version"}
)
_UUID = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
#: names of files, as RE2 reads them
_NAMES: Mapping[str, Tool] = {
    rf"(compacted-)?part-{_UUID}(-\d+){{1,2}}(\.\w+)*": FLINK,
    rf"part-{_UUID}-(cp-\d+-)?task-\d+-file-\d+(\.\w+)*": FLINK_BATCH,
    r"\d{6}_\d+(_copy_\d+)?(\.\w+)*": HIVE,
    r"[0-9a-f]{15,16}-[0-9a-f]{15,16}_\d+_data\.\d+\.\w+": IMPALA,
    r"part-[mr]-\d{5}(_copy_\d+)?(\.\w+)*": MAPREDUCE,
    rf".+__{_UUID.replace('-[', '_[')}(\.\w+)*": DATAX,
    r"[^/]+\+\d+\+\d+\+\d+\.\w+": KAFKA_CONNECT,
    r".+\._COPYING_": PUT,
}
_SPARK_VERSION = "org.apache.spark.version"
_SPARK_ROWS = "org.apache.spark.sql.parquet.row.metadata"
#: by how ``created_by`` begins, in lower case; longer ones first
_CREATED_BY: Mapping[str, Tool] = {
    "parquet-mr-trino": TRINO,
    "trino version": TRINO,
    "impala version": IMPALA,
    "parquet-cpp-arrow": ARROW,
    "parquet-cpp version": ARROW,
    "duckdb": DUCKDB,
    "polars": POLARS,
    "fastparquet": FASTPARQUET,
    "parquet-rs": RUST,
}
#: of what parquet-java writes, by the name of the schema
_SCHEMAS: Mapping[str, Tool] = {"spark_schema": SPARK, "hive_schema": HIVE, "flink_schema": FLINK}
_ORC_WRITERS: Mapping[str, Tool] = {"TRINO": TRINO, "PRESTO": PRESTO, "ORC_CPP": ARROW}


def of_properties(properties: Mapping[str, str], partition: str = "") -> Iterator[Sign]:
    """The signs in the properties of a table, or of the ``partition`` of this name: one for each tool."""
    whose = f"property of {words_of(partition)}" if partition else "table property"
    seen: set[str] = set()
    # Those with a value come first: they tell most.
    for name in sorted(properties, key=lambda one: (one not in _TELLING, one)):
        tool = next((tool for begin, tool in _PROPERTIES.items() if _is_of(name, begin)), None)
        if tool is None or tool.name in seen:
            continue
        seen.add(tool.name)
        yield tool, f"{whose} {name}" + (f" = {_short(properties[name])}" if name in _TELLING else "")


def _is_of(name: str, begin: str) -> bool:
    return name.startswith(begin) if begin.endswith((".", "_")) else name == begin


def of_names(paths: pa.ChunkedArray) -> Iterator[Sign]:
    """The signs in the names of files, given by their paths: how many have a name as a tool gives it, and which."""
    for pattern, tool in _NAMES.items():
        named = paths.filter(pc.match_substring_regex(paths, f"(^|/){pattern}$"))
        if count := len(named):
            example = named[0].as_py().rpartition("/")[2]
            yield tool, f"{count:,} of {len(paths):,} files have its names, such as {_short(example)}"


def of_parquet(created_by: str, schema: str, keys: Collection[str]) -> Sign:
    """The sign in a footer of Parquet: who says to have written it, the schema's name, the keys of its metadata."""
    said = f"created_by = {_short(created_by) or 'nothing'}"
    if _SPARK_VERSION in keys or _SPARK_ROWS in keys:
        return SPARK, _SPARK_VERSION
    for begin, tool in _CREATED_BY.items():
        if created_by.lower().startswith(begin):
            return tool, said + (", with the key pandas" if "pandas" in keys else "")
    if schema in _SCHEMAS:
        return _SCHEMAS[schema], f"schema {schema}"
    if {"parquet.avro.schema", "avro.schema"} & set(keys):
        return AVRO, f"{said}, with a schema of Avro"
    return OTHER, f"{said}, schema {_short(schema)}"


def of_orc(writer: str, keys: Collection[str]) -> Sign | None:
    """The sign in a footer of ORC; None where it tells nothing: Hive, Flink and MapReduce share a writer."""
    if _SPARK_VERSION in keys:
        return SPARK, _SPARK_VERSION
    if writer == "ORC_JAVA":
        return None
    return _ORC_WRITERS.get(writer, OTHER), f"writer {_short(writer)}"


def schema_name(schema: str) -> str:
    """The name of a Parquet schema as pyarrow prints it; '' where it prints none."""
    found = re.search(r"^(?:required|optional|repeated) group (?:field_id=-?\d+ )?(\S+)", schema, re.MULTILINE)
    return found[1] if found else ""


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:59]}…"
