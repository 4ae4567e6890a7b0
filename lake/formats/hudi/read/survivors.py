# SPDX-License-Identifier: Apache-2.0
"""Rewrites that outlived a restore which was to take them back.

A restore of Hudi's looks at the timeline before it waits for the table's lock, and plans by that under the lock. A
clustering or compaction that completes meanwhile is in the plan as pending. It has another action by then, so that the
restore takes it for rolled back and leaves it (Hudi 1.2.0): its files are read, with rows from after the savepoint.
"""

from collections.abc import Iterator

from lake.formats.hudi.timeline.timeline import PLANNED_KINDS, Instant, Timeline


def find_unrestored_rewrites(timeline: Timeline) -> Iterator[tuple[Instant, Instant]]:
    """Completed rewrites from after a savepoint that was restored since, each with the completed restore."""
    for restore in timeline.completed:
        if restore.action != "restore":
            continue
        saved = str((timeline.plan(restore) or {}).get("savepointToRestoreTimestamp") or "")
        if not saved:  # one of a Hudi that does not say
            continue
        commit = timeline.find(saved)
        since = saved if commit is None else commit.completed_at or saved
        for instant in timeline.commits:
            if instant.kind in PLANNED_KINDS and since < (instant.completed_at or "") and instant.time < restore.time:
                yield instant, restore


def describe_unrestored_rewrites(timeline: Timeline) -> Iterator[str]:
    """What is wrong, and what the table's owner does about it."""
    for instant, restore in find_unrestored_rewrites(timeline):
        yield (
            f"{instant.kind} {instant.time} completed while restore {restore.time} waited for the table's lock, and "
            "Hudi has left it: rows from after the savepoint are read. Before the table is written again, roll it back "
            f"with the table's own writer (CALL rollback_to_instant(table => …, instant_time => '{instant.time}'))"
        )
