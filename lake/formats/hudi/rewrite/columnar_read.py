# SPDX-License-Identifier: Apache-2.0
"""Reads the inputs of a clustering in column batches; Hudi's row writer still writes all output.

Hudi reads every file group row by row, which takes a third of a rewrite's time. Spark's vectorised reader decodes the
same files a column at a time. It has no knowledge of Hudi, so it gets only inputs that Hudi's own reader would merely
decode: base files without logs whose schema is exactly the table's current schema. Rows come in the order of the plan,
as from Hudi's reader.
"""

import json
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lake.formats.hudi.inputs.footers import InputFooter, read_footers
from lake.formats.hudi.jvm.errors import is_unanswered
from lake.plan import ClusteringGroup

if TYPE_CHECKING:
    from lake.formats.hudi.client.client import HudiClient

log = logging.getLogger(__name__)

#: the leading columns, at the positions that Hudi's row writer expects
_META_COLUMNS = [
    "_hoodie_commit_time",
    "_hoodie_commit_seqno",
    "_hoodie_record_key",
    "_hoodie_partition_path",
    "_hoodie_file_name",
]


def write_from_batches(client: "HudiClient", instant: str, groups: Sequence[ClusteringGroup]) -> Any:
    """Return Hudi's write of ``groups`` as a job that has not run yet and reads its inputs in batches.

    Returns None if Hudi has to read the inputs itself.
    """
    from py4j.protocol import Py4JError

    obstacle = _obstacle_in_plan(client, groups)
    if obstacle is None:
        paths = [slice_.path or "" for group in groups for slice_ in group.slices]
        footers = {footer.path: footer for footer in read_footers(client.storage, paths)}
        try:
            obstacle = _obstacle_in_files(client, paths, footers)
            if obstacle is None:
                return _BatchWriteJob(client, footers).write_statuses(instant, groups)
        except Py4JError as error:
            if is_unanswered(error):
                raise
            # A vendor's build may have changed Spark's internals. Nothing is written yet.
            obstacle = f"Spark's internals differ in this build ({' '.join(str(error).split())[:300]})"
    log.info("%s: inputs are not read in batches: %s", client.table.name, obstacle)
    return None


def _obstacle_in_plan(client: "HudiClient", groups: Sequence[ClusteringGroup]) -> str | None:
    if not client.bundle.can_read_batches:
        return f"reading in batches was not tested with Hudi bundle {client.bundle.version}"
    if client.plan is not None and client.plan.options.sort_columns:
        return "they are sorted"
    if any(s.path is None or s.log_files for group in groups for s in group.slices):
        return "logs have to be merged"
    resolver = client.jvm.org.apache.hudi.common.table.TableSchemaResolver(client.meta)
    if resolver.getTableInternalSchemaFromCommitMetadata().isPresent():
        return "the table's schema has a history (hoodie.schema.on.read.enable), in which columns are not found by name"
    if "timestamp-millis" in client.reader_schema.toString():
        return "Hudi corrects the units of timestamps in milliseconds"
    return None


def _obstacle_in_files(client: "HudiClient", paths: Sequence[str], footers: dict[str, InputFooter]) -> str | None:
    first, *others = paths
    if missing := [path for path in paths if path not in footers]:
        return f"{missing[0]} has no readable footer"
    for path in others:
        if footers[path].schema != footers[first].schema:
            return f"{path} has another schema than {first}"
    expected = json.loads(client.bundle.spark_schema(client.reader_schema).json())
    if [field["name"] for field in expected["fields"][: len(_META_COLUMNS)]] != _META_COLUMNS:
        return "the table has no meta columns"
    if _comparable_type(json.loads(_read_spark_schema(client, first).json())) != _comparable_type(expected):
        return f"{first} has another schema than the table"
    return None


def _comparable_type(kind: Any) -> Any:
    """Return a Spark type (as JSON) without comments and nullability, which a Parquet file does not store."""
    if isinstance(kind, list):
        return [_comparable_type(item) for item in kind]
    if not isinstance(kind, dict):
        return kind
    ignored = {"nullable", "containsNull", "valueContainsNull", "comment"}
    return {key: _comparable_type(value) for key, value in kind.items() if key not in ignored}


def _read_spark_schema(client: "HudiClient", path: str) -> Any:
    """Return the schema that Spark infers from a file."""
    jvm = client.jvm
    parquet = jvm.org.apache.parquet.hadoop
    conf = client.spark.sparkContext._jsc.hadoopConfiguration()
    file = parquet.util.HadoopInputFile.fromPath(jvm.org.apache.hadoop.fs.Path(f"{client.base}/{path}"), conf)
    reader = parquet.ParquetFileReader.open(file)
    try:
        schema = reader.getFileMetaData().getSchema()
    finally:
        reader.close()
    settings = client.context.getSqlContext().sparkSession().sessionState().conf()
    converter = jvm.org.apache.spark.sql.execution.datasources.parquet.ParquetToSparkSchemaConverter(settings)
    return converter.convert(schema)


class _BatchWriteJob:
    """Builds the write of one plan: an RDD of the files' rows in the plan's order, passed to Hudi's row writer."""

    def __init__(self, client: "HudiClient", footers: dict[str, InputFooter]) -> None:
        self._client, self._footers = client, footers
        self._jvm = client.jvm
        self._session: Any = client.context.getSqlContext().sparkSession()
        self._sources: Any = self._jvm.org.apache.spark.sql.execution.datasources
        self._schema: Any = client.bundle.spark_schema(client.reader_schema)
        self._empty_list: Any = self._scala_list([])
        self._empty_map: Any = self._scala_map({})

    def write_statuses(self, instant: str, groups: Sequence[ClusteringGroup]) -> Any:
        client, jvm = self._client, self._jvm
        hudi = jvm.org.apache.hudi
        table = hudi.table.HoodieSparkTable.create(client.write_config, client.context)
        strategy = hudi.client.clustering.run.strategy.SparkSortAndSizeExecutionStrategy(
            table, client.context, client.write_config
        )
        options = self._scala_map(
            {"returning_batch": "false", "ignoreCorruptFiles": "false", "ignoreMissingFiles": "false"}
        )
        read = self._sources.parquet.ParquetFileFormat().buildReaderWithPartitionValues(
            self._session,
            self._schema,
            jvm.org.apache.spark.sql.types.StructType(),
            self._schema,
            self._empty_list,
            options,
            self._session.sessionState().newHadoopConfWithOptions(options),
        )
        file_options = jvm.org.apache.spark.sql.catalyst.FileSourceOptions(options)
        nothing = jvm.java.util.HashMap()
        written = []
        for group in groups:
            files = self._scala_list(self._file_partitions(group))
            scan = self._sources.FileScanRDD(
                self._session, read, files, self._schema, self._empty_list, self._empty_map, file_options
            )
            statuses = strategy.performClusteringWithRecordsAsRow(
                self._session.internalCreateDataFrame(scan, self._schema, False),
                group.output_files,
                instant,
                nothing,
                client.reader_schema,
                jvm.java.util.ArrayList(),
                True,
                nothing,
            )
            located = table.getIndex().updateLocation(statuses, client.context, table, instant)
            written.append(hudi.data.HoodieJavaRDD.getJavaRDD(located))
        rdds = client.bundle.array(jvm.org.apache.spark.api.java.JavaRDD, written)
        return client.spark.sparkContext._jsc.union(rdds)

    def _file_partitions(self, group: ClusteringGroup) -> list[Any]:
        """Return one partition per file: Hudi joins neighbours into as many tasks as output files."""
        jvm = self._jvm
        no_values = jvm.org.apache.spark.sql.catalyst.InternalRow.empty()
        no_hosts = self._client.bundle.array(jvm.java.lang.String, [])
        found = []
        for number, slice_ in enumerate(group.slices):
            # Row groups beyond this length would be skipped, so it is the file's actual length, not the plan's.
            size = self._footers[slice_.path or ""].file_bytes
            path = jvm.org.apache.spark.paths.SparkPath.fromPathString(f"{self._client.base}/{slice_.path}")
            file = self._sources.PartitionedFile(no_values, path, 0, size, no_hosts, 0, size, self._empty_map)
            found.append(
                self._sources.FilePartition(number, self._client.bundle.array(self._sources.PartitionedFile, [file]))
            )
        return found

    def _scala_list(self, items: list[Any]) -> Any:
        java = self._jvm.java.util.ArrayList()
        for item in items:
            java.add(item)
        return self._jvm.org.apache.spark.api.python.PythonUtils.toSeq(java)

    def _scala_map(self, items: dict[str, str]) -> Any:
        java = self._jvm.java.util.HashMap()
        for key, value in items.items():
            java.put(key, value)
        return self._jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(java)
