# SPDX-License-Identifier: Apache-2.0
"""The latest file slices of a table as its readers list them, and the busy file groups by the timeline.

Readers take the files from the table's metadata table, which hudi-rs reads here. hudi-rs leaves out log-only file
groups; this module adds them. Without a metadata table (or with table version 6, whose metadata table hudi-rs can't
read) readers list the partitions: all directories with Hudi's partition marker. hudi-rs instead treats exactly the
directories without subdirectories as partitions, so this module lists tables without a metadata table itself. It also
lists tables on HDFS, with or without a metadata table, because hudi-rs does not support HDFS.
"""

import posixpath
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from lake.errors import Rejected, Transient
from lake.formats.hudi.files.cache import WeightedCache
from lake.formats.hudi.files.names import DataFileName, FileGroupId, log_sort_key, parse_file_name, relative_path
from lake.formats.hudi.files.storage import StorageListing, TableStorage
from lake.formats.hudi.read.hudi_rs import open_table
from lake.formats.hudi.timeline.timeline import (
    COMMIT_ACTIONS,
    PLANNED_KINDS,
    Instant,
    InstantState,
    Timeline,
    instant_datetime,
    planned_slices,
    write_stats,
)
from lake.model import SLICES_SCHEMA, DeltaKind

_KEY_GENERATORS = ("hoodie.table.keygenerator.class", "hoodie.table.keygenerator.type")
#: hudi-rs compares every partition with every value; with more partitions than this the full listing is as fast
_MAX_FILTERED_PARTITIONS = 100
#: completion times of archived commits, by table
_completion_cache: WeightedCache[Mapping[str, str]] = WeightedCache(300_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedSlice:
    """A latest slice as file names and bytes. ``base`` is None if there is no base file; ``logs`` are oldest first."""

    partition: str
    file_id: str
    base: str | None
    bytes: int
    logs: tuple[str, ...]
    log_sizes: tuple[int, ...]

    @property
    def sized_paths(self) -> Iterator[tuple[str, int]]:
        """All files of the slice, relative to the table, with their sizes in bytes."""
        if self.base is not None:
            yield relative_path(self.partition, self.base), self.bytes
        for name, size in zip(self.logs, self.log_sizes, strict=True):
            yield relative_path(self.partition, name), size


@dataclass(slots=True)
class BusyGroups:
    """The reasons why file groups can't be planned: by group, by partition, and for the whole table."""

    groups: dict[FileGroupId, str] = field(default_factory=dict)
    partitions: dict[str, str] = field(default_factory=dict)
    whole_table: str | None = None

    def reason(self, partition: str, file_id: str) -> str | None:
        """Return why the file group is busy; None if it isn't."""
        return self.groups.get((partition, file_id)) or self.partitions.get(partition) or self.whole_table


def is_merge_on_read(timeline: Timeline) -> bool:
    """True if the table may have log files."""
    return timeline.properties.get("hoodie.table.type", "COPY_ON_WRITE").upper() == "MERGE_ON_READ"


def replaced_groups(timeline: Timeline) -> set[FileGroupId]:
    """Return the file groups that completed replacecommits of the active timeline replaced."""
    gone: set[FileGroupId] = set()
    replacements = [instant for instant in timeline.commits if instant.action == "replacecommit"]
    for record in timeline.storage.map_parallel(timeline.metadata, replacements):
        for partition, file_ids in ((record or {}).get("partitionToReplaceFileIds") or {}).items():
            gone.update((partition, file_id) for file_id in file_ids)
    return gone


def list_latest_slices(
    storage: TableStorage,
    timeline: Timeline,
    partitions: Collection[str] | None = None,
    *,
    listing: StorageListing | None = None,
) -> list[ListedSlice]:
    """List the latest slices that Hudi's readers see, in all partitions or in ``partitions``.

    With ``partitions``, only these are listed in storage. ``listing`` is an earlier listing to use instead.
    Raises Transient if the listing fails, Rejected if hudi-rs does not support a column's type.
    """
    if partitions is not None:
        partitions = possible_partitions(partitions)
        if not partitions:
            return []
    by_metadata = storage.is_supported_by_hudi_rs and is_listed_by_metadata_table(timeline)
    if listing is None and (is_merge_on_read(timeline) or not by_metadata):
        listing = storage.list_table_files(partitions)
    if not by_metadata:
        if storage.is_supported_by_hudi_rs:
            _query_hudi_rs(storage, lambda table: table.get_schema())
        return list(_list_in_storage(timeline, listing)) if listing is not None else []
    slices = _list_by_metadata_table(storage, timeline, partitions)
    if listing is not None and is_merge_on_read(timeline):
        known = {(entry.partition, entry.file_id) for entry in slices}
        slices.extend(_list_in_storage(timeline, listing, excluded=known, logs_only=True))
    return slices


def _list_by_metadata_table(
    storage: TableStorage, timeline: Timeline, partitions: Collection[str] | None
) -> list[ListedSlice]:
    """List the slices by the table's metadata table, with hudi-rs."""
    import hudi

    options = (
        None
        if partitions is None
        else hudi.HudiReadOptions(filters=_partition_filters(timeline.properties, partitions))
    )
    slices = []
    for entry in _query_hudi_rs(storage, lambda table: table.get_file_slices(options)):
        if partitions is not None and entry.partition_path not in partitions:
            continue
        logs = entry.log_file_names
        sizes = entry.log_file_sizes if logs else []
        if len(logs) > 1:
            ordered = sorted(zip(logs, sizes, strict=True), key=lambda pair: log_sort_key(pair[0]))
            logs, sizes = [name for name, _ in ordered], [size for _, size in ordered]
        slices.append(
            ListedSlice(
                partition=entry.partition_path,
                file_id=entry.file_id,
                base=entry.base_file_name or None,
                bytes=entry.base_file_size,
                logs=tuple(logs),
                log_sizes=tuple(sizes),
            )
        )
    return slices


def _query_hudi_rs(storage: TableStorage, query: Callable[[Any], Any]) -> Any:
    try:
        return query(open_table(storage))
    except Exception as error:
        raise Transient(f"{storage.location}: hudi-rs can't list the table ({str(error).splitlines()[0]})") from error
    except BaseException as error:
        # A panic of Rust code isn't an Exception and would end the whole process.
        if type(error).__module__ != "pyo3_runtime":
            raise
        raise Rejected(
            f"{storage.location}: hudi-rs, which reads the table, does not support the type of a column "
            f"({str(error).splitlines()[0]}), for example timestamps without a time zone; leave the table out"
        ) from error


def is_listed_by_metadata_table(timeline: Timeline) -> bool:
    """True if hudi-rs lists the table's files by its metadata table: from table version 8 on."""
    indexes = timeline.properties.get("hoodie.table.metadata.partitions", "").split(",")
    return "files" in indexes and timeline.layout != 1


def possible_partitions(paths: Collection[str]) -> frozenset[str]:
    """Return the paths given by a user that can be partitions."""
    return frozenset(path for path in paths if _is_possible_partition(path))


def _is_possible_partition(partition: str) -> bool:
    """True if the path can be a partition: below the table and not in ``.hoodie``."""
    inside = partition.split("/")[0] not in ("", ".", "..", ".hoodie")
    return not partition or (inside and posixpath.normpath(partition) == partition)


def _partition_filters(properties: Mapping[str, str], partitions: Collection[str]) -> list[tuple[str, str, str]]:
    """Return filters with which hudi-rs skips most other partitions.

    Returns no filter if column values can't express the partitions. hudi-rs compares the values in a path with the
    filters and keeps every partition whose path it can't parse.
    """
    columns = [name for name in properties.get("hoodie.table.partition.fields", "").split(",") if name]
    made_of_times = "timestamp" in " ".join(properties.get(key, "") for key in _KEY_GENERATORS).lower()
    if made_of_times or len(partitions) > _MAX_FILTERED_PARTITIONS:
        return []
    if properties.get("hoodie.datasource.write.partitionpath.urlencode", "").lower() == "true":
        partitions = [unquote(path) for path in partitions]
    hive_style = properties.get("hoodie.datasource.write.hive_style_partitioning", "").lower() == "true"
    values: list[set[str]] = [set() for _ in columns]
    for parts in (path.split("/") for path in partitions):
        if len(parts) != len(columns):
            return []
        for found, part in zip(values, parts, strict=True):
            found.add(part.partition("=")[2] if hive_style else part)
    # hudi-rs trims the values of a list and drops empty ones.
    return [
        (column, "IN", ",".join(re.sub(r"([\\,])", r"\\\1", value) for value in sorted(found)))
        for column, found in zip(columns, values, strict=True)
        if all(value and value == value.strip() for value in found)
    ]


def _list_in_storage(
    timeline: Timeline, listing: StorageListing, *, excluded: Collection[FileGroupId] = (), logs_only: bool = False
) -> Iterator[ListedSlice]:
    """Build the latest slices from a listing of the partitions, as readers do.

    The groups in ``excluded`` are left out, and with ``logs_only`` all base files.
    """
    files: dict[FileGroupId, list[tuple[DataFileName, int]]] = defaultdict(list)
    completed = {i.time: i.completed_at or i.time for i in timeline.commits}
    is_committed = timeline.commit_test()
    for path, size in listing.sizes.items():
        file = parse_file_name(path)
        if file is None or file.is_cdc or file.group_id in excluded or (logs_only and not file.is_log):
            continue
        if file.partition not in listing.partitions:
            continue  # a file with a name like Hudi's, in a directory that isn't a partition
        if is_committed(file.instant) or (timeline.layout == 1 and file.is_log):
            files[file.group_id].append((file, size))
    gone = replaced_groups(timeline) if files else ()
    if timeline.layout != 1:
        completed = {
            **read_archived_completions(timeline, _archived_log_instants(files.values(), completed)),
            **completed,
        }
    for (partition, file_id), found in sorted(files.items()):
        # A log of layout 1 names the first commit of its slice; later logs name the compaction pending at their time.
        if (partition, file_id) in gone or not any(is_committed(file.instant) for file, _ in found):
            continue
        base, size = max((f for f in found if not f[0].is_log), key=lambda f: f[0].instant, default=(None, 0))
        since = base.instant if base else ""
        logs = [
            (file, size)
            for file, size in found
            if file.is_log
            and (file.instant >= since if timeline.layout == 1 else completed.get(file.instant, file.instant) > since)
        ]
        logs.sort(key=lambda pair: log_sort_key(pair[0].name))
        yield ListedSlice(
            partition=partition,
            file_id=file_id,
            base=base.name if base else None,
            bytes=size,
            logs=tuple(file.name for file, _ in logs),
            log_sizes=tuple(size for _, size in logs),
        )


def _archived_log_instants(
    groups: Iterable[Sequence[tuple[DataFileName, int]]], completed: Collection[str]
) -> frozenset[str]:
    """Return the instants of logs whose slice depends on the archived timeline.

    These instants are older than the newest base file of the log's group: the log belongs to that base file only if the
    log's commit completed after the base file's instant. A log with a newer instant belongs to the base file in any
    case.
    """
    found: set[str] = set()
    for files in groups:
        newest = max((file.instant for file, _ in files if not file.is_log), default="")
        found.update(file.instant for file, _ in files if file.is_log and file.instant < newest)
    return frozenset(found.difference(completed))


def read_archived_completions(timeline: Timeline, times: Collection[str]) -> Mapping[str, str]:
    """Return when the archived commits of ``times`` completed; times without an archived commit are left out.

    Completion times never change, so each is read once per process. Raises ArchiveUnreadable if a file of the archive
    is damaged.
    """
    location = timeline.storage.location
    known = _completion_cache.get(location) or {}
    if missing := set(times) - known.keys():
        archived = timeline.archived(COMMIT_ACTIONS, plans=False, metadata=False, times=missing)
        known = {**known, **{entry.time: entry.completed_at for entry in archived}}
        _completion_cache.put(location, known, 1 + len(known))
    return {time: known[time] for time in times if time in known}


def committed_times(timeline: Timeline) -> frozenset[str]:
    """Return the times of the active timeline's completed instants that changed data."""
    return frozenset(i.time for i in timeline.commits)


def find_busy_groups(timeline: Timeline, is_abandoned: Callable[[Instant], bool] = lambda instant: False) -> BusyGroups:
    """Find the file groups of all pending plans, and of inflight writes as far as these name their file groups.

    ``is_abandoned`` returns True for a pending write whose file groups are free again.
    """
    busy = BusyGroups()
    planned = set()
    for instant, plan in timeline.pending_plans():
        planned.add(instant)
        kind = "clustering" if plan.get("clusteringPlan") else instant.kind
        reason = f"pending {kind} {instant.time}"
        for entry in planned_slices(plan):
            busy.groups.setdefault((entry.partition, entry.file_id), reason)
    for instant in timeline.pending:
        if instant in planned or instant.kind in PLANNED_KINDS:
            continue
        if instant.kind == "restore":
            busy.whole_table = f"pending restore {instant.time}"
        if instant.kind not in COMMIT_ACTIONS or is_abandoned(instant):
            continue
        reason = f"inflight {instant.kind} {instant.time}"
        record = timeline.inflight_metadata(instant) if instant.state is InstantState.INFLIGHT else None
        targets = list(write_stats(record))
        if instant.kind == "replacecommit":
            # A replacecommit replaces whole partitions; if it does not name them, it may replace any partition.
            busy.partitions.update((partition, reason) for partition, _ in targets)
            if not targets:
                busy.whole_table = busy.whole_table or reason
        for partition, stat in targets:
            if stat.get("fileId"):
                busy.groups.setdefault((partition, stat["fileId"]), reason)
    return busy


def count_delta_commits(timeline: Timeline) -> int:
    """Count the delta commits of the active timeline that completed after its last compaction."""
    count = 0
    for instant in reversed(timeline.commits):
        if instant.kind == "compaction":
            break
        count += instant.kind == "deltacommit"
    return count


def slices_table(slices: Iterable[ListedSlice], timeline: Timeline, busy: BusyGroups) -> pa.Table:
    """Return ``slices`` as a table of ``SLICES_SCHEMA``, sorted by partition and file id."""
    ordered = sorted(slices, key=lambda s: (s.partition, s.file_id))
    modified = _ModifiedTimes(timeline, ordered)
    partitions: dict[str, int] = {}
    columns: dict[str, pa.Array] = {
        "partition": pa.DictionaryArray.from_arrays(
            pa.array([partitions.setdefault(s.partition, len(partitions)) for s in ordered], pa.int32()),
            pa.array(list(partitions), pa.string()),
        ),
        "file_id": pa.array([s.file_id for s in ordered], pa.string()),
        "path": pa.array(
            [None if s.base is None else relative_path(s.partition, s.base) for s in ordered], pa.string()
        ),
        "bytes": pa.array([s.bytes for s in ordered], pa.int64()),
        "rows": pa.nulls(len(ordered), pa.int64()),
        "log_files": pa.array([s.logs for s in ordered], pa.list_(pa.string())),
        "log_bytes": pa.array([sum(s.log_sizes) for s in ordered], pa.int64()),
        "oldest_log_at": pa.array([modified.oldest_log_at(s) for s in ordered], pa.timestamp("us", tz="UTC")),
        "delta_kind": _dictionary_column([DeltaKind.LOG if s.logs else None for s in ordered]),
        "deleted_rows": pa.nulls(len(ordered), pa.int64()),
        "written_order": pa.array([None if s.base is None else _written_order(s.base) for s in ordered], pa.int64()),
        "group_key": _dictionary_column([None] * len(ordered)),
        "modified_at": pa.array([modified.modified_at(s) for s in ordered], pa.timestamp("us", tz="UTC")),
        "busy_reason": _dictionary_column([busy.reason(s.partition, s.file_id) for s in ordered]),
    }
    return pa.table([columns[name] for name in SLICES_SCHEMA.names], schema=SLICES_SCHEMA)


def _dictionary_column(values: Sequence[str | None]) -> pa.DictionaryArray:
    """Return a dictionary-encoded column."""
    code_of: dict[str, int] = {}
    codes = [None if value is None else code_of.setdefault(value, len(code_of)) for value in values]
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(list(code_of), pa.string()))


def _written_order(base: str) -> int:
    """Return the instant in a base file's name as the number that Hudi's planner compares; 0 (oldest) if none."""
    instant = base.rpartition("_")[2].partition(".")[0]
    return int(instant) if instant.isdigit() and len(instant) <= 18 else 0


class _ModifiedTimes:
    """The times when files of slices became visible: the completion of their instant if known, else the instant.

    A log file of layout 1 does not name its commit: its modification time counts.
    """

    def __init__(self, timeline: Timeline, slices: Sequence[ListedSlice]) -> None:
        self._timezone = timeline.timezone
        self._completion_times: Mapping[str, str] = {i.time: i.completed_at or i.time for i in timeline.commits}
        self._time_cache: dict[str, datetime] = {}
        self._log_times_by_path: Mapping[str, datetime] | None = None
        if timeline.layout == 1:
            logs = [relative_path(entry.partition, name) for entry in slices for name in entry.logs]
            self._log_times_by_path = timeline.storage.modified_times(logs)

    def oldest_log_at(self, entry: ListedSlice) -> datetime | None:
        """Return when the first of a slice's logs became visible; None if it has no logs."""
        return min(self._log_times(entry), default=None)

    def modified_at(self, entry: ListedSlice) -> datetime:
        """Return when the newest file of a slice became visible."""
        times = self._log_times(entry)
        if entry.base is not None:
            times.append(self._instant_datetime(entry.base.rpartition("_")[2].partition(".")[0]))
        return max(times, default=datetime.fromtimestamp(0, UTC))

    def _log_times(self, entry: ListedSlice) -> list[datetime]:
        if self._log_times_by_path is not None:
            paths = (relative_path(entry.partition, name) for name in entry.logs)
            return [self._log_times_by_path[path] for path in paths if path in self._log_times_by_path]
        # A log file ends in `.log.V_TOKEN`, a base file in `_INSTANT.parquet`; splitting is faster than a regex.
        return [self._instant_datetime(name.rsplit(".log.", 1)[0].rpartition("_")[2]) for name in entry.logs]

    def _instant_datetime(self, instant: str) -> datetime:
        known = self._time_cache.get(instant)
        if known is None:
            known = instant_datetime(self._completion_times.get(instant, instant), self._timezone)
            self._time_cache[instant] = known
        return known
