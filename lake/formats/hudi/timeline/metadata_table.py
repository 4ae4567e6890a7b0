# SPDX-License-Identifier: Apache-2.0
"""Whether a table's metadata table is what the table's properties say: there, finished, and up to date.

Readers list the files of a table by it. Hudi's writers fail without a metadata table that the properties name; behind
the table's commits it hides rows, and whatever is committed on top of that makes it last.
"""

from collections.abc import Callable, Iterator, Mapping

from lake.formats.hudi.files.storage import PROPERTIES, TableStorage
from lake.formats.hudi.timeline.timeline import Timeline

DIRECTORY = ".hoodie/metadata"
_PARTITIONS = "hoodie.table.metadata.partitions"
#: the first instant of a metadata table made from what was there is no time
_BOOTSTRAP_PREFIX = "0000"
_REBUILD_REMEDY = (
    "have its writer commit once with hoodie.metadata.enable = false, which takes the metadata table off the table; "
    "its next commit with true builds it anew"
)


def index_names(properties: Mapping[str, str]) -> list[str]:
    """The indexes that the table's properties name, ``files`` among them where there is a metadata table."""
    return [name for name in properties.get(_PARTITIONS, "").split(",") if name]


def metadata_table_exists(storage: TableStorage) -> bool:
    """Whether the table has the metadata table that its properties may name."""
    return storage.is_file(f"{DIRECTORY}/{PROPERTIES}")


def find_faults(storage: TableStorage, timeline: Timeline) -> Iterator[str]:
    """What is wrong with the metadata table, each with its remedy; nothing where the table has none."""
    named = index_names(timeline.properties)
    unfinished = timeline.properties.get(f"{_PARTITIONS}.inflight", "")
    if unfinished:
        yield (
            f"{_PARTITIONS}.inflight = {unfinished}: that index is being built, or was left half built; wait until its "
            "writer or indexer has finished, or drop the index with its own writer"
        )
    if not named:
        return
    if not metadata_table_exists(storage):
        yield f"{_PARTITIONS} = {','.join(named)}, but {storage.path(DIRECTORY)} is no metadata table; {_REBUILD_REMEDY}"
        return
    missing = sorted(set(named) - {info.base_name for info in storage.children(DIRECTORY)})
    if missing:
        yield f"{_PARTITIONS} names {', '.join(missing)}, which {storage.path(DIRECTORY)} does not have; {_REBUILD_REMEDY}"
    late = _missing_commits(timeline, Timeline(storage.subdirectory(DIRECTORY)))
    if late:
        yield (
            f"the metadata table lacks {len(late)} commits (first: {late[0]}), readers that list by it do not see "
            f"their files; {_REBUILD_REMEDY}"
        )


def _missing_commits(timeline: Timeline, metadata: Timeline) -> list[str]:
    """Times of the table's commits that the metadata table should have and lacks.

    A commit reaches the metadata table before it completes. What is older than the first one there was taken from
    storage when the metadata table was made, or has left its active timeline. So was a younger one that had completed
    before the first one there did, such as a write that began and ended while a plan ran, before another built the
    metadata table again.
    """
    known = [instant for instant in metadata.completed if not instant.time.startswith(_BOOTSTRAP_PREFIX)]
    if not known:
        return []
    times, since = {instant.time for instant in known}, min(instant.time for instant in known)
    late = [instant for instant in timeline.commits if instant.time > since and instant.time not in times]
    if timeline.layout != 1:  # the times of files, which these are in layout 1, do not survive copying a table
        made = min(instant.completed_at or "" for instant in known)
        late = [instant for instant in late if (instant.completed_at or "") > made]
    return [instant.time for instant in late]


def find_streaming_writer(storage: TableStorage, timeline: Timeline, is_dead: Callable[[str], bool]) -> str | None:
    """The inflight instant of ``timeline`` that has a pending part in the metadata table and a living writer.

    ``is_dead`` says of an instant whether its writer's heartbeat has expired.
    """
    if not metadata_table_exists(storage):
        return None
    parts = {instant.time for instant in Timeline(storage.subdirectory(DIRECTORY)).pending}
    return next((i.time for i in timeline.pending if i.time in parts and not is_dead(i.time)), None)
