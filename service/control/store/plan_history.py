# SPDX-License-Identifier: Apache-2.0
"""Queries about the past of plans, for charts; each reads a limited number of rows."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from itertools import groupby
from operator import attrgetter
from typing import Any

from sqlalchemy import func, select

from lake.plan import PlanState
from service.control.store.base import StorePart
from service.control.store.database import datetime_from_ms, db_now, timedelta_to_ms
from service.control.store.models import EventRow, GroupRow, PlanRow
from service.control.store.rows import unpack_slices
from service.control.store.views import AttemptHistory, PlanAttempt, PlanSaving

#: maximum number of a table's completed plans in one answer; the newest are returned
_MAX_SAVINGS = 500
#: maximum number of plan events that are read to find attempts; an attempt usually has two
_MAX_EVENTS = 2000
_PLAN, _EPOCH, _BEGIN = attrgetter("plan_id"), attrgetter("epoch"), attrgetter("began_at", "plan_id")


class PlanHistory(StorePart):
    """The past of plans: what they cost and save, and when they ran on which executor."""

    def plan_savings(self, name: str, period: timedelta) -> list[PlanSaving]:
        """Return the plans of table ``name`` that completed in the last ``period``, oldest first; at most 500.

        Plans whose CPU time is unknown, and pruned plans, are left out.
        """
        query = (
            select(
                PlanRow.id,
                PlanRow.finalized_at_ms,
                PlanRow.used_cpu_ms,
                (PlanRow.files_before - PlanRow.files_after).label("files_removed"),
                PlanRow.estimate,
            )
            .where(
                PlanRow.table_name == name,
                self._is_in_scope(PlanRow.table_name),
                PlanRow.state == PlanState.COMPLETED,
                PlanRow.used_cpu_ms.is_not(None),
                PlanRow.finalized_at_ms > db_now() - timedelta_to_ms(period),
            )
            .order_by(PlanRow.id.desc())
            .limit(_MAX_SAVINGS)
        )
        with self._database.read() as connection:
            found = [_saving(row) for row in connection.execute(query)]
        return sorted(found, key=lambda saving: (saving.at, saving.plan_id))

    def plan_file_sizes(self, plan_ids: Collection[str]) -> Mapping[str, tuple[list[int], list[int]]]:
        """Return plan → the bytes of each base file that it rewrites, and of each file that it is expected to write.

        The expected files of a group are equal parts of its bytes. The caller passes only plans in this store's scope.
        """
        columns = (GroupRow.plan_id, GroupRow.input_bytes, GroupRow.output_files, GroupRow.files)
        query = select(*columns).where(GroupRow.plan_id.in_(plan_ids))
        with self._database.read() as connection:
            rows = connection.execute(query).all()
        found = defaultdict[str, tuple[list[int], list[int]]](lambda: ([], []))
        for row in rows:
            before, expected = found[row.plan_id]
            before += [one.bytes for one in unpack_slices(row.files, "") if one.path]
            if row.output_files:
                expected += [row.input_bytes // row.output_files] * row.output_files
        return found

    def attempts(self, period: timedelta) -> AttemptHistory:
        """Return the attempts at plans that ran in the last ``period``."""
        newest = select(func.coalesce(func.max(EventRow.id), 0)).scalar_subquery()
        columns = (PlanRow.table_name, PlanRow.kind, PlanRow.executor, PlanRow.epoch.label("plan_epoch"))
        query = (
            select(EventRow.plan_id, EventRow.at_ms, EventRow.to_state, EventRow.epoch, EventRow.actor, *columns)
            .join(PlanRow, PlanRow.id == EventRow.plan_id)
            .where(EventRow.id > newest - _MAX_EVENTS, EventRow.at_ms > db_now() - timedelta_to_ms(period))
            .where(EventRow.epoch > 0, self._is_in_scope(PlanRow.table_name))
            .order_by(EventRow.id)  # the key, so that no other index is read
        )
        # An inflight plan may have been claimed before the oldest event that is read.
        running = (
            select(PlanRow.id.label("plan_id"), PlanRow.claimed_at_ms, PlanRow.epoch.label("plan_epoch"), *columns[:3])
            .where(PlanRow.state == PlanState.INFLIGHT, self._is_in_scope(PlanRow.table_name))
            .order_by(PlanRow.id)
        )
        oldest = select(EventRow.at_ms).where(EventRow.id == newest - _MAX_EVENTS).scalar_subquery()
        with self._database.read() as connection:
            now, cut_off = connection.execute(select(db_now(), oldest)).one()
            events, live = connection.execute(query).all(), connection.execute(running).all()
        since = max(int(now) - timedelta_to_ms(period), cut_off or 0)
        found = [
            attempt
            # The sort keeps the order of each plan's events.
            for _, rows in groupby(sorted(events, key=_PLAN), key=_PLAN)
            for attempt in _attempts_of_plan(list(rows), since)
        ]
        known = {(attempt.plan_id, attempt.epoch) for attempt in found}
        found += [
            PlanAttempt(
                plan_id=row.plan_id,
                table=row.table_name,
                kind=row.kind,
                executor=row.executor,
                epoch=row.plan_epoch,
                began_at=datetime_from_ms(row.claimed_at_ms),
                ended_at=None,
                outcome=PlanState.INFLIGHT,
            )
            for row in live
            if (row.plan_id, row.plan_epoch) not in known
        ]
        begin = datetime_from_ms(since)
        shown = [attempt for attempt in found if attempt.ended_at is None or attempt.ended_at >= begin]
        shown.sort(key=_BEGIN)
        return AttemptHistory(since=begin, until=datetime_from_ms(int(now)), attempts=tuple(shown))


def _saving(row: Any) -> PlanSaving:
    predicted = row.estimate.get("worth") or {}
    return PlanSaving(
        plan_id=row.id,
        at=datetime_from_ms(row.finalized_at_ms),
        cpu_seconds=row.used_cpu_ms / 1000,
        files_removed=int(row.files_removed),
        cpu_seconds_saved_per_day=float(predicted.get("cpu_seconds_saved_a_day") or 0.0),
    )


def _attempts_of_plan(events: Sequence[Any], since_ms: int) -> list[PlanAttempt]:
    """Return the attempts in the events of one plan, which are in their order.

    Each attempt has its own epoch. An attempt whose first event was not read began before ``since_ms``. It is returned
    only if it is the plan's last attempt, because the executors of earlier attempts are unknown.
    """
    by_epoch = [(epoch, list(rows)) for epoch, rows in groupby(events, key=_EPOCH)]
    found = []
    for number, (epoch, rows) in enumerate(by_epoch):
        first, has_begin = rows[0], rows[0].to_state == PlanState.INFLIGHT
        executor = first.actor if has_begin else first.executor if epoch == first.plan_epoch else None
        if executor is None:
            continue
        end = next((row for row in rows if row.to_state != PlanState.INFLIGHT), None)
        # An attempt without an end event ended when the next attempt took the plan over.
        taken_over = by_epoch[number + 1][1][0] if number + 1 < len(by_epoch) else None
        last = end or taken_over
        found.append(
            PlanAttempt(
                plan_id=first.plan_id,
                table=first.table_name,
                kind=first.kind,
                executor=executor,
                epoch=epoch,
                began_at=datetime_from_ms(first.at_ms if has_begin else since_ms),
                ended_at=None if last is None else datetime_from_ms(last.at_ms),
                outcome=PlanState.INFLIGHT.value if end is None else end.to_state,
            )
        )
    return found
