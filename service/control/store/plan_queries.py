# SPDX-License-Identifier: Apache-2.0
"""Queries about plans: lists, one plan, its events, and the figures for metrics and status."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Unpack

from sqlalchemy import ColumnElement, Connection, Select, bindparam, case, func, select

from lake.model import FileSlice
from lake.plan import LIVE_STATES, PlanKind, PlanState
from service.control.store.base import PackedQuery, RowCache, StorePart, fetch_packed, in_batches
from service.control.store.claimed_plans import error_of_attempt
from service.control.store.database import datetime_from_ms, db_now
from service.control.store.errors import AmbiguousId, NotFound
from service.control.store.models import ALL_TABLES, EventRow, GroupRow, PlanRow, PlanTotalRow, SupersededRow, TableRow
from service.control.store.notifications import notification_counts
from service.control.store.pauses import service_pause
from service.control.store.plan_filter import (
    DEFAULT_GROUP,
    filter_conditions,
    is_approved_or_exempt,
    is_awaiting_approval,
    newest_plan_ids,
)
from service.control.store.pruning import SUMMED_COLUMNS
from service.control.store.rows import (
    TABLE_COLUMNS,
    group_view,
    plan_view,
    table_state_from_texts,
    unpack_slices,
    view_of,
)
from service.control.store.staged_files import staged_by, staged_tokens
from service.control.store.views import (
    ConflictCount,
    ErrorClass,
    Figures,
    GroupWait,
    NewestPlan,
    PlanEvent,
    PlanFigures,
    PlanFilter,
    PlanView,
    ProposalFigures,
    RetryingPlan,
    SupersededFigures,
)

_GROUP_COLUMNS = tuple(column for column in GroupRow.__table__.c if column.name != "files")


#: the length of a whole id
_ID_LENGTH = 36
_ID_CHARACTERS = frozenset("0123456789abcdef-")
#: maximum number of ids in an error
_MAX_NAMED_IDS = 5
#: conflicts are counted among this many newest plans of a table
CONFLICT_SAMPLE_SIZE = 5
#: maximum number of listed plans that are retried
_MAX_RETRYING = 1000


def resolve_id(connection: Connection, column: Any, part: str, noun: str, in_scope: ColumnElement[bool]) -> str:
    """Return the id in ``column`` that equals ``part``, or the only one that contains it, among the ids in scope.

    Raises NotFound, AmbiguousId.
    """
    part = part.strip().lower()
    found = connection.execute(select(column).where(column == part, in_scope)).scalar_one_or_none()
    if found is not None:
        return str(found)
    ids: list[str] = []
    if 0 < len(part) < _ID_LENGTH and _ID_CHARACTERS.issuperset(
        part
    ):  # no id contains any other text, so a search of a million ids is saved
        having = select(column).where(column.contains(part, autoescape=True), in_scope).order_by(column.desc())
        ids = list(connection.execute(having.limit(_MAX_NAMED_IDS + 1)).scalars())
    if not ids:
        raise NotFound(f"no {noun} {part!r}")
    if len(ids) > 1:
        more = " and more" if len(ids) > _MAX_NAMED_IDS else ""
        raise AmbiguousId(
            f"{noun} {part!r} is ambiguous: {', '.join(ids[:_MAX_NAMED_IDS])}{more}", ids[:_MAX_NAMED_IDS]
        )
    return ids[0]


def resolve_plan_id(connection: Connection, part: str, in_scope: ColumnElement[bool]) -> str:
    """Return the id of the only plan in scope that ``part`` identifies. Raises NotFound, AmbiguousId."""
    return resolve_id(connection, PlanRow.id, part, "plan", in_scope)


def slices_by_plan(connection: Connection, plan_ids: Collection[str]) -> Mapping[str, tuple[FileSlice, ...]]:
    """Return plan → the slices that it rewrites."""
    found: dict[str, list[FileSlice]] = defaultdict(list)
    if plan_ids:
        files = select(GroupRow.plan_id, GroupRow.partition_path, GroupRow.files).where(GroupRow.plan_id.in_(plan_ids))
        for group in connection.execute(files.order_by(GroupRow.plan_id, GroupRow.number)):
            found[group.plan_id] += unpack_slices(group.files, group.partition_path)
    return {plan_id: tuple(slices) for plan_id, slices in found.items()}


def _plan_views(connection: Connection, query: Select[Any]) -> list[PlanView]:
    rows = connection.execute(query).all()
    tokens = staged_tokens(connection, [row.id for row in rows])
    return [plan_view(row, tokens.get(row.id, ())) for row in rows]


def _newest_plan_of(tables: Any) -> Select[Any]:
    """Return the query of the id of the newest plan of each of ``tables``."""
    return select(func.max(PlanRow.id)).where(PlanRow.table_name.in_(tables)).group_by(PlanRow.table_name)


_NEWEST_PLANS_QUERY = PackedQuery(
    select(
        PlanRow.table_name, PlanRow.id, PlanRow.state, func.coalesce(PlanRow.finalized_at_ms, PlanRow.created_at_ms)
    ).where(PlanRow.id.in_(_newest_plan_of(bindparam("tables", expanding=True))))
)


class PlanQueries(StorePart):
    """Plans for people and metrics."""

    def plans(self, *, limit: int = 50, after: str | None = None, **which: Unpack[PlanFilter]) -> list[PlanView]:
        """Return at most ``limit`` plans, newest first; with ``after`` only older ones. Raises NotFound, AmbiguousId.

        ``after`` is an id or a unique part of an id. A whole id works even after its plan was deleted.
        """
        with self._database.read() as connection:
            seen = self._is_in_scope(PlanRow.table_name)
            if after is not None and len(after) != _ID_LENGTH:
                after = resolve_plan_id(connection, after, seen)
            ids = newest_plan_ids(connection, which, seen, limit, after)
            return _plan_views(
                connection, select(PlanRow.__table__).where(PlanRow.id.in_(ids)).order_by(PlanRow.id.desc())
            )

    def next_due_plan(self) -> PlanView | None:
        """Return the requested plan with the earliest due time that needs no approval; None if there is none."""
        query = select(PlanRow.__table__).where(
            PlanRow.state == PlanState.REQUESTED, is_approved_or_exempt(), self._is_in_scope(PlanRow.table_name)
        )
        with self._database.read() as connection:
            found = _plan_views(connection, query.order_by(PlanRow.not_before_ms, PlanRow.id).limit(1))
        return found[0] if found else None

    def waiting_by_group(self, table: str | None = None) -> dict[str, GroupWait]:
        """Return table → its resource group and the number of its requested plans that need no approval."""
        waiting = (
            select(PlanRow.table_name, TableRow.resource_group, func.count())
            .join(TableRow, TableRow.name == PlanRow.table_name)
            .where(PlanRow.state == PlanState.REQUESTED, is_approved_or_exempt(), self._is_in_scope(PlanRow.table_name))
            .group_by(PlanRow.table_name, TableRow.resource_group)
        )
        if table is not None:
            waiting = waiting.where(PlanRow.table_name == table)
        with self._database.read() as connection:
            rows = connection.execute(waiting).all()
        return {name: GroupWait(group=group or DEFAULT_GROUP, plans=plans) for name, group, plans in rows}

    def newest_plans(self, tables: Sequence[str]) -> dict[str, NewestPlan]:
        """Return table → its newest plan, for those of ``tables`` that have a plan."""
        with self._database.read() as connection:
            return {
                table: NewestPlan(plan_id=plan_id, state=PlanState(state), at=datetime_from_ms(ms))
                for batch in in_batches(tables)
                for table, plan_id, state, ms in _NEWEST_PLANS_QUERY.rows(connection, tables=batch)
            }

    def newest_failed_plans(self, tables: Sequence[str]) -> dict[str, PlanView]:
        """Return table → its newest plan, for those of ``tables`` whose newest plan failed."""
        query = select(PlanRow.__table__).where(PlanRow.state == PlanState.FAILED)
        with self._database.read() as connection:
            return {
                view.table: view
                for batch in in_batches(tables)
                for view in _plan_views(connection, query.where(PlanRow.id.in_(_newest_plan_of(batch))))
            }

    def retrying_plans(self, table: str | None = None) -> dict[str, list[RetryingPlan]]:
        """Return table → its live plans that have failed at least once, plans with the most failed attempts first.

        An inflight plan with an error is a plan whose commit is unknown.
        """
        columns = (
            PlanRow.id,
            PlanRow.table_name,
            PlanRow.state,
            PlanRow.attempts,
            PlanRow.error,
            PlanRow.not_before_ms,
        )
        failed = (
            # ``attempts`` does not count attempts that waited for a writer.
            (PlanRow.state == PlanState.REQUESTED, PlanRow.error_class == ErrorClass.TRANSIENT),
            (PlanRow.state == PlanState.INFLIGHT, PlanRow.error.is_not(None) | (PlanRow.attempts >= 2)),
        )
        of_table = () if table is None else (PlanRow.table_name == table,)
        with self._database.read() as connection:
            rows = [
                row
                for conditions in failed
                for row in connection.execute(select(*columns).where(*conditions, *of_table).limit(_MAX_RETRYING))
            ]
            running = [row.id for row in rows if row.error is None]
            errors = {
                plan_id: error_of_attempt(reason)
                for batch in in_batches(running)
                for plan_id, reason in connection.execute(
                    select(EventRow.plan_id, EventRow.reason)
                    .where(EventRow.plan_id.in_(batch), EventRow.to_state == PlanState.REQUESTED)
                    .where(EventRow.from_state == PlanState.INFLIGHT)
                    .order_by(EventRow.id)
                )
            }
        found: dict[str, list[RetryingPlan]] = {}
        for row in sorted(rows, key=lambda row: (-row.attempts, row.id)):
            found.setdefault(row.table_name, []).append(
                RetryingPlan(
                    plan_id=row.id,
                    attempt=row.attempts - (row.error is None),
                    max_attempts=self._settings.max_attempts,
                    error=row.error or errors.get(row.id, "its error is no longer known"),
                    next_attempt_at=datetime_from_ms(row.not_before_ms) if row.state == PlanState.REQUESTED else None,
                )
            )
        return found

    def conflict_counts(self, within: timedelta) -> dict[str, ConflictCount]:
        """Count the conflicts among each table's newest plans that have ended and were created in the last ``within``.

        A conflict is a plan that a writer invalidated. Tables without conflicts are left out.
        """
        ended = (PlanRow.state.not_in(LIVE_STATES), PlanRow.claimed_at_ms.is_not(None))
        lost = PlanRow.error_class == ErrorClass.CONFLICT
        with self._database.read() as connection:
            now = datetime_from_ms(connection.execute(select(db_now())).scalar_one())
            of_late = filter_conditions({"since": now - within})
            tables = select(PlanRow.table_name).where(lost, *of_late).distinct()
            rows = connection.execute(
                select(PlanRow.table_name, case((lost, 1), else_=0).label("lost"))
                .where(PlanRow.table_name.in_(tables), *of_late, *ended)
                .order_by(PlanRow.id.desc())
            ).all()
        found: dict[str, list[int]] = {}
        for row in rows:
            found.setdefault(row.table_name, []).append(row.lost)
        newest = {table: plans[:CONFLICT_SAMPLE_SIZE] for table, plans in found.items()}
        return {
            table: ConflictCount(conflicts=sum(plans), ended=len(plans))
            for table, plans in newest.items()
            if any(plans)
        }

    def database_time(self) -> datetime:
        """Return the time of the database's clock, which also sets the creation times of plans."""
        with self._database.read() as connection:
            return datetime_from_ms(connection.execute(select(db_now())).scalar_one())

    def plan(self, plan_id: str) -> PlanView:
        """Return one plan with groups and figures. Raises NotFound, AmbiguousId.

        ``plan_id`` may be a unique part of an id.
        """
        with self._database.read() as connection:
            plan_id = resolve_plan_id(connection, plan_id, self._is_in_scope(PlanRow.table_name))
            row = connection.execute(select(PlanRow.__table__).where(PlanRow.id == plan_id)).one()
            groups = connection.execute(
                select(*_GROUP_COLUMNS).where(GroupRow.plan_id == plan_id).order_by(GroupRow.number)
            )
            tokens = [staged.token for staged in staged_by(connection, plan_id)]
            return plan_view(row, tokens, tuple(group_view(group) for group in groups))

    def plans_by_id(self, plan_ids: Collection[str]) -> dict[str, PlanView]:
        """Return id → plan for those of ``plan_ids`` that exist, without groups and figures."""
        query = select(PlanRow.__table__).where(PlanRow.id.in_(plan_ids), self._is_in_scope(PlanRow.table_name))
        with self._database.read() as connection:
            return {view.plan_id: view for view in _plan_views(connection, query)}

    def plan_state(self, plan_id: str) -> PlanState | None:
        """Return the state of a plan; None if this database does not know the plan."""
        with self._database.read() as connection:
            state = connection.execute(
                select(PlanRow.state).where(PlanRow.id == plan_id, self._is_in_scope(PlanRow.table_name))
            ).scalar_one_or_none()
        return None if state is None else PlanState(state)

    def plan_events(self, plan_id: str) -> list[PlanEvent]:
        """Return a plan's events, oldest first. Raises NotFound, AmbiguousId.

        ``plan_id`` may be a unique part of an id.
        """
        with self._database.read() as connection:
            plan_id = resolve_plan_id(connection, plan_id, self._is_in_scope(PlanRow.table_name))
            rows = connection.execute(
                select(EventRow.__table__).where(EventRow.plan_id == plan_id).order_by(EventRow.id)
            )
            return [view_of(PlanEvent, row) for row in rows]

    def figures(self, cache: RowCache | None = None) -> Figures:
        """Return figures of the whole database, read from indexes, so that every refresh of the metrics can call this.

        Rows that did not change since the last call with ``cache`` are not converted again.
        """
        cache = cache or RowCache()
        sums = (func.sum(getattr(PlanRow, name)) for name in SUMMED_COLUMNS)
        key = (PlanRow.table_name, PlanRow.kind, PlanRow.state)
        plans = select(*key, func.min(PlanRow.created_at_ms), func.count(), *sums).group_by(*key)
        totals = (getattr(PlanTotalRow, name) for name in ("oldest_created_at_ms", "plans", *SUMMED_COLUMNS))
        pruned = select(PlanTotalRow.table_name, PlanTotalRow.kind, PlanTotalRow.state, *totals)
        superseded = (
            select(SupersededRow.table_name, func.count(), func.sum(SupersededRow.bytes))
            .where(SupersededRow.deleted_at_ms.is_(None))
            .group_by(SupersededRow.table_name)
        )
        with self._database.read() as connection:
            rows = fetch_packed(connection, select(*TABLE_COLUMNS).where(TableRow.name != ALL_TABLES))
            tables = cache.objects_of("table", sorted(rows), table_state_from_texts)
            formats = {table.name: table.format for table in tables}

            def with_format(query: Select[*tuple[Any, ...]]) -> list[list[Any]]:
                return [[formats[row[0]], *row] for row in sorted(fetch_packed(connection, query))]

            stored = cache.objects_of("plans", with_format(plans), _plan_figures)
            proposals = _proposal_figures(connection)
            there = _with_runnable_since(connection, stored)
            return Figures(
                taken_at=datetime_from_ms(connection.execute(select(db_now())).scalar_one()),
                plans=_add_pruned_figures(
                    there,
                    cache.objects_of("pruned plans", with_format(pruned), _plan_figures),
                ),
                superseded=tuple(cache.objects_of("superseded", with_format(superseded), _superseded_figures)),
                proposals=proposals,
                tables=tuple(tables),
                pause=service_pause(connection),
                **notification_counts(connection),
            )


def _proposal_figures(connection: Connection) -> tuple[ProposalFigures, ...]:
    """Return the figures of the plans that wait for approval, by table and kind."""
    sums = func.count(), func.sum(PlanRow.input_bytes), func.min(PlanRow.proposed_at_ms)
    waiting = select(PlanRow.table_name, PlanRow.kind, *sums).where(is_awaiting_approval())
    rows = connection.execute(waiting.group_by(PlanRow.table_name, PlanRow.kind)).all()
    return tuple(
        ProposalFigures(
            table=table,
            kind=PlanKind(kind),
            plans=plans,
            input_bytes=int(bytes_),
            oldest_at=datetime_from_ms(int(oldest or 0)),
        )
        for table, kind, plans, bytes_, oldest in rows
    )


def _with_runnable_since(connection: Connection, stored: Sequence[PlanFigures]) -> Sequence[PlanFigures]:
    """Return ``stored``, but for requested plans with the time at which the oldest of them became due.

    A plan becomes due at its latest approval or retry. A plan that waits for its next attempt counts as due now.
    """
    if all(figures.state is not PlanState.REQUESTED for figures in stored):
        return stored
    key, due = (PlanRow.table_name, PlanRow.kind), PlanRow.not_before_ms
    since = func.min(case((is_approved_or_exempt(), case((due > db_now(), db_now()), else_=due))))
    # Only the figures of few tables change, even in a large lake.
    others = (
        select(*key, since).where(PlanRow.state == PlanState.REQUESTED).having(since != func.min(PlanRow.created_at_ms))
    )
    found = {
        (table, PlanKind(kind)): datetime_from_ms(at) for table, kind, at in connection.execute(others.group_by(*key))
    }
    return [
        replace(figures, oldest_created_at=found[figures.table, figures.kind])
        if figures.state is PlanState.REQUESTED and (figures.table, figures.kind) in found
        else figures
        for figures in stored
    ]


def _add_pruned_figures(stored: Iterable[PlanFigures], pruned: Iterable[PlanFigures]) -> tuple[PlanFigures, ...]:
    """Return the sums of the figures of stored and pruned plans, by table, kind and state."""
    found = {(figures.table, figures.kind, figures.state): figures for figures in stored}
    for gone in pruned:
        key = (gone.table, gone.kind, gone.state)
        there = found.get(key)
        found[key] = (
            gone
            if there is None
            else replace(
                there,
                oldest_created_at=min(there.oldest_created_at, gone.oldest_created_at),
                **{name: getattr(there, name) + getattr(gone, name) for name in ("plans", *SUMMED_COLUMNS)},
            )
        )
    return tuple(found[key] for key in sorted(found))


def _plan_figures(row: Sequence[Any]) -> PlanFigures:
    format_, table, kind, state, oldest, plans, *sums = row
    return PlanFigures(
        table=table,
        format=format_,
        kind=PlanKind(kind),
        state=PlanState(state),
        plans=plans,
        oldest_created_at=datetime_from_ms(oldest),
        **dict(zip(SUMMED_COLUMNS, sums, strict=True)),
    )


def _superseded_figures(row: Sequence[Any]) -> SupersededFigures:
    format_, table, files, bytes_ = row
    return SupersededFigures(table=table, format=format_, files=files, bytes=bytes_)
