# SPDX-License-Identifier: Apache-2.0
"""The commits that a restore to a savepoint rolls back although the savepoint keeps their files.

Hudi lists the files of a savepoint by the times at which commits were requested: a commit that was requested before the
saved commit counts as older, even if it completed later. But a restore rolls back every commit that completed after the
saved commit. A rewrite during which a writer commits is such a commit if the writer's commit is saved afterwards. By
default Hudi saves the writer's commit, because its time is the newest. The savepoint then keeps the files that the
rewrite wrote, but the restore deletes them: the rows are only in the files that the rewrite superseded.
"""

from collections.abc import Mapping

from lake.formats.hudi.timeline.timeline import Timeline


def find_commits_undone_by_restores(timeline: Timeline) -> Mapping[str, str]:
    """Return the commits that such a restore rolls back, by time, each with the time of the savepoint.

    The files that such a commit superseded must stay as long as the savepoint exists.
    """
    saved = [timeline.find(instant.time) for instant in timeline.completed if instant.action == "savepoint"]
    return {
        commit.time: restored.time
        for restored in saved
        if restored is not None
        for commit in timeline.commits
        if commit.time < restored.time and (commit.completed_at or "") > (restored.completed_at or "")
    }
