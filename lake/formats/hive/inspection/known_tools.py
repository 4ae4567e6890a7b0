# SPDX-License-Identifier: Apache-2.0
"""The tools that write and read Hive tables, the consequence of a relocation for each, and the signs that they leave.

``docs/hive.md`` lists tools and signs.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lake.model import partition_label


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool. ``consequence`` and ``remedy`` are as in ``lake.capabilities.LikelyWriter``."""

    name: str
    consequence: str | None = None
    remedy: str = ""


_PATH_CONSEQUENCE = (
    "It uses paths, not the metastore. Files that it writes in a partition's previous location are read late, or halt "
    "the partition. Files that it reads there are old, and are deleted after the retention."
)
_INSERT_REMEDY = "Have it load through Spark or Hive (INSERT, LOAD DATA), or leave access unset."
_CACHE_CONSEQUENCE = "it reads and writes in previous locations of partitions"
_TRINO_CONSEQUENCE = (
    f"It reads the metastore in each query. But with hive.metastore-cache-ttl above 0 {_CACHE_CONSEQUENCE} until that "
    "time has passed."
)
_TRINO_REMEDY = "Set hive.metastore-cache-ttl to 0s, or far below the retention, or leave access unset."

SPARK = Tool("Spark")
HIVE = Tool("Hive")
FLINK_BATCH = Tool("Flink in batch mode")
FLINK = Tool(
    "Flink",
    "A streaming sink writes below the table's directory, wherever a partition is, and points a partition back there "
    "when it commits it. Until the sweep has relocated it again, readers miss the rows written after the first move.",
    "Leave access unset while a streaming job writes the table.",
)
IMPALA = Tool(
    "Impala",
    f"Its catalog caches locations and lists of files. Until it is notified of a move, {_CACHE_CONSEQUENCE}.",
    "Have catalogd poll the metastore's events (hms_event_polling_interval_s above 0), or leave access unset.",
)
TRINO = Tool("Trino", _TRINO_CONSEQUENCE, _TRINO_REMEDY)
PRESTO = Tool("Presto", _TRINO_CONSEQUENCE, _TRINO_REMEDY)
ARROW = Tool("pyarrow, pandas or another program on Arrow C++", _PATH_CONSEQUENCE, _INSERT_REMEDY)
DUCKDB = Tool("DuckDB", _PATH_CONSEQUENCE, _INSERT_REMEDY)
POLARS = Tool("Polars", _PATH_CONSEQUENCE, _INSERT_REMEDY)
FASTPARQUET = Tool("fastparquet", _PATH_CONSEQUENCE, _INSERT_REMEDY)
PARQUET_RS = Tool("a program on parquet-rs", _PATH_CONSEQUENCE, _INSERT_REMEDY)
KAFKA_CONNECT = Tool(
    "Kafka Connect",
    "It writes below its own topics.dir, wherever a partition is. Files in a previous location are read late.",
    "Leave access unset for tables that it writes.",
)
AVRO_PARQUET = Tool(
    "a program that writes Avro records as Parquet, such as Kafka Connect or a MapReduce job",
    _PATH_CONSEQUENCE,
    _INSERT_REMEDY,
)
MAPREDUCE = Tool(
    "a MapReduce job, such as Sqoop's",
    "With --target-dir it uses paths: files that it writes in a partition's previous location are read late, or halt "
    "the partition. With --hive-import its files are in the right location.",
    "Have it load by --hive-import, --hcatalog-table or LOAD DATA, or leave access unset.",
)
DATAX = Tool("DataX", _PATH_CONSEQUENCE, _INSERT_REMEDY)
HDFS_PUT = Tool("hdfs dfs -put", _PATH_CONSEQUENCE, "Put files elsewhere and have LOAD DATA INPATH bring them in.")
PATH_JOB = Tool(
    "a job that was given a path (Spark's df.write.parquet, MapReduce)",
    "It writes in a partition's previous location, from which readers no longer read. Its rows are read late, and in "
    "mode overwrite it moves the partition back there.",
    "Have it write by the table's name (insertInto, INSERT), or leave access unset.",
)
UNKNOWN_TOOL = Tool(
    "another program",
    "No engine that uses the metastore is known to leave such footers. It likely uses paths: files that it writes in a "
    "partition's previous location are read late, or halt the partition.",
    _INSERT_REMEDY,
)

ToolMatch = tuple[Tool, str]
"""A tool, and the sign of it that was found."""

#: the tools that set properties of tables and partitions, by the beginning of the property's name
_TOOLS_BY_PROPERTY: Mapping[str, Tool] = {
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
#: the properties whose values are shown; others may hold a password, or a schema
_PROPERTIES_WITH_VALUE = frozenset(
    {"spark.sql.create.version", "sink.partition-commit.policy.kind", "connector", "trino_version", "presto_version"}
)
_UUID = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
#: the tools by the names of their files, as patterns of RE2
_TOOLS_BY_FILE_NAME: Mapping[str, Tool] = {
    rf"(compacted-)?part-{_UUID}(-\d+){{1,2}}(\.\w+)*": FLINK,
    rf"part-{_UUID}-(cp-\d+-)?task-\d+-file-\d+(\.\w+)*": FLINK_BATCH,
    r"\d{6}_\d+(_copy_\d+)?(\.\w+)*": HIVE,
    r"[0-9a-f]{15,16}-[0-9a-f]{15,16}_\d+_data\.\d+\.\w+": IMPALA,
    r"part-[mr]-\d{5}(_copy_\d+)?(\.\w+)*": MAPREDUCE,
    rf".+__{_UUID.replace('-[', '_[')}(\.\w+)*": DATAX,
    r"[^/]+\+\d+\+\d+\+\d+\.\w+": KAFKA_CONNECT,
    r".+\._COPYING_": HDFS_PUT,
}
_SPARK_VERSION_KEY = "org.apache.spark.version"
_SPARK_SCHEMA_KEY = "org.apache.spark.sql.parquet.row.metadata"
#: the tools by the beginning of ``created_by``, in lower case; longer beginnings first
_TOOLS_BY_CREATED_BY: Mapping[str, Tool] = {
    "parquet-mr-trino": TRINO,
    "trino version": TRINO,
    "impala version": IMPALA,
    "parquet-cpp-arrow": ARROW,
    "parquet-cpp version": ARROW,
    "duckdb": DUCKDB,
    "polars": POLARS,
    "fastparquet": FASTPARQUET,
    "parquet-rs": PARQUET_RS,
}
#: the tools that write with parquet-java, by the name of the schema
_TOOLS_BY_SCHEMA: Mapping[str, Tool] = {"spark_schema": SPARK, "hive_schema": HIVE, "flink_schema": FLINK}
_TOOLS_BY_ORC_WRITER: Mapping[str, Tool] = {"TRINO": TRINO, "PRESTO": PRESTO, "ORC_CPP": ARROW}


def match_properties(properties: Mapping[str, str], partition: str = "") -> Iterator[ToolMatch]:
    """Yield one match for each tool that has set properties of a table, or of the ``partition`` of this name."""
    owner = f"property of {partition_label(partition)}" if partition else "table property"
    seen: set[str] = set()
    # Properties whose values are shown come first: they are the clearest evidence.
    for name in sorted(properties, key=lambda one: (one not in _PROPERTIES_WITH_VALUE, one)):
        tool = next((tool for begin, tool in _TOOLS_BY_PROPERTY.items() if _is_key_of(name, begin)), None)
        if tool is None or tool.name in seen:
            continue
        seen.add(tool.name)
        yield tool, f"{owner} {name}" + (f" = {_shortened(properties[name])}" if name in _PROPERTIES_WITH_VALUE else "")


def _is_key_of(name: str, key: str) -> bool:
    return name.startswith(key) if key.endswith((".", "_")) else name == key


def match_file_names(paths: pa.ChunkedArray) -> Iterator[ToolMatch]:
    """Yield a match for each tool with files of its naming: how many, and an example."""
    for pattern, tool in _TOOLS_BY_FILE_NAME.items():
        named = paths.filter(pc.match_substring_regex(paths, f"(^|/){pattern}$"))
        if count := len(named):
            example = named[0].as_py().rpartition("/")[2]
            yield tool, f"{count:,} of {len(paths):,} files have its names, such as {_shortened(example)}"


def match_parquet_footer(created_by: str, schema: str, keys: Collection[str]) -> ToolMatch:
    """Return the tool that a Parquet footer shows, by ``created_by``, the schema's name and the metadata's keys."""
    evidence = f"created_by = {_shortened(created_by) or 'nothing'}"
    if _SPARK_VERSION_KEY in keys or _SPARK_SCHEMA_KEY in keys:
        return SPARK, _SPARK_VERSION_KEY
    for begin, tool in _TOOLS_BY_CREATED_BY.items():
        if created_by.lower().startswith(begin):
            return tool, evidence + (", with the key pandas" if "pandas" in keys else "")
    if schema in _TOOLS_BY_SCHEMA:
        return _TOOLS_BY_SCHEMA[schema], f"schema {schema}"
    if {"parquet.avro.schema", "avro.schema"} & set(keys):
        return AVRO_PARQUET, f"{evidence}, with a schema of Avro"
    return UNKNOWN_TOOL, f"{evidence}, schema {_shortened(schema)}"


def match_orc_footer(writer: str, keys: Collection[str]) -> ToolMatch | None:
    """Return the tool that an ORC footer shows. None if it shows none: Hive, Flink and MapReduce share a writer."""
    if _SPARK_VERSION_KEY in keys:
        return SPARK, _SPARK_VERSION_KEY
    if writer == "ORC_JAVA":
        return None
    return _TOOLS_BY_ORC_WRITER.get(writer, UNKNOWN_TOOL), f"writer {_shortened(writer)}"


def schema_name(printed_schema: str) -> str:
    """Return the name of a Parquet schema as pyarrow prints it. '' if it prints none."""
    found = re.search(r"^(?:required|optional|repeated) group (?:field_id=-?\d+ )?(\S+)", printed_schema, re.MULTILINE)
    return found[1] if found else ""


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:59]}…"
