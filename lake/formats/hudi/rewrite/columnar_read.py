# SPDX-License-Identifier: Apache-2.0
"""Reads the inputs of a clustering in column batches; Hudi's row writer still writes all output.

Hudi reads every file group row by row, which takes a third of a rewrite's time. Spark's vectorised reader decodes the
same files a column at a time. It has no knowledge of Hudi, so it gets only inputs that Hudi's own reader would merely
decode: base files without logs whose schema is exactly the table's current schema. Rows come in the order of the plan,
as from Hudi's reader.
"""

import logging
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from lake.formats.hudi.jvm.errors import is_unanswered
from lake.formats.hudi.rewrite.input_schema import find_schema_difference, find_schema_obstacle
from lake.plan import ClusteringGroup

if TYPE_CHECKING:
    from lake.formats.hudi.client.client import HudiClient

log = logging.getLogger(__name__)


def write_from_batches(client: "HudiClient", instant: str, groups: Sequence[ClusteringGroup]) -> Any:
    """Return Hudi's write of ``groups`` as a job that has not run yet and reads its inputs in batches.

    Returns None if Hudi has to read the inputs itself.
    """
    from py4j.protocol import Py4JError

    obstacle = _obstacle_in_plan(client, groups)
    if obstacle is None:
        paths = [slice_.path or "" for group in groups for slice_ in group.slices]
        try:
            obstacle = _obstacle_in_files(client, paths)
            if obstacle is None:
                return _BatchWriteJob(client).write_statuses(instant, groups)
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
        return "the plan sorts their rows"
    if any(s.path is None or s.log_files for group in groups for s in group.slices):
        return "logs have to be merged"
    return find_schema_obstacle(client)


def _obstacle_in_files(client: "HudiClient", paths: Sequence[str]) -> str | None:
    footers, (first, *others) = client.input_footers, paths
    if missing := [path for path in paths if path not in footers]:
        return f"{missing[0]} has no readable footer"
    for path in others:
        if footers[path].schema != footers[first].schema:
            return f"{path} has another schema than {first}"
    return find_schema_difference(client, first)


class _BatchWriteJob:
    """Builds the write of one plan: an RDD of the files' rows in the plan's order, passed to Hudi's row writer."""

    def __init__(self, client: "HudiClient") -> None:
        self._client = client
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
        """Return one partition per file, or one per output of a file to split.

        Hudi joins neighbours into as many tasks as output files. A row group belongs to the range with its middle.
        """
        jvm = self._jvm
        no_values = jvm.org.apache.spark.sql.catalyst.InternalRow.empty()
        no_hosts = self._client.bundle.array(jvm.java.lang.String, [])
        found: list[Any] = []
        ranges = group.output_files if group.is_split else 1
        for slice_ in group.slices:
            # Row groups beyond this length would be skipped, so this is the length in storage, not the one in the plan.
            footer = self._client.input_footers[slice_.path or ""]
            size = footer.file_bytes
            path = jvm.org.apache.spark.paths.SparkPath.fromPathString(f"{self._client.base}/{slice_.path}")
            data_bytes = footer.data_bytes  # row groups come first in a file
            ends = [*(data_bytes * part // ranges for part in range(ranges)), size]
            for start, end in pairwise(ends):
                file = self._sources.PartitionedFile(
                    no_values, path, start, end - start, no_hosts, 0, size, self._empty_map
                )
                files = self._client.bundle.array(self._sources.PartitionedFile, [file])
                found.append(self._sources.FilePartition(len(found), files))
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
