# SPDX-License-Identifier: Apache-2.0
"""A first assessment of tables that are not in the database: layout, whether a plan is possible, and other writers."""

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from uuid_utils import uuid7

from lake.capabilities import DetectsWriters, LikelyWriter
from lake.errors import LakefoldError, one_line
from planner.planner import plan_table
from planner.reasons import PLANNABLE, Reason
from service.control.config.table_settings import ConfiguredTable
from service.control.planning.decision_summary import DecisionSummary, make_scan_record
from service.control.planning.likely_writers import writer_label
from service.control.planning.observation import list_table
from service.control.store.views import ScanRecord

#: listings wait for storage more than they compute
_THREADS = 8
_NO_PROBLEM = (*PLANNABLE, Reason.ABOVE_LIMIT, Reason.NEXT_PLAN_KIND)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableAssessment:
    """The result of assessing a table once: its layout, or the ``error`` that prevented it.

    ``is_plannable`` is True if a plan could be made now. ``main_skip_reason`` is the reason of most small files that
    would not be rewritten now, '' if there are none. ``writers`` describes the table's other writers, '' if its format
    can't show them. ``likely_writers`` are the tools that write or read it, if its format names them.
    """

    table: ConfiguredTable
    layout: ScanRecord | None = None
    is_plannable: bool = False
    main_skip_reason: str = ""
    writers: str = ""
    likely_writers: tuple[LikelyWriter, ...] = ()
    error: str | None = None

    @property
    def error_text(self) -> str:
        """The text of ``error``, with the name of the table in front unless the text begins with the name."""
        name, why = self.table.name, self.error or ""
        return why if why.startswith(name) else f"{name}: {why}"


def assess_tables(tables: Collection[ConfiguredTable]) -> list[TableAssessment]:
    """Assess each of ``tables``, in their order; stores nothing and changes nothing."""
    with ThreadPoolExecutor(_THREADS, "survey") as pool:
        return list(pool.map(_assess_table, tables))


def _assess_table(table: ConfiguredTable) -> TableAssessment:
    try:
        snapshot = list_table(table)
        adapter = table.adapter
        likely = tuple(adapter.likely_writers(snapshot)) if isinstance(adapter, DetectsWriters) else None
        writers = (
            adapter.describe(table.ref).get("writers", "") if likely is None else "; ".join(map(writer_label, likely))
        )
    except (LakefoldError, OSError) as error:
        return TableAssessment(table=table, error=one_line(error))
    planning = plan_table(snapshot, table.policy, now=snapshot.taken_at, plan_id=str(uuid7()))
    account = DecisionSummary(planning)
    others = [line for line in account.by_reason if line.reason not in _NO_PROBLEM]
    most = max(others, key=lambda line: line.files + line.log_files, default=None)
    return TableAssessment(
        table=table,
        layout=make_scan_record(account, 0.0),
        is_plannable=planning.plan is not None,
        main_skip_reason="" if most is None else most.text + (" …" if most.varies else ""),
        writers=writers,
        likely_writers=likely or (),
    )
