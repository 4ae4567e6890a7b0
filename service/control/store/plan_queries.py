# SPDX-License-Identifier: Apache-2.0
"""Reading plans: lists, one plan, its events, and the figures behind metrics and status."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Unpack

from sqlalchemy import ColumnElement, Connection, Select, bindparam, case, func, select

from lake.plan import LIVE_STATES, PlanKind, PlanState
from service.control.store.base import PackedQuery, RowCache, StorePart, fetch_packed, in_batches
from service.control.store.database import datetime_from_ms, db_now
from service.control.store.errors import AmbiguousId, NotFound
from service.control.store.models import ALL_TABLES, EventRow, GroupRow, PlanRow, PlanTotalRow, SupersededRow, TableRow
from service.control.store.notifications import notification_counts
from service.control.store.plan_filter import (
    filter_conditions,
    is_approved_or_exempt,
    is_awaiting_approval,
    newest_plan_ids,
)
from service.control.store.pruning import SUMMED_COLUMNS
from service.control.store.rows import TABLE_COLUMNS, group_view, plan_view, table_state_from_texts
from service.control.store.staged import staged_by, staged_tokens
from service.control.store.tables import service_pause
from service.control.store.views import (
    ConflictCount,
    ErrorClass,
    Figures,
    NewestPlan,
    PlanEvent,
    PlanFigures,
    PlanFilter,
    PlanView,
    ProposalFigures,
    SupersededFigures,
)

_GROUP_COLUMNS = tuple(column for column in GroupRow.__table__.c if column.name != "files")


#: of a whole id
_ID_LENGTH = 36
_ID_CHARACTERS = frozenset("0123456789abcdef-")
#: ids that a refusal names
_MAX_NAMED_IDS = 5
#: as many of a table's plans tell whether its writers let any through
CONFLICT_SAMPLE_SIZE = 5


def resolve_id(connection: Connection, column: Any, part: str, noun: str, in_scope: ColumnElement[bool]) -> str:
    """The id in ``column`` that is ``part``, or the only one that has it somewhere, of those that are ``seen``.

    Raises NotFound, Ambiguous.
    """
    part = part.strip().lower()
    found = connection.execute(select(column).where(column == part, in_scope)).scalar_one_or_none()
    if found is not None:
        return str(found)
    ids: list[str] = []
    if 0 < len(part) < _ID_LENGTH and _ID_CHARACTERS.issuperset(part):  # nothing else is looked for in a million ids
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
    """The id of the one plan that ``part`` is of, of those that are ``seen``. Raises NotFound, Ambiguous."""
    return resolve_id(connection, PlanRow.id, part, "plan", in_scope)


def _plan_views(connection: Connection, query: Select[Any]) -> list[PlanView]:
    rows = connection.execute(query).all()
    tokens = staged_tokens(connection, [row.id for row in rows])
    return [plan_view(row, tokens.get(row.id, ())) for row in rows]


def _newest_plan_of(tables: Any) -> Select[Any]:
    """The id of the newest plan of each of ``tables``."""
    return select(func.max(PlanRow.id)).where(PlanRow.table_name.in_(tables)).group_by(PlanRow.table_name)


_NEWEST_PLANS_QUERY = PackedQuery(
    select(
        PlanRow.table_name, PlanRow.id, PlanRow.state, func.coalesce(PlanRow.finalized_at_ms, PlanRow.created_at_ms)
    ).where(PlanRow.id.in_(_newest_plan_of(bindparam("tables", expanding=True))))
)


class PlanQueries(StorePart):
    """Plans as people and metrics see them."""

    def plans(self, *, limit: int = 50, after: str | None = None, **which: Unpack[PlanFilter]) -> list[PlanView]:
        """Plans newest first, at most ``limit``; those behind ``after``, an id or the unique part of one.

        Behind a whole id a list goes on where its plan is gone, too. Raises NotFound, Ambiguous.
        """
        with self._database.read() as connection:
            seen = self._is_in_scope(PlanRow.table_name)
            if after is not None and len(after) != _ID_LENGTH:
                after = resolve_plan_id(connection, after, seen)
            ids = newest_plan_ids(connection, which, seen, limit, after)
            return _plan_views(
                connection, select(PlanRow.__table__).where(PlanRow.id.in_(ids)).order_by(PlanRow.id.desc())
            )

    def newest_plans(self, tables: Sequence[str]) -> dict[str, NewestPlan]:
        """The newest plan of each of ``tables`` that has one."""
        with self._database.read() as connection:
            return {
                table: NewestPlan(plan_id=plan_id, state=PlanState(state), at=datetime_from_ms(ms))
                for batch in in_batches(tables)
                for table, plan_id, state, ms in _NEWEST_PLANS_QUERY.rows(connection, tables=batch)
            }

    def newest_failed_plans(self, tables: Sequence[str]) -> dict[str, PlanView]:
        """The newest plan of each of ``tables`` where that failed."""
        query = select(PlanRow.__table__).where(PlanRow.state == PlanState.FAILED)
        with self._database.read() as connection:
            return {
                view.table: view
                for batch in in_batches(tables)
                for view in _plan_views(connection, query.where(PlanRow.id.in_(_newest_plan_of(batch))))
            }

    def conflict_counts(self, within: timedelta) -> dict[str, ConflictCount]:
        """The newest of the plans that were made ``within`` a time and have ended, of each table that lost some.

        A plan is lost whose executor met a conflict: a writer came first.
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
        """The time by the clock that says when plans were made."""
        with self._database.read() as connection:
            return datetime_from_ms(connection.execute(select(db_now())).scalar_one())

    def plan(self, plan_id: str) -> PlanView:
        """One plan with its groups and figures; the unique part of an id will do. Raises NotFound, Ambiguous."""
        with self._database.read() as connection:
            plan_id = resolve_plan_id(connection, plan_id, self._is_in_scope(PlanRow.table_name))
            row = connection.execute(select(PlanRow.__table__).where(PlanRow.id == plan_id)).one()
            groups = connection.execute(
                select(*_GROUP_COLUMNS).where(GroupRow.plan_id == plan_id).order_by(GroupRow.number)
            )
            tokens = [staged.token for staged in staged_by(connection, plan_id)]
            return plan_view(row, tokens, tuple(group_view(group) for group in groups))

    def plans_by_id(self, plan_ids: Collection[str]) -> dict[str, PlanView]:
        """Those of ``plan_ids`` that there are, as a listing shows them."""
        query = select(PlanRow.__table__).where(PlanRow.id.in_(plan_ids), self._is_in_scope(PlanRow.table_name))
        with self._database.read() as connection:
            return {view.plan_id: view for view in _plan_views(connection, query)}

    def plan_state(self, plan_id: str) -> PlanState | None:
        """The state of a plan, None when this database does not know it."""
        with self._database.read() as connection:
            state = connection.execute(
                select(PlanRow.state).where(PlanRow.id == plan_id, self._is_in_scope(PlanRow.table_name))
            ).scalar_one_or_none()
        return None if state is None else PlanState(state)

    def plan_events(self, plan_id: str) -> list[PlanEvent]:
        """What happened to a plan, oldest first; the unique part of an id will do. Raises NotFound, Ambiguous."""
        with self._database.read() as connection:
            plan_id = resolve_plan_id(connection, plan_id, self._is_in_scope(PlanRow.table_name))
            rows = connection.execute(
                select(EventRow.__table__).where(EventRow.plan_id == plan_id).order_by(EventRow.id)
            )
            return [
                PlanEvent(
                    plan_id=row.plan_id,
                    at=datetime_from_ms(row.at_ms),
                    from_state=None if row.from_state is None else PlanState(row.from_state),
                    to_state=PlanState(row.to_state),
                    epoch=row.epoch,
                    actor=row.actor,
                    reason=row.reason,
                )
                for row in rows
            ]

    def figures(self, cache: RowCache | None = None) -> Figures:
        """The database in numbers, from indexes; cheap enough for every refresh of the metrics.

        With what is ``known`` of readings before only what changed is made anew.
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
    """What waits for approval, by table and kind."""
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
    """``stored`` with the time since which the oldest of requested plans has been due, in the place of its age.

    That is its latest approval or retry; of one that waits to try again it is now.
    """
    if all(figures.state is not PlanState.REQUESTED for figures in stored):
        return stored
    key, due = (PlanRow.table_name, PlanRow.kind), PlanRow.not_before_ms
    since = func.min(case((is_approved_or_exempt(), case((due > db_now(), db_now()), else_=due))))
    # Few differ from what is there already, of the tables of a large lake.
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
    """The figures of plans that are there and of those that were, one for each table, kind and state."""
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
