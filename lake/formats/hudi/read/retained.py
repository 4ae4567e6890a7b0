# SPDX-License-Identifier: Apache-2.0
"""Files that lakefold's retention keeps, as the timeline tells: inputs of rewrites that completed a short while ago.

The database of one lakefold is not asked. It may not know a rewrite yet, since a commit is recorded after it completed,
and another lakefold with its own database may have made the rewrite.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from lake.formats.hudi.read.commits import plan_id_of, recorded_plan_id
from lake.formats.hudi.timeline.timeline import PLAN_KEY, Timeline, instant_datetime, planned_slices

#: an archived rewrite is looked for this long before the retention: instants are named after when they began
_MAX_REWRITE_DURATION = timedelta(days=1)


def find_retained_files(timeline: Timeline, retention: timedelta) -> Mapping[str, str]:
    """The inputs of rewrites of any lakefold that completed within ``retention``: paths, and why they stay."""
    if retention <= timedelta():
        return {}
    since, found = datetime.now(UTC) - retention, dict[str, str]()
    for instant in timeline.commits:
        at = instant_datetime(instant.completed_at or instant.time, timeline.timezone)
        if at > since and (plan_id := plan_id_of(timeline, instant)) is not None:
            reason = _retention_reason(plan_id, instant.time, at + retention)
            found |= {path: reason for entry in planned_slices(timeline.plan(instant) or {}) for path in entry.paths}
    # The active timeline was listed before: what is archived meanwhile is in both, not in none.
    for head in timeline.archived({"commit", "replacecommit"}, plans=False, metadata=False):
        if instant_datetime(head.time, timeline.timezone) < since - _MAX_REWRITE_DURATION:
            break  # the newest come first
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
