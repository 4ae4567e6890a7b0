# SPDX-License-Identifier: Apache-2.0
"""The documents of the past of plans: cumulative savings and CPU time of a table, and attempts by executor."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from service.control.store import AttemptHistory, PlanSaving, Store

#: the period of a table's savings, and of the attempts at plans
SAVINGS_PERIOD, ATTEMPTS_PERIOD = timedelta(days=30), timedelta(days=1)
_DAY = timedelta(days=1)


def savings(plans: "Sequence[PlanSaving]", now: datetime) -> dict[str, Any]:
    """Return cumulative figures after each of ``plans``, which are in the order of their completion, and at ``now``.

    ``cpu_seconds_saved`` is the time that readers have saved since the completion of each plan, at the rate predicted
    with the plan. The rate assumes that the files which the plan replaced would otherwise have remained.
    ``cpu_seconds_spent`` is the measured or estimated CPU time of the plans. ``since`` is None if there are no plans.
    """
    points: list[dict[str, Any]] = []
    spent = saved = rate = 0.0
    removed, before = 0, None
    for plan in plans:
        saved += 0.0 if before is None else rate * ((plan.at - before) / _DAY)
        spent, removed, rate, before = (
            spent + plan.cpu_seconds,
            removed + plan.files_removed,
            rate + plan.cpu_seconds_saved_per_day,
            plan.at,
        )
        points.append(_saving_point(plan.at, spent, saved, removed))
    if before is not None and now > before:
        points.append(_saving_point(now, spent, saved + rate * ((now - before) / _DAY), removed))
    return {
        "since": plans[0].at if plans else None,
        "plans": len(plans),
        "cpu_seconds_saved_per_day": rate,
        "points": points,
    }


def _saving_point(at: datetime, spent: float, saved: float, removed: int) -> dict[str, Any]:
    return {"at": at, "cpu_seconds_spent": spent, "cpu_seconds_saved": saved, "files_removed": removed}


def load_savings(store: "Store", table: str, now: datetime) -> dict[str, Any]:
    """Return the savings of a table's plans of the last 30 days."""
    return savings(store.plan_savings(table, SAVINGS_PERIOD), now)


def attempt_history(history: "AttemptHistory") -> dict[str, Any]:
    """Return the attempts at plans, oldest first, and the period in which they ran."""
    return {
        "since": history.since,
        "until": history.until,
        "items": [
            {
                "plan_id": attempt.plan_id,
                "table": attempt.table,
                "kind": attempt.kind,
                "executor": attempt.executor,
                "epoch": attempt.epoch,
                "began_at": attempt.began_at,
                "ended_at": attempt.ended_at,
                "outcome": attempt.outcome,
            }
            for attempt in history.attempts
        ],
    }


def load_plan_sizes(store: "Store", plan_ids: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return for each plan the files that it rewrites and the files that it is expected to write, counted by size.

    Each list has the number of files of up to 1 KiB, then of up to 2 KiB, 4 KiB and so on, and last of files above
    16 GiB. The expected files of a group are equal parts of its bytes.
    """
    import pyarrow as pa

    from lake.model import SizeHistogram

    found = store.plan_file_sizes(plan_ids)
    documents = {}
    for plan_id in plan_ids:
        before, after = (SizeHistogram.of(pa.array(sizes, pa.int64()), 0) for sizes in found.get(plan_id) or ([], []))
        documents[plan_id] = {
            "plan_id": plan_id,
            "files_before": before.files,
            "files_after": after.files,
            "before": list(before.counts),
            "after": list(after.counts),
        }
    return documents
