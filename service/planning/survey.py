# SPDX-License-Identifier: Apache-2.0
"""A first look at tables that no database knows yet: layout, what would be planned, signs of writers."""

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from uuid_utils import uuid7

from lake.errors import LakefoldError, one_line
from lake.formats import load_format
from lake.optional import LikelyWriter, TellsWriters
from planner.planner import plan_table
from planner.reasons import READY, Reason
from service.config.tables import ConfiguredTable
from service.planning.account import Account, scan_record
from service.planning.scan import listed
from service.planning.writers import named
from service.store.views import ScanRecord

#: listings wait for storage more than they compute
_AT_ONCE = 8
_NOTHING_TO_DO = (*READY, Reason.ABOVE_LIMIT, Reason.NEXT_PLAN_KIND)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What one look at a table showed: its layout, or with ``refused`` why there is none.

    ``ready`` says that a plan could be made now. ``left_alone`` is the reason of most of the small files that would not
    be rewritten now, '' where there are none. ``writers`` is what the table shows of its other writers, '' where its
    format can't tell. ``likely`` are the tools that write or read it, where its format tells them by name.
    """

    table: ConfiguredTable
    layout: ScanRecord | None = None
    ready: bool = False
    left_alone: str = ""
    writers: str = ""
    likely: tuple[LikelyWriter, ...] = ()
    refused: str | None = None

    @property
    def refusal(self) -> str:
        """``refused`` with the name of the table, which most reasons begin with anyway."""
        name, why = self.table.name, self.refused or ""
        return why if why.startswith(name) else f"{name}: {why}"


def survey(tables: Collection[ConfiguredTable]) -> list[Sight]:
    """Look at each of ``tables``, in their order; stores nothing and changes nothing."""
    with ThreadPoolExecutor(_AT_ONCE, "survey") as pool:
        return list(pool.map(_look, tables))


def _look(table: ConfiguredTable) -> Sight:
    try:
        snapshot = listed(table)
        adapter = load_format(table.ref.format)
        likely = tuple(adapter.likely_writers(snapshot)) if isinstance(adapter, TellsWriters) else None
        writers = adapter.describe(table.ref).get("writers", "") if likely is None else "; ".join(map(named, likely))
    except (LakefoldError, OSError) as error:
        return Sight(table=table, refused=one_line(error))
    planning = plan_table(snapshot, table.policy, now=snapshot.taken_at, plan_id=str(uuid7()))
    account = Account(planning)
    others = [line for line in account.by_reason if line.reason not in _NOTHING_TO_DO]
    most = max(others, key=lambda line: line.files + line.log_files, default=None)
    return Sight(
        table=table,
        layout=scan_record(account, 0.0),
        ready=planning.plan is not None,
        left_alone="" if most is None else most.text + (" …" if most.varies else ""),
        writers=writers,
        likely=likely or (),
    )
