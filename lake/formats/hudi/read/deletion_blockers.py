# SPDX-License-Identifier: Apache-2.0
"""The reasons against deleting superseded files: live files, lost commits, pending plans, savepoints, retention, order.

The order matters because Hudi would otherwise answer queries of older states wrongly. The table's newest clean records
the earliest retained instant. From that instant on Hudi answers ``as.of.instant`` queries and creates savepoints. A
clean by lakefold records the correct instant. The next clean by the table's own cleaner records the instant that its
policy retains, regardless of lakefold's deletions. So a file waits as long as that cleaner may still delete an older
file: the policy that retains more wins.

The archiver uses the same clean. It may archive a replacement that is older than the earliest retained instant;
replaced files that still exist are then live again. Since Hudi 1.0 a clean can state an older bound for the archiver
alone (``can_bound_archival``). Otherwise files are deleted in the order of the commits that replaced them.

Retention does not depend on lakefold's database. A rewrite may be missing in the database: a commit is recorded after
it completed, and another lakefold with its own database may have made the rewrite.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from lake.formats.hudi.files.cache import WeightedCache
from lake.formats.hudi.files.names import relative_path
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.read.commits import plan_id_of, recorded_plan_id
from lake.formats.hudi.read.restores import (
    find_commits_undone_by_restores,
    find_end_of_overlaps,
    find_newest_overlapped,
)
from lake.formats.hudi.read.slices import committed_times, is_listed_by_metadata_table, list_latest_slices
from lake.formats.hudi.read.superseded import find_replaced_files, find_superseding_instants
from lake.formats.hudi.read.undone_commits import find_undone_commits
from lake.formats.hudi.timeline.timeline import (
    CLEAN_KEY,
    COMMIT_ACTIONS,
    PLAN_KEY,
    PLANNED_KINDS,
    Instant,
    Timeline,
    extra_metadata,
    instant_datetime,
    planned_slices,
)
from lake.plan import SupersededVersion

AUTOMATIC_CLEAN_KEY = "hoodie.clean.automatic"
"""Whether the table's writers clean; 'false' in a table's ``write_options`` means that no writer cleans."""
_CLEAN_POLICY_KEYS = ("hoodie.clean.policy", "hoodie.cleaner.policy")
_KEEP_BY_VERSIONS = "KEEP_LATEST_FILE_VERSIONS"
REPLACING_KINDS = frozenset({"clustering", "replacecommit"})
"""Pending actions that will replace file groups."""
#: the search for archived rewrites starts this much before the retention period: an instant's time is its start
_MAX_REWRITE_DURATION = timedelta(days=1)
#: the deleted files of each completed foreign clean, which never change
_foreign_clean_cache: WeightedCache[frozenset[str]] = WeightedCache(300_000)


def find_deletion_blockers(
    storage: TableStorage,
    timeline: Timeline,
    versions: Sequence[SupersededVersion],
    options: Mapping[str, str],
    *,
    retention: timedelta = timedelta(),
) -> dict[str, str | None]:
    """Return the reason why each version can't be deleted, by path; None if it can be deleted.

    ``options`` are the table's ``write_options``. Files that lakefold's later rewrites replaced within ``retention``
    are waited for if a clean could not state a bound after both (``_find_archival_blockers``).
    """
    if not versions:
        return {}
    completed = _completed_times(timeline, versions)
    undone = find_undone_commits(storage, timeline, frozenset(version.instant for version in versions))
    # A clean calls this under the lock, so only the affected partitions are listed in storage. With a metadata table
    # all partitions are listed: hudi-rs filters partitions by column values, and no deletion may depend on that filter.
    where = None if is_listed_by_metadata_table(timeline) else {version.partition for version in versions}
    live = {path for entry in list_latest_slices(storage, timeline, where) for path, _ in entry.sized_paths}
    needed: dict[str, str] = {}
    for instant, plan in timeline.pending_plans():
        kind = instant.kind if instant.kind in PLANNED_KINDS else "clustering"
        for entry in planned_slices(plan):
            needed.update((path, f"needed by pending {kind} {instant.time}") for path in entry.paths)
    for savepoint, paths in timeline.savepoints().items():
        needed.update((path, f"kept by savepoint {savepoint}") for path in paths)

    undone_by_restores = find_commits_undone_by_restores(timeline, readable_since(timeline, options))

    def reason(version: SupersededVersion) -> str | None:
        if version.instant not in completed:
            return f"instant {version.instant} that replaced it is not completed (rolled back or restored)"
        if version.instant in undone:
            return undone[version.instant]
        if version.path in live:
            return "live: it is in a latest file slice"
        if version.instant in undone_by_restores:
            return f"needed by a restore {undone_by_restores[version.instant]}"
        return needed.get(version.path)

    reasons = {version.path: reason(version) for version in versions}
    free = [version for version in versions if reasons[version.path] is None]
    return reasons | find_ordering_blockers(storage, timeline, options, free, retention)


def _completed_times(timeline: Timeline, versions: Sequence[SupersededVersion]) -> set[str]:
    """Return the active timeline's completed commits, and the archived commits that replaced ``versions``.

    The active timeline was listed first, so an instant archived meanwhile is found twice, never missed.
    """
    completed = set(committed_times(timeline))
    unknown = {v.instant for v in versions} - completed
    if unknown:
        completed.update(a.time for a in timeline.archived(COMMIT_ACTIONS, plans=False, metadata=False, times=unknown))
    return completed


def can_bound_archival(timeline: Timeline, options: Mapping[str, str]) -> bool:
    """True if a clean can state a bound for the archiver that is older than the bound for readers.

    Archivers before Hudi 1.0 do not support this bound, and archivers of writers that clean by file versions ignore it.
    """
    return timeline.layout != 1 and _clean_policy(timeline, options) != _KEEP_BY_VERSIONS


def _clean_policy(timeline: Timeline, options: Mapping[str, str]) -> str:
    declared = next((options[key] for key in _CLEAN_POLICY_KEYS if key in options), None)
    if declared is not None:
        return declared.upper()
    clean = newest_foreign_clean(timeline)
    return str((timeline.plan(clean) or {}).get("policy") or "") if clean is not None else ""


def newest_foreign_clean(timeline: Timeline) -> Instant | None:
    """Return the newest completed clean that is not lakefold's; None if there is none."""
    for instant in reversed(timeline.completed):
        if instant.action == "clean" and CLEAN_KEY not in extra_metadata(timeline.metadata(instant)):
            return instant
    return None


def find_ordering_blockers(
    storage: TableStorage,
    timeline: Timeline,
    options: Mapping[str, str],
    versions: Sequence[SupersededVersion],
    retention: timedelta = timedelta(),
) -> dict[str, str]:
    """Return the reasons why ``versions``, deletable otherwise, have to wait for older files, by path.

    If a version's instant overlapped later commits (``find_newest_overlapped``), the version also waits for files that
    other processes superseded until the newest of them. Files of lakefold's later rewrites are not waited for, since
    these wait for the version in turn; for ``options`` and ``retention`` see ``find_deletion_blockers``.
    """
    if not versions:
        return {}
    instants, without = {version.instant for version in versions}, {version.path for version in versions}
    waits: dict[str, str] = {}
    if not can_bound_archival(timeline, options):
        replaced = find_replaced_files(storage, timeline, without)
        waits = _find_archival_blockers(timeline, replaced.paths, instants, options, retention)
    answerable, overlapped = readable_since(timeline, options), find_newest_overlapped(timeline)
    until = {time: max(time, overlapped.get(time, "")) for time in instants}
    requested = sorted(time for time in instants if until[time] > answerable and time not in waits)
    if requested:
        files = {
            path: time for path, time in find_superseding_instants(storage, timeline).items() if path not in without
        }
        own = {time for time in files.values() if time in instants or _is_by_lakefold(timeline, time)}
        path = _find_oldest(files)
        foreign_path = _find_oldest({path: time for path, time in files.items() if time not in own})
        writes = COMMIT_ACTIONS | PLANNED_KINDS
        pending = min((i.time for i in timeline.pending if i.kind in writes), default="")
        for time in requested:
            if path and files[path] < time:
                waits[time] = (
                    f"{_describe_retained_file(timeline, path)} was superseded earlier, by {files[path]}; when the "
                    f"table's own cleaner deletes that file, Hudi would again answer queries of states before {time}, "
                    f'with wrong rows. If no writer cleans this table, set {AUTOMATIC_CLEAN_KEY} = "false" in its '
                    "write_options"
                )
            elif foreign_path and files[foreign_path] < until[time]:
                waits[time] = (
                    f"{_describe_retained_file(timeline, foreign_path)} was superseded by {files[foreign_path]}; when "
                    f"the table's own cleaner deletes that file, Hudi would again save {until[time]}, and a restore to "
                    f"it rolls {time} back, since it completed after the saved commit. If no writer cleans this "
                    f'table, set {AUTOMATIC_CLEAN_KEY} = "false" in its write_options'
                )
            elif pending and pending < until[time]:
                waits[time] = (
                    f"pending {pending} began before {until[time]}; after its completion the table's own cleaner may "
                    f"declare states before {until[time]} readable"
                )
    return {version.path: waits[version.instant] for version in versions if version.instant in waits}


def _find_archival_blockers(
    timeline: Timeline,
    replaced: Mapping[str, Sequence[str]],
    instants: Collection[str],
    options: Mapping[str, str],
    retention: timedelta,
) -> dict[str, str]:
    """Return the reasons why files have to wait on a table whose cleans can't bound archival, by superseding instant.

    The earliest retained instant of a clean is the archiver's bound there as well. So it can't be later than a commit
    whose ``replaced`` files exist, or than a pending replacement. But after the deletion it has to be later than every
    commit that one of ``instants`` overlapped, so that Hudi refuses to save that commit.
    """
    oldest, overlapped = min(replaced, default=""), find_newest_overlapped(timeline)
    pending = min((i.time for i in timeline.pending if i.kind in REPLACING_KINDS), default="")
    retained = _RetainedFiles(timeline, options, retention)
    waits: dict[str, str] = {}
    for time in instants:
        newest = overlapped.get(time, "")
        end = find_end_of_overlaps(overlapped, time) or newest
        during = (commit for commit in sorted(replaced) if time < commit <= end)
        retained_reason = next(filter(None, (retained.reason(commit, replaced[commit]) for commit in during)), None)
        why = f"Hudi would save {newest}, and a restore to it rolls {time} back, since it completed after that commit"
        if oldest and oldest < time:
            path = _describe_retained_file(timeline, replaced[oldest][0])
            waits[time] = f"{path}, which commit {oldest} replaced, has to be deleted first"
        elif pending and pending < time:
            waits[time] = f"pending {pending} is older than {time} and may replace files to be deleted first"
        elif retained_reason is not None:
            waits[time] = f"{retained_reason}, and while it exists, {why}"
        elif pending and newest and pending <= end:
            waits[time] = f"pending {pending} may replace files, and while these exist, {why}"
    return waits


class _RetainedFiles:
    """The replaced files that are retained for another reason than the order of deletions.

    lakefold deletes the files of all its rewrites in order, and so does its service ``clean`` with the other files. So
    only files that stay for another reason are waited for: two files must not wait for each other.
    """

    def __init__(self, timeline: Timeline, options: Mapping[str, str], retention: timedelta) -> None:
        self._timeline, self._options, self._retention = timeline, options, retention
        self._saved = {path: savepoint for savepoint, paths in timeline.savepoints().items() for path in paths}
        self._undone_by_restores = find_commits_undone_by_restores(timeline, readable_since(timeline, options))

    def reason(self, commit: str, paths: Sequence[str]) -> str | None:
        """Return why the files ``paths``, which ``commit`` replaced, stay.

        None if they can be deleted after or with the files that older commits replaced.
        """
        if (path := next((path for path in paths if path in self._saved), None)) is not None:
            return f"{path}, which {commit} replaced, is kept by savepoint {self._saved[path]}"
        if (restore := self._undone_by_restores.get(commit)) is not None:
            return f"{paths[0]}, which {commit} replaced, is needed by a restore {restore}"
        if _is_by_lakefold(self._timeline, commit):
            found = self._timeline.find(commit)
            completed_at = (None if found is None else found.completed_at) or commit
            until = instant_datetime(completed_at, self._timeline.timezone) + self._retention
            if until <= datetime.now(UTC):
                return None
            return f"{paths[0]}, which {commit} replaced, is retained until {until:%Y-%m-%d %H:%M} UTC"
        if self._options.get(AUTOMATIC_CLEAN_KEY, "").lower() == "false":
            return None
        return (
            f"{paths[0]}, which {commit} replaced, is left to the table's own cleaner (if no writer cleans this table, "
            f'set {AUTOMATIC_CLEAN_KEY} = "false" in its write_options)'
        )


def _find_oldest(files: Mapping[str, str]) -> str:
    """Return the path that was superseded first; '' if there is none. ``files`` are superseding instants by path."""
    return min(files, key=lambda path: (files[path], path), default="")


def _is_by_lakefold(timeline: Timeline, time: str) -> bool:
    commit = timeline.find(time)
    return commit is not None and not commit.pending and plan_id_of(timeline, commit) is not None


def readable_since(timeline: Timeline, options: Mapping[str, str]) -> str:
    """Return the instant from which on the table's own cleaner keeps states readable; '' if no clean records it.

    If no cleaner keeps older states readable, the result is later than every instant.
    """
    never = "9" * 17
    if options.get(AUTOMATIC_CLEAN_KEY, "").lower() == "false":
        return never
    clean = newest_foreign_clean(timeline)
    if clean is None:
        return never if _clean_policy(timeline, options) == _KEEP_BY_VERSIONS else ""
    earliest = str((timeline.metadata(clean) or {}).get("earliestCommitToRetain") or "").strip()
    return earliest or never


def _describe_retained_file(timeline: Timeline, path: str) -> str:
    saved = next((time for time, paths in timeline.savepoints().items() if path in paths), None)
    return f"{path}, kept by savepoint {saved}," if saved is not None else path


def find_retained_files(timeline: Timeline, retention: timedelta) -> Mapping[str, str]:
    """Return the inputs of lakefold's rewrites that completed within ``retention``, each path with the reason."""
    if retention <= timedelta():
        return {}
    since, found = datetime.now(UTC) - retention, dict[str, str]()
    for instant in timeline.commits:
        at = instant_datetime(instant.completed_at or instant.time, timeline.timezone)
        if at > since and (plan_id := plan_id_of(timeline, instant)) is not None:
            reason = _retention_reason(plan_id, instant.time, at + retention)
            found |= {path: reason for entry in planned_slices(timeline.plan(instant) or {}) for path in entry.paths}
    # The active timeline was listed first: an instant archived meanwhile is found twice, never missed.
    for head in timeline.archived({"commit", "replacecommit"}, plans=False, metadata=False):
        if instant_datetime(head.time, timeline.timezone) < since - _MAX_REWRITE_DURATION:
            break  # newest first: all further rewrites are older
        at = instant_datetime(head.completed_at, timeline.timezone)
        if at <= since:
            continue
        for entry in timeline.archived({head.action}, times={head.time}, containing=PLAN_KEY.encode()):
            plan_id = recorded_plan_id(entry.plan, entry.metadata)
            if plan_id is not None:
                reason = _retention_reason(plan_id, head.time, at + retention)
                found |= {path: reason for planned in planned_slices(entry.plan or {}) for path in planned.paths}
    return found


def _retention_reason(plan_id: str, instant: str, until: datetime) -> str:
    return f"retained until {until:%Y-%m-%d %H:%M} UTC: plan {plan_id} replaced it at {instant}"


def find_obsolete_deletions(
    storage: TableStorage, timeline: Timeline, versions: Sequence[SupersededVersion]
) -> dict[int, str]:
    """Return the reasons why deletions of ``versions`` are obsolete, by index.

    Either the commit that replaced the version was undone, or a foreign clean deleted the file. If the table was
    recreated at the same location, the commit is missing too, so that a new file is never mistaken for an old file of
    the same name.
    """
    completed = _completed_times(timeline, versions)
    closed = {
        index: f"instant {version.instant} that replaced it is not among the table's commits: rolled back, restored "
        "away, or of an earlier table at this location"
        for index, version in enumerate(versions)
        if version.instant not in completed
    }
    cleaned = _files_of_foreign_cleans(timeline)
    taken = {index: v.path for index, v in enumerate(versions) if index not in closed and v.path in cleaned}
    there = storage.sizes(list(taken.values()))
    for index, path in taken.items():
        if path not in there:
            closed[index] = f"deleted by the table's own clean {cleaned[path]}"
    return closed


def _files_of_foreign_cleans(timeline: Timeline) -> dict[str, str]:
    """Return the files that completed foreign cleans of the active timeline deleted, with the time of the clean."""
    cleans = [instant for instant in timeline.completed if instant.action == "clean"]
    deleted = timeline.storage.map_parallel(lambda clean: _files_of_foreign_clean(timeline, clean), cleans)
    return {path: clean.time for clean, paths in zip(cleans, deleted, strict=True) for path in paths}


def _files_of_foreign_clean(timeline: Timeline, clean: Instant) -> frozenset[str]:
    key = timeline.storage.location, timeline.fingerprint(clean)
    found = _foreign_clean_cache.get(key)
    if found is None:
        record = timeline.metadata(clean) or {}
        entries = {} if CLEAN_KEY in extra_metadata(record) else record.get("partitionMetadata") or {}
        found = frozenset(
            relative_path(partition, path.rsplit("/", 1)[-1])
            for partition, entry in entries.items()
            for path in entry.get("successDeleteFiles") or ()
        )
        _foreign_clean_cache.put(key, found, 1 + len(found))
    return found
