# SPDX-License-Identifier: Apache-2.0
"""Objectives of tables. Each good scan evaluates them, and adds to the times in which they were met and missed."""

import json
from collections.abc import Collection, Sequence
from dataclasses import astuple
from datetime import timedelta
from itertools import groupby
from typing import Any

from sqlalchemy import ColumnElement, Connection, insert, select, update

from lake.plan import PlanState
from planner.slo.error_budget import Bucket, BurnPoint, Compliance
from planner.slo.model import Objective, ObjectiveEvaluation
from service.control.store.base import StorePart, TablesQuery
from service.control.store.database import datetime_from_ms, db_now, timedelta_to_ms
from service.control.store.models import ObjectiveRow, PlanRow, TableRow
from service.control.store.views import TableObjective


def is_in_force() -> ColumnElement[bool]:
    """Return the condition that an objective is still in force."""
    return ObjectiveRow.holds_ms > 0


_COLUMNS = tuple(column for column in ObjectiveRow.__table__.c if column.name != "past")
_OBJECTIVES_IN_FORCE = TablesQuery(
    select(*_COLUMNS)
    .join(TableRow, TableRow.name == ObjectiveRow.table_name)
    .where(TableRow.mode != "off", is_in_force()),
    ObjectiveRow.table_name,
)


class Objectives(StorePart):
    """Objectives of tables, written by ``record_scan``."""

    def objectives(self, names: Collection[str] | None = None) -> dict[str, tuple[TableObjective, ...]]:
        """Return the objectives in force of all tables, or of ``names``, except tables in mode off."""
        with self._database.read() as connection:
            read = self._rows_of_tables(connection, _OBJECTIVES_IN_FORCE, names)
        rows = [dict(zip((column.name for column in _COLUMNS), row, strict=True)) for row in read]
        order = list(Objective)
        found = sorted(map(_table_objective, rows), key=lambda one: (one.table, order.index(one.objective)))
        return {table: tuple(its) for table, its in groupby(found, key=lambda one: one.table)}

    def burn_history(self, name: str) -> dict[Objective, list[BurnPoint]]:
        """Return how the error budget of each objective of table ``name`` was spent within the objective's window."""
        query = (
            select(ObjectiveRow.__table__)
            .where(ObjectiveRow.table_name == name, is_in_force(), self._is_in_scope(ObjectiveRow.table_name))
            .order_by(ObjectiveRow.objective)
        )
        with self._database.read() as connection:
            rows = connection.execute(query).all()
        return {
            Objective(row.objective): _compliance(row).burn_history(timedelta(milliseconds=row.window_ms), row.goal)
            for row in rows
        }

    def update_urgency(self, name: str, urgency: timedelta) -> None:
        """Raise the priority of the waiting plans of table ``name``, as if they were created earlier by ``urgency``."""
        new = timedelta_to_ms(urgency)
        with self._database.read() as connection:  # this runs at each scan, and usually changes nothing
            if (
                connection.execute(select(PlanRow.id).where(*_has_other_urgency(name, new)).limit(1)).one_or_none()
                is None
            ):
                return
        with self._database.write() as connection:
            _update_rank(connection, name, new)


def record_objectives(connection: Connection, table: str, evaluations: Sequence[ObjectiveEvaluation]) -> None:
    """Store the evaluations of this scan.

    The time since the previous scan counts as met or missed according to the previous scan.

    An objective that is no longer set is hidden but kept, so that its history is not lost if a person removes it by
    mistake or scans with another configuration. The caller must have locked the table's row, so that no other scan
    counts the same time.
    """
    rows = connection.execute(select(ObjectiveRow.__table__).where(ObjectiveRow.table_name == table)).all()
    if not rows and not evaluations:
        return
    known = {row.objective: row for row in rows}
    now = int(connection.execute(select(db_now())).scalar_one())
    for judgement in evaluations:
        values = _objective_values(judgement, known.pop(judgement.objective, None), now)
        this = ObjectiveRow.table_name == table, ObjectiveRow.objective == judgement.objective
        if connection.execute(update(ObjectiveRow).where(*this).values(**values)).rowcount != 1:
            key = {"table_name": table, "objective": judgement.objective}
            connection.execute(insert(ObjectiveRow).values(**key, **values))
    for row in known.values():
        ended = _compliance_values(_compliance(row).with_observation(now, is_met=row.met, valid_for_ms=0))
        this = ObjectiveRow.table_name == table, ObjectiveRow.objective == row.objective
        connection.execute(update(ObjectiveRow).where(*this, is_in_force()).values(**ended))
    if not evaluations:
        _update_rank(connection, table, 0)


def _compliance(row: Any) -> Compliance:
    return Compliance(
        observed_at_ms=row.judged_at_ms,
        is_met=row.met,
        valid_for_ms=row.holds_ms,
        met_ms=row.met_ms,
        missed_ms=row.missed_ms,
        buckets=tuple(
            Bucket(begin_ms=at, step_ms=step, met_ms=good, missed_ms=bad) for at, step, good, bad in row.past
        ),
    )


def _compliance_values(compliance: Compliance) -> dict[str, Any]:
    return {
        "judged_at_ms": compliance.observed_at_ms,
        "met": compliance.is_met,
        "holds_ms": compliance.valid_for_ms,
        "met_ms": compliance.met_ms,
        "missed_ms": compliance.missed_ms,
        "past": [astuple(bucket) for bucket in compliance.buckets],
    }


def _update_rank(connection: Connection, table: str, urgency_ms: int) -> None:
    rank = PlanRow.rank_ms + PlanRow.urgency_ms - urgency_ms
    waiting = update(PlanRow).where(*_has_other_urgency(table, urgency_ms))
    connection.execute(waiting.values(rank_ms=rank, urgency_ms=urgency_ms))


def _has_other_urgency(table: str, urgency_ms: int) -> tuple[Any, ...]:
    """Return the conditions that select the table's waiting plans with another urgency."""
    return PlanRow.table_name == table, PlanRow.state == PlanState.REQUESTED, PlanRow.urgency_ms != urgency_ms


def _objective_values(evaluation: ObjectiveEvaluation, row: Any, now: int) -> dict[str, Any]:
    """Return the columns of an objective. ``row`` has its state until ``now``; it is None for a new objective."""
    met, holds, since = evaluation.is_met, timedelta_to_ms(evaluation.valid_for), now
    if row is None:
        kept = Compliance(observed_at_ms=now, is_met=met, valid_for_ms=holds)
    else:
        kept = _compliance(row).with_observation(now, is_met=met, valid_for_ms=holds)
        since = row.changed_at_ms if row.met == met else kept.observed_at_ms
    return _compliance_values(kept) | {
        "changed_at_ms": since,
        "value": evaluation.value,
        "bound": evaluation.bound,
        "goal": evaluation.goal,
        "window_ms": timedelta_to_ms(evaluation.window),
        "share_met": kept.share_met(evaluation.window),
        "budget_left": kept.budget_left(evaluation.window, evaluation.goal),
        "burn": kept.burn_rates(evaluation.goal),
    }


def _table_objective(row: dict[str, Any]) -> TableObjective:
    return TableObjective(
        table=row["table_name"],
        objective=Objective(row["objective"]),
        met=bool(row["met"]),
        value=row["value"],
        bound=row["bound"],
        goal=row["goal"],
        window=timedelta(milliseconds=row["window_ms"]),
        judged_at=datetime_from_ms(row["judged_at_ms"]),
        since=datetime_from_ms(row["changed_at_ms"]),
        valid_for=timedelta(milliseconds=row["holds_ms"]),
        met_seconds=row["met_ms"] / 1000,
        missed_seconds=row["missed_ms"] / 1000,
        share_met=row["share_met"] if row["met_ms"] or row["missed_ms"] else None,
        budget_left=row["budget_left"],
        burn=json.loads(row["burn"]),
    )
