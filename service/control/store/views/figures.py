# SPDX-License-Identifier: Apache-2.0
"""Figures of the database: sums over plans, tables and files."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from operator import attrgetter

from lake.plan import PlanKind, PlanState
from service.control.store.table_scope import TableScope
from service.control.store.views.tables import Pause, TableState


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFigures:
    """Sums over the plans of one table, kind and state. ``…_before`` and ``…_after`` are zero unless completed."""

    table: str
    format: str
    kind: PlanKind
    state: PlanState
    plans: int
    input_files: int
    input_bytes: int
    files_before: int
    bytes_before: int
    files_after: int
    bytes_after: int
    #: for requested plans, the time at which the oldest plan that needs no approval became due
    oldest_created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalFigures:
    """The plans of one table and kind that wait for approval; ``PlanFigures`` counts them as requested."""

    table: str
    kind: PlanKind
    plans: int
    input_bytes: int
    oldest_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class SupersededFigures:
    """The files of one table that completed plans replaced and that are not deleted yet."""

    table: str
    format: str
    files: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionDay:
    """The superseded files of one table whose retention ends on ``day`` in UTC."""

    table: str
    day: date
    files: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of the database for metrics and the status line. ``taken_at`` is by the database's clock."""

    taken_at: datetime
    plans: tuple[PlanFigures, ...]
    superseded: tuple[SupersededFigures, ...]
    tables: tuple[TableState, ...]
    pause: Pause | None
    proposals: tuple[ProposalFigures, ...] = ()
    notifications_waiting: int = 0
    notifications_dead: int = 0
    #: the sums over all plans of each state, computed once for all figures
    _sums: Mapping[PlanState, Mapping[str, int]] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_sums", _sums_by_state(self.plans))

    @property
    def paused(self) -> bool:
        """True if the whole service is paused."""
        return self.pause is not None

    def limited_to(self, table_scope: TableScope) -> "Figures":
        """Return the figures of the tables in ``table_scope``, without figures of the whole service."""
        return replace(
            self,
            plans=tuple(entry for entry in self.plans if table_scope.has_table(entry.table)),
            superseded=tuple(entry for entry in self.superseded if table_scope.has_table(entry.table)),
            proposals=tuple(entry for entry in self.proposals if table_scope.has_table(entry.table)),
            tables=tuple(table for table in self.tables if table_scope.has_table(table.name)),
            notifications_waiting=0,
            notifications_dead=0,
        )

    def _sum(self, name: str, *states: PlanState) -> int:
        return sum(self._sums[state][name] for state in states)

    def count(self, *states: PlanState) -> int:
        """Return the number of plans in any of ``states``."""
        return self._sum("plans", *states)

    def count_of_table(self, table: str, state: PlanState) -> int:
        """Return the number of plans of one table in ``state``."""
        return sum(entry.plans for entry in self.plans if entry.table == table and entry.state is state)

    @property
    def backlog_bytes(self) -> int:
        """Input bytes of all requested and inflight plans; plans that wait for approval do not count."""
        proposed = sum(entry.input_bytes for entry in self.proposals)
        return self._sum("input_bytes", PlanState.REQUESTED, PlanState.INFLIGHT) - proposed

    @property
    def proposal_count(self) -> int:
        """The number of plans that wait for approval."""
        return sum(entry.plans for entry in self.proposals)

    @property
    def oldest_proposed_at(self) -> datetime | None:
        """The time of the oldest proposal that waits for approval; None if there is no proposal."""
        return min((entry.oldest_at for entry in self.proposals), default=None)

    @property
    def oldest_requested_at(self) -> datetime | None:
        """The time at which the oldest requested plan that needs no approval became due; None if there is none."""
        proposed = {(entry.table, entry.kind): entry.plans for entry in self.proposals}
        requested = (f for f in self.plans if f.state is PlanState.REQUESTED)
        runnable = (f for f in requested if f.plans > proposed.get((f.table, f.kind), 0))
        return min((f.oldest_created_at for f in runnable), default=None)

    @property
    def halted_tables(self) -> tuple[str, ...]:
        """Names of the halted tables."""
        return tuple(table.name for table in self.tables if table.halted)

    @property
    def files_removed(self) -> int:
        """The number of files by which all completed plans reduced their tables."""
        return self._sum("files_before", PlanState.COMPLETED) - self._sum("files_after", PlanState.COMPLETED)

    @property
    def freed_bytes(self) -> int:
        """Bytes of replaced files that were deleted from storage."""
        return sum(table.freed_bytes for table in self.tables)

    @property
    def bytes_rewritten(self) -> int:
        """Bytes written by all completed plans."""
        return self._sum("bytes_after", PlanState.COMPLETED)


_SUMMED = ("plans", "input_bytes", "files_before", "files_after", "bytes_after")


def _sums_by_state(plans: Iterable[PlanFigures]) -> dict[PlanState, dict[str, int]]:
    by_state: dict[PlanState, list[tuple[int, ...]]] = {state: [(0,) * len(_SUMMED)] for state in PlanState}
    values = attrgetter(*_SUMMED)
    for figures in plans:
        by_state[figures.state].append(values(figures))
    return {
        state: dict(zip(_SUMMED, map(sum, zip(*rows, strict=True)), strict=True)) for state, rows in by_state.items()
    }
