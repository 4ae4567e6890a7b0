# SPDX-License-Identifier: Apache-2.0
"""Flink's upserts, whose default index is in the state of the job: a clustering would make it wrong.

``FLINK_STATE`` maps each key to its file group. If another process replaces the file group, the job fails (``FileID …
does not exist``), or appends logs to a group that readers no longer see. A compaction keeps file groups and is safe.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from lake.formats.hudi.files.cache import WeightedCache
from lake.formats.hudi.timeline.archive import ArchiveUnreadable
from lake.formats.hudi.timeline.timeline import Timeline

_AUXILIARY, _CHECKPOINTS = ".hoodie/.aux", "ckp_meta"
INDEX_TYPE, FLINK_STATE = "hoodie.index.type", "FLINK_STATE"
_UPSERT, _ACTIONS = "UPSERT", ("commit", "deltacommit")
_CONSEQUENCE = (
    "remembers each key's file group, and clustering replaces file groups, so the job would fail or lose updates; "
    f"leave the table out, or, if that job has ended, set write_options {INDEX_TYPE} to the index that its "
    "writers use, for example BLOOM"
)


def find_flink_index(timeline: Timeline, options: Mapping[str, str]) -> str | None:
    """Return why a clustering would break a Flink job's index, with the remedy; None if there is no such job.

    A Flink sink leaves a directory of its checkpoints in the table. ``options`` are the table's ``write_options``:
    an index that they name is in the table, where rewrites keep it, unless it is Flink's.
    """
    declared = options.get(INDEX_TYPE, "").strip()
    if declared.upper() == FLINK_STATE:
        return f"write_options {INDEX_TYPE} = {declared}: the Flink job {_CONSEQUENCE}"
    if declared:
        return None
    names = [info.base_name for info in timeline.storage.children(_AUXILIARY)]
    checkpoints = next((name for name in sorted(names) if name.startswith(_CHECKPOINTS)), None)
    if checkpoints is None:
        return None
    try:
        if not _has_upserts(timeline):
            return None
    except ArchiveUnreadable as error:
        return (
            f"{_AUXILIARY}/{checkpoints} shows that Flink writes the table, and {error}: it may hold upserts, and by "
            f"default (index.type = {FLINK_STATE}) the job {_CONSEQUENCE}"
        )
    return (
        f"{_AUXILIARY}/{checkpoints} shows that Flink upserts the table: by default (index.type = {FLINK_STATE}) the "
        f"job {_CONSEQUENCE}"
    )


def _has_upserts(timeline: Timeline) -> bool:
    """True if a commit of the active or the archived timeline is an upsert; inserts need no index."""
    for instant in reversed(timeline.commits):
        try:
            metadata = timeline.metadata(instant)
        except FileNotFoundError:
            break  # archived meanwhile, and so are older commits
        if _is_upsert(metadata):
            return True
    return _has_archived_upserts(timeline)


def _has_archived_upserts(timeline: Timeline) -> bool:
    """True if an archived commit is an upsert: a job that resumes from an old checkpoint has the upsert's keys.

    In layout 2 the metadata of each archived instant is read once in the life of this process. Raises
    ArchiveUnreadable.
    """
    archive = timeline.archive_fingerprint()
    key = timeline.storage.location
    known = _searched_archives.get(key) or _SearchedArchive()
    if not archive or known.archive == archive:
        return bool(archive) and known.has_upserts
    if not known.has_upserts:
        times = None if timeline.layout == 1 else _archived_since(timeline, known.newest)
        entries = timeline.archived(_ACTIONS, plans=False, times=times, containing=_UPSERT.encode())
        known = replace(
            known,
            has_upserts=times != set() and any(_is_upsert(entry.metadata) for entry in entries),
            newest=max(times or (), default=known.newest),
        )
    _searched_archives.put(key, replace(known, archive=archive), 1)
    return known.has_upserts


def _archived_since(timeline: Timeline, newest: str) -> set[str]:
    heads = timeline.archived(_ACTIONS, plans=False, metadata=False)
    return {head.time for head in heads if head.time > newest}


def _is_upsert(metadata: Mapping[str, Any] | None) -> bool:
    return str((metadata or {}).get("operationType") or "").upper() == _UPSERT


@dataclass(frozen=True, slots=True, kw_only=True)
class _SearchedArchive:
    """The result of the last search of an archive, with its fingerprint and the newest instant that the search read."""

    archive: Hashable = None
    newest: str = ""
    has_upserts: bool = False


#: by table
_searched_archives: WeightedCache[_SearchedArchive] = WeightedCache(10_000)
