# SPDX-License-Identifier: Apache-2.0
"""Facts about a table worth showing to a person."""

import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime

from pyarrow import fs as pafs

from lake.formats.hudi.storage import Storage
from lake.formats.hudi.timeline import PLAN_KEY, PLANNED_KINDS, Timeline, extra_metadata
from lake.model import TableRef
from lake.units import format_duration

_LOCK_PATH = "hoodie.write.lock.filesystem.path"


def describe_table(table: TableRef) -> dict[str, str]:
    """Type, version, keys, timeline, pending work, savepoints, metadata table and lock files, in words."""
    storage = Storage(table.location)
    timeline = Timeline(storage)
    properties = timeline.properties
    kind = properties.get("hoodie.table.type", "COPY_ON_WRITE").lower().replace("_", "-")
    indexes = [name for name in properties.get("hoodie.table.metadata.partitions", "").split(",") if name]
    savepoints = timeline.savepoints()
    return {
        "type": kind,
        "version": f"{properties.get('hoodie.table.version', 'unset')} (timeline layout "
        f"{properties.get('hoodie.timeline.layout.version', 'unset')}, times in {timeline.timezone})",
        "partitioned by": properties.get("hoodie.table.partition.fields") or "nothing",
        "record key": properties.get("hoodie.table.recordkey.fields") or "generated",
        "newest instant": timeline.newest or "none",
        "timeline": _counts(timeline),
        "pending": "; ".join(_pending(timeline)) or "nothing",
        "savepoints": ", ".join(sorted(savepoints)) or "none",
        "metadata table": ", ".join(sorted(indexes)) or "none",
        "locks": "; ".join(_locks(table, storage)) or "none",
    }


def _counts(timeline: Timeline) -> str:
    counted = Counter(instant.kind for instant in timeline.completed)
    words = [f"{count} {kind}{'s' if count != 1 else ''}" for kind, count in sorted(counted.items())]
    archived = sum(1 for _ in timeline.archived(plans=False, metadata=False))
    return f"{', '.join(words) or 'nothing'} completed, {len(timeline.pending)} pending, {archived} archived"


def _pending(timeline: Timeline) -> Iterator[str]:
    owners = {instant.time: extra_metadata(plan).get(PLAN_KEY) for instant, plan in timeline.pending_plans()}
    for instant in timeline.pending:
        service = f"{instant.kind} {instant.time} {instant.state}"
        owner = owners.get(instant.time)
        if owner:
            yield f"{service} (plan {owner} of lakefold)"
        else:
            yield f"{service} (planned by somebody else)" if instant.kind in PLANNED_KINDS else service


def _locks(table: TableRef, storage: Storage) -> Iterator[str]:
    """Lock files of the table. One that outlives its writer stops every later one until it is removed."""
    found = storage.children(".hoodie/.locks")
    found += [info for info in storage.children(".hoodie") if info.base_name == "lock"]
    elsewhere = table.write_options.get(_LOCK_PATH)
    if elsewhere:
        found += [info for info in Storage(elsewhere).children("") if info.base_name == "lock"]
    for info in found:
        if info.type == pafs.FileType.File and not info.base_name.endswith(".crc") and not _released(storage, info):
            yield f"{info.path}, {_age(info)} old: held by a writer, or left behind by one that died (then remove it)"


def _released(storage: Storage, info: pafs.FileInfo) -> bool:
    """Whether a storage-based lock is free: its file stays and says so."""
    if not info.path.endswith(".json"):
        return False
    try:
        return bool(json.loads(storage.read(storage.relative(info.path))).get("expired"))
    except (ValueError, AttributeError, FileNotFoundError):
        return False


def _age(info: pafs.FileInfo) -> str:
    return format_duration(max(0.0, (datetime.now(UTC) - info.mtime).total_seconds()))
