# SPDX-License-Identifier: Apache-2.0
"""The executor's side of a plan's life once it is claimed: its steps, and the ways out of inflight.

Every write names the claim's epoch and executor. One that meets a plan that moved on touches no row and raises
``LeaseLost``, so an executor that was stopped and continued can do no harm here.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, func, insert, select, update

from lake.model import TableRef
from lake.plan import Claim, Commit, LeftOut, PartitionFigures, Plan, PlanState, Step, SupersededVersion
from service.store.base import StorePart, fenced_update, hold, locked, record_event, storable
from service.store.charges import settle
from service.store.clock import db_now, milliseconds, to_ms
from service.store.halts import halt, halt_partition
from service.store.holds import free, open_again
from service.store.models import GroupRow, PlanRow, SupersededRow, TableRow
from service.store.notifications import tell
from service.store.places import is_moved_by, record_moves, record_moves_late
from service.store.rows import load_plan
from service.store.staged import clear_committed
from service.store.views import ErrorClass, Failure
from service.store.work import cpu_milliseconds, with_time
from service.store.written import scan_after_work

_ENDED_WITHOUT_COMMIT = (PlanState.CANCELLED, PlanState.FAILED)
_FIGURES = ("files_before", "bytes_before", "files_after", "bytes_after")


class Lifecycle(StorePart):
    """What the holder of a claim records of its plan, and the sweep of one that ended."""

    def step(
        self,
        claim: Claim,
        step: Step,
        *,
        milliseconds: int = 0,
        cpu_milliseconds: int | None = None,
        ended: bool = True,
    ) -> None:
        """Record that ``step`` ended or failed, and what it used where that was measured. Raises LeaseLost."""
        with self._database.write() as connection:
            row = hold(connection, claim)
            values: dict[str, Any] = {
                "milliseconds": with_time(row.milliseconds, step, milliseconds),
                "step_at_ms": db_now(),
            }
            if ended:
                values["step"] = step.value
            if step is Step.REWRITE:
                values["rewrite_cpu_ms"] = cpu_milliseconds
            fenced_update(connection, claim, values)

    def note(self, claim: Claim, text: str) -> None:
        """Add a line to the plan's history. Raises LeaseLost."""
        with self._database.write() as connection:
            fenced_update(connection, claim, {"heartbeat_at_ms": db_now()})
            inflight = PlanState.INFLIGHT
            record_event(
                connection, claim.plan.plan_id, inflight, inflight, epoch=claim.epoch, actor=claim.executor, reason=text
            )

    def stay(self, claim: Claim, error: str) -> None:
        """Record why a plan stays inflight; the first cause of an attempt is the one that is kept. Raises LeaseLost."""
        with self._database.write() as connection:
            first = func.coalesce(PlanRow.error, storable(error))
            fenced_update(connection, claim, {"error": first, "error_class": ErrorClass.COMMIT_UNKNOWN})
            inflight = PlanState.INFLIGHT
            record_event(
                connection,
                claim.plan.plan_id,
                inflight,
                inflight,
                epoch=claim.epoch,
                actor=claim.executor,
                reason=f"stays inflight: {error}",
            )

    def leave_out(self, claim: Claim, left_out: Sequence[LeftOut]) -> None:
        """Record groups that are not part of the commit, and quarantined paths. Raises LeaseLost."""
        with self._database.write() as connection:
            row = hold(connection, claim)
            for group in left_out:
                connection.execute(
                    update(GroupRow)
                    .where(GroupRow.plan_id == row.id, GroupRow.number == group.group)
                    .values(left_out=storable(group.reason))
                )
            unreadable = {path: storable(group.reason) for group in left_out for path in group.quarantine}
            if unreadable:
                this_table = TableRow.name == row.table_name
                slices = (one for group in claim.plan.groups for one in group.slices)
                sizes = {one.path: one.bytes for one in slices if one.path in unreadable}
                columns = select(TableRow.quarantined, TableRow.quarantined_bytes)
                known = connection.execute(locked(columns.where(this_table))).one()
                both = {"quarantined": {**known[0], **unreadable}, "quarantined_bytes": {**known[1], **sizes}}
                connection.execute(update(TableRow).where(this_table).values(both))
            fenced_update(connection, claim, {"heartbeat_at_ms": db_now()})

    def complete(
        self, claim: Claim, commit: Commit, figures: Sequence[PartitionFigures], milliseconds: Mapping[str, int]
    ) -> None:
        """One transaction: completed, figures, superseded versions, partitions freed. Raises LeaseLost.

        Idempotent: a second call of the same claim with the same commit, as after a lost answer, changes nothing.
        """
        plan_id = claim.plan.plan_id
        with self._database.write() as connection:
            ours = (PlanRow.epoch == claim.epoch, PlanRow.executor == claim.executor)
            done = select(PlanRow.id).where(
                PlanRow.id == plan_id, PlanRow.state == PlanState.COMPLETED, PlanRow.instant == commit.instant, *ours
            )
            if connection.execute(done).one_or_none() is not None:
                return
            row = hold(connection, claim)
            spent = {**row.milliseconds, **milliseconds}
            used = cpu_milliseconds(spent, row.rewrite_cpu_ms, self._settings.cores_per_plan)
            values = {**_completed(commit, figures), "milliseconds": spent, "used_cpu_ms": used}
            by = "" if commit.epoch in (None, claim.epoch) else f" by epoch {commit.epoch}"
            late = "" if row.cancel_requested_at_ms is None else "; the cancel came too late"
            reason = f"committed as {commit.instant}{by}{late}"
            self._leave_inflight(connection, claim, PlanState.COMPLETED, values, claim.executor, reason)
            self._superseded_by(connection, row, commit)
            scan_after_work(connection, claim.plan.table.name)

    def uncommitted(self, table: TableRef) -> Collection[str]:
        """Plans of the table that somebody claimed once and that ended cancelled or failed."""
        ended = select(PlanRow.id).where(
            PlanRow.table_name == table.name, PlanRow.state.in_(_ENDED_WITHOUT_COMMIT), PlanRow.epoch > 0
        )
        with self._database.read() as connection:
            return frozenset(connection.execute(ended).scalars())

    def complete_late(self, commit: Commit, figures: Callable[[Plan], Sequence[PartitionFigures]]) -> bool:
        """Complete a plan that ended cancelled or failed although its table holds ``commit``; False for any other.

        Its partitions are no longer its own and stay with whoever has them now.
        """
        this_plan = (PlanRow.id == commit.plan_id, PlanRow.state.in_(_ENDED_WITHOUT_COMMIT))
        with self._database.write() as connection:
            row = connection.execute(locked(select(PlanRow.__table__).where(*this_plan))).one_or_none()
            if row is None:
                return False
            plan, reason = load_plan(connection, row), f"the table holds its commit {commit.instant}: put right"
            values = _completed(commit, figures(plan))
            connection.execute(
                update(PlanRow).where(*this_plan).values(state=PlanState.COMPLETED, finalized_at_ms=db_now(), **values)
            )
            record_event(
                connection,
                row.id,
                PlanState(row.state),
                PlanState.COMPLETED,
                epoch=row.epoch,
                actor="sweep",
                reason=reason,
            )
            self._superseded_by(connection, row, commit, is_late=True)
            self._tell_end(connection, plan, PlanState.COMPLETED, row.epoch, row.attempts, values, reason)
            scan_after_work(connection, plan.table.name)
            return True

    def add_moves(self, table: TableRef, commit: Commit) -> bool:
        """Record the moves of a commit of a plan that completed as another one; False for any other, or a known one."""
        other = select(PlanRow.__table__).where(
            PlanRow.id == commit.plan_id, PlanRow.state == PlanState.COMPLETED, PlanRow.instant != commit.instant
        )
        with self._database.write() as connection:
            row = connection.execute(locked(other)).one_or_none()
            if row is None or is_moved_by(connection, table.name, commit):
                return False
            self._superseded_by(connection, row, commit, is_late=True)
            return True

    def requeue(self, claim: Claim, error: str, *, counts: bool = True) -> bool:
        """Transient: back to requested with a backoff, or failed after ``max_attempts`` (then False).

        Where the attempt does not count (``counts``) the plan has as many left as before it.
        A plan that somebody asked to cancel meanwhile is cancelled instead (False too). Raises LeaseLost.
        """
        with self._database.write() as connection:
            row = hold(connection, claim)
            if row.cancel_requested_at_ms is not None:
                values = {"error": storable(error), "error_class": None}
                reason = row.cancel_reason or "cancel requested"
                self._leave_inflight(connection, claim, PlanState.CANCELLED, values, row.cancel_requested_by, reason)
                return False
            if counts and row.attempts >= self._settings.max_attempts:
                reason = f"attempt {row.attempts} of {self._settings.max_attempts} (max_attempts): {error}"
                self._leave_inflight(
                    connection,
                    claim,
                    PlanState.FAILED,
                    {"error": storable(error), "error_class": ErrorClass.TRANSIENT, "failure": Failure.ATTEMPTS},
                    claim.executor,
                    reason,
                )
                return False
            wait_ms = self._backoff_ms(row.attempts)
            attempt = f"attempt {row.attempts}{'' if counts else ', not counted'}"
            self._leave_inflight(
                connection,
                claim,
                PlanState.REQUESTED,
                {
                    "error": storable(error),
                    "error_class": ErrorClass.TRANSIENT,
                    "not_before_ms": db_now() + wait_ms,
                    "step": None,
                    "attempts": row.attempts - (not counts),
                },
                claim.executor,
                f"{attempt}, again in {wait_ms / 1000:g} s: {error}",
            )
            return True

    def fail(self, claim: Claim, error: str, *, halt: bool = False, partitions: Collection[str] = ()) -> None:
        """Rejected or Integrity: failed, partitions freed. Raises LeaseLost.

        With ``halt`` the table is halted, or only ``partitions`` where these are what is the matter.
        """
        with self._database.write() as connection:
            row = hold(connection, claim)
            kind = ErrorClass.INTEGRITY if halt else ErrorClass.REJECTED
            values = {"error": storable(error), "error_class": kind, "failure": Failure.REJECTED}
            self._leave_inflight(connection, claim, PlanState.FAILED, values, claim.executor, error)
            if halt:
                self._halt(connection, row, error, partitions)

    def cancel(self, claim: Claim, reason: str, *, actor: str) -> None:
        """Conflict or an operator's wish: cancelled, partitions freed. Raises LeaseLost."""
        with self._database.write() as connection:
            asked = hold(connection, claim).cancel_requested_at_ms is not None
            values = {"error": storable(reason), "error_class": None if asked else ErrorClass.CONFLICT}
            self._leave_inflight(connection, claim, PlanState.CANCELLED, values, actor, reason)

    def _superseded_by(self, connection: Connection, row: Row[Any], commit: Commit, *, is_late: bool = False) -> None:
        """What the commit of the plan ``row`` replaced, and no longer leaves over. ``is_late``: others came since.

        The table is halted where an attempt made it that this database has no memory of: then it was set back, which
        the plan's record puts right, or somebody runs plans from a copy of it, and goes on doing so.
        """
        others = frozenset[str]()
        if is_late:
            others = record_moves_late(connection, row.table_name, commit)
        else:
            record_moves(connection, row.table_name, commit)
        _supersede(
            connection, row.table_name, commit, [one for one in commit.superseded if one.partition not in others]
        )
        clear_committed(connection, commit, row.epoch)
        if commit.epoch is not None and commit.epoch > row.epoch:
            self._halt(
                connection,
                row,
                f"attempt {commit.epoch} committed {commit.instant}, and this database knows of {row.epoch} only: it "
                "was set back to an earlier state, or another lakefold runs on a copy of it; make sure that none does, "
                f"then lakefold resume {row.table_name}",
            )

    def _halt(self, connection: Connection, row: Row[Any], error: str, partitions: Collection[str] = ()) -> None:
        """Halt ``partitions`` of the plan ``row``, or its table where none are named."""
        why, told = f"plan {row.id}: {error}", {"plan_id": row.id, "epoch": row.epoch}
        if not partitions:
            halt(connection, self._settings, row.table_name, why, **told)
        for partition in partitions:
            halt_partition(connection, self._settings, row.table_name, partition, why, **told)

    def _leave_inflight(
        self, connection: Connection, claim: Claim, to: PlanState, values: Mapping[str, Any], actor: str, reason: str
    ) -> None:
        """One of the four ways out of inflight, with its event; the partitions are freed unless the plan stays live."""
        final, plan = to is not PlanState.REQUESTED, claim.plan
        fenced_update(
            connection,
            claim,
            {**values, "state": to, "lease_until_ms": None, "finalized_at_ms": db_now() if final else None},
        )
        if self._settings.limits.any:
            settle(connection, plan.plan_id, self._settings.cores_per_plan)
        record_event(connection, plan.plan_id, PlanState.INFLIGHT, to, epoch=claim.epoch, actor=actor, reason=reason)
        if not final:
            open_again(connection, plan.plan_id)
        else:
            free(connection, plan.plan_id)
            self._tell_end(connection, plan, to, claim.epoch, claim.attempt, values, reason)

    def _tell_end(
        self,
        connection: Connection,
        plan: Plan,
        state: PlanState,
        epoch: int,
        attempts: int,
        values: Mapping[str, Any],
        reason: str,
    ) -> None:
        figures = {"input_files": plan.input_files, "input_bytes": plan.bytes, "attempts": attempts}
        figures |= {key: values[key] for key in _FIGURES if key in values}
        tell(
            connection,
            self._settings,
            f"plan.{state}",
            table=plan.table.name,
            plan=plan.plan_id,
            epoch=epoch,
            reason=reason,
            figures=figures,
        )

    def _backoff_ms(self, attempts: int) -> int:
        # The exponent is capped as well: 2 ** 10,000 would not fit the column before min() sees it.
        doubled = milliseconds(self._settings.backoff) << min(max(attempts - 1, 0), 32)
        return min(doubled, milliseconds(self._settings.backoff_max))


def _completed(commit: Commit, figures: Sequence[PartitionFigures]) -> dict[str, Any]:
    """What a plan's row says of its commit. Neither an earlier attempt's error nor a late cancel is left of it."""
    return {
        "instant": commit.instant,
        "figures": [[f.partition, f.files_before, f.bytes_before, f.files_after, f.bytes_after] for f in figures],
        **{name: sum(getattr(f, name) for f in figures) for name in _FIGURES},
        "step": Step.RECORD.value,
        "error": None,
        "error_class": None,
        "cancel_requested_by": None,
        "cancel_requested_at_ms": None,
        "cancel_reason": None,
    }


def _supersede(connection: Connection, table: str, commit: Commit, replaced: Sequence[SupersededVersion]) -> None:
    """What ``commit`` replaced waits for its deletion from now on."""
    now = connection.execute(select(db_now())).scalar_one()
    versions = [
        {
            "plan_id": commit.plan_id,
            "table_name": table,
            "partition_path": v.partition,
            "path": v.path,
            "bytes": v.bytes,
            "instant": v.instant,
            "superseded_at_ms": now,
            "modified_at_ms": None if v.modified_at is None else to_ms(v.modified_at),
        }
        for v in replaced
    ]
    if not versions:
        return
    connection.execute(insert(SupersededRow), versions)
    # A file that a restore made the table's again waits anew, not for what is left of its first retention.
    again = select(SupersededRow.path).where(SupersededRow.plan_id == commit.plan_id)
    connection.execute(
        update(SupersededRow)
        .where(
            SupersededRow.table_name == table,
            SupersededRow.deleted_at_ms.is_(None),
            SupersededRow.plan_id != commit.plan_id,
            SupersededRow.path.in_(again),
        )
        .values(deleted_at_ms=now, closed_reason=f"replaced again, as {commit.instant}")
    )
