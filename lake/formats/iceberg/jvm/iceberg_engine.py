# SPDX-License-Identifier: Apache-2.0
"""Rewrites data files by Iceberg's own reader and writer in Spark, one job for each group.

Iceberg's reader leaves deleted rows out, and in format version 3 its writer keeps the lineage of rows. Iceberg's
``rewrite_data_files`` works in the same way (``SparkBinPackFileRewriteRunner``): the tasks of exactly the wanted files
are staged under a name, and Spark reads from this name. The writer returns the new files under the same name and does
not commit them.

The writer chooses the names of files itself. All new files of an attempt are in one directory, so they can be found
after a crash: Spark sees the table as of ``prepare``, but with another ``write.data.path``.
"""

import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

from lake.errors import Conflict, Transient
from lake.formats.iceberg.catalog.tables import LoadedTable, data_location
from lake.formats.iceberg.jvm.errors import translated_errors
from lake.formats.iceberg.jvm.java_table import JavaTable
from lake.formats.iceberg.read.live_files import DataFile
from lake.plan import OutputFile, Plan, RewriteOptions, RewriteProgress
from lake.spark_jobs import JobCanceller, cancel_jobs, cpu_seconds
from lake.storage.locations import canonical_location

ENGINE = "iceberg"
"""The name of this way to rewrite files in the notes of a plan."""

_DATA_PATH = "write.data.path"
_LINEAR = "linear"
_MAX_CONCURRENT_GROUPS = 4
_CANCELLED = "the rewrite was cancelled"
#: how many splits become one file; with more splits, the sizes of files are more similar
_SPLITS_PER_FILE = 4
_UNLIMITED_BYTES = 1 << 50


def staging_directory(table: LoadedTable, token: str) -> str:
    """Return the directory of the new files of the attempt ``token``, as the table's metadata names files."""
    return f"{data_location(table)}/lakefold-{token}"


def unsortable_reason(table: LoadedTable, options: RewriteOptions) -> str | None:
    """Return why Spark can't sort rows as ``options`` say; None if it can."""
    if not options.sort_columns:
        return None
    if options.layout != _LINEAR:
        return (
            f"layout = {options.layout} is not available for files that only Iceberg's own writer can rewrite, such as "
            f"files with equality deletes; set layout to {_LINEAR}, or unset sort_columns"
        )
    known = {one.name.lower() for one in table.metadata.schema().fields}
    if missing := [one for one in options.sort_columns if one.lower() not in known]:
        return f"sort_columns has {missing[0]}, which the table lacks; set sort_columns"
    return None


@dataclass(frozen=True, slots=True)
class _Group:
    """A group: its index, its tasks as Iceberg planned them, and the bytes that they read, deletes included."""

    index: int
    tasks: Any
    bytes: int


class StagedRewrite:
    """The rewrite of some groups of one attempt, on the table as ``prepare`` saw it."""

    def __init__(self, java_table: JavaTable, table: LoadedTable, token: str, *, sort_order: int) -> None:
        self._java, self._token, self._sort_order = java_table, token, sort_order
        self.directory = staging_directory(table, token)
        self._name = table.ref.name
        iceberg = java_table.iceberg
        with translated_errors(self._name, "opening the table as it was read"):
            io = java_table.table.io()
            metadata = iceberg.TableMetadataParser.read(io, table.metadata_location)
            properties = java_table.jvm.java.util.HashMap(metadata.properties())
            properties.put(_DATA_PATH, self.directory)
            metadata = metadata.replaceProperties(properties)
            locations = iceberg.LocationProviders.locationsFor(metadata.location(), properties)
            operations = iceberg.StaticTableOperations(metadata, io, locations)
            self._table = iceberg.BaseTable(operations, java_table.table.name())
        self._groups: list[_Group] = []

    def plan(self, snapshot_id: int, groups: Mapping[int, Sequence[DataFile]]) -> None:
        """Let Iceberg plan the tasks of ``groups``, with the delete files of each.

        Raises Conflict if Iceberg does not find a file in the snapshot.
        """
        wanted = {file.location: index for index, files in groups.items() for file in files}
        found: dict[int, dict[str, Any]] = {index: {} for index in groups}
        with translated_errors(self._name, "planning the tasks of the inputs"):
            scan = self._table.newScan().useSnapshot(snapshot_id).ignoreResiduals()
            tasks = scan.planFiles()
            try:
                iterator, left = tasks.iterator(), len(wanted)
                while left and iterator.hasNext():
                    task = iterator.next()
                    location = str(task.file().location())
                    if location in wanted and location not in found[wanted[location]]:
                        found[wanted[location]][location] = task
                        left -= 1
            finally:
                tasks.close()
        for index, files in groups.items():
            if lost := [file.path for file in files if file.location not in found[index]]:
                raise Conflict(f"{self._name}: Iceberg does not find {lost[0]} in snapshot {snapshot_id}")
            staged = self._java.jvm.java.util.ArrayList()
            for file in files:
                staged.add(found[index][file.location])
            size = sum(int(found[index][file.location].sizeBytes()) for file in files)
            self._groups.append(_Group(index, staged, size))

    def write(
        self, plan: Plan, report: Callable[[RewriteProgress], None], cancelled: threading.Event
    ) -> tuple[OutputFile, ...]:
        """Write the new files of all groups. The payload of each returned file is Iceberg's ``DataFile``.

        Raises Transient if a job fails, or once ``cancelled``.
        """
        context = self._java.spark.sparkContext
        tag = f"lakefold-iceberg-{self._token}"
        outputs: list[OutputFile] = []
        total, done = sum(group.bytes for group in self._groups), 0
        with ThreadPoolExecutor(_MAX_CONCURRENT_GROUPS, tag) as pool, JobCanceller(context, tag, cancelled):
            futures = {pool.submit(self._write_group, group, plan, tag, cancelled): group for group in self._groups}
            try:
                for future in as_completed(futures):
                    outputs += future.result()
                    done += futures[future].bytes
                    report(RewriteProgress(bytes_done=done, bytes_total=total, spark_ui=context.uiWebUrl))
            finally:
                for future in futures:
                    future.cancel()
                cancel_jobs(context, tag)
        if cancelled.is_set():
            raise Transient(_CANCELLED)
        report(
            RewriteProgress(
                bytes_done=total,
                bytes_total=total,
                rows_done=sum(output.rows for output in outputs),
                spark_ui=context.uiWebUrl,
                cpu_seconds=cpu_seconds(context, tag),
            )
        )
        self._remove_failed_attempts({output.path for output in outputs})
        return tuple(sorted(outputs, key=lambda output: output.path))

    def _write_group(self, group: _Group, plan: Plan, tag: str, cancelled: threading.Event) -> list[OutputFile]:
        if cancelled.is_set():
            raise Transient(_CANCELLED)
        spark, iceberg, key = self._java.spark, self._java.iceberg, f"{self._token}-{group.index}"
        options, planned = plan.options, plan.groups[group.index]
        # py4j does not see the static method, which has the name of another method.
        tables = _call_static(spark, "org.apache.iceberg.spark.SparkTableCache", "get")
        tasks, coordinator = iceberg.spark.ScanTaskSetManager.get(), iceberg.spark.FileRewriteCoordinator.get()
        files = planned.output_files
        splits = files if options.sort_columns or files == 1 else _SPLITS_PER_FILE * files
        split = _UNLIMITED_BYTES if splits == 1 else -(-group.bytes // splits)
        # Iceberg's data source finds its catalogs in the settings of the thread's session.
        self._java.jvm.org.apache.spark.sql.SparkSession.setActiveSession(spark._jsparkSession)
        spark.sparkContext.addJobTag(tag)
        try:
            with translated_errors(self._name, "rewriting"):
                tables.add(key, self._table)
                tasks.stageTasks(self._table, key, group.tasks)
                reader = spark.read.format("iceberg").option("scan-task-set-id", key).option("file-open-cost", "0")
                frame = reader.option("split-size", str(split)).load(key)
                if options.sort_columns:
                    columns = [f"`{name.replace('`', '``')}`" for name in options.sort_columns]
                    frame = frame.repartitionByRange(files, *columns).sortWithinPartitions(*columns)
                elif files > 1:
                    frame = frame.coalesce(files)
                writer = (
                    frame.write.format("iceberg")
                    .option("rewritten-file-scan-task-set-id", key)
                    .option("write-format", "parquet")
                    # Each partition of rows becomes one file, so that there are not more files than planned.
                    .option("target-file-size-bytes", str(_UNLIMITED_BYTES))
                    .option("output-spec-id", str(self._table.spec().specId()))
                    .option("distribution-mode", "none")
                    .option("use-table-distribution-and-ordering", "false")
                )
                if options.compression is not None:
                    writer = writer.option("compression-codec", options.compression)
                writer.mode("append").save(key)
                return [self._output(planned.partition, file) for file in coordinator.fetchNewFiles(self._table, key)]
        finally:
            spark.sparkContext.removeJobTag(tag)
            tables.remove(key)
            tasks.removeTasks(self._table, key)
            coordinator.clearRewrite(self._table, key)

    def _output(self, partition: str, file: Any) -> OutputFile:
        if self._sort_order:
            iceberg, order = self._java.iceberg, self._table.sortOrders().get(self._sort_order)
            file = iceberg.DataFiles.builder(self._table.spec()).copy(file).withSortOrder(order).build()
        return OutputFile(
            partition=partition,
            path=canonical_location(str(file.location())),
            bytes=int(file.fileSizeInBytes()),
            rows=int(file.recordCount()),
            payload=file,
        )

    def _remove_failed_attempts(self, kept: Collection[str]) -> None:
        """Remove the files of failed attempts at a task, which no commit names."""
        for parent, _, names in os.walk(canonical_location(self.directory)):
            for name in names:
                # Hadoop's local file system keeps a checksum file beside each file.
                data_name = name.removeprefix(".").removesuffix(".crc") if name.startswith(".") else name
                if os.path.join(parent, data_name) not in kept:
                    try:
                        os.remove(os.path.join(parent, name))
                    except FileNotFoundError:
                        continue
                    except OSError as error:
                        raise Transient(f"{self._name}: {error.filename}: {error.strerror}") from error


def _call_static(spark: Any, class_name: str, method: str) -> Any:
    from py4j.java_gateway import JavaMember

    return JavaMember(method, None, f"z:{class_name}", spark.sparkContext._gateway._gateway_client)()
