# SPDX-License-Identifier: Apache-2.0
"""The damage of a table: differences from its commits. One comparison serves planning, publishing and ``verify``.

A rewrite makes damage permanent. If the newest base file is lost, the rewrite reads the previous base file and writes
its rows as the newest. From a truncated log it writes a base file without the lost rows. Afterwards storage and commits
agree again. So damaged file groups are never rewritten.

Three views of each file group are compared: the files that the commits name, with sizes; the files in storage; and the
slices that readers list, which may differ from storage because of the metadata table. The comparison leaves out files
of commits older than the oldest known commit, and commits made during the comparison. It also leaves out log files of
layout 1 that no commit names, which failed writes and their rollbacks leave behind.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from lake.errors import Transient
from lake.formats.hudi.files.names import DataFileName, FileGroupId, parse_file_name, relative_path
from lake.formats.hudi.files.storage import StorageListing, TableStorage
from lake.formats.hudi.read.slices import ListedSlice, list_latest_slices, possible_partitions
from lake.formats.hudi.timeline.archive import ArchiveUnreadable
from lake.formats.hudi.timeline.file_history import (
    CommittedFile,
    ExpectedSlice,
    FileHistory,
    active_history,
    add_archived,
)
from lake.formats.hudi.timeline.timeline import Timeline
from lake.model import Damage, Fault, FileSlice

_ATTEMPTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedTable:
    """One observation of a table: its timeline, files in storage, the slices that readers list, and the damage.

    ``unlisted`` are damaged slices, as the commits describe them, of file groups that readers do not list.
    """

    timeline: Timeline
    taken_at: datetime
    listing: StorageListing
    slices: list[ListedSlice]
    damage: list[Damage]
    unlisted: list[ListedSlice]


def observe_table(storage: TableStorage, partitions: Collection[str] | None = None) -> ObservedTable:
    """Observe the table, or some partitions. Raises Transient if it changes too fast to confirm a difference."""
    if partitions is not None:
        partitions = possible_partitions(partitions)
    before: set[Damage] = set()
    for _ in range(_ATTEMPTS):
        # The timeline is listed first: files of a commit made in between are in the slices and at worst look too new.
        timeline = Timeline(storage)
        taken_at = datetime.now(UTC)
        history = active_history(timeline)
        on_disk = storage.list_table_files(partitions)
        slices = list_latest_slices(storage, timeline, partitions, listing=on_disk)
        history, unknown = _add_archived(history, timeline, slices)
        groups = (group for group in history.live_groups() if partitions is None or group[0] in partitions)
        compared = DamageCheck(history, timeline, on_disk, groups).find_in_table(slices)
        damage = [d for d in compared if (d.partition, d.file_id) not in unknown] + list(unknown.values())
        # Differences caused by a commit or a clean in between do not recur at the next attempt.
        if before.issuperset(damage) or is_timeline_current(timeline):
            listed = {(entry.partition, entry.file_id) for entry in slices}
            unseen = dict.fromkeys(
                group for entry in damage if (group := (entry.partition, entry.file_id)) not in listed
            )
            return ObservedTable(
                timeline=timeline,
                taken_at=taken_at,
                listing=on_disk,
                slices=slices,
                damage=damage,
                unlisted=[_slice_by_commits(history, group) for group in unseen],
            )
        before = set(damage)
    raise Transient(f"{storage.location}: the table changed {_ATTEMPTS} times while it was listed; try again")


def _slice_by_commits(history: FileHistory, group: FileGroupId) -> ListedSlice:
    expected = history.expected_slice(group) or ExpectedSlice(None, {})
    return ListedSlice(
        partition=group[0],
        file_id=group[1],
        base=expected.base.name if expected.base else None,
        bytes=(expected.base.bytes or 0) if expected.base else 0,
        logs=tuple(expected.logs),
        log_sizes=tuple(log.bytes or 0 for log in expected.logs.values()),
    )


def first_damage_of_each_group(damage: Iterable[Damage]) -> tuple[Damage, ...]:
    """Return one difference of each file group."""
    found: dict[FileGroupId, Damage] = {}
    for entry in damage:
        found.setdefault((entry.partition, entry.file_id), entry)
    return tuple(found.values())


def is_timeline_current(timeline: Timeline) -> bool:
    """True if the timeline hasn't changed. Otherwise differences may come from a commit or a clean in between."""
    return Timeline(timeline.storage, timeline.properties).instants == timeline.instants


def _add_archived(
    history: FileHistory, timeline: Timeline, slices: Collection[ListedSlice]
) -> tuple[FileHistory, dict[FileGroupId, Damage]]:
    """Return ``history`` with the archived commits, if one of ``slices`` needs them, and the groups of unknown state.

    The state of a group is unknown if the group needs the archived timeline and this can't be read. With a savepoint
    the archive is always read: readers, and so ``slices``, may not list the files of later archived commits.
    """
    older = _slices_needing_archive(history, timeline, slices)
    if not older and not timeline.completed_savepoints:
        return history, {}
    try:
        return add_archived(timeline, history), {}
    except ArchiveUnreadable as error:
        groups = ((entry.partition, entry.file_id) for entry in older)
        return history, {group: _damage(group, Fault.UNKNOWN, error.path) for group in groups}


def _slices_needing_archive(
    history: FileHistory, timeline: Timeline, slices: Iterable[ListedSlice]
) -> list[ListedSlice]:
    """Return the ``slices`` with a file whose commit may have been archived."""
    active = {instant.time for instant in timeline.instants} | history.commit_times

    def may_be_archived(name: str) -> bool:
        return (file := parse_file_name(name)) is not None and file.instant not in active

    # A file ends in `_INSTANT.parquet` or `_INSTANT.log.V_TOKEN`; splitting is faster than a regex.
    return [
        entry
        for entry in slices
        if (entry.base is not None and entry.base.rpartition("_")[2].partition(".")[0] not in active)
        or any(may_be_archived(name) for name in entry.logs)
    ]


def find_damage(
    storage: TableStorage,
    timeline: Timeline,
    listed: Mapping[FileGroupId, ListedSlice | None],
    *,
    compare_listing: bool = True,
) -> dict[FileGroupId, Damage]:
    """Return the first difference of each damaged group in ``listed``.

    ``listed`` are the slices that readers list. Without ``compare_listing`` only storage and commits are compared, as
    for a slice whose compaction is pending.
    """
    on_disk = storage.list_table_files({partition for partition, _ in listed})
    slices = [entry for entry in listed.values() if entry is not None]
    history, unknown = _add_archived(active_history(timeline), timeline, slices)
    known = DamageCheck(history, timeline, on_disk, listed)
    found = {
        group: next(known.find_in_group(group, entry) if compare_listing else known.find_in_storage(group), None)
        for group, entry in listed.items()
    }
    return {group: damage for group, damage in found.items() if damage is not None} | unknown


def to_listed_slice(planned: FileSlice) -> ListedSlice:
    """Return a plan's slice as a listed slice."""
    return ListedSlice(
        partition=planned.partition,
        file_id=planned.file_id,
        base=planned.path.rsplit("/", 1)[-1] if planned.path else None,
        bytes=planned.bytes,
        logs=planned.log_files,
        log_sizes=(0,) * len(planned.log_files),
    )


class DamageCheck:
    """The comparison of file groups in storage with the commits of one timeline."""

    def __init__(
        self, history: FileHistory, timeline: Timeline, listing: StorageListing, groups: Iterable[FileGroupId]
    ) -> None:
        self._history, self._listing = history, listing
        self._has_logs_named_by_base = timeline.layout == 1
        self._pending = frozenset(instant.time for instant in timeline.pending)
        self._oldest_commit_time = history.oldest_commit_time
        self._newest_instant_time = max((instant.time for instant in timeline.instants), default="")
        found = {group: history.expected_slice(group) for group in groups}
        self._expected = {group: expected for group, expected in found.items() if expected is not None}
        wanted = {wrote.path for expected in self._expected.values() for wrote in expected.files}
        self._extra_files: dict[FileGroupId, list[DataFileName]] = defaultdict(list)
        for path in listing.sizes:
            if path not in wanted and (file := parse_file_name(path)) is not None and not file.is_cdc:
                self._extra_files[file.group_id].append(file)

    def can_judge(self, instant: str) -> bool:
        """True if the known commits show the files of ``instant``: it is completed, in the period that they cover."""
        known = self._oldest_commit_time <= instant <= self._newest_instant_time and instant not in self._pending
        return known and not self._history.is_commit_without_files(instant)

    def find_in_table(self, listed: Iterable[ListedSlice]) -> Iterator[Damage]:
        """Yield the differences of all groups and of the slices ``listed`` by readers."""
        seen = set()
        for entry in listed:
            group = entry.partition, entry.file_id
            seen.add(group)
            yield from self.find_in_group(group, entry)
        for group in self._expected:
            if group not in seen:
                yield from self.find_in_group(group, None)

    def find_in_group(self, group: FileGroupId, listed: ListedSlice | None) -> Iterator[Damage]:
        """Yield the differences of a file group; ``listed`` is the slice that readers list, None if they list none."""
        expected = self._expected.get(group)
        if expected is None:
            if listed is not None:
                yield from self._find_unexpected(group, listed)
        elif listed is None or self._is_comparable(listed, expected):
            yield from self.find_in_storage(group)
            yield from self._find_in_listing(group, expected, listed)

    def find_in_storage(self, group: FileGroupId) -> Iterator[Damage]:
        """Yield missing files of the group's latest slice, files of another size, and files that no commit wrote."""
        expected = self._expected.get(group)
        if expected is None:
            return
        for wrote in expected.files:
            size = self._listing.sizes.get(wrote.path)
            if size is None:
                yield _damage(group, Fault.MISSING, wrote.path, wrote.bytes)
            elif wrote.bytes is not None and size != wrote.bytes and not self._is_appended_to(wrote, size):
                yield _damage(group, Fault.WRONG_SIZE, wrote.path, wrote.bytes, size)
        for file in self._extra_files.get(group, ()):
            if self._is_unowned(file, expected):
                path = relative_path(file.partition, file.name)
                yield _damage(group, Fault.UNOWNED, path, None, self._listing.sizes[path])

    def _is_appended_to(self, wrote: CommittedFile, size: int) -> bool:
        """True if a log is longer than committed because of an active write, or a failed write and its rollback."""
        return wrote.is_log and self._has_logs_named_by_base and size > (wrote.bytes or 0)

    def _is_unowned(self, file: DataFileName, expected: ExpectedSlice) -> bool:
        """True if a file in storage looks like a part of the latest slice but no commit wrote it."""
        if (file.is_log and self._has_logs_named_by_base) or (
            expected.base is not None and file.instant < expected.base.instant
        ):
            return False
        return self._history.has_commit(file.instant) and self.can_judge(file.instant)

    def _is_comparable(self, entry: ListedSlice, expected: ExpectedSlice) -> bool:
        """False if the listing may just be newer than the known commits."""
        if entry.base is None or (expected.base is not None and entry.base == expected.base.name):
            return True
        file = parse_file_name(entry.base)
        return file is None or self.can_judge(file.instant)

    def _find_in_listing(
        self, group: FileGroupId, expected: ExpectedSlice, entry: ListedSlice | None
    ) -> Iterator[Damage]:
        """Yield files of the latest slice that readers do not list, and other files that readers list instead."""
        listed = (*entry.logs, entry.base) if entry is not None else ()
        for wrote in expected.files:
            if wrote.name not in listed and wrote.path in self._listing.sizes:
                yield _damage(group, Fault.UNLISTED, wrote.path)
        base = expected.base.name if expected.base is not None else None
        for name in listed:
            file = (
                parse_file_name(relative_path(group[0], name))
                if name and name != base and name not in expected.logs
                else None
            )
            if file is None or (file.is_log and (self._has_logs_named_by_base or not self.can_judge(file.instant))):
                continue
            path = relative_path(group[0], file.name)
            if path not in self._listing.sizes or not self._is_unowned(file, expected):  # else it is reported already
                fault = Fault.UNOWNED if file.is_log else Fault.RESURRECTED
                yield _damage(group, fault, path, None, self._listing.sizes.get(path))

    def _find_unexpected(self, group: FileGroupId, entry: ListedSlice) -> Iterator[Damage]:
        """Yield the differences of a listed group that is replaced, or whose commits are not known."""
        replaced = self._history.is_replaced(group)
        for path, _ in entry.sized_paths:
            file, size = parse_file_name(path), self._listing.sizes.get(path)
            if replaced:
                yield _damage(group, Fault.RESURRECTED, path, None, size)
            elif file is not None and self.can_judge(file.instant):
                yield _damage(group, Fault.UNOWNED, path, None, size)
            elif size is None and file is not None and file.instant <= self._newest_instant_time:
                yield _damage(group, Fault.MISSING, path)


def _damage(
    group: FileGroupId, fault: Fault, path: str, expected: int | None = None, found: int | None = None
) -> Damage:
    return Damage(
        partition=group[0], file_id=group[1], fault=fault, path=path, expected_bytes=expected, found_bytes=found
    )
