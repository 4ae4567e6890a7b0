# SPDX-License-Identifier: Apache-2.0
"""Detection of commits that lost rows or brought rows back: clusterings without a lock, rewrites after a restore.

A clustering replaces file groups. While the table's lock is held, no writer changes these groups between the last check
and the commit. If the lock was lost, a writer may have changed them: the writer's commit is complete, but its files are
in no listing, and the files that it replaced are read again.
"""

from collections.abc import Iterator

from lake.errors import CommitLost
from lake.formats.hudi.files.names import FileGroupId
from lake.formats.hudi.timeline.file_history import CommittedFile, read_commit_changes
from lake.formats.hudi.timeline.timeline import PLANNED_KINDS, Instant, PlannedSlice, Timeline, planned_slices
from lake.plan import Commit


def find_lost_writes(timeline: Timeline, commit: Instant) -> list[Instant]:
    """Return the completed commits whose changes the completed clustering ``commit`` removed, oldest first."""
    if commit.action != "replacecommit":
        return []
    planned: dict[FileGroupId, PlannedSlice] = {
        (entry.partition, entry.file_id): entry for entry in planned_slices(timeline.plan(commit) or {})
    }
    if not planned:
        return []
    found = []
    for instant in timeline.commits:
        if instant.time != commit.time and _can_be_later(timeline, instant, commit):
            record = read_commit_changes(timeline.commit_metadata(instant))
            rewrote = any(
                _is_lost(wrote, planned.get(wrote.group_id), timeline) for wrote in record.written_files or ()
            )
            if rewrote or planned.keys() & set(record.replaced_groups):
                found.append(instant)
    return sorted(found, key=lambda instant: instant.time)


def _can_be_later(timeline: Timeline, instant: Instant, commit: Instant) -> bool:
    """True if ``instant`` may have completed after the plan of ``commit`` was written to the timeline."""
    if timeline.layout == 1:  # completion times of layout 1 are modification times, which don't survive copying a table
        return instant.time > commit.time
    return max(instant.completed_at or "", instant.time) > commit.time


def _is_lost(written: CommittedFile, slice_: PlannedSlice | None, timeline: Timeline) -> bool:
    """True if a file was written into a replaced file group and is not in the plan."""
    if slice_ is None:
        return False
    if written.is_log and timeline.layout == 1:
        return True  # perhaps appended to a log of the plan
    return written.name not in {slice_.base, *slice_.logs}


def refuse_lost_writes(name: str, timeline: Timeline, made: Commit) -> None:
    """Raise CommitLost if the commit ``made`` on the table ``name`` removed changes that writers had committed."""
    commit = timeline.find(made.instant, action="replacecommit")
    lost = [] if commit is None or commit.pending else find_lost_writes(timeline, commit)
    if lost:
        raise CommitLost(f"plan {made.plan_id} of {name}: {describe_lost_writes(made.instant, lost)}", made.plan_id)


def describe_lost_writes(time: str, lost_commits: list[Instant]) -> str:
    """Describe what happened, and the remedy for the table's owner."""
    writers = ", ".join(f"{instant.kind} {instant.time}" for instant in lost_commits)
    return (
        f"clustering {time} replaced file groups that {writers} changed meanwhile, since the table's lock was lost: "
        "readers no longer see those changes. Stop the writers and roll the clustering back with the "
        f"table's own writer (CALL rollback_to_instant(table => …, instant_time => '{time}')), before its cleaner "
        f"deletes the replaced files. {describe_pending_again(time)}"
    )


def describe_pending_again(time: str) -> str:
    """Describe what has to follow the rollback of the completed clustering ``time`` by the table's owner.

    From table version 8 on, the rollback makes the clustering pending again.
    """
    return (
        f"Then, before a writer starts again, run lakefold tables rollback TABLE {time}, unless {time} has left the "
        "timeline: the rollback makes the clustering pending again, and writers that execute pending plans would "
        "remove rows that were written since"
    )


def find_unrestored_rewrites(timeline: Timeline) -> Iterator[tuple[Instant, Instant]]:
    """Yield the completed rewrites that a restore to an older savepoint did not undo, each with the restore.

    If the completion times are unknown, as after a table of layout 1 was copied, the order of the requests counts.
    """
    for restore in timeline.completed:
        if restore.action != "restore":
            continue
        saved = str((timeline.plan(restore) or {}).get("savepointToRestoreTimestamp") or "")
        if not saved:  # not every version of Hudi records the savepoint
            continue
        commit = timeline.find(saved)
        since = saved if commit is None else timeline.known_completion(commit)
        for instant in timeline.commits:
            end = timeline.known_completion(instant)
            is_later = instant.time > saved if since is None or end is None else end > since
            if instant.kind in PLANNED_KINDS and is_later and instant.time < restore.time:
                yield instant, restore


def describe_unrestored_rewrites(timeline: Timeline) -> Iterator[str]:
    """Yield a description of each rewrite that a restore missed, with the remedy for the table's owner."""
    for instant, restore in find_unrestored_rewrites(timeline):
        yield (
            f"{instant.kind} {instant.time} completed while restore {restore.time} waited for the table's lock, and "
            "Hudi did not undo it: rows from after the savepoint are read. Before the table is written again, roll it "
            f"back with the table's own writer (CALL rollback_to_instant(table => …, instant_time => '{instant.time}'))"
        )
