# SPDX-License-Identifier: Apache-2.0
"""The documents of processes: their roles, plans and Spark state, and the reason why no executor works."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from service.control.leadership import SCAN_ROLE
from service.text import process_label

if TYPE_CHECKING:
    from service.control.store import GroupWait, Leader, PlanView, ProcessView


def process_summary(process: "ProcessView", leads: Sequence[str], runs: "Iterable[PlanView]") -> dict[str, Any]:
    """Return a process with the roles that it leads and the plans that it runs."""
    return {
        "name": process.name,
        "role": process.role,
        "host": process.host,
        "version": process.version,
        "live": process.live,
        "started_at": process.started_at,
        "seen_at": process.seen_at,
        "slots": process.slots,
        "resource_groups": None if process.resource_groups is None else process.resource_groups.split(),
        "spark": process.spark,
        "spark_ui": process.spark_ui,
        "problem": process.problem,
        "config_problem": process.config_problem,
        "leads": leads,
        "runs": [{"plan_id": plan.plan_id, "table": plan.table, "step": plan.step} for plan in runs],
    }


def process_list(
    processes: "Iterable[ProcessView]", leaders: "Iterable[Leader]", running: "Iterable[PlanView]"
) -> list[dict[str, Any]]:
    """Return the live and recently live processes, live processes first."""
    leads: dict[str, list[str]] = {}
    runs: dict[str, list[PlanView]] = {}
    for leader in leaders:
        if leader.live:
            leads.setdefault(leader.holder, []).append(leader.role)
    for plan in running:
        runs.setdefault(plan.executor or "", []).append(plan)
    return [
        process_summary(process, leads.get(process.name, ()), runs.get(process.name, ()))
        for process in sorted(processes, key=lambda process: (not process.live, process.name))
    ]


def silent_processes(processes: "Iterable[ProcessView]") -> "list[ProcessView]":
    """Return the processes that stopped reporting without a shutdown and that no later process has replaced.

    A process replaces one silent process of the same role if it started after that process's last heartbeat.
    """
    found, known = [], sorted(processes, key=lambda process: process.seen_at)
    successors = sorted((process for process in known if process.live), key=lambda process: process.started_at)
    for silent in (process for process in known if not process.live):
        later = (one for one in successors if one.role == silent.role and one.started_at > silent.seen_at)
        if (successor := next(later, None)) is None:
            found.append(silent)
        else:
            successors.remove(successor)
    return found


def describe_silence(role: str, seen: str, *, runs_plans: bool) -> str:
    """Return what is known of a silent process that was last seen at ``seen``, such as ``3 min ago``."""
    plans = "; its plans are taken over when their leases end" if runs_plans else ""
    return f"(role {role}) was last seen {seen} and did not sign off: it was killed, hangs, or lost the database{plans}"


def config_problems(processes: "Iterable[ProcessView]") -> dict[str, list[str]]:
    """Return how configuration files differ from the configurations in force, each with the names of its processes."""
    found: dict[str, list[str]] = {}
    for process in processes:
        if process.live and process.config_problem is not None:
            found.setdefault(process.config_problem, []).append(process_label(process.name))
    return found


def has_scheduler(leaders: "Iterable[Leader]") -> bool:
    """Return True if a live process leads scans; without one no table is scanned and no request is answered."""
    return any(leader.role == SCAN_ROLE and leader.live for leader in leaders)


def unserved_groups(processes: "Iterable[ProcessView]", waiting: "Iterable[GroupWait]") -> list[dict[str, Any]]:
    """Return the resource groups with waiting plans that no live executor serves, each with the number of plans."""
    live, plans = list(processes), dict[str, int]()
    for one in waiting:
        plans[one.group] = plans.get(one.group, 0) + one.plans
    return [
        {"group": group, "plans": count, "reason": unserved_group_reason(live, group)}
        for group, count in sorted(plans.items())
        if unserved_group_reason(live, group) is not None
    ]


def unserved_group_reason(processes: "Sequence[ProcessView]", group: str) -> str | None:
    """Return why no executor takes the plans of a resource group; None if one does, or if no executor runs at all."""
    if no_executor_reason(processes) is not None or any(process.serves_group(group) for process in processes):
        return None
    return (
        f"no live executor serves the resource group {group}; start one with lakefold worker --resource-group {group}"
    )


def no_executor_reason(processes: "Iterable[ProcessView]") -> str | None:
    """Return why no process can run plans; None if one can."""
    executors = [process for process in processes if process.can_execute]
    if not executors:
        return "no executor is running; lakefold worker starts one"
    broken = [process for process in executors if process.problem is not None]
    if len(broken) == len(executors):
        return f"no executor can run plans, since Spark is missing: {broken[0].problem}"
    return None
