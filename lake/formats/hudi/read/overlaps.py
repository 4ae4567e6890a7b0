# SPDX-License-Identifier: Apache-2.0
"""Commits of other processes that were under way while a plan of lakefold's was, as the timeline tells.

A plan's time goes from its instant, which lakefold publishes when it begins to run it, to its completion. A plan that
another process scheduled was on the timeline before lakefold came, so that nothing tells when it was begun.
"""

from datetime import timedelta

from lake.formats.hudi.read.commits import plan_id_of
from lake.formats.hudi.timeline.timeline import PLAN_KEY, Instant, Timeline, extra_metadata, instant_datetime
from lake.model import OverlappingCommit

#: how far the times of an instant's files may be from its name before they are taken for those of a copy
_MAX_FILE_TIME_DIFFERENCE = timedelta(minutes=1)


def find_overlaps(timeline: Timeline) -> tuple[OverlappingCommit, ...]:
    """Such commits of the active timeline, oldest first, each with the first plan that it met."""
    ours: list[tuple[Instant, str, str]] = []
    theirs: list[tuple[Instant, str]] = []
    for instant in timeline.commits:
        end, plan_id = _completion_time(timeline, instant), plan_id_of(timeline, instant)
        if end is not None and plan_id is None:
            theirs.append((instant, end))
        elif end is not None and plan_id is not None and _is_published_by_lakefold(timeline, instant):
            ours.append((instant, end, plan_id))
    found = []
    for instant, end in theirs:
        met = next((plan for own, own_end, plan in ours if own.time < end and instant.time < own_end), None)
        if met is not None:
            at = instant_datetime(end, timeline.timezone)
            found.append(OverlappingCommit(instant=instant.time, action=instant.kind, completed_at=at, plan_id=met))
    return tuple(found)


def _is_published_by_lakefold(timeline: Timeline, instant: Instant) -> bool:
    return PLAN_KEY in extra_metadata(timeline.plan(instant))


def _completion_time(timeline: Timeline, instant: Instant) -> str | None:
    """When a commit completed; None where that is not known, as in layout 1 of a table that was copied."""
    if timeline.layout != 1:
        return instant.completed_at
    requested = timeline.modified_at(instant.requested_file)
    begun = instant_datetime(instant.time, timeline.timezone)
    return (
        instant.completed_at if requested is not None and abs(requested - begun) < _MAX_FILE_TIME_DIFFERENCE else None
    )
