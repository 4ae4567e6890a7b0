# SPDX-License-Identifier: Apache-2.0
"""Hudi's Java write client over py4j, opened for one table, with every commit under a lock.

``bundle_of`` checks once per JVM that the Java methods that lakefold calls exist.

Two Java clients serve one table. The lock client (``_lock_client``) has the table's own concurrency settings; it only
takes the lock and resolves conflicts. The write client (``write_client``) writes, commits, rolls back and cleans; it
takes no lock, since it is called inside a lock section of the lock client.

The split is a safeguard. If Hudi 1.2 fails to get the lock inside a commit or a clean, it still "releases" the lock.
With the lock-file provider this deletes the lock of another process.

Failpoint: ``begun_unrecorded`` after Hudi has begun a rewrite, before lakefold records this.
"""

import io
import json
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import fastavro

from lake.errors import Transient
from lake.failpoints import failpoint
from lake.formats.hudi.client.locks.table_lock import CONCURRENCY_MODE, TableLock, concurrency_options
from lake.formats.hudi.client.write_options import (
    COMPRESSION,
    STATISTICS_COLUMNS,
    index_options,
    java_options,
    key_options,
    plan_options,
    skew_options,
)
from lake.formats.hudi.files.storage import TableStorage, read_table_properties
from lake.formats.hudi.inputs.footers import InputFooter, read_footers
from lake.formats.hudi.inputs.plan_engine import EngineChoice, choose_engine, columns_read_as_text
from lake.formats.hudi.jvm.bundle import bundle_of
from lake.formats.hudi.jvm.class_cache import cached_jvm
from lake.formats.hudi.jvm.errors import is_begun_before, is_unanswered, translate_error
from lake.formats.hudi.jvm.time_zones import time_zones_of
from lake.formats.hudi.lock_settings.on_conflict import conflict_options
from lake.formats.hudi.pending.heartbeats import is_heartbeat_expired
from lake.formats.hudi.pending.inflight_file import InflightFile
from lake.formats.hudi.pending.late_files import record_begin, record_beginning, record_withdrawal
from lake.formats.hudi.timeline import metadata_table
from lake.formats.hudi.timeline.metadata_table import find_streaming_writer
from lake.formats.hudi.timeline.timeline import Timeline
from lake.model import Concurrency, TableRef
from lake.plan import Plan, PlanKind
from lake.ports import PreparedPlan, ProgressCallback
from lake.units import format_duration

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)
#: properties that writers may change at any time; the client adopts their new values
_MUTABLE_PROPERTIES = ("hoodie.table.metadata.partitions", "hoodie.table.checksum", "hoodie.table.index.defs.path")
#: how long a commit or a clean waits for a gap between streaming writes
STREAMING_WRITER_TIMEOUT = timedelta(seconds=60)
_STREAMING_POLL_SECONDS = 0.5
#: Hudi's setting for the sort of rows that it writes
_SORT_MODE = "hoodie.bulkinsert.sort.mode"
_CALENDARS = [f"spark.sql.parquet.{kind}RebaseModeIn" for kind in ("datetime", "int96")]


class FileWriter(Protocol):
    """Writes the base files of a clustering. Hudi publishes the plan and commits the files, but writes none."""

    def find_common_obstacle(self, client: "HudiClient") -> str | None:
        """Return why no file writer can rewrite the client's plan; None if that depends on the file writer."""

    def find_obstacle(self, client: "HudiClient") -> str | None:
        """Return why this writer can't rewrite the client's plan, which has no common obstacle; None if it can."""

    def write(
        self, client: "HudiClient", prepared: PreparedPlan, report: ProgressCallback, cancelled: threading.Event
    ) -> Any:
        """Write the files of a begun plan. Returns their statuses, as Hudi's write metadata has them."""


class HudiClient:
    """One table opened for changes. Used by one thread, unless a method says otherwise.

    ``plan`` adds the write settings for its execution, by one of ``writers`` or by Hudi. Raises Rejected if the bundle,
    the session or the table can't be used.
    """

    def __init__(
        self,
        table: TableRef,
        spark: "SparkSession",
        plan: Plan | None = None,
        writers: Mapping[str, FileWriter] = MappingProxyType({}),
    ) -> None:
        self.table = table
        #: the writers by engine: for the engines in ``inputs.plan_engine.WRITERS`` that this process has
        self.writers = writers
        self.spark = spark
        self.plan = plan
        self.storage = TableStorage(table.location)
        self.jvm: Any = cached_jvm(spark)
        #: the inflight file of the rewrite that ``begin_rewrite`` began last
        self.inflight_file: InflightFile | None = None
        #: the committed sizes of the plan's logs by path, recorded when the plan was published, or when this process
        #: began a plan that was requested earlier; None for a log that no commit names. Only tables of layout 1 have
        #: them, see ``plans.input_checks.record_log_sizes``
        self.input_log_sizes: Mapping[str, int | None] = MappingProxyType({})
        try:
            self._open()
        except Exception as error:
            raise translate_error(error, table, "opening the table") from error

    def _open(self) -> None:
        self.bundle = bundle_of(self.spark)
        self.time_zones = time_zones_of(self.spark)
        self._read_table()
        self._java_session: Any = self._new_session()._jsparkSession
        sql = self._java_session.sqlContext()
        context = self.jvm.org.apache.hudi.client.common.HoodieSparkEngineContext
        self.context: Any = context(self.spark.sparkContext._jsc, sql)
        self.schema: Any = self.bundle.table_schema(self.meta, meta_columns=False)
        #: the schema with the meta columns, if the table has them
        self.reader_schema: Any = self.bundle.table_schema(self.meta, meta_columns=True)
        fixed = self._fixed_options()
        self._lock_client = self._new_write_client(
            {**java_options(self.table), **conflict_options(self.table), **concurrency_options(self.table), **fixed}
        )
        self._lock = TableLock(self.table, self.spark, self._lock_client, self.bundle)
        self._open_write_client(fixed)

    def _read_table(self) -> None:
        """Read the table's current properties."""
        self.properties = read_table_properties(self.storage)
        hudi = self.jvm.org.apache.hudi
        conf = hudi.hadoop.fs.HadoopFSUtils.getStorageConfWithCopy(self.spark.sparkContext._jsc.hadoopConfiguration())
        builder = hudi.common.table.HoodieTableMetaClient.builder()
        self.meta: Any = builder.setConf(conf).setBasePath(self.storage.uri).build()
        config = self.meta.getTableConfig()
        self.bundle.check_table_version(self.table.name, config.getTableVersion().versionCode())
        self.base: str = self.meta.getBasePath().toString()
        # Hudi can't even withdraw a pending plan if the metadata table is enabled but missing.
        self.has_metadata_table: bool = config.isMetadataTableAvailable() and metadata_table.metadata_table_exists(
            self.storage
        )
        self.index_settings = metadata_table.read_index_settings(self.storage, self.properties)
        if self.index_settings.is_record_index_partitioned:
            self.bundle.require_partitioned_record_index(self.table.name)

    def _fixed_options(self) -> dict[str, str]:
        """Return the write options that the table's properties and the plan determine."""
        config = self.meta.getTableConfig()
        version = config.getTableVersion().versionCode()
        indexes = index_options(
            [str(name) for name in config.getMetadataPartitions()],
            self.index_settings,
            self.table.write_options.get(STATISTICS_COLUMNS, ""),
        )
        return {
            "hoodie.write.auto.upgrade": "false",
            "hoodie.write.table.version": str(version),
            "hoodie.metadata.enable": str(self.has_metadata_table).lower(),
            # The metadata table is written by the commit, not together with the data files.
            "hoodie.metadata.streaming.write.enabled": "false",
            "hoodie.embed.timeline.server": "false",
            "hoodie.write.markers.type": "DIRECT",
            "hoodie.table.service.manager.enabled": "false",
            "hoodie.clean.automatic": "false",
            "hoodie.archive.automatic": "false",
            "hoodie.compact.inline": "false",
            "hoodie.clustering.inline": "false",
            # lakefold's instants have no heartbeat, so each of them would count as a dead writer's.
            "hoodie.clustering.enable.expirations": "false",
            **indexes,
            **key_options(self.properties),
            **self._plan_options(),
        }

    @property
    def _options_without_lock(self) -> dict[str, str]:
        own = {k: v for k, v in java_options(self.table).items() if not k.startswith("hoodie.write.lock.")}
        return {**own, CONCURRENCY_MODE: "SINGLE_WRITER"}

    def _open_write_client(self, fixed: Mapping[str, str]) -> None:
        # Without a lock provider Hudi hardly waits for slower clocks of other writers, so the wait is set explicitly.
        self._unlocked_options = {**self._options_without_lock, **fixed, **skew_options(self.table)}
        self.write_config = self._build_config({**self._unlocked_options, "hoodie.clean.failed.writes.policy": "NEVER"})
        self.write_client: Any = self.jvm.org.apache.hudi.client.SparkRDDWriteClient(self.context, self.write_config)

    def follow_table_changes(self, current: Mapping[str, str], *, has_metadata_table: bool, doing: str) -> None:
        """Apply changes made to the table since the client was opened; call it under the lock.

        ``current`` are the table's properties. ``has_metadata_table`` is True if a metadata table exists, whether or
        not the properties name it. Writers switch the metadata table and its indexes on and off. With stale settings a
        commit would be missing in the metadata table, so that readers don't see its files, or would recreate a removed
        metadata table. Raises Transient if other properties changed: the table must be opened again.
        """
        differing = sorted(key for key in {*current, *self.properties} if current.get(key) != self.properties.get(key))
        changed = [key for key in differing if not key.startswith(_MUTABLE_PROPERTIES)]
        if changed:
            key = changed[0]
            raise Transient(
                f"{self.table.name}: {key} was {self.properties.get(key, 'unset')} when the table was opened and is "
                f"{current.get(key, 'unset')} while {doing}; the plan is tried again with the table as it is now"
            )
        has_metadata_table = has_metadata_table and "files" in metadata_table.index_names(current)
        same_indexes = (
            has_metadata_table == self.has_metadata_table
            and metadata_table.read_index_settings(self.storage, current) == self.index_settings
        )
        if not differing and same_indexes:
            return
        log.info("%s: its metadata table was changed; the client follows the change while %s", self.table.name, doing)
        self._read_table()
        with suppress(Exception):
            self.write_client.close()
        self._open_write_client(self._fixed_options())

    def read_schema(self) -> str:
        """Return the table's schema now as Avro JSON, without meta columns. ``schema`` is that of the client's opening.

        Call it in ``locked``. Hudi takes the schema from the newest commit of a writer, and leaves out clusterings and
        compactions.
        """
        self.meta.reloadActiveTimeline()
        return str(self.bundle.table_schema(self.meta, meta_columns=False).toString())

    def _plan_options(self) -> dict[str, str]:
        if self.plan is None:
            return {}
        return plan_options(self.plan, self.engine, self._schema_json())

    def _has_dates_or_timestamps(self) -> bool:
        """True if a column of the table has dates or timestamps, at any depth."""
        schema = self._schema_json()
        return '"date"' in schema or '"timestamp' in schema

    def _schema_json(self) -> str:
        return str(self.bundle.spark_schema(self.schema).json())

    @cached_property
    def engine(self) -> EngineChoice:
        """The engine that rewrites the client's plan. Raises Rejected if its ``engine`` setting can't be followed."""
        assert self.plan is not None
        return choose_engine(
            self.plan,
            lambda: self.input_footers,
            merge_on_read=self.meta.getTableType().name() == "MERGE_ON_READ",
            can_copy=self.bundle.can_copy_row_groups,
            text_columns=columns_read_as_text(read_table_properties(self.storage), self._schema_json()),
            has_dates=self._has_dates_or_timestamps(),
            find_obstacle=self._find_obstacle,
        )

    @cached_property
    def input_footers(self) -> dict[str, InputFooter]:
        """The footers of the plan's base files by path, in the order of the plan, without missing and damaged files."""
        assert self.plan is not None
        paths = [slice_.path for group in self.plan.groups for slice_ in group.slices if slice_.path is not None]
        return {footer.path: footer for footer in read_footers(self.storage, paths)}

    def _find_obstacle(self, engine: str) -> str | None:
        writer = self.writers.get(engine)
        if writer is None:
            return "this process does not have the engine"
        return self._common_obstacle or writer.find_obstacle(self)

    @cached_property
    def _common_obstacle(self) -> str | None:
        """Why none of the ``writers`` can rewrite the plan, whatever its engine; there is at least one writer."""
        return next(iter(self.writers.values())).find_common_obstacle(self)

    @cached_property
    def probe_config(self) -> Any:
        """Hudi's write configuration as the table and its rule set it, without the settings of the plan's engine."""
        compression = self.plan.options.compression if self.plan is not None else None
        own = {} if compression is None else {COMPRESSION: compression}
        return self._build_config({**self._options_without_lock, **own})

    def _new_session(self) -> "SparkSession":
        """Return a separate session of the same Spark, so that a plan's SQL settings affect no other code."""
        session = self.spark.newSession()
        # Each of the two settings, if on, would silently drop rows of an input.
        session.conf.set("spark.sql.files.ignoreCorruptFiles", "false")
        session.conf.set("spark.sql.files.ignoreMissingFiles", "false")
        for key, value in self._calendar_settings.items():
            session.conf.set(key, value)
        if self.plan is not None and self.plan.options.sort_columns:
            # A sort writes the planned number of files only if its shuffle has at least that many partitions and
            # adaptive execution does not merge them.
            outputs = sum(group.output_files for group in self.plan.groups)
            current = int(session.conf.get("spark.sql.shuffle.partitions", "200") or 200)
            session.conf.set("spark.sql.adaptive.coalescePartitions.enabled", "false")
            session.conf.set("spark.sql.shuffle.partitions", str(max(current, outputs)))
        return session

    @cached_property
    def _calendar_settings(self) -> dict[str, str]:
        """Settings that keep days before 1582 and moments before 1900 as readers see them.

        By default Spark refuses to read such values from a file that does not name its writer, and refuses to write
        them. If the session states that such files use the hybrid Julian calendar of Spark before 3.0 (LEGACY), readers
        are assumed to have that setting too.
        """
        read = {f"{name}Read": str(self.spark.conf.get(f"{name}Read", None)).upper() for name in _CALENDARS}
        old = {key: mode if mode == "LEGACY" else "CORRECTED" for key, mode in read.items()}
        return old | {f"{name}Write": "CORRECTED" for name in _CALENDARS}

    @contextmanager
    def own_session(self) -> Iterator[None]:
        """Apply the client's settings to Spark code that Hudi calls in this thread, and to the tasks of its jobs.

        Hudi passes its session to its readers. Its row writer uses the settings of the thread's active session when a
        job is created. The code that merges rows reads the settings in its tasks, which get the local properties of the
        thread that ran the job. The active session and the local properties belong to the thread, and threads started
        in the block inherit them.
        """
        sessions = self.jvm.org.apache.spark.sql.SparkSession
        context = self.spark.sparkContext
        before = sessions.getActiveSession()
        given = {key: context.getLocalProperty(key) for key in self._calendar_settings}
        try:
            sessions.setActiveSession(self._java_session)
            for key, value in self._calendar_settings.items():
                context.setLocalProperty(key, value)
            yield
        finally:
            with suppress(Exception):  # a dead JVM has no session to restore
                for key, old in given.items():
                    context._jsc.setLocalProperty(key, old)
                if before.isDefined():
                    sessions.setActiveSession(before.get())
                else:
                    sessions.clearActiveSession()

    def _build_config(self, options: Mapping[str, str]) -> Any:
        properties = self.jvm.java.util.HashMap()
        for key, value in options.items():
            properties.put(key, value)
        config = self.meta.getTableConfig()
        builder = self.jvm.org.apache.hudi.config.HoodieWriteConfig.newBuilder()
        builder = builder.withPath(self.base).withSchema(self.schema.toString()).forTable(config.getTableName())
        return builder.withProps(config.getProps()).withProps(properties).build()

    def _new_write_client(self, options: Mapping[str, str]) -> Any:
        return self.jvm.org.apache.hudi.client.SparkRDDWriteClient(self.context, self._build_config(options))

    def new_unlocked_client(self, options: Mapping[str, str]) -> Any:
        """Return another Java client without locks, with the write client's options plus ``options``.

        The caller closes it.
        """
        return self._new_write_client({**self._unlocked_options, **options})

    @property
    def optimistic(self) -> bool:
        """True if other writers may be active, each under the table's lock."""
        return self.table.concurrency is Concurrency.OCC

    @cached_property
    def empty_option(self) -> Any:
        """Hudi's empty Option."""
        return self.jvm.org.apache.hudi.common.util.Option.empty()

    def option_of(self, value: Any) -> Any:
        """Return Hudi's Option of ``value``."""
        return self.jvm.org.apache.hudi.common.util.Option.of(value)

    def read_timeline(self) -> Timeline:
        """Read the current active timeline."""
        return Timeline(self.storage)

    @contextmanager
    def locked(self, doing: str, owner: Any = None, *, writes_metadata_table: bool = True) -> Iterator[None]:
        """Hold the table's lock (also a lock of this process) while the block runs, with a fresh timeline.

        ``owner`` is the Java instant that holds the lock, for Hudi's conflict resolution. A block that writes to the
        metadata table (``writes_metadata_table``) does not begin while a streaming writer is writing its own part of
        the metadata table. ``locked`` waits for that writer for up to ``STREAMING_WRITER_TIMEOUT``, without the lock.
        Raises Transient naming the location of the lock, or the writer that blocks.
        """
        held = self.empty_option if owner is None else self.option_of(owner)
        nested = self._lock.is_held
        deadline = time.monotonic() + STREAMING_WRITER_TIMEOUT.total_seconds()
        while True:
            with self._lock.locked(doing, held):
                writer = self._find_streaming_writer() if writes_metadata_table and self.optimistic else None
                if writer is None:
                    if nested:
                        yield
                        return
                    has_metadata_table = metadata_table.metadata_table_exists(self.storage)
                    self.follow_table_changes(
                        read_table_properties(self.storage), has_metadata_table=has_metadata_table, doing=doing
                    )
                    self.meta.reloadActiveTimeline()
                    with self.time_zones.using_zone(self.table.name, self.read_timeline().timezone):
                        yield
                    return
            if time.monotonic() >= deadline:
                raise Transient(
                    f"{self.table.name}: the writer of {writer} has been in the middle of its streaming write to the "
                    f"metadata table for {format_duration(STREAMING_WRITER_TIMEOUT)} while {doing}; "
                    "continuing would make that writer fail"
                )
            time.sleep(_STREAMING_POLL_SECONDS)

    @contextmanager
    def lakefold_locked(self, doing: str) -> Iterator[None]:
        """Exclude every other lakefold, but not the table's writers, while the block runs.

        Raises Transient as ``locked`` does.
        """
        with self._lock.lakefold_locked(doing):
            yield

    def assert_lock_held(self, doing: str) -> None:
        """Raise Transient unless the lock of ``locked`` is verified to have been held since it was taken."""
        self._lock.assert_held(doing)

    def assert_lakefold_lock_held(self, doing: str) -> None:
        """Raise Transient unless lakefold's own lock of ``locked`` is verified to have been held since it was taken."""
        self._lock.assert_lakefold_held(doing)

    def lock_loss_reason(self) -> str | None:
        """Return how the writers' shared lock of ``locked`` was lost; None if it is verified to be held."""
        return self._lock.loss_reason()

    def _find_streaming_writer(self) -> str | None:
        return find_streaming_writer(self.storage, self.read_timeline(), self.is_heartbeat_expired)

    def new_instant(self) -> str:
        """Create a new instant time; call it inside ``locked``."""
        return str(self.write_client.createNewInstantTime(False))

    def run_clean(self, instant: str) -> None:
        """Run the requested clean ``instant`` and no other pending clean; call it inside ``locked``."""
        table = self.jvm.org.apache.hudi.table.HoodieSparkTable.create(self.write_config, self.context)
        requested = self.meta.getInstantGenerator().getCleanRequestedInstant(instant)
        self.bundle.run_clean(self.context, self.write_config, table, requested)

    def avro_object(self, name: str, record: Mapping[str, Any]) -> Any:
        """Return the Java object of ``org.apache.hudi.avro.model.NAME`` for a dict, in one call."""
        blank = getattr(self.jvm.org.apache.hudi.avro.model, name)()
        schema = json.loads(blank.getSchema().toString())
        known = {field["name"] for field in schema["fields"]}
        buffer = io.BytesIO()
        fastavro.writer(buffer, fastavro.parse_schema(schema), [{k: v for k, v in record.items() if k in known}])
        stream = self.jvm.java.io.ByteArrayInputStream(buffer.getvalue())
        reader = self.jvm.org.apache.hudi.common.table.timeline.TimelineMetadataUtils
        return reader.deserializeAvroMetadata(stream, blank.getClass())

    def remove_file(self, relative: str) -> None:
        """Delete a file of the table and its checksum file."""
        path = self.jvm.org.apache.hudi.storage.StoragePath(f"{self.base}/{relative}")
        self.meta.getStorage().deleteFile(path)

    def remove_directory(self, relative: str) -> None:
        """Delete a directory of the table with everything below it, if it exists."""
        self.meta.getStorage().deleteDirectory(self.jvm.org.apache.hudi.storage.StoragePath(f"{self.base}/{relative}"))

    def _has_commit_conflict_check(self) -> bool:
        """True if Hudi resolves conflicts before a clustering commit (its default strategy leaves them to writers)."""
        return self.optimistic and bool(
            self._lock_client.getConfig().getWriteConflictResolutionStrategy().isPreCommitRequired()
        )

    def begin_rewrite(self, kind: PlanKind, instant: str) -> Any:
        """Make a published or adopted plan inflight, and record that lakefold began it. Call it in ``locked``.

        Returns Hudi's write of the plan as a job that has not run yet. Hudi may fail after it made the plan inflight:
        some bundles read, sort or write all rows in this call. Then the instant is lakefold's, too.
        """
        self.inflight_file = InflightFile(self.storage, instant)
        record_beginning(self.storage, instant)
        try:
            java = self._begin(kind, instant)
        except Exception as error:
            if is_begun_before(error):
                record_withdrawal(self.storage, instant, removed=False)
            elif not is_unanswered(error):
                self._record_begin(self.inflight_file)
            raise
        failpoint("begun_unrecorded")
        self._record_begin(self.inflight_file)
        return java

    def _begin(self, kind: PlanKind, instant: str) -> Any:
        if kind is PlanKind.COMPACTION:
            with self.own_session():
                return self.bundle.begin_compaction(self.write_client, instant)
        if self._has_commit_conflict_check():
            # ``preWrite`` records the completed and the pending instants, for ``resolve_conflicts``.
            self.meta.reloadActiveTimeline()
            cluster = self.jvm.org.apache.hudi.common.model.WriteOperationType.CLUSTER
            self._lock_client.preWrite(instant, cluster, self.meta)
        with self.own_session():
            if self.sorts_after_begin:
                return self.bundle.begin_unsorted(self.write_client, self.context, self._unsorted_config, instant)
            return self.write_client.cluster(instant, False)

    @property
    def sorts_after_begin(self) -> bool:
        """True if ``begin_rewrite`` leaves the plan's sort to ``rewrite.sorted_write``.

        Hudi sorts a plan in the call that begins it, and ``begin_rewrite`` holds the table's lock.
        """
        return (
            self.bundle.can_begin_before_sorting
            and self.plan is not None
            and self.plan.kind is PlanKind.CLUSTERING
            and bool(self.plan.options.sort_columns)
        )

    @property
    def _unsorted_config(self) -> Any:
        return self._build_config(
            {**self._unlocked_options, "hoodie.clean.failed.writes.policy": "NEVER", _SORT_MODE: "NONE"}
        )

    def _record_begin(self, inflight: InflightFile) -> None:
        inflight.is_unchanged()  # the first call finds the file
        record_begin(self.storage, inflight.instant, None if inflight.own_file is None else inflight.own_file[1])

    def is_taken_over(self, instant: str) -> bool:
        """True if another process took over ``instant``, which ``begin_rewrite`` began. Any thread may call it."""
        return (
            self.inflight_file is not None
            and self.inflight_file.instant == instant
            and self.inflight_file.is_unchanged() is False
        )

    def resolve_conflicts(self, replaced: Mapping[str, Collection[str]]) -> None:
        """Run Hudi's own conflict resolution with the table's settings; call it inside ``locked(owner)``.

        ``replaced`` are the file ids that the commit replaces in each partition.
        """
        if not self._has_commit_conflict_check():
            return
        model = self.jvm.org.apache.hudi.common.model
        # The commit's own metadata can't be used: it names no files until Hudi's commit adds them.
        metadata = model.HoodieReplaceCommitMetadata()
        metadata.setOperationType(model.WriteOperationType.CLUSTER)
        groups = self.jvm.java.util.HashMap()
        for partition, file_ids in replaced.items():
            groups.put(partition, self.jvm.java.util.ArrayList())
            for file_id in file_ids:
                groups.get(partition).add(file_id)
        metadata.setPartitionToReplaceFileIds(groups)
        self.bundle.resolve_conflicts(self._lock_client, metadata)

    def is_heartbeat_expired(self, instant: str) -> bool:
        """True if the writer of a pending instant is dead by Hudi's own rule (optimistic writers only)."""
        return is_heartbeat_expired(self.table, self.storage, instant)

    def run_when_idle(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when every call made under the table's lock has ended, from another thread if necessary."""
        self._lock.run_when_idle(callback)

    def close(self) -> None:
        """Close both Java clients when every call made under the table's lock has ended; never raises."""
        self.run_when_idle(self._close)

    def _close(self) -> None:
        with suppress(Exception):
            self.write_client.close()
        self._lock.close()
