# SPDX-License-Identifier: Apache-2.0
"""Refusals to plan a table.

The reasons are its mode, a halt, a pause, its format, another name of the table that is in use, or live plans that hold
the requested partitions.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from lake.capabilities import CatalogOnly
from lake.errors import LakefoldError, one_line
from lake.model import partition_label
from lake.ports import Capability
from planner.policy.compatibility import unsupported_settings
from service import problems
from service.control.config.loader import Config
from service.control.config.table_settings import DEFAULT_ORIGIN, ConfiguredTable
from service.control.store.views import TableState
from service.modes import PLANNED_MODES
from service.problems import ProblemError

if TYPE_CHECKING:
    from service.control.store import Store

#: checks wait for storage more than they compute
_CHECK_THREADS = 16


def planning_refusal(config: Config, store: "Store", table: ConfiguredTable, state: TableState) -> ProblemError | None:
    """Return the reason why this table may not be planned now; None if it may."""
    if table.mode not in PLANNED_MODES:
        where = table.origins["mode"].source
        origin = "the default" if where == "default" else f"from {where}"
        wanted = required_rule_setting(table)
        required_setting = f"{wanted[0]} = {' or '.join(map(json.dumps, wanted[1]))} " if wanted else ""
        rule = f'[[tables]] match = "{table.name}" mode = "compact" {required_setting}in {config.file_name}'
        return ProblemError(
            problems.NOT_SERVED, f"{table.name} is in mode {table.mode} ({origin}); set {rule}", mode=table.mode
        )
    if (unsaid := missing_required_rules(config, table)) is not None:
        return ProblemError(problems.NOT_SERVED, f"{table.name}: {unsaid}", mode=table.mode)
    if state.halted:
        return ProblemError(
            problems.NOT_SERVED,
            f"{table.name} is halted: {state.halted_reason}; once the cause is removed: lakefold resume {table.name}",
            halted_at=state.halted_at,
        )
    if (pause := state.pause or store.service_pause()) is not None:
        what, argument = (table.name, f" {table.name}") if state.paused else ("lakefold", "")
        return ProblemError(
            problems.NOT_SERVED, f"{what} is paused {pause.words}; to continue: lakefold resume{argument}"
        )
    if (used := other_name_in_use(store, table)) is not None:
        return ProblemError(problems.NOT_SERVED, f"{table.name} is not planned: {used}", table=table.name)
    return None


def other_name_in_use(store: "Store", table: ConfiguredTable) -> str | None:
    """Return why a table is not planned under its name while another name of it is in use; None if no other one is."""
    other = store.other_name_in_use(table.ref)
    if other is None:
        return None
    ended = f"; to end it: lakefold plans cancel {other.plan_id}" if other.plan_id is not None else ""
    return (
        f"{other.name} is another name of the same table, and {other.owner} holds {partition_label(other.partition)} "
        f"under that name{ended}; [[sources]] prefix and the order of the sources determine a table's only name; "
        f"{table.name} is planned once {other.name} has no live plan and no lock"
    )


def required_rule_setting(table: ConfiguredTable) -> tuple[str, Sequence[str]] | None:
    """Return the setting that a rule has to set before ``table`` is planned, and its allowed values.

    Returns None if the table's own format isolates concurrent commits.
    """
    if _catalog_only_format(table) is not None:
        return "access", ("catalog",)
    return None if _has_optimistic_commits(table) else ("concurrency", ("single_writer", "occ"))


def missing_required_rules(config: Config, table: ConfiguredTable) -> str | None:
    """Return why ``access`` or ``concurrency`` lets a table in mode propose or compact only be scanned; else None.

    A table does not record how programs read and write it, and a wrong guess loses rows.
    """
    if table.mode not in PLANNED_MODES:
        return None
    rule = f"in a rule of {config.file_name}; until then it is only scanned"
    if (adapter := _catalog_only_format(table)) is not None:
        if table.access == "catalog":
            return None
        reason = "no rule confirms" if table.access is None else f'access = "{table.access}" denies'
        return (
            f"mode {table.mode} is for tables whose readers and writers all use the catalog, which {reason}; "
            f'{adapter.catalog_only_reason}. If none of this happens, set access = "catalog" {rule} (docs/hive.md)'
        )
    if _has_optimistic_commits(table) or table.origins["concurrency"].source != DEFAULT_ORIGIN:
        return None
    return (
        f'mode {table.mode} needs concurrency to be set: concurrency = "single_writer" (no other program writes while '
        f'lakefold works on the table) or "occ" (writers continue and take the same lock) {rule} (docs/writers.md)'
    )


def _catalog_only_format(table: ConfiguredTable) -> CatalogOnly | None:
    return table.adapter if isinstance(table.adapter, CatalogOnly) else None


def _has_optimistic_commits(table: ConfiguredTable) -> bool:
    return Capability.OPTIMISTIC_COMMITS in table.adapter.capabilities


def refused_tables(config: Config, tables: Collection[ConfiguredTable]) -> dict[str, str]:
    """Return the problem of each of ``tables`` that can't be read, or can't be planned as configured.

    Runs the check of each table's format, and lists no files. Tables in mode off are left out.
    """

    def refusal_of(table: ConfiguredTable) -> str | None:
        try:
            table.adapter.check(table.ref)
        except (LakefoldError, OSError) as error:
            return one_line(error)
        problem = next(unsupported_settings(table.policy, table.adapter), None) or missing_required_rules(config, table)
        return problem and f"{table.name}: {problem}"

    scanned = [table for table in tables if table.mode != "off"]
    with ThreadPoolExecutor(_CHECK_THREADS) as pool:
        reasons = pool.map(refusal_of, scanned)
        return {table.name: why for table, why in zip(scanned, reasons, strict=True) if why is not None}


def partitions_locked_error(table: str, plans_by_partition: Mapping[str, str]) -> ProblemError:
    """Return the refusal of a request if live plans hold all of its partitions; ``plans_by_partition`` names them."""
    plans = sorted(set(plans_by_partition.values()))
    named = ", ".join(plans[:3]) + (f" and {len(plans) - 3} more" if len(plans) > 3 else "")
    what = "plan" if len(plans) == 1 else "plans"
    text = f"every requested partition of {table} is held by live {what} {named}; lakefold plans watch {plans[0]}"
    return ProblemError(problems.LIVE_PLAN, text, holders=dict(plans_by_partition))
