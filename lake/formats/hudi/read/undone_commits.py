# SPDX-License-Identifier: Apache-2.0
"""Detection of lakefold's commits that a writer undid after they had completed, and of commits whose files are gone.

A writer with inline clustering or compaction that finds an instant begun waits for the table's lock and rolls the
instant back, although the instant may have completed meanwhile. lakefold's guard prevents that rollback
(``pending.rollback_guard``). An executor that is killed between Hudi's commit and the guard leaves none.

The rollback deletes the committed files if it was planned from the commit's markers, and removes the commit from the
metadata table if there is one. The commit stays on the timeline, so its replaced files are in no listing: readers see
none of the rows. The rows exist until a clean deletes the replaced files.
"""

from collections.abc import Hashable, Iterable, Iterator
from typing import Any, NamedTuple

from lake.errors import CommitLost, Transient
from lake.formats.hudi.files.cache import WeightedCache
from lake.formats.hudi.files.names import MARKER_DIRECTORY
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.read.commits import REWRITE_KINDS, plan_id_of
from lake.formats.hudi.read.unsafe_commits import describe_pending_again, refuse_lost_writes
from lake.formats.hudi.timeline import metadata_table
from lake.formats.hudi.timeline.file_history import (
    CommittedFile,
    FileHistory,
    active_history,
    add_archived,
    read_commit_changes,
)
from lake.formats.hudi.timeline.timeline import PLANNED_KINDS, Instant, Timeline
from lake.plan import Commit

#: the targets of rollbacks, whose plans never change; by table and time
_target_cache: WeightedCache["_Target"] = WeightedCache(100_000)


class _Target(NamedTuple):
    """The instant that a rollback undoes, and the action that the rollback took it for."""

    time: str
    action: str


class _Rollback(NamedTuple):
    instant: Instant
    target: _Target


def refuse_lost_commit(name: str, storage: TableStorage, timeline: Timeline, made: Commit) -> None:
    """Raise CommitLost if the commit ``made`` on the table ``name`` was undone, or removed writers' changes.

    Archived commits are not checked. Raises Transient while the table's owner rolls the commit back.
    """
    time = made.instant
    commit = timeline.find(time)
    if commit is None or commit.pending:
        return
    refuse_lost_writes(name, timeline, made)
    rollback = _find_rollbacks(timeline, {time: commit}).get(time)
    if rollback is not None and rollback.instant.pending and not _is_of_begun_work(rollback):
        raise Transient(f"{name}: rollback {rollback.instant.time} of the completed {commit.kind} {time} is pending")
    missing = _find_missing_outputs(storage, timeline, [commit]).get(time)
    text = _describe_loss(storage, timeline, commit, rollback, missing)
    if text is not None:
        raise CommitLost(f"plan {made.plan_id} of {name}: {text}", made.plan_id)


def find_undone_commits(storage: TableStorage, timeline: Timeline, times: frozenset[str]) -> dict[str, str]:
    """Return those of the commits ``times`` that were undone or whose files are gone, each with a description.

    Archived commits are left out. For each other commit, the files that it wrote are looked up in storage. If one is
    missing, the replaced files of the whole commit must not be deleted: the remedy rolls the whole commit back, and
    then the rows of all its partitions are only in the replaced files.
    """
    commits = {commit.time: commit for commit in timeline.commits if commit.time in times}
    rollbacks = _find_rollbacks(timeline, commits)
    missing = _find_missing_outputs(storage, timeline, commits.values())
    found = {
        time: _describe_loss(storage, timeline, commit, rollbacks.get(time), missing.get(time))
        for time, commit in commits.items()
    }
    return {time: text for time, text in found.items() if text is not None}


def describe_undone_rewrites(storage: TableStorage, timeline: Timeline) -> Iterator[str]:
    """Yield a description of each of lakefold's commits that a writer's rollback undid, with the remedy.

    Reads storage only if a rollback names such a commit.
    """
    rewrites = {commit.time: commit for commit in timeline.commits if commit.kind in REWRITE_KINDS}
    for time, rollback in _find_rollbacks(timeline, rewrites).items():
        if _is_of_begun_work(rollback) and plan_id_of(timeline, rewrites[time]) is not None:
            missing = _find_missing_outputs(storage, timeline, [rewrites[time]]).get(time)
            text = _describe_loss(storage, timeline, rewrites[time], rollback, missing)
            if text is not None:
                yield text


def _find_rollbacks(timeline: Timeline, commits: dict[str, Instant]) -> dict[str, _Rollback]:
    """Return the rollbacks that name one of the completed ``commits`` and that ended, or may end, after its completion.

    An earlier rollback undid an earlier attempt at the instant, as for a plan that another process had begun.
    """
    since = min(commits, default="")
    later = [i for i in timeline.instants if i.kind == "rollback" and commits and i.time > since]
    found = {}
    targets = timeline.storage.map_parallel(lambda rollback: _read_target(timeline, rollback), later)
    for rollback, target in zip(later, targets, strict=True):
        commit = commits.get(target.time)
        if commit is not None and (rollback.pending or _ended_after(timeline, rollback, commit)):
            found[commit.time] = _Rollback(rollback, target)
    return found


def _ended_after(timeline: Timeline, rollback: Instant, commit: Instant) -> bool:
    if timeline.layout == 1:  # completion times of layout 1 are modification times, which don't survive copying a table
        return rollback.time > (commit.completed_at or "")
    return (rollback.completed_at or "") > (commit.completed_at or "")


def _read_target(timeline: Timeline, rollback: Instant) -> _Target:
    key: Hashable = timeline.storage.location, rollback.time, timeline.modified_at(rollback.requested_file)
    target = _target_cache.get(key)
    if target is None:
        plan: Any = timeline.plan(rollback)
        named = (plan or {}).get("instantToRollback") or {}
        target = _Target(str(named.get("commitTime") or ""), str(named.get("action") or ""))
        if plan is not None:  # while the file is empty, its writer may not have finished
            _target_cache.put(key, target, 1)
    return target


def _is_of_begun_work(rollback: _Rollback) -> bool:
    """True if a rollback took its target for begun work; False if it may undo a commit, as by the table's owner.

    Up to table version 6 both name a clustering as replacecommit. But a commit that its owner rolls back is no longer
    on the timeline when the rollback has completed.
    """
    return rollback.target.action in PLANNED_KINDS or not rollback.instant.pending


def _describe_loss(
    storage: TableStorage, timeline: Timeline, commit: Instant, rollback: _Rollback | None, missing: str | None
) -> str | None:
    """Describe how the rows of a completed ``commit`` were lost, with the remedy; None if they were not.

    ``rollback`` is the rollback that names the commit, None if there is none. ``missing`` is a file of the commit
    that is gone for no known reason, None if there is none.
    """
    what = f"{commit.kind} {commit.time}"
    by = "" if rollback is None else f"rollback {rollback.instant.time} of a writer that took it for begun work "
    if rollback is not None and rollback.instant.pending and _is_of_begun_work(rollback):
        return f"{by}is pending, although {what} has completed, and deletes its files; {_remedy(timeline, commit)}"
    if missing is not None:
        why = f"{by}deleted its files" if by else "no clean and no later commit accounts for that"
        return f"{what} has completed, but its file {missing} is gone: {why}; {_remedy(timeline, commit)}"
    if rollback is not None and commit.time in metadata_table.find_missing_commits(storage, timeline):
        return f"{by}removed the completed {what} from the metadata table; {_remedy(timeline, commit)}"
    return None


def _remedy(timeline: Timeline, commit: Instant) -> str:
    """Describe what the table's owner has to do about an undone ``commit``.

    Up to table version 6 log files are named after the compaction that precedes them, so they belong to no slice
    without it: the compaction has to be executed again.
    """
    time, kept = commit.time, "before the table's cleaner deletes the replaced files: the rows are in these files"
    if commit.kind == "compaction" and timeline.layout == 1:
        show = timeline.storage.display_path
        completed, markers = f"{timeline.directory}/{commit.completed_file}", f"{MARKER_DIRECTORY}/{time}"
        return (
            f"readers do not see its rows. Do not roll it back: updates in log files that are named after {time} would "
            f"be lost. Stop the writers, delete the file {show(completed)} and, if it exists, the directory "
            f"{show(markers)}, and execute the compaction, which is pending then, again (CALL run_compaction(op => "
            f"'run', table => …, timestamp => {time})), {kept}"
        )
    text = (
        "readers do not see its rows. Stop the writers and roll it back with the table's own writer "
        f"(CALL rollback_to_instant(table => …, instant_time => '{time}')), {kept}"
    )
    return text if commit.kind == "compaction" else f"{text}. {describe_pending_again(time)}"


def _find_missing_outputs(storage: TableStorage, timeline: Timeline, commits: Iterable[Instant]) -> dict[str, str]:
    """Return, by commit, a base file that it wrote, that no later commit superseded, and that is not in storage.

    The timeline is listed once more for all commits together, and only if one of their files is not in storage.
    """
    files: dict[str, dict[str, CommittedFile]] = {}
    for commit in commits:
        wrote = read_commit_changes(timeline.commit_metadata(commit)).written_files or ()
        files[commit.time] = {file.path: file for file in wrote if not file.is_log}
    there = storage.sizes([path for of_commit in files.values() for path in of_commit])
    missing = [
        (time, file) for time, of_commit in files.items() for path, file in of_commit.items() if path not in there
    ]
    if not missing:
        return {}
    # A clean deletes a file only after the commit that superseded it, so a timeline listed now shows that commit.
    now = Timeline(storage, timeline.properties)
    history = active_history(now)
    lost = [(time, file) for time, file in missing if _is_newest(history, file)]
    if lost:  # with a savepoint, later commits may have been archived
        history = add_archived(now, history)
        lost = [(time, file) for time, file in lost if _is_newest(history, file)]
    found: dict[str, str] = {}
    for time, file in lost:
        found[time] = min(file.path, found.get(time, file.path))
    return found


def _is_newest(history: FileHistory, file: CommittedFile) -> bool:
    """True if no known commit superseded a base file; False if a commit does not record its files."""
    expected = None if history.commits_without_files else history.expected_slice(file.group_id)
    return expected is not None and expected.base is not None and expected.base.name == file.name
