# SPDX-License-Identifier: Apache-2.0
"""Documents read from database and tables as they are now, for commands, HTTP and the page."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from lake import capabilities
from lake.errors import LakefoldError, one_line
from service.control import serializers
from service.problems import DATABASE, classify

if TYPE_CHECKING:
    from service.control.config.table_settings import ConfiguredTable
    from service.control.store import DeletionDay, PlanView, Store, TableState, TrendPoint


def load_table(store: "Store", found: "ConfiguredTable") -> dict[str, Any]:
    """Return everything about one table; reads its timeline.

    If the timeline can't be read, the reason is the only fact.
    """
    state = next(iter(store.table_states([found.name])), None)
    scans = store.reference_scans(names=[found.name]).of(found.name)
    try:
        facts = _table_facts(store, found)
    except (LakefoldError, OSError) as error:
        if classify(error) is DATABASE:
            raise
        facts = {"unreadable": one_line(error)}
    trends = serializers.trends(serializers.table_points(store, found.name, scans.latest_ok, scans.first_ok))
    objectives = store.objectives([found.name]).get(found.name, ())
    return serializers.table_details(found, state, scans, facts, trends, objectives)


def trend_document(points: "Sequence[TrendPoint]") -> dict[str, Any]:
    """Return the points of a table or of the lake, and their changes over 7 and 30 days."""
    return {"points": [serializers.trend_point(point) for point in points], "trends": serializers.trends(points)}


def load_plan(store: "Store", plan_id: str) -> dict[str, Any]:
    """Return everything about the plan with this id or unique part of an id. Raises the store's errors."""
    view = store.plan(plan_id)
    no_executor, held = no_executor_for(store, view), serializers.held_reason(store, view)
    return serializers.plan_details(view, store.plan_events(view.plan_id), no_executor, held)


def no_executor_for(store: "Store", plan: "PlanView") -> str | None:
    """Return why no executor would take ``plan``: none runs, or none of its resource group; None if one would."""
    processes = store.processes()
    if (reason := serializers.no_executor_reason(processes)) is not None:
        return reason
    waiting = store.waiting_by_group(plan.table).get(plan.table)
    return serializers.unserved_group_reason(processes, waiting.group) if waiting else None


def load_deletion_days(store: "Store", configured: "Callable[[TableState], ConfiguredTable]") -> "list[DeletionDay]":
    """Return the files awaiting deletion by table and day, earliest day first, under the retention now in force."""
    tables: dict[timedelta, list[str]] = {}
    for state in store.table_states():
        tables.setdefault(configured(state).policy.retention, []).append(state.name)
    return store.deletion_days(tables)


def _table_facts(store: "Store", found: "ConfiguredTable") -> dict[str, str]:
    facts = dict(found.adapter.describe(found.ref))
    pending = capabilities.pending_actions(found.adapter, found.ref)
    adopted = store.adopted_plans(found.name, [entry.instant for entry in pending])
    unknown = [entry for entry in pending if entry.plan_id and not store.plan_state(entry.plan_id)]
    if unknown:
        of_plans = ", ".join(f"{entry.action} {entry.instant} of plan {entry.plan_id}" for entry in unknown)
        remedy = f"if no other lakefold runs it: lakefold tables rollback {found.name} {unknown[0].instant}"
        facts["unknown plans"] = f"{of_plans}, which this database does not know; {remedy}"
    if adopted:
        facts["adopted"] = ", ".join(f"{instant} by plan {plan_id}" for instant, plan_id in sorted(adopted.items()))
    return facts
