# SPDX-License-Identifier: Apache-2.0
"""The Hudi bundle of a Spark session: its release, its capabilities, and the calls that differ between releases.

A release line inherits the behaviour of the next newer line and overrides the differences. Every symbol that lakefold
calls is checked once per JVM, since py4j reports a missing method only when it is called, perhaps inside a commit.
"""

import re
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

from lake.errors import Rejected
from lake.formats.hudi.inputs.plan_engine import COPY_STRATEGY
from lake.formats.hudi.jvm.class_cache import cached_jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HUDI = "org.apache.hudi."
_SET_PACKAGES_REMEDY = 'set "spark.jars.packages" in section [spark] to org.apache.hudi:hudi-spark3.5-bundle_2.12:'
_COMMON: Mapping[str, tuple[str, ...]] = {
    "client.SparkRDDWriteClient": (
        "cluster",
        "compact",
        "purgePendingClustering",
        "clean",
        "createNewInstantTime",
        "getTableServiceClient",
        "preWrite",
        "close",
    ),
    "client.BaseHoodieTableServiceClient": ("commitCompaction", "preCommit"),
    "client.clustering.run.strategy.SparkSortAndSizeExecutionStrategy": (),
    "client.clustering.run.strategy.MultipleSparkJobExecutionStrategy": ("readRecordsForGroupAsRow",),
    "client.common.HoodieSparkEngineContext": (),
    "client.transaction.ConflictResolutionStrategy": ("isPreCommitRequired",),
    "config.HoodieWriteConfig": ("newBuilder",),
    "common.config.HoodieMetadataConfig": ("newBuilder",),
    "common.table.HoodieTableMetaClient": ("builder", "reloadActiveTimeline", "getInstantGenerator", "getBasePath"),
    "common.table.timeline.HoodieActiveTimeline": (
        "saveToPendingClusterCommit",
        "saveToCompactionRequested",
        "saveToCleanRequested",
        "deletePending",
    ),
    "common.table.timeline.InstantGenerator": (
        "getClusteringCommitRequestedInstant",
        "getClusteringCommitInflightInstant",
        "getReplaceCommitRequestedInstant",
        "getReplaceCommitInflightInstant",
        "getCompactionRequestedInstant",
        "getCompactionInflightInstant",
        "getCleanRequestedInstant",
    ),
    "common.table.timeline.TimelineMetadataUtils": ("deserializeAvroMetadata",),
    "common.table.view.FileSystemViewManager": ("createInMemoryFileSystemView",),
    "common.table.view.HoodieTableFileSystemView": ("loadPartitions", "getLatestFileSlices", "close"),
    "storage.HoodieStorage": ("listDirectEntries", "getPathInfo"),
    "common.util.ClusteringUtils": ("createClusteringPlan",),
    "common.util.Option": ("of", "empty"),
    "common.model.HoodieCommitMetadata": ("addMetadata",),
    "common.model.HoodieReplaceCommitMetadata": ("setPartitionToReplaceFileIds", "setOperationType"),
    "avro.model.HoodieRequestedReplaceMetadata": ("getSchema",),
    "avro.model.HoodieCleanerPlan": ("getSchema",),
    "avro.model.HoodieClusteringGroup": ("getSchema",),
    "avro.model.HoodieCompactionPlan": ("getSchema",),
    "hadoop.fs.HadoopFSUtils": ("getStorageConfWithCopy",),
    "table.action.clean.CleanActionExecutor": ("runPendingClean",),
    "table.HoodieSparkTable": ("create", "rollback", "rollbackInflightClustering", "rollbackInflightCompaction"),
}
_SINCE_1_1: Mapping[str, tuple[str, ...]] = {
    COPY_STRATEGY: (),
    "client.SparkRDDTableServiceClient": ("triggerWritesAndFetchWriteStats",),
    "client.BaseHoodieTableServiceClient": ("commitClustering",),
    "client.BaseHoodieClient": ("getTransactionManager",),
    "client.TableWriteStats": ("getDataTableWriteStats",),
    "client.WriteStatus": ("setStat", "setFileId", "setPartitionPath", "setTotalRecords", "setTotalErrorRecords"),
    "client.transaction.TransactionManager": ("beginStateChange", "endStateChange"),
}
#: symbols for reading inputs in column batches
_BATCHES: Mapping[str, tuple[str, ...]] = {
    "client.clustering.run.strategy.SparkSortAndSizeExecutionStrategy": ("performClusteringWithRecordsAsRow",),
    "common.table.TableSchemaResolver": ("getTableInternalSchemaFromCommitMetadata",),
    "data.HoodieJavaRDD": ("getJavaRDD",),
    "index.HoodieIndex": ("updateLocation",),
}
#: symbols for beginning a plan before its inputs are sorted
_SORTED: Mapping[str, tuple[str, ...]] = {
    "avro.model.HoodieClusteringStrategy": ("setStrategyParams",),
    "client.SparkRDDTableServiceClient": ("convertToOutputMetadata",),
    "client.clustering.run.strategy.SparkSortAndSizeExecutionStrategy": ("performClustering",),
    "common.util.ClusteringUtils": ("getClusteringPlan",),
    "table.action.cluster.SparkExecuteClusteringCommitActionExecutor": (),
    "table.action.commit.BaseCommitActionExecutor": ("executeClustering",),
}
#: symbols for the commit of files that an engine has written
_FILES_OF_ENGINES: Mapping[str, tuple[str, ...]] = {
    "config.HoodieWriteConfig": (
        "populateMetaFields",
        "shouldDropPartitionColumns",
        "getBloomFilterType",
        "getBloomFilterNumEntries",
        "getBloomFilterFPP",
        "getDynamicBloomFilterMaxNumEntries",
        "getParquetCompressionCodec",
    ),
    "common.model.HoodieWriteStat": (
        "setPath",
        "setFileId",
        "setPartitionPath",
        "setPrevCommit",
        "setNumWrites",
        "setNumInserts",
        "setNumDeletes",
        "setTotalWriteBytes",
        "setFileSizeInBytes",
        "setTotalWriteErrors",
        "setRuntimeStats",
    ),
    "common.table.TableSchemaResolver": ("getTableInternalSchemaFromCommitMetadata",),
}
_AVRO_SCHEMA: Mapping[str, tuple[str, ...]] = {
    "common.table.TableSchemaResolver": ("getTableAvroSchema",),
    "AvroConversionUtils": ("convertAvroSchemaToStructType",),
}


class Bundle:
    """The calls of the 1.2 line on one JVM."""

    line: ClassVar[str] = "1.2"
    release: ClassVar[str] = "1.2.0"
    #: table versions that the line reads and writes without an upgrade
    table_versions: ClassVar[tuple[int, ...]] = (6, 8, 9)
    #: whether the line has a clustering that copies row groups as bytes
    can_copy_row_groups: ClassVar[bool] = True
    #: whether a clustering's inputs can be read in column batches instead of by Hudi; tested on the 1.2 line only
    can_read_batches: ClassVar[bool] = True
    #: whether a clustering can be begun without being written, so that it can commit files of lakefold's engines
    can_begin_without_writing: ClassVar[bool] = True
    #: whether a plan with sort columns can be begun before its inputs are read and sorted; tested on the 1.2 line only
    can_begin_before_sorting: ClassVar[bool] = True
    #: whether plans of other processes and the table's own services can be run in the steps that lakefold needs
    can_run_foreign_plans: ClassVar[bool] = True
    #: whether the line knows the record index that looks up a key in one partition
    has_partitioned_record_index: ClassVar[bool] = True
    #: Java classes below ``org.apache.hudi.`` and their methods, public or not, that differ between lines
    symbols: ClassVar[tuple[Mapping[str, tuple[str, ...]], ...]] = (
        _SINCE_1_1,
        _BATCHES,
        _FILES_OF_ENGINES,
        _SORTED,
        {
            "common.table.TableSchemaResolver": ("getTableSchema",),
            "HoodieSchemaConversionUtils": ("convertHoodieSchemaToStructType",),
        },
    )

    def __init__(self, spark: "SparkSession", version: str) -> None:
        self.spark = spark
        self.jvm: Any = cached_jvm(spark)
        self.version = version
        #: methods found by ``call_private``, by class, name and number of arguments
        self._methods: dict[tuple[str, str, int], Any] = {}

    @property
    def can_commit_files_of_engines(self) -> bool:
        """True if commits of files of lakefold's engines were tested with this bundle."""
        return self.can_begin_without_writing and self.version == self.release

    def check_table_version(self, table: str, version: int) -> None:
        """Raise Rejected if this bundle can't serve tables of ``version``."""
        if version in self.table_versions:
            return
        able = [line for line in RELEASE_LINES if version in line.table_versions]
        if not able:
            known = ", ".join(map(str, Bundle.table_versions))
            supported = f"table version {version} is not supported, only {known}"
            raise Rejected(f"{table}: {supported}; upgrade it with its writer")
        raise Rejected(
            f"{table}: table version {version} needs Hudi bundle {able[-1].line} or newer, this session has "
            f"{self.version}; {_SET_PACKAGES_REMEDY}{able[0].release}"
        )

    def require_foreign_plans(self, table: str, doing: str) -> None:
        """Raise Rejected if this bundle can't do ``doing`` for plans of other processes."""
        if not self.can_run_foreign_plans:
            raise Rejected(
                f"{table}: {doing} needs Hudi bundle {Bundle11.line} or newer, this session has {self.version}; "
                f"{_SET_PACKAGES_REMEDY}{Bundle.release}"
            )

    def require_partitioned_record_index(self, table: str) -> None:
        """Raise Rejected if this bundle can't update a record index by partition, which ``table`` has."""
        if not self.has_partitioned_record_index:
            raise Rejected(
                f"{table}: its record index (hoodie.metadata.record.level.index.enable) needs Hudi bundle "
                f"{Bundle11.line} or newer, this session has {self.version}; {_SET_PACKAGES_REMEDY}{Bundle.release}"
            )

    def table_schema(self, meta: Any, *, meta_columns: bool) -> Any:
        """Return the schema of a table's rows; its ``toString()`` is Avro JSON."""
        return self.jvm.org.apache.hudi.common.table.TableSchemaResolver(meta).getTableSchema(meta_columns)

    def spark_schema(self, schema: Any) -> Any:
        """Convert a result of ``table_schema`` to a Spark type, a Java object."""
        return self.jvm.org.apache.hudi.HoodieSchemaConversionUtils.convertHoodieSchemaToStructType(schema)

    def acquire_lock(self, client: Any, owner: Any, no_owner: Any) -> None:
        """Take the table's lock named by a write client's settings, for the instant in the Option ``owner``."""
        self._transaction_manager(client).beginStateChange(owner, no_owner)

    def release_lock(self, client: Any, owner: Any) -> None:
        """Release the table's lock."""
        self._transaction_manager(client).endStateChange(owner)

    def release_lock_file(self, client: Any, owner: Any) -> None:
        """Release the table's lock, which is a lock file, and delete the file once.

        ``release_lock`` deletes the file twice, see ``LockManager.unlock()``: the second time without a check of whose
        file it is. In between, a writer may have taken the lock.
        """
        manager, nothing = self._transaction_manager(client), self.jvm.org.apache.hudi.common.util.Option.empty()
        if self.call_private(manager, "reset", owner, nothing, nothing):
            lock_manager = self.private_field(manager, "lockManager")
            lock_manager.getLockProvider().close()
            # Otherwise the lock manager would close the same provider again, with another deletion.
            self._find_private_field(lock_manager, "lockProvider").set(lock_manager, None)

    def lock_provider(self, client: Any) -> Any:
        """Return Hudi's provider of the lock that ``acquire_lock`` took: a separate object for each acquisition."""
        return self.private_field(self._transaction_manager(client), "lockManager").getLockProvider()

    def _transaction_manager(self, client: Any) -> Any:
        return client.getTableServiceClient().getTransactionManager()

    def resolve_conflicts(self, client: Any, metadata: Any) -> None:
        """Make Hudi compare a clustering's commit metadata with commits made meanwhile, under the table's lock."""
        self.call_private(client.getTableServiceClient(), "preCommit", metadata, True)

    def run_write(self, client: Any, write_metadata: Any) -> list[Any]:
        """Run a lazy clustering exactly once. Its statistics replace the job in its ``write_metadata``.

        Otherwise the commit would evaluate the job again and rely on Hudi's cache; after the loss of an executor it
        would write all files a second time.
        """
        service = client.getTableServiceClient()
        stats = list(
            self.call_private(service, "triggerWritesAndFetchWriteStats", write_metadata).getDataTableWriteStats()
        )
        statuses = self.jvm.java.util.ArrayList()
        for stat in stats:
            status = self.jvm.org.apache.hudi.client.WriteStatus(False, 0.0)
            status.setFileId(stat.getFileId())
            status.setPartitionPath(stat.getPartitionPath())
            status.setStat(stat)
            status.setTotalRecords(stat.getNumWrites())
            status.setTotalErrorRecords(stat.getTotalWriteErrors())
            statuses.add(status)
        write_metadata.setWriteStatuses(self.spark.sparkContext._jsc.parallelize(statuses, 1))
        return stats

    def begin_unsorted(self, client: Any, context: Any, config: Any, instant: str) -> Any:
        """Make a requested clustering inflight as if it had no sort columns, so that nothing is read in this call.

        Returns Hudi's write of the plan as a job that must be replaced: its rows would not be sorted.
        """
        hudi = self.jvm.org.apache.hudi
        table = hudi.table.HoodieSparkTable.create(config, context)
        client.preWrite(instant, hudi.common.model.WriteOperationType.CLUSTER, table.getMetaClient())
        executor = hudi.table.action.cluster.SparkExecuteClusteringCommitActionExecutor(context, config, table, instant)
        plan = self.private_field(executor, "clusteringPlan")
        plan.getStrategy().setStrategyParams(self.jvm.java.util.HashMap())
        begun = self.call_private(executor, "executeClustering", plan)
        return self.call_private(client.getTableServiceClient(), "convertToOutputMetadata", begun)

    def commit_clustering(self, client: Any, write_metadata: Any, table: Any, instant: str) -> None:
        """Commit a clustering whose statistics were collected."""
        self.call_private(client.getTableServiceClient(), "commitClustering", write_metadata, table, instant)

    def prepare_commit(self, client: Any) -> None:
        """Look up the methods that ``commit_clustering`` calls, so that only the commit itself remains."""
        self._find_private_method(client.getTableServiceClient(), "commitClustering", 3)

    def begin_compaction(self, client: Any, instant: str) -> Any:
        """Make a requested compaction inflight. Returns Hudi's write of the plan as a job that has not run yet."""
        return client.compact(instant, False)

    def commit_compaction(self, client: Any, write_metadata: Any, table: Any, instant: str) -> None:
        """Commit a compaction whose statistics were collected."""
        present = self.jvm.org.apache.hudi.common.util.Option.of(table)
        client.getTableServiceClient().commitCompaction(instant, write_metadata, present)

    def roll_back_rewrite(self, service: Any, method: Any, inflight: Any, pending_rollback: Any) -> None:
        """Call ``method``, a table's rollback of an inflight rewrite, for a table service client ``service``."""
        method(inflight, pending_rollback, service.getTransactionManager())

    def run_clean(self, context: Any, config: Any, table: Any, requested: Any) -> None:
        """Run the clean plan of the Java instant ``requested`` and no other pending clean."""
        executor = self.jvm.org.apache.hudi.table.action.clean.CleanActionExecutor(
            context, config, table, requested.requestedTime()
        )
        self.call_private(executor, "runPendingClean", table, requested)

    def requested_clustering(self, meta: Any, instant: str) -> Any:
        """Return the Java instant of a requested clustering; in layout 1 it is always a replacecommit."""
        generator = meta.getInstantGenerator()
        if meta.getTimelineLayoutVersion().getVersion() == 1:
            return generator.getReplaceCommitRequestedInstant(instant)
        return generator.getClusteringCommitRequestedInstant(instant)

    def inflight_clustering(self, meta: Any, instant: str) -> Any:
        """Return the Java instant of an inflight clustering; in layout 1 it is always a replacecommit."""
        generator = meta.getInstantGenerator()
        if meta.getTimelineLayoutVersion().getVersion() == 1:
            return generator.getReplaceCommitInflightInstant(instant)
        return generator.getClusteringCommitInflightInstant(instant)

    def array(self, java_class: Any, items: list[Any]) -> Any:
        """Return a Java array."""
        array = self.spark.sparkContext._gateway.new_array(java_class, len(items))
        for position, item in enumerate(items):
            array[position] = item
        return array

    def call_private(self, target: Any, method: str, *arguments: Any) -> Any:
        """Call a private or protected method of ``target`` by its name and number of arguments."""
        found = self._find_private_method(target, method, len(arguments))
        return found.invoke(target, self.array(self.jvm.java.lang.Object, list(arguments)))

    def _find_private_method(self, target: Any, method: str, count: int) -> Any:
        """Return the method. The search queries the JVM for each method of the class, so results are cached."""
        java_class = target.getClass()
        key = str(java_class.getName()), method, count
        while key not in self._methods and java_class is not None:
            for candidate in java_class.getDeclaredMethods():
                # Erased generics leave bridge methods beside the real methods; a bridge method would recurse.
                if (
                    candidate.getName() == method
                    and candidate.getParameterCount() == count
                    and not candidate.isBridge()
                ):
                    candidate.setAccessible(True)
                    self._methods[key] = candidate
                    break
            java_class = java_class.getSuperclass()
        if key not in self._methods:
            raise Rejected(f"Hudi bundle {self.version} has no {method} with {count} arguments")
        return self._methods[key]

    def private_field(self, target: Any, name: str) -> Any:
        """Return the value of a private or protected field of ``target``."""
        return self._find_private_field(target, name).get(target)

    def _find_private_field(self, target: Any, name: str) -> Any:
        java_class = target.getClass()
        while java_class is not None:
            for candidate in java_class.getDeclaredFields():
                if candidate.getName() == name:
                    candidate.setAccessible(True)
                    return candidate
            java_class = java_class.getSuperclass()
        raise Rejected(f"Hudi bundle {self.version} has no field {name} in {target.getClass().getName()}")


class Bundle11(Bundle):
    """The calls of the 1.1 line."""

    line = "1.1"
    release = "1.1.1"
    can_read_batches = False
    can_begin_before_sorting = False
    symbols: ClassVar[tuple[Mapping[str, tuple[str, ...]], ...]] = (_SINCE_1_1, _FILES_OF_ENGINES, _AVRO_SCHEMA)

    def table_schema(self, meta: Any, *, meta_columns: bool) -> Any:
        return self.jvm.org.apache.hudi.common.table.TableSchemaResolver(meta).getTableAvroSchema(meta_columns)

    def spark_schema(self, schema: Any) -> Any:
        return self.jvm.org.apache.hudi.AvroConversionUtils.convertAvroSchemaToStructType(schema)

    def resolve_conflicts(self, client: Any, metadata: Any) -> None:
        self.call_private(client.getTableServiceClient(), "preCommit", metadata)


class Bundle10(Bundle11):
    """The calls of the 1.0 line.

    Hudi 1.0 does not support table version 9. It writes a clustering in the call that begins the clustering, so
    lakefold would have to hold the table's lock to the end of a plan of another process. It plans a clean only by
    scheduling the clean on the timeline.
    """

    line = "1.0"
    release = "1.0.2"
    table_versions = (6, 8)
    can_copy_row_groups = False
    can_begin_without_writing = False
    can_run_foreign_plans = False
    has_partitioned_record_index = False
    symbols = (
        _AVRO_SCHEMA,
        {
            "client.BaseHoodieTableServiceClient": ("completeClustering",),
            "client.transaction.TransactionManager": ("beginTransaction", "endTransaction"),
        },
    )

    def acquire_lock(self, client: Any, owner: Any, no_owner: Any) -> None:
        self._transaction_manager(client).beginTransaction(owner, no_owner)

    def release_lock(self, client: Any, owner: Any) -> None:
        self._transaction_manager(client).endTransaction(owner)

    def _transaction_manager(self, client: Any) -> Any:
        """Return the client's own manager, from which Hudi's conflict resolution gets the lock's owner."""
        return self.private_field(client.getTableServiceClient(), "txnManager")

    def run_write(self, client: Any, write_metadata: Any) -> list[Any]:
        return list(write_metadata.getCommitMetadata().get().getWriteStats())

    def commit_clustering(self, client: Any, write_metadata: Any, table: Any, instant: str) -> None:
        metadata = write_metadata.getCommitMetadata().get()
        self.call_private(client.getTableServiceClient(), "completeClustering", metadata, table, instant)

    def prepare_commit(self, client: Any) -> None:
        self._find_private_method(client.getTableServiceClient(), "completeClustering", 3)

    def begin_compaction(self, client: Any, instant: str) -> Any:
        return self.call_private(client, "compact", instant, False)

    def commit_compaction(self, client: Any, write_metadata: Any, table: Any, instant: str) -> None:
        empty = self.jvm.org.apache.hudi.common.util.Option.empty()
        client.getTableServiceClient().commitCompaction(instant, write_metadata.getCommitMetadata().get(), empty)

    def roll_back_rewrite(self, service: Any, method: Any, inflight: Any, pending_rollback: Any) -> None:
        method(inflight, pending_rollback)


RELEASE_LINES: tuple[type[Bundle], ...] = (Bundle, Bundle11, Bundle10)
"""The release lines that lakefold supports, newest first."""

_bundles_by_gateway: "WeakKeyDictionary[Any, tuple[type[Bundle], str]]" = WeakKeyDictionary()
_cache_lock = threading.Lock()


def bundle_of(spark: "SparkSession") -> Bundle:
    """Return the bundle of this session's JVM, which is detected once.

    Raises Rejected if there is no bundle, if its release line is unknown, or if it lacks a symbol that lakefold calls.
    """
    gateway = spark.sparkContext._gateway
    with _cache_lock:
        if gateway not in _bundles_by_gateway:
            _bundles_by_gateway[gateway] = _detect_bundle(cached_jvm(spark))
        line, version = _bundles_by_gateway[gateway]
    return line(spark, version)


def _detect_bundle(jvm: Any) -> tuple[type[Bundle], str]:
    from py4j.java_gateway import JavaClass, get_java_class

    entry = jvm.org.apache.hudi.common.table.HoodieTableMetaClient
    if not isinstance(entry, JavaClass):
        raise Rejected(f"this Spark session has no Hudi bundle; {_SET_PACKAGES_REMEDY}{Bundle.release}")
    version = str(get_java_class(entry).getPackage().getImplementationVersion() or "of unknown version")
    for line in RELEASE_LINES:
        if version.startswith(f"{line.line}."):
            require_symbols(jvm, _COMMON, *line.symbols)
            return line, version
    known = ", ".join(line.release for line in RELEASE_LINES)
    raise Rejected(
        f"Hudi bundle {version} is not known, only {known} and their patch releases; "
        f"{_SET_PACKAGES_REMEDY}{Bundle.release}"
    )


def require_symbols(jvm: Any, *symbols: Mapping[str, tuple[str, ...]]) -> None:
    """Raise Rejected naming every class and method of ``symbols`` that this Hudi bundle lacks."""
    from py4j.java_gateway import JavaClass, get_java_class

    wanted: dict[str, list[str]] = {}
    for group in symbols:
        for name, methods in group.items():
            wanted.setdefault(name, []).extend(methods)
    missing = []
    for name, wanted_methods in wanted.items():
        found = _java_class(jvm, name)
        if not isinstance(found, JavaClass):
            missing.append(name)
            continue
        if not wanted_methods:
            continue
        declared = get_java_class(found)
        # One call for all methods: hasattr() on a Java object is always true, and a call per method costs seconds.
        arrays = jvm.org.apache.commons.lang3.ArrayUtils
        text = arrays.toString(declared.getMethods()) + arrays.toString(declared.getDeclaredMethods())
        have = set(re.findall(r"\.(\w+)\(", text))
        missing += [f"{name}.{method}" for method in wanted_methods if method not in have]
    if missing:
        raise Rejected(
            f"this Hudi bundle lacks classes that lakefold calls ({', '.join(missing)}); "
            f"{_SET_PACKAGES_REMEDY}{Bundle.release}"
        )


def _java_class(jvm: Any, name: str) -> Any:
    found = jvm
    for part in (_HUDI + name).split("."):
        found = getattr(found, part)
    return found
