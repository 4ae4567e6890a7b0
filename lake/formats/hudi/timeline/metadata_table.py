# SPDX-License-Identifier: Apache-2.0
"""Checks of a table's metadata table: whether it exists, is finished, and is up to date, as the properties say.

Readers list the table's files by the metadata table. If the properties name a metadata table that doesn't exist, Hudi's
writers fail. If it is behind the table's commits, rows are hidden, and every further commit makes the loss permanent.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from lake.errors import Rejected, Transient
from lake.formats.hudi.files.cache import WeightedCache
from lake.formats.hudi.files.names import PARTITION_MARKER
from lake.formats.hudi.files.storage import PROPERTIES, TableStorage, read_table_properties
from lake.formats.hudi.timeline.timeline import Timeline

DIRECTORY = ".hoodie/metadata"
_PARTITIONS = "hoodie.table.metadata.partitions"
RECORD_INDEX = "record_index"
"""The name of the record index, whether it looks up a key in the whole table or in one of its partitions."""
_COLUMN_STATISTICS, _DEFINITIONS = "column_stats", "hoodie.table.index.defs.path"
#: the file groups of an index by partition have the escaped path of the partition in their names
_FILE_OF_RECORD_INDEX = re.compile(r"\.?record-index-(?:(?P<partition>[^-]*)-)?\d{4,}-\d+_")
#: whether a table's record index is by partition; by the time of the marker that Hudi writes when it builds the index
_kind_cache: WeightedCache[bool] = WeightedCache(10_000)
#: the name of a metadata table's first instant is not a time if the table was initialized from existing files
_BOOTSTRAP_PREFIX = "0000"
_REBUILD_REMEDY = (
    "have its writer commit once with hoodie.metadata.enable = false, which removes the metadata table; its next "
    "commit with true builds it again"
)


def index_names(properties: Mapping[str, str]) -> list[str]:
    """Return the indexes that the table's properties name; ``files`` is one of them if there is a metadata table."""
    return [name for name in properties.get(_PARTITIONS, "").split(",") if name]


class IndexSettings(NamedTuple):
    """The settings of the indexes of a metadata table that its writers share.

    ``statistics_columns`` are the columns with statistics, without Hudi's own; readers skip files by these. It is empty
    if the table does not record them.
    """

    is_record_index_partitioned: bool = False
    statistics_columns: tuple[str, ...] = ()


def read_index_settings(storage: TableStorage, properties: Mapping[str, str]) -> IndexSettings:
    """Return the settings of the table's indexes. Raises Transient if their definitions can't be read."""
    return IndexSettings(
        is_record_index_partitioned=is_record_index_partitioned(storage, properties),
        statistics_columns=_read_statistics_columns(storage, properties),
    )


def _read_statistics_columns(storage: TableStorage, properties: Mapping[str, str]) -> tuple[str, ...]:
    path = properties.get(_DEFINITIONS)
    if not path or _COLUMN_STATISTICS not in index_names(properties):
        return ()
    try:
        definitions = json.loads(storage.read(path))["indexDefinitions"]
        columns = (definitions.get(_COLUMN_STATISTICS) or {}).get("sourceFields") or ()
        return tuple(name for name in columns if not name.startswith("_hoodie_"))
    except FileNotFoundError:
        return ()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Transient(f"{storage.display_path(path)}: not the definitions of a table's indexes ({error})") from error


def is_record_index_partitioned(storage: TableStorage, properties: Mapping[str, str]) -> bool:
    """True if the table's record index looks up a key in one partition (``hoodie.metadata.record.level.index.enable``).

    Only the names of the index's file groups show this. Its definition (``hoodie.table.index.defs.path``) stays as it
    was if a writer drops the index and builds one of the other kind.
    """
    if RECORD_INDEX not in index_names(properties):
        return False
    directory = f"{DIRECTORY}/{RECORD_INDEX}"
    key = storage.location, storage.info(f"{directory}/{PARTITION_MARKER}").mtime
    found = _kind_cache.get(key)
    if found is None:
        names = (_FILE_OF_RECORD_INDEX.match(name) for name in storage.list_file_names(directory))
        found = any(match["partition"] is not None for match in names if match is not None)
        if key[1] is not None:
            _kind_cache.put(key, found, 1)
    return found


def metadata_table_exists(storage: TableStorage) -> bool:
    """True if the table has a metadata table, regardless of its properties."""
    return storage.is_file(f"{DIRECTORY}/{PROPERTIES}")


def read_metadata_timeline(storage: TableStorage) -> Timeline | None:
    """Return the timeline of the table's metadata table; None if it has none, or if a writer drops it just now."""
    if not metadata_table_exists(storage):
        return None
    try:
        return Timeline(storage.subdirectory(DIRECTORY))
    except Rejected:
        if metadata_table_exists(storage):
            raise
        return None


def find_faults(storage: TableStorage, timeline: Timeline) -> Iterator[str]:
    """Yield the faults of the metadata table, each with its remedy; nothing if the properties name no index.

    Raises Transient if a writer drops the metadata table or an index just now.
    """
    named = index_names(timeline.properties)
    unfinished = timeline.properties.get(f"{_PARTITIONS}.inflight", "")
    if unfinished:
        yield (
            f"{_PARTITIONS}.inflight = {unfinished}: that index is being built, or was left half built; wait until its "
            "writer or indexer has finished, or drop the index with its own writer"
        )
    if not named:
        return
    path, metadata = storage.path(DIRECTORY), read_metadata_timeline(storage)
    missing = sorted(set(named) - {info.base_name for info in storage.children(DIRECTORY)})
    # A writer that drops the metadata table or an index changes the properties first.
    if (metadata is None or missing) and index_names(read_table_properties(storage)) != named:
        raise Transient(f"{path}: a writer has changed {_PARTITIONS} since the table's properties were read")
    if metadata is None:
        yield f"{_PARTITIONS} = {','.join(named)}, but {path} is not a metadata table; {_REBUILD_REMEDY}"
        return
    if missing:
        yield f"{_PARTITIONS} names {', '.join(missing)}, which {path} does not have; {_REBUILD_REMEDY}"
    missing_commits = _missing_commits(timeline, metadata)
    if missing_commits:
        yield (
            f"the metadata table lacks {len(missing_commits)} commits (first: {missing_commits[0]}), readers that list "
            f"by it do not see their files; {_REBUILD_REMEDY}"
        )


def find_missing_commits(storage: TableStorage, timeline: Timeline) -> list[str]:
    """Return the times of the commits that the table's metadata table lacks; an empty list without one."""
    metadata = read_metadata_timeline(storage) if index_names(timeline.properties) else None
    return [] if metadata is None else _missing_commits(timeline, metadata)


def _missing_commits(timeline: Timeline, metadata: Timeline) -> list[str]:
    """Return the times of the commits that the metadata table should contain and lacks.

    A commit reaches the metadata table before it completes. Commits older than the metadata table's first instant were
    read from storage when the metadata table was built, or have been archived. The same is true of younger commits that
    completed before the first instant completed. Example: a write began and ended while a plan ran, then another writer
    rebuilt the metadata table, and the plan's instant became its first.
    """
    known = [instant for instant in metadata.completed if not instant.time.startswith(_BOOTSTRAP_PREFIX)]
    if not known:
        return []
    times, since = {instant.time for instant in known}, min(instant.time for instant in known)
    missing = [instant for instant in timeline.commits if instant.time > since and instant.time not in times]
    if timeline.layout != 1:  # layout 1 has modification times only, which don't survive copying a table
        first_completed_at = min(instant.completed_at or "" for instant in known)
        missing = [instant for instant in missing if (instant.completed_at or "") > first_completed_at]
    return [instant.time for instant in missing]


def find_streaming_writer(storage: TableStorage, timeline: Timeline, is_dead: Callable[[str], bool]) -> str | None:
    """Return a pending instant of ``timeline`` that is also pending in the metadata table and has a live writer.

    ``is_dead`` returns True for an instant whose writer's heartbeat has expired. Returns None if there is no such
    instant.
    """
    metadata = read_metadata_timeline(storage)
    if metadata is None:
        return None
    parts = {instant.time for instant in metadata.pending}
    return next((i.time for i in timeline.pending if i.time in parts and not is_dead(i.time)), None)
