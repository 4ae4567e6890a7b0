# SPDX-License-Identifier: Apache-2.0
"""What tables are held to: judged with each good scan, and the time met and missed added up."""

import json
from collections.abc import Collection, Sequence
from dataclasses import astuple
from datetime import timedelta
from itertools import groupby
from typing import Any

from sqlalchemy import ColumnElement, Connection, insert, select, update

from lake.plan import PlanState
from planner.error_budget import Bucket, Compliance
from planner.objectives import Judgement, Objective
from service.store.base import OfTables, StorePart
from service.store.clock import db_now, milliseconds, moment
from service.store.models import ObjectiveRow, PlanRow, TableRow
from service.store.views import TableObjective


def in_force() -> ColumnElement[bool]:
    """That a table is held to the objective still."""
    return ObjectiveRow.holds_ms > 0


_COLUMNS = tuple(column for column in ObjectiveRow.__table__.c if column.name != "past")
_IN_FORCE = OfTables(
    select(*_COLUMNS)
    .join(TableRow, TableRow.name == ObjectiveRow.table_name)
    .where(TableRow.mode != "off", in_force()),
    ObjectiveRow.table_name,
)


class Objectives(StorePart):
    """Objectives of tables, written by ``record_scan``."""

    def objectives(self, names: Collection[str] | None = None) -> dict[str, tuple[TableObjective, ...]]:
        """The objectives of each table, or of each of ``names``, that is held to any and is not off."""
        with self._database.read() as connection:
            read = self._of_tables(connection, _IN_FORCE, names)
        rows = [dict(zip((column.name for column in _COLUMNS), row, strict=True)) for row in read]
        order = list(Objective)
        found = sorted(map(_view, rows), key=lambda one: (one.table, order.index(one.objective)))
        return {table: tuple(its) for table, its in groupby(found, key=lambda one: one.table)}

    def hurry(self, name: str, urgency: timedelta) -> None:
        """Let the waiting plans of table ``name`` count as made so much earlier than they do without urgency."""
        new = milliseconds(urgency)
        with self._database.read() as connection:  # at each scan, and mostly there is nothing to write
            if connection.execute(select(PlanRow.id).where(*_waiting(name, new)).limit(1)).one_or_none() is None:
                return
        with self._database.write() as connection:
            _hurry(connection, name, new)


def keep_objectives(connection: Connection, table: str, judgements: Sequence[Judgement]) -> None:
    """Add the time since the last good scan of ``table`` to what it was then, and keep what its objectives are now.

    What it is not held to any more is told no longer, but stays: whoever takes an objective back by mistake, or scans
    with another configuration, does not lose its past. The caller has the table's row locked, so that nobody else
    counts the same time.
    """
    rows = connection.execute(select(ObjectiveRow.__table__).where(ObjectiveRow.table_name == table)).all()
    if not rows and not judgements:
        return
    known = {row.objective: row for row in rows}
    now = int(connection.execute(select(db_now())).scalar_one())
    for judgement in judgements:
        values = _values(judgement, known.pop(judgement.objective, None), now)
        this = ObjectiveRow.table_name == table, ObjectiveRow.objective == judgement.objective
        if connection.execute(update(ObjectiveRow).where(*this).values(**values)).rowcount != 1:
            key = {"table_name": table, "objective": judgement.objective}
            connection.execute(insert(ObjectiveRow).values(**key, **values))
    for row in known.values():
        ended = _totals(_compliance(row).then(now, met=row.met, holds=0))
        this = ObjectiveRow.table_name == table, ObjectiveRow.objective == row.objective
        connection.execute(update(ObjectiveRow).where(*this, in_force()).values(**ended))
    if not judgements:
        _hurry(connection, table, 0)


def _compliance(row: Any) -> Compliance:
    return Compliance(
        at=row.judged_at_ms,
        met=row.met,
        holds=row.holds_ms,
        met_ms=row.met_ms,
        missed_ms=row.missed_ms,
        buckets=tuple(Bucket(begin=at, step=step, met=good, missed=bad) for at, step, good, bad in row.past),
    )


def _totals(kept: Compliance) -> dict[str, Any]:
    return {
        "judged_at_ms": kept.at,
        "met": kept.met,
        "holds_ms": kept.holds,
        "met_ms": kept.met_ms,
        "missed_ms": kept.missed_ms,
        "past": [astuple(bucket) for bucket in kept.buckets],
    }


def _hurry(connection: Connection, table: str, urgency_ms: int) -> None:
    rank = PlanRow.rank_ms + PlanRow.urgency_ms - urgency_ms
    waiting = update(PlanRow).where(*_waiting(table, urgency_ms))
    connection.execute(waiting.values(rank_ms=rank, urgency_ms=urgency_ms))


def _waiting(table: str, urgency_ms: int) -> tuple[Any, ...]:
    """What holds of the plans that wait with another urgency."""
    return PlanRow.table_name == table, PlanRow.state == PlanState.REQUESTED, PlanRow.urgency_ms != urgency_ms


def _values(judgement: Judgement, row: Any, now: int) -> dict[str, Any]:
    """The columns of an objective that was in ``row`` until ``now``, or that is new."""
    met, holds, since = judgement.met, milliseconds(judgement.holds), now
    if row is None:
        kept = Compliance(at=now, met=met, holds=holds)
    else:
        kept = _compliance(row).then(now, met=met, holds=holds)
        since = row.changed_at_ms if row.met == met else kept.at
    return _totals(kept) | {
        "changed_at_ms": since,
        "value": judgement.value,
        "bound": judgement.bound,
        "goal": judgement.goal,
        "window_ms": milliseconds(judgement.window),
        "share_met": kept.share_met(judgement.window),
        "budget_left": kept.budget_left(judgement.window, judgement.goal),
        "burn": kept.burns(judgement.goal),
    }


def _view(row: dict[str, Any]) -> TableObjective:
    return TableObjective(
        table=row["table_name"],
        objective=Objective(row["objective"]),
        met=bool(row["met"]),
        value=row["value"],
        bound=row["bound"],
        goal=row["goal"],
        window=timedelta(milliseconds=row["window_ms"]),
        judged_at=moment(row["judged_at_ms"]),
        since=moment(row["changed_at_ms"]),
        holds=timedelta(milliseconds=row["holds_ms"]),
        met_seconds=row["met_ms"] / 1000,
        missed_seconds=row["missed_ms"] / 1000,
        share_met=row["share_met"] if row["met_ms"] or row["missed_ms"] else None,
        budget_left=row["budget_left"],
        burn=json.loads(row["burn"]),
    )
