# SPDX-License-Identifier: Apache-2.0
"""The pending rollbacks of rewrites that no writer finishes, because their target has left the timeline.

Hudi's rollback of a begun clustering deletes the files, writes to the metadata table, deletes the clustering from the
timeline, and completes last. If its process dies before that, a pending rollback without a target remains. Hudi's
writes finish pending rollbacks, but they leave rollbacks of clusterings and compactions to the next execution of the
plan. Without the target the plan is never executed again, and a withdrawal does not find the target, either. The
pending rollback loses no row. But the metadata table archives nothing from its time on, and up to table version 6 its
compaction stops: after 1000 commits (``hoodie.metadata.max.deltacommits.when_pending``) every write fails.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.pending.heartbeats import has_live_heartbeat
from lake.formats.hudi.pending.late_files import read_instant_record
from lake.formats.hudi.timeline.timeline import Instant, Timeline
from lake.model import TableRef

#: the actions of clusterings and compactions; up to table version 6 a clustering is a replacecommit
_REWRITE_ACTIONS = frozenset({"clustering", "compaction", "replacecommit"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftRollback:
    """A pending rollback, and the time and action of its target, which is no longer on the timeline."""

    instant: Instant
    target: str
    action: str


def rollback_target(plan: Mapping[str, Any] | None) -> str:
    """Return the time of the instant that a rollback with this plan undoes; 'None' if the plan does not name it."""
    return str(((plan or {}).get("instantToRollback") or {}).get("commitTime"))


def rollback_action(plan: Mapping[str, Any] | None) -> str:
    """Return the action of the instant that a rollback with this plan undoes; '' if the plan does not name it."""
    return str(((plan or {}).get("instantToRollback") or {}).get("action") or "")


def find_running_rollback(
    table: TableRef, storage: TableStorage, timeline: Timeline, target: str = ""
) -> Instant | None:
    """Return the pending rollback that a live process executes; of ``target``, '' for any. None if there is none.

    Hudi executes rollbacks without the table's lock. Under optimistic concurrency, the process of a rollback renews a
    heartbeat, by which Hudi keeps other processes away. A second execution would make the first one fail.
    """
    for instant in timeline.pending:
        if instant.kind != "rollback" or not has_live_heartbeat(table, storage, instant.time):
            continue
        try:
            if not target or rollback_target(timeline.plan(instant)) == target:
                return instant
        except FileNotFoundError:  # it ended after the timeline was listed
            continue
    return None


def find_left_rollbacks(timeline: Timeline) -> Iterator[LeftRollback]:
    """Yield the pending rollbacks of clusterings and compactions that are no longer on the timeline."""
    for instant in timeline.pending:
        if instant.kind != "rollback":
            continue
        try:
            plan = timeline.plan(instant)
        except FileNotFoundError:  # it ended after the timeline was listed
            continue
        target, action = rollback_target(plan), rollback_action(plan)
        if action in _REWRITE_ACTIONS and timeline.find(target) is None:
            yield LeftRollback(instant=instant, target=target, action=action)


def find_left_rollbacks_of_lakefold(storage: TableStorage, timeline: Timeline) -> list[LeftRollback]:
    """Return the rollbacks of ``find_left_rollbacks`` whose target was an instant of a lakefold plan, in any
    database."""
    return [left for left in find_left_rollbacks(timeline) if read_instant_record(storage, left.target) is not None]
