# SPDX-License-Identifier: Apache-2.0
"""The document of a report: the tables of each team, tag or database, and the work that lakefold did for them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from service.control.store import Figures
    from service.control.store.views import TableTotals

#: the groupings of a report
GROUPINGS = ("owner", "tag", "database")

_STATE_FIELDS = ("files", "bytes", "reducible_files", "reducible_bytes", "freed_bytes")
_WORK_FIELDS = ("plans_completed", "files_removed", "rewritten_bytes")


def report(by: str, tables: "Iterable[TableTotals]", figures: "Figures") -> list[dict[str, Any]]:
    """Return one document per group, the group with the most rewritten bytes first; ``by`` is one of ``GROUPINGS``.

    The group of tables without owner, tag or database is None. A table with several tags counts in each of them. Files
    and reducible files are those of the last good scans; completed plans, removed files, rewritten and freed bytes are
    totals since the beginning.
    """
    work = _completed_work(figures)
    groups: dict[str | None, dict[str, int]] = {}
    for table in tables:
        for group in _groups_of(by, table):
            found = groups.setdefault(group, dict.fromkeys(("tables", "halted", *_STATE_FIELDS, *_WORK_FIELDS), 0))
            found["tables"] += 1
            found["halted"] += table.is_halted
            for name in _STATE_FIELDS:
                found[name] += getattr(table, name)
            for name, value in work.get(table.table, {}).items():
                found[name] += value
    documents = [{"by": by, "group": group, **sums} for group, sums in groups.items()]
    return sorted(documents, key=lambda one: (-one["rewritten_bytes"], one["group"] is None, one["group"] or ""))


def _groups_of(by: str, table: "TableTotals") -> Sequence[str | None]:
    match by:
        case "owner":
            return (table.owner,)
        case "tag":
            return table.tags or (None,)
        case _:
            return (table.table.rpartition(".")[0] or None,)


def _completed_work(figures: "Figures") -> Mapping[str, Mapping[str, int]]:
    from lake.plan import PlanState

    found: dict[str, dict[str, int]] = {}
    for plans in figures.plans:
        if plans.state is PlanState.COMPLETED:
            entry = found.setdefault(plans.table, dict.fromkeys(_WORK_FIELDS, 0))
            entry["plans_completed"] += plans.plans
            entry["files_removed"] += plans.files_before - plans.files_after
            entry["rewritten_bytes"] += plans.bytes_after
    return found
