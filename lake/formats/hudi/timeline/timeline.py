# SPDX-License-Identifier: Apache-2.0
"""The timeline of a Hudi table, read in plain Python: instants, plans and commit metadata.

Layout 2 (table versions 8 and 9) keeps instants in ``.hoodie/timeline``: ``<time>.<action>.requested``,
``<time>.<action>.inflight`` (``<time>.inflight`` for a commit) and ``<time>_<completion>.<action>``. Layout 1 (table
version 6) keeps them in ``.hoodie`` itself: the completed file is ``<time>.<action>`` without a completion time, and a
clustering is a replacecommit from the start. A pending clustering, compaction or log compaction completes as
replacecommit, commit or deltacommit, and its requested file stays beside the completed file.
"""

import re
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from pyarrow import fs as pafs

from lake.errors import Transient
from lake.formats.hudi.files.names import CDC_SUFFIXES, relative_path
from lake.formats.hudi.files.storage import TableStorage, read_table_properties
from lake.formats.hudi.timeline.archive import (
    COMPLETES_AS,
    ArchivedInstant,
    ArchiveFilter,
    newest_heads_v2,
    read_archive_v1,
    read_archive_v2,
)
from lake.formats.hudi.timeline.records import decode_record

PLAN_KEY = "lakefold.plan"
"""Key of lakefold's plan id in ``extraMetadata`` of a requested plan and of a commit made by lakefold."""
EPOCH_KEY = "lakefold.epoch"
"""Key of the executor's epoch, a decimal number, beside ``PLAN_KEY``."""
CLEAN_KEY = "lakefold.clean"
"""Key in the ``extraMetadata`` of lakefold's own cleans; the value is the clean's instant."""
SORT_COLUMNS = "hoodie.clustering.plan.strategy.sort.columns"
"""Key of the sort columns in a clustering plan's strategy and in the settings of the client that executes it."""

COMMIT_ACTIONS = frozenset({"commit", "deltacommit", "replacecommit"})
"""Completed actions that add or replace data files."""
PLANNED_KINDS = frozenset(COMPLETES_AS)
"""Pending actions whose requested file names the file slices that they will replace."""

#: a file whose modification time differs by more from the time in its name counts as a copy
_MAX_FILE_TIME_DIFFERENCE = timedelta(minutes=1)
_COMPLETED = re.compile(r"(\d{14,17})(?:_(\d{14,17}))?\.([a-z]+)")
_REQUESTED = re.compile(r"(\d{14,17})\.([a-z]+)\.requested")
_INFLIGHT = re.compile(r"(\d{14,17})(?:\.([a-z]+))?\.inflight")


class InstantState(StrEnum):
    """The state of an instant."""

    REQUESTED = "requested"
    INFLIGHT = "inflight"
    COMPLETED = "completed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Instant:
    """One action on the timeline. ``time`` is its name; ``completed_at`` is None until it completes.

    ``kind`` is the action under which it was requested (``clustering``), ``action`` the action under which it
    completes (``replacecommit``). File names are relative to the timeline directory, None if there is no such file.
    """

    time: str
    kind: str
    action: str
    state: InstantState
    completed_at: str | None = None
    requested_file: str | None = None
    inflight_file: str | None = None
    completed_file: str | None = None

    @property
    def pending(self) -> bool:
        """True if the instant is requested or inflight."""
        return self.state is not InstantState.COMPLETED


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSlice:
    """An input of a clustering or compaction plan; ``base`` (None: logs only) and ``logs`` are file names."""

    partition: str
    file_id: str
    base: str | None
    logs: tuple[str, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        """All files of the slice, relative to the table."""
        names = (*((self.base,) if self.base else ()), *self.logs)
        return tuple(relative_path(self.partition, name) for name in names)


def planned_slices(plan: Mapping[str, Any]) -> Iterator[PlannedSlice]:
    """Yield the inputs of a requested clustering, compaction or log compaction; nothing for other plans.

    Hudi lists change data (``hoodie.table.cdc.enabled``) among the logs of a slice. It holds no rows and is left out.
    """
    clustering = plan.get("clusteringPlan")
    entries: list[Mapping[str, Any]] = (
        [s for g in clustering.get("inputGroups") or () for s in g.get("slices") or ()]
        if clustering
        else list(plan.get("operations") or ())
    )
    for entry in entries:
        base = entry.get("dataFilePath")
        yield PlannedSlice(
            partition=entry.get("partitionPath") or "",
            file_id=entry["fileId"],
            base=base.rsplit("/", 1)[-1] if base else None,
            logs=tuple(
                path.rsplit("/", 1)[-1] for path in entry.get("deltaFilePaths") or () if not path.endswith(CDC_SUFFIXES)
            ),
        )


def extra_metadata(record: Mapping[str, Any] | None) -> Mapping[str, str]:
    """Return ``extraMetadata`` of a plan or of commit metadata, including the inner map of a clustering plan."""
    if not record:
        return {}
    inner = (record.get("clusteringPlan") or {}).get("extraMetadata") or {}
    return {**inner, **(record.get("extraMetadata") or {})}


def write_stats(metadata: Mapping[str, Any] | None) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield partition and write stat of every file that a commit wrote or an inflight commit will write."""
    for partition, stats in ((metadata or {}).get("partitionToWriteStats") or {}).items():
        for stat in stats:
            yield partition, stat


def instant_datetime(time: str, timezone: str) -> datetime:
    """Return an instant's name as an aware time in UTC; ``timezone`` is ``hoodie.table.timeline.timezone``.

    LOCAL means the zone of the writers' machine, which is assumed to be the zone of this process. Names that are not
    times (Hudi's bootstrap instants) give 1970-01-01.
    """
    try:
        naive = datetime.strptime(time[:14], "%Y%m%d%H%M%S").replace(microsecond=int(time[14:17] or 0) * 1000)
    except ValueError:
        return datetime.fromtimestamp(0, UTC)
    return naive.replace(tzinfo=UTC) if timezone.upper() == "UTC" else naive.astimezone(UTC)


class Timeline:
    """The active timeline, listed once at construction. Plans and metadata are read by the methods.

    ``instants`` is sorted by time. Reading a file that was archived after the listing raises FileNotFoundError.
    """

    def __init__(self, storage: TableStorage, properties: Mapping[str, str] | None = None) -> None:
        self.storage = storage
        self.properties = read_table_properties(storage) if properties is None else properties
        get = self.properties.get
        self.timezone = get("hoodie.table.timeline.timezone") or "LOCAL"
        self.layout = 1 if get("hoodie.timeline.layout.version") == "1" else 2
        if self.layout == 1:
            self.directory = ".hoodie"
            self.archive_directory = f".hoodie/{get('hoodie.archivelog.folder') or 'archived'}"
        else:
            self.directory = f".hoodie/{get('hoodie.timeline.path') or 'timeline'}"
            self.archive_directory = f"{self.directory}/{get('hoodie.timeline.history.path') or 'history'}"
        files = [info for info in storage.children(self.directory) if info.type == pafs.FileType.File]
        self._file_states = {info.base_name: (info.mtime_ns, info.size) for info in files}
        self.instants: tuple[Instant, ...] = _parse_instants(
            {info.base_name: self._completion_time_of(info) for info in files}
        )

    def _completion_time_of(self, info: pafs.FileInfo) -> str | None:
        """Return the modification time of a file of layout 1, which records no completion time; Hudi does the same."""
        if self.layout != 1:
            return None
        zone = UTC if self.timezone.upper() == "UTC" else None
        return f"{info.mtime.astimezone(zone):%Y%m%d%H%M%S%f}"[:17]

    @property
    def completed(self) -> tuple[Instant, ...]:
        """Completed instants, sorted by time."""
        return tuple(i for i in self.instants if not i.pending)

    @property
    def pending(self) -> tuple[Instant, ...]:
        """Requested and inflight instants, sorted by time."""
        return tuple(i for i in self.instants if i.pending)

    @property
    def commits(self) -> tuple[Instant, ...]:
        """Completed instants that changed data, in the order of their completion; in layout 1 by time."""
        commits = (i for i in self.completed if i.action in COMMIT_ACTIONS)
        if self.layout == 1:
            return tuple(commits)  # modification times of files do not survive copying a table
        return tuple(sorted(commits, key=lambda i: (i.completed_at or "", i.time)))

    @property
    def newest_commit_time(self) -> str:
        """Time of the newest completed instant that changed data, '' if there is none."""
        return max((i.time for i in self.commits), default="")

    def commit_test(self) -> Callable[[str], bool]:
        """Return a function that returns True for the time of a committed instant, on the timeline or archived.

        An instant counts as archived if it is older than the oldest commit of the active timeline and not pending: only
        completed instants are archived. An older pending write is possible if it was among the table's first writes.
        Other actions don't count: an old clean or rollback may stay long after the commits of its time were archived.
        A commit that a savepoint retains counts, even if later commits are archived: Hudi's readers also miss the files
        of these later commits.
        """
        completed = {commit.time for commit in self.commits}
        pending = {instant.time for instant in self.pending if instant.action in COMMIT_ACTIONS}
        oldest = min(completed, default="")
        return lambda time: time in completed or (time < oldest and time not in pending)

    def find(self, time: str, *, action: str | None = None) -> Instant | None:
        """Return the instant of that time; a savepoint, which has the time of its commit, only with ``action``.

        Of several instants of that time a commit is returned: writers before Hudi 1.0 choose times without a lock, so a
        clean may have the time of another process's commit.
        """
        found = None
        for instant in self.instants:
            if instant.time == time and (instant.action == action if action else instant.action != "savepoint"):
                if action or instant.action in COMMIT_ACTIONS:
                    return instant
                found = found or instant
        return found

    def find_rewrite(self, time: str) -> Instant | None:
        """Return the clustering or compaction of that time, pending or completed; see ``find``."""
        rewrites = (one for one in self.instants if one.kind in PLANNED_KINDS or one.kind == "replacecommit")
        return next((one for one in rewrites if one.time == time), None)

    def find_other_commits(self, time: str, action: str) -> list[Instant]:
        """Return the commits of that time, completed or not, with another action than ``action``; see ``find``."""
        at_time = (one for one in self.instants if one.time == time and one.action in COMMIT_ACTIONS)
        return [one for one in at_time if one.action != action]

    def plan(self, instant: Instant) -> dict[str, Any] | None:
        """Return the record of the requested file; None if the file is empty or absent."""
        return self._read_record(instant.requested_file)

    def inflight_metadata(self, instant: Instant) -> dict[str, Any] | None:
        """Return the record of the inflight file (an upsert's workload by file group); None if empty or absent."""
        return self._read_record(instant.inflight_file)

    def metadata(self, instant: Instant) -> dict[str, Any] | None:
        """Return the record of the completed file; None while the instant is pending or if the file is empty."""
        return self._read_record(instant.completed_file)

    def commit_metadata(self, instant: Instant) -> dict[str, Any] | None:
        """Return the record of a completed commit. Raises Transient if its file is empty: the files are unknown."""
        if self.is_empty(instant):
            path = self.storage.display_path(f"{self.directory}/{instant.completed_file}")
            raise Transient(
                f"{path} is empty: the files that {instant.kind} {instant.time} wrote are unknown; restore the file "
                "from a backup, or delete it, roll that commit back with the table's own writer "
                "(rollback_to_instant) and write it again"
            )
        return self.metadata(instant)

    def is_empty(self, instant: Instant) -> bool:
        """True if the completed file of the instant is empty."""
        return instant.completed_file is not None and self._file_states[instant.completed_file][1] == 0

    def modified_at(self, name: str | None) -> datetime | None:
        """Return the modification time of a timeline file; None if there is no file of that name."""
        found = self._file_states.get(name or "")
        return None if found is None else datetime.fromtimestamp(found[0] / 1e9, UTC)

    def known_completion(self, instant: Instant) -> str | None:
        """Return when an instant completed; None if unknown, as after a table of layout 1 was copied."""
        if self.layout != 1:
            return instant.completed_at
        requested = self.modified_at(instant.requested_file)
        begun = instant_datetime(instant.time, self.timezone)
        is_copy = requested is None or abs(requested - begun) >= _MAX_FILE_TIME_DIFFERENCE
        return None if is_copy else instant.completed_at

    def fingerprint(self, instant: Instant) -> Hashable:
        """Return a value that changes when the completed file of an instant changes."""
        name = instant.completed_file or ""
        return name, self._file_states.get(name)

    def archive_fingerprint(self) -> Hashable:
        """Return a value that changes when the archived timeline changes."""
        children = self.storage.children(self.archive_directory)
        return frozenset((i.base_name, i.mtime_ns, i.size) for i in children if i.type == pafs.FileType.File)

    def _read_record(self, name: str | None) -> dict[str, Any] | None:
        if name is None:
            return None
        path = f"{self.directory}/{name}"
        content = self.storage.read(path)
        try:
            return decode_record(content)
        except Transient as error:
            raise Transient(f"{self.storage.display_path(path)}: {error}; put it back from a backup") from error

    def pending_plans(self) -> list[tuple[Instant, dict[str, Any]]]:
        """Return pending clusterings, compactions and log compactions with their plans, sorted by time."""
        found = []
        for instant in self.pending:
            # A clustering requested before an upgrade of the table is still called replacecommit; its plan shows its
            # kind.
            if instant.kind in PLANNED_KINDS or instant.kind == "replacecommit":
                plan = self.plan(instant)
                if plan and (plan.get("clusteringPlan") or plan.get("operations")):
                    found.append((instant, plan))
        return found

    @property
    def completed_savepoints(self) -> list[Instant]:
        """The completed savepoints, sorted by time, which is the time of the saved commit."""
        return [instant for instant in self.completed if instant.action == "savepoint"]

    def savepoints(self) -> dict[str, frozenset[str]]:
        """Return the files that each completed savepoint retains, as paths relative to the table.

        The keys are the times of the saved commits.
        """
        kept = {}
        for instant in self.completed_savepoints:
            record = self.metadata(instant) or {}
            kept[instant.time] = frozenset(
                relative_path(entry.get("partitionPath") or partition, name)
                for partition, entry in (record.get("partitionMetadata") or {}).items()
                for name in entry.get("savepointDataFile") or ()
            )
        return kept

    def read_cleans(self) -> list[tuple[Instant, dict[str, Any]]]:
        """Return completed cleans with their metadata, sorted by time."""
        cleans = [instant for instant in self.completed if instant.action == "clean"]
        found = zip(cleans, self.storage.map_parallel(self.metadata, cleans), strict=True)
        return [(instant, record) for instant, record in found if record is not None]

    def archived(
        self,
        actions: Collection[str] | None = None,
        *,
        plans: bool = True,
        metadata: bool = True,
        containing: bytes | None = None,
        times: Collection[str] | None = None,
    ) -> Iterator[ArchivedInstant]:
        """Yield archived instants, newest first. The parameters are the fields of ``ArchiveFilter``."""
        wanted = ArchiveFilter(actions=actions, containing=containing, times=times, plans=plans, metadata=metadata)
        read = read_archive_v1 if self.layout == 1 else read_archive_v2
        return read(self.storage, self.archive_directory, wanted)

    def newest_archived(self, before: tuple[str, str], limit: int) -> list[ArchivedInstant]:
        """Return the ``limit`` newest archived instants that sort before ``before``, a time and an action.

        Plans and metadata are not read. In layout 1, which has no index, all of the archive is read.
        """
        if self.layout != 1:
            return newest_heads_v2(self.storage, self.archive_directory, before, limit)
        every = self.archived(plans=False, metadata=False)
        return [found for found in every if (found.time, found.action) < before][:limit]

    @property
    def archive_bytes(self) -> int:
        """The size of the archived timeline in storage."""
        return sum(info.size or 0 for info in self.storage.children(self.archive_directory))


def _parse_instants(file_times: Mapping[str, str | None]) -> tuple[Instant, ...]:
    """Build the instants from timeline files: names, and completion times of files whose names contain none."""
    states: dict[tuple[str, str], dict[str, str]] = {}
    for name, changed in file_times.items():
        if match := _REQUESTED.fullmatch(name):
            time, kind = match.groups()
            states.setdefault((time, COMPLETES_AS.get(kind, kind)), {}).update(requested=name, kind=kind)
        elif match := _INFLIGHT.fullmatch(name):
            time, kind = match.group(1), match.group(2) or "commit"
            states.setdefault((time, COMPLETES_AS.get(kind, kind)), {}).update(inflight=name, kind=kind)
        elif match := _COMPLETED.fullmatch(name):
            time, completion, action = match.groups()
            if completed_at := completion or changed:
                states.setdefault((time, action), {}).update(completed=name, completion=completed_at)
    return tuple(
        Instant(
            time=time,
            kind=found.get("kind", action),
            action=action,
            state=(
                InstantState.COMPLETED
                if "completed" in found
                else InstantState.INFLIGHT
                if "inflight" in found
                else InstantState.REQUESTED
            ),
            completed_at=found.get("completion"),
            requested_file=found.get("requested"),
            inflight_file=found.get("inflight"),
            completed_file=found.get("completed"),
        )
        for (time, action), found in sorted(states.items())
    )
