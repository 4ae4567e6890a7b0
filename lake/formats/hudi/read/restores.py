# SPDX-License-Identifier: Apache-2.0
"""The commits that a restore to a savepoint rolls back although the savepoint keeps their files.

Hudi lists the files of a savepoint by the times at which commits were requested: a commit that was requested before the
saved commit counts as older, even if it completed later. But a restore rolls back every commit that completed after the
saved commit. A rewrite during which a writer commits is such a commit if the writer's commit is saved afterwards. By
default Hudi saves the writer's commit, because its time is the newest. The savepoint then keeps the files that the
rewrite wrote, but the restore deletes them: the rows are only in the files that the rewrite superseded.

So the superseded files stay while such a savepoint exists or can be created. Hudi creates no savepoint of a commit
before the earliest retained instant of the newest clean; the earliest retained instant of a clean by lakefold is
therefore after these commits, see ``find_newest_overlapped``. For the newest commit savepoints can't be refused.
"""

from collections.abc import Collection, Mapping

from lake.formats.hudi.timeline.timeline import Instant, Timeline

#: the number of overlaps, each with the next one, for whose end a clean waits
_MAX_CHAIN = 4


def find_commits_undone_by_restores(timeline: Timeline, cleaner_bound: str = "") -> Mapping[str, str]:
    """Return the commits whose superseded files a restore may need, by time, each with the reason why they must stay.

    ``cleaner_bound`` is the earliest instant that the table's own cleaner retains: Hudi can create a savepoint of that
    instant. It is '' if that cleaner records none.
    """
    found, newest = dict[str, str](), timeline.newest_commit_time
    for time, overlapped in find_newest_overlapped(timeline).items():
        if overlapped == newest:
            found[time] = f"to a savepoint of {newest}, the newest commit, {_why(time)}; it waits for the next commit"
        elif time < cleaner_bound <= overlapped:
            found[time] = (
                f"to a savepoint of {overlapped}, which the table's own cleaner retains since its instant "
                f"{cleaner_bound}, {_why(time)}"
            )
    for savepoint in timeline.completed_savepoints:
        saved = timeline.find(savepoint.time)
        if saved is None:
            continue
        for commit in timeline.commits:
            if commit.time < saved.time and (commit.completed_at or "") > (saved.completed_at or ""):
                found[commit.time] = f"to savepoint {saved.time}, {_why(commit.time)}"
    return found


def _why(time: str) -> str:
    return f"which rolls {time} back, since it completed after the saved commit"


def find_newest_overlapped(timeline: Timeline) -> Mapping[str, str]:
    """Return the newest commit that was requested after a commit and completed before it, by the latter's time.

    Commits that overlap no such commit are left out.
    """
    found: dict[str, str] = {}
    later: list[Instant] = []  # by time, the newest first
    earliest_completion = ""
    for commit in sorted(timeline.commits, key=lambda instant: instant.time, reverse=True):
        completed_at = commit.completed_at or ""
        if later and earliest_completion < completed_at:
            found[commit.time] = next(other.time for other in later if (other.completed_at or "") < completed_at)
        earliest_completion = min(earliest_completion, completed_at) if later else completed_at
        later.append(commit)
    return found


def find_end_of_overlaps(overlapped: Mapping[str, str], time: str) -> str | None:
    """Return the newest commit of the chain of overlaps that begins with the commit ``time``.

    ``overlapped`` is the result of ``find_newest_overlapped``. None if the chain is too long to wait for its end, as
    with many concurrent writers.
    """
    end = overlapped.get(time, time)
    for _ in range(_MAX_CHAIN):
        later = max((newest for other, newest in overlapped.items() if time < other <= end), default=end)
        if later <= end:
            return end
        end = later
    return None


def find_deletable_commits(timeline: Timeline, superseding: Collection[str], bound: str) -> Collection[str]:
    """Return those of the commits ``superseding`` whose superseded files a clean that can't bound archival may delete.

    ``bound`` is the archiver's bound: the oldest commit whose replaced files stay, or the oldest pending replacement.
    After the deletion no commit that a deleted one overlapped may be at or after the bound: it could be saved. Each
    commit that waits for this reason is the new bound, unless the chain of such commits is too long.
    """
    overlapped = find_newest_overlapped(timeline)
    found = {time for time in superseding if time <= bound}
    for _ in range(_MAX_CHAIN):
        waiting = {time for time in found if overlapped.get(time, "") >= bound}
        if not waiting:
            break
        bound = min(waiting)
        found = {time for time in found - waiting if time <= bound}
    return found


def find_start_without_overlaps(timeline: Timeline, start: str) -> str | None:
    """Return the newest instant before which no commit's files are needed by a restore to that instant or a later one.

    It is at or before ``start``, from which on a clean policy retains commits. None if no commit overlaps ``start``, or
    if the overlaps before it are a long chain, as with many concurrent writers: a clean would wait for its end in vain.
    """
    overlapped, found = find_newest_overlapped(timeline), start
    for _ in range(_MAX_CHAIN):
        earlier = min((time for time, newest in overlapped.items() if time <= found <= newest), default=found)
        if earlier == found:
            return found if found in overlapped or found < start else None
        found = earlier
    return None
