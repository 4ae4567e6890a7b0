# SPDX-License-Identifier: Apache-2.0
"""Does storage hold what the table's commits say, and does a reader see just that?

Three views are compared: the files in storage, the slices as hudi-rs lists them (what readers see), and the files
that should be live when every commit, archived ones included, is replayed in the order of completion.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow.parquet as pq

from lake.errors import Rejected, Transient
from lake.formats.hudi.listing import Group, Slice, latest_slices
from lake.formats.hudi.names import data_file
from lake.formats.hudi.storage import Storage
from lake.formats.hudi.timeline import COMMIT_ACTIONS, Timeline, join, write_stats
from lake.plan import SupersededVersion
from lake.ports import Verification

_ATTEMPTS = 3


@dataclass(slots=True)
class Replay:
    """What the commits say. Sizes in bytes and rows are by path, as the commit that wrote the file recorded them."""

    #: table version 6 names in a log file the base file it belongs to, later versions the commit that wrote it
    logs_name_base: bool = False
    sizes: dict[str, int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    known_times: set[str] = field(default_factory=set)
    #: partition, file id and instant of every slice
    slices: set[tuple[str, str, str]] = field(default_factory=set)
    _bases: dict[Group, tuple[str, str]] = field(default_factory=dict)
    _logs: dict[Group, list[tuple[str, str]]] = field(default_factory=dict)
    _replaced: set[Group] = field(default_factory=set)

    def add(self, time: str, completed_at: str, metadata: Mapping[str, Any] | None) -> None:
        """Apply one completed commit."""
        self.known_times.add(time)
        for _, stat in write_stats(metadata):
            for change_data, size in (stat.get("cdcStats") or {}).items():
                self.sizes[change_data] = size
            file = data_file(stat.get("path") or "")
            if file is None:
                continue
            path = join(file.partition, file.name)
            self.sizes[path] = stat.get("fileSizeInBytes") or 0
            if file.is_log:
                key = file.instant if self.logs_name_base else completed_at
                self._logs.setdefault(file.group, []).append((key, path))
                self.slices.add((*file.group, file.instant))
                continue
            self.slices.add((*file.group, file.instant))
            self.rows[path] = stat.get("numWrites") or 0
            if self._bases.get(file.group, ("", ""))[0] <= time:
                self._bases[file.group] = (time, path)
        for partition, file_ids in ((metadata or {}).get("partitionToReplaceFileIds") or {}).items():
            self._replaced.update((partition, file_id) for file_id in file_ids)

    def live(self) -> set[str]:
        """Base and log files of the latest slices."""
        paths = {path for group, (_, path) in self._bases.items() if group not in self._replaced}
        for group, logs in self._logs.items():
            if group not in self._replaced:
                since = self._bases.get(group, ("", ""))[0]
                if self.logs_name_base:
                    # Logs of a compaction that is pending, or was rolled back, name that instead: a later instant.
                    paths.update(path for base, path in logs if base >= since)
                else:
                    # A log belongs to the base file whose instant was the newest when the log's commit completed.
                    paths.update(path for completed_at, path in logs if completed_at > since)
        return paths

    @property
    def oldest(self) -> str:
        """Time of the oldest commit known; what is older can't be judged."""
        return min(self.known_times, default="")


def replay(timeline: Timeline) -> Replay:
    """All completed commits of the archived and the active timeline."""
    result = Replay(logs_name_base=timeline.layout == 1)
    # The active timeline is read first: an instant that is archived meanwhile is then found in both, not in none.
    records = timeline.storage.each(timeline.metadata, timeline.commits)
    active = [(i.time, i.completed_at or i.time, record) for i, record in zip(timeline.commits, records, strict=True)]
    seen = {time for time, _, _ in active}
    archived = [
        (a.time, a.completed_at, a.metadata)
        for a in timeline.archived(COMMIT_ACTIONS, plans=False)
        if a.time not in seen
    ]
    for time, completed_at, metadata in sorted(archived + active, key=lambda entry: entry[1]):
        result.add(time, completed_at, metadata)
    return result


def verify_table(storage: Storage, superseded: Sequence[SupersededVersion], *, rows: bool) -> Verification:
    """Compare the three views. Transient when writers commit faster than the table can be listed."""
    for _ in range(_ATTEMPTS):
        timeline = Timeline(storage)
        slices = latest_slices(storage, timeline)
        on_disk = dict(storage.data_files())
        if Timeline(storage, timeline.properties).instants == timeline.instants:
            break
    else:
        raise Transient(f"{storage.location}: the table changed {_ATTEMPTS} times while it was listed; try again")
    history = replay(timeline)
    listed = dict(pair for entry in slices for pair in entry.sized_paths)
    replaced = {version.path for version in superseded}
    expected = history.live()
    live = expected | set(listed)
    present = {path for path in live if path in on_disk}

    counted = wanted = None
    if rows:
        counted, wanted = _count_rows(storage, slices, history.rows, present)
    return Verification(
        files=len(present),
        bytes=sum(on_disk[path] for path in present),
        missing=_sorted(path for path in live if path not in on_disk or path not in listed),
        wrong_size=_sorted(
            path for path in present if on_disk[path] != history.sizes.get(path, listed.get(path, on_disk[path]))
        ),
        resurrected=_sorted(
            path for path in listed if path in replaced or (path in history.sizes and path not in expected)
        ),
        unowned=_sorted(path for path in on_disk if _is_unowned(path, timeline, history, replaced)),
        rows=counted,
        rows_expected=wanted,
    )


def _sorted(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(paths))


def _is_unowned(path: str, timeline: Timeline, history: Replay, superseded: set[str]) -> bool:
    """Whether no commit wrote this data file, known or too old to be known, nor is a pending one writing it."""
    if path in history.sizes or path in superseded:
        return False
    file = data_file(path)
    if file is None:
        return path.endswith(".parquet")
    if any(instant.time == file.instant for instant in timeline.pending):
        return False
    if file.is_log and history.logs_name_base and (*file.group, file.instant) in history.slices:
        return False  # a rollback of table version 6 leaves the log file and writes another one, in no commit
    return file.instant >= history.oldest


def _count_rows(
    storage: Storage, slices: Sequence[Slice], recorded: Mapping[str, int], present: set[str]
) -> tuple[int, int]:
    """Rows that hudi-rs reads, and rows that the commits or else the footers of the base files promise.

    What a slice with logs should hold is known only after merging it, so it counts as read on both sides.
    """
    logs_only = [entry for entry in slices if entry.base is None]
    if logs_only:
        raise Rejected(
            f"{storage.location}: rows can't be counted, {len(logs_only)} file groups have log files only (first: "
            f"{join(logs_only[0].partition, logs_only[0].logs[0])}), which hudi-rs does not read; they are "
            "countable once lakefold or the table's own compaction has rewritten them"
        )
    reader = storage.hudi_rs_table().create_file_group_reader_with_options()
    counted = wanted = 0
    for entry in slices:
        base = join(entry.partition, entry.base or "")
        read = 0
        if base in present:
            logs = [join(entry.partition, name) for name in entry.logs]
            try:
                stream = reader.read_file_slice_from_paths_stream(base, logs)
                read = sum(batch.num_rows for batch in stream)
            except Exception as error:
                raise Transient(
                    f"{storage.path(base)}: hudi-rs can't read it ({str(error).splitlines()[0]})"
                ) from error
        counted += read
        if entry.logs:
            wanted += read
        elif base in recorded:
            wanted += recorded[base]
        elif base in present:
            with storage.open(base) as source:
                wanted += pq.ParquetFile(source).metadata.num_rows
    return counted, wanted
