# SPDX-License-Identifier: Apache-2.0
"""The executor's writes for a claimed plan: its steps, and its transitions out of inflight.

A write with a claim compares the claim's epoch and executor with the plan's row. If the claim is no longer in force,
the write changes nothing and raises ``LeaseLost``. So an executor that was suspended and resumed can't corrupt a plan's
state. Writes without a claim concern plans that no executor runs: corrections by the sweep, and the cancellation of
requested plans.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, func, insert, select, update

from lake.model import TableRef
from lake.plan import Claim, Commit, PartitionFigures, Plan, PlanState, SkippedGroup, Step, SupersededVersion
from service.control.store.base import (
    StorePart,
    fenced_update,
    lock_claimed_row,
    record_event,
    storable_text,
    with_row_locks,
)
from service.control.store.budget_ledger import add_step_time, attempt_cpu_ms, charge_excess
from service.control.store.database import datetime_to_ms, db_now, timedelta_to_ms
from service.control.store.models import GroupRow, PlanRow, SupersededRow, TableRow
from service.control.store.notifications import NotifiedEvent, enqueue_notification
from service.control.store.partition_locks import end_exclusive_commit, release_plan_partitions
from service.control.store.plan_completion import (
    complete_without_claim,
    completion_values,
    end_committed_attempt,
    end_event,
    halt_of_plan,
)
from service.control.store.relocation.journal import (
    has_relocation_of,
    record_relocations,
    record_unrecorded_relocations,
)
from service.control.store.repeated_replacements import close_earlier_replacements, close_in_other_tables
from service.control.store.views import ErrorClass, FailureKind, StoreSettings
from service.control.store.write_reports import schedule_rescan

_ENDED_WITHOUT_COMMIT = (PlanState.CANCELLED, PlanState.FAILED)
#: separates the backoff from the error in the event of a failed attempt
_BEFORE_ERROR = " s: "


class ClaimedPlans(StorePart):
    """The executor's writes for its claimed plan, and later corrections by the sweep."""

    def record_step(
        self,
        claim: Claim,
        step: Step,
        *,
        milliseconds: int = 0,
        cpu_milliseconds: int | None = None,
        succeeded: bool = True,
    ) -> None:
        """Record that ``step`` ended or failed, and its CPU time if that was measured. Raises LeaseLost."""
        with self._database.write() as connection:
            row = lock_claimed_row(connection, claim)
            values: dict[str, Any] = {
                "milliseconds": add_step_time(row.milliseconds, step, milliseconds),
                "step_at_ms": db_now(),
            }
            if succeeded:
                values["step"] = step.value
            if step is Step.REWRITE:
                values["rewrite_cpu_ms"] = cpu_milliseconds
            fenced_update(connection, claim, values)

    def add_note(self, claim: Claim, text: str) -> None:
        """Add a line to the plan's history. Raises LeaseLost."""
        with self._database.write() as connection:
            fenced_update(connection, claim, {"heartbeat_at_ms": db_now()})
            inflight = PlanState.INFLIGHT
            record_event(
                connection, claim.plan.plan_id, inflight, inflight, epoch=claim.epoch, actor=claim.executor, reason=text
            )

    def record_inflight_error(self, claim: Claim, error: str) -> None:
        """Record why a plan stays inflight; an attempt keeps its first error. Raises LeaseLost."""
        with self._database.write() as connection:
            first = func.coalesce(PlanRow.error, storable_text(error))
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

    def record_skipped_groups(self, claim: Claim, skipped: Sequence[SkippedGroup]) -> None:
        """Record the groups that are left out of the commit; quarantine their unreadable files. Raises LeaseLost."""
        with self._database.write() as connection:
            row = lock_claimed_row(connection, claim)
            for group in skipped:
                connection.execute(
                    update(GroupRow)
                    .where(GroupRow.plan_id == row.id, GroupRow.number == group.group)
                    .values(left_out=storable_text(group.reason))
                )
            unreadable = {path: storable_text(group.reason) for group in skipped for path in group.quarantine}
            if unreadable:
                this_table = TableRow.name == row.table_name
                slices = (one for group in claim.plan.groups for one in group.slices)
                sizes = {one.path: one.bytes for one in slices if one.path in unreadable}
                columns = select(TableRow.quarantined, TableRow.quarantined_bytes)
                known = connection.execute(with_row_locks(columns.where(this_table))).one()
                both = {"quarantined": {**known[0], **unreadable}, "quarantined_bytes": {**known[1], **sizes}}
                connection.execute(update(TableRow).where(this_table).values(both))
            fenced_update(connection, claim, {"heartbeat_at_ms": db_now()})

    def complete(
        self, claim: Claim, commit: Commit, figures: Sequence[PartitionFigures], milliseconds: Mapping[str, int]
    ) -> None:
        """Complete the plan, record its figures and superseded versions, and release its partitions. Raises LeaseLost.

        All this happens in one transaction. The call is idempotent: a second call with the same claim and commit, such
        as after a lost response, changes nothing.
        """
        plan_id = claim.plan.plan_id
        with self._database.write() as connection:
            is_current = (PlanRow.epoch == claim.epoch, PlanRow.executor == claim.executor)
            done = select(PlanRow.id).where(
                PlanRow.id == plan_id,
                PlanRow.state == PlanState.COMPLETED,
                PlanRow.instant == commit.instant,
                *is_current,
            )
            if connection.execute(done).one_or_none() is not None:
                return
            row = lock_claimed_row(connection, claim)
            spent = {**row.milliseconds, **milliseconds}
            used = attempt_cpu_ms(spent, row.rewrite_cpu_ms, self._settings.cores_per_plan)
            values = {**completion_values(commit, figures), "milliseconds": spent, "used_cpu_ms": used}
            by = "" if commit.epoch in (None, claim.epoch) else f" by epoch {commit.epoch}"
            late = "" if row.cancel_requested_at_ms is None else "; the cancel request was too late"
            reason = f"committed as {commit.instant}{by}{late}"
            self._leave_inflight(connection, claim, PlanState.COMPLETED, values, claim.executor, reason)
            self._record_superseded(connection, row, commit)
            schedule_rescan(connection, claim.plan.table.name)

    def ended_without_commit(self, table: TableRef, *, claimed: bool) -> Collection[str]:
        """Return the plans of the table that are cancelled or failed; with ``claimed``, only those that were claimed.

        A database that was restored from a backup may show a plan as never claimed although it was claimed.
        """
        ended = select(PlanRow.id).where(PlanRow.table_name == table.name, PlanRow.state.in_(_ENDED_WITHOUT_COMMIT))
        if claimed:
            ended = ended.where(PlanRow.epoch > 0)
        with self._database.read() as connection:
            return frozenset(connection.execute(ended).scalars())

    def complete_unrecorded(self, commit: Commit, figures: Callable[[Plan], Sequence[PartitionFigures]]) -> bool:
        """Complete a plan that is cancelled or failed although its table contains ``commit``.

        Returns False if the plan is in another state. Locks on its partitions do not change.
        """
        this_plan = (PlanRow.id == commit.plan_id, PlanRow.state.in_(_ENDED_WITHOUT_COMMIT))
        with self._database.write() as connection:
            row = connection.execute(with_row_locks(select(PlanRow.__table__).where(*this_plan))).one_or_none()
            if row is None:
                return False
            complete_without_claim(connection, self._settings, row, commit, figures)
            self._record_superseded(connection, row, commit, is_late=True)
            return True

    def add_relocations(self, table: TableRef, commit: Commit) -> bool:
        """Record the relocations of ``commit``, whose plan completed with another commit.

        Returns False if the plan did not complete with another commit, or if the relocations are already recorded.
        """
        other = select(PlanRow.__table__).where(
            PlanRow.id == commit.plan_id, PlanRow.state == PlanState.COMPLETED, PlanRow.instant != commit.instant
        )
        with self._database.write() as connection:
            row = connection.execute(with_row_locks(other)).one_or_none()
            if row is None or has_relocation_of(connection, table.name, commit):
                return False
            self._record_superseded(connection, row, commit, is_late=True)
            return True

    def requeue(self, claim: Claim, error: str, *, counts_as_attempt: bool = True) -> bool:
        """Request the plan again, with a backoff, after a Transient error. Raises LeaseLost.

        Returns False if the plan was ended instead: as failed after ``max_attempts``, or as cancelled if a cancel was
        requested. If ``counts_as_attempt`` is False, the number of attempts does not increase.
        """
        with self._database.write() as connection:
            row = lock_claimed_row(connection, claim)
            if row.cancel_requested_at_ms is not None:
                values = {"error": storable_text(error), "error_class": None}
                reason = row.cancel_reason or "cancel requested"
                self._leave_inflight(connection, claim, PlanState.CANCELLED, values, row.cancel_requested_by, reason)
                return False
            if counts_as_attempt and row.attempts >= self._settings.max_attempts:
                reason = f"attempt {row.attempts} of {self._settings.max_attempts} (max_attempts): {error}"
                self._leave_inflight(
                    connection,
                    claim,
                    PlanState.FAILED,
                    {
                        "error": storable_text(error),
                        "error_class": ErrorClass.TRANSIENT,
                        "failure": FailureKind.ATTEMPTS,
                    },
                    claim.executor,
                    reason,
                )
                return False
            wait_ms = self._backoff_ms(row.attempts)
            attempt = f"attempt {row.attempts}{'' if counts_as_attempt else ', not counted'}"
            reason = f"{attempt}, retry in {wait_ms / 1000:g}{_BEFORE_ERROR}{error}"
            self._leave_inflight(
                connection,
                claim,
                PlanState.REQUESTED,
                {
                    "error": storable_text(error),
                    "error_class": ErrorClass.TRANSIENT,
                    "not_before_ms": db_now() + wait_ms,
                    "step": None,
                    "attempts": row.attempts - (not counts_as_attempt),
                },
                claim.executor,
                reason,
            )
            return True

    def fail(
        self, claim: Claim, error: str, *, halt: bool = False, partitions: Mapping[str, str] | None = None
    ) -> None:
        """End the plan as failed after Rejected or Integrity, and release its partitions. Raises LeaseLost.

        With ``halt``, also halts the table, or only ``partitions`` if these are the cause.
        """
        with self._database.write() as connection:
            row = lock_claimed_row(connection, claim)
            kind = ErrorClass.INTEGRITY if halt else ErrorClass.REJECTED
            values = {"error": storable_text(error), "error_class": kind, "failure": FailureKind.REJECTED}
            self._leave_inflight(connection, claim, PlanState.FAILED, values, claim.executor, error)
            if halt:
                halt_of_plan(connection, self._settings, row, error, partitions)

    def cancel(self, claim: Claim, reason: str, *, actor: str, is_refused: bool = False) -> None:
        """See ``lake.plan_store.PlanStore``."""
        with self._database.write() as connection:
            is_requested = lock_claimed_row(connection, claim).cancel_requested_at_ms is not None
            kind = ErrorClass.REJECTED if is_refused else ErrorClass.CONFLICT
            values = {"error": storable_text(reason), "error_class": None if is_requested else kind}
            self._leave_inflight(connection, claim, PlanState.CANCELLED, values, actor, reason)

    def _record_superseded(
        self, connection: Connection, row: Row[Any], commit: Commit, *, is_late: bool = False
    ) -> None:
        """Record the versions that the commit of the plan ``row`` replaced, and clear the plan's stagings.

        ``is_late`` is True if the commit was found after the plan had ended. ``end_committed_attempt`` handles a commit
        of an attempt that this database has not recorded.
        """
        others = frozenset[str]()
        if is_late:
            others = record_unrecorded_relocations(connection, row.table_name, commit)
        else:
            record_relocations(connection, row.table_name, commit)
        superseded = [one for one in commit.superseded if one.partition not in others]
        _insert_superseded(connection, row, commit, superseded)
        end_committed_attempt(connection, self._settings, row, commit)

    def _leave_inflight(
        self,
        connection: Connection,
        claim: Claim,
        new_state: PlanState,
        values: Mapping[str, Any],
        actor: str,
        reason: str,
    ) -> None:
        """Change the plan from inflight to ``new_state``, with an event. Releases its partitions if it has ended."""
        final, plan = new_state is not PlanState.REQUESTED, claim.plan
        fenced_update(
            connection,
            claim,
            {**values, "state": new_state, "lease_until_ms": None, "finalized_at_ms": db_now() if final else None},
        )
        if self._settings.limits.is_limited:
            charge_excess(connection, plan.plan_id, self._settings.cores_per_plan)
        record_event(
            connection, plan.plan_id, PlanState.INFLIGHT, new_state, epoch=claim.epoch, actor=actor, reason=reason
        )
        if not final:
            end_exclusive_commit(connection, plan.plan_id)
        else:
            release_plan_partitions(connection, plan.plan_id)
            event = end_event(plan, new_state, claim.epoch, claim.attempt, values, reason)
            enqueue_notification(connection, self._settings, event)

    def _backoff_ms(self, attempts: int) -> int:
        # The exponent is capped as well, so that the number stays small after many attempts.
        doubled = timedelta_to_ms(self._settings.backoff) << min(max(attempts - 1, 0), 32)
        return min(doubled, timedelta_to_ms(self._settings.backoff_max))


def _insert_superseded(
    connection: Connection, row: Row[Any], commit: Commit, superseded: Sequence[SupersededVersion]
) -> None:
    """Record the versions that ``commit`` of the plan ``row`` replaced. Their retention begins now."""
    now = connection.execute(select(db_now())).scalar_one()
    versions = [
        {
            "plan_id": commit.plan_id,
            "table_name": row.table_name,
            "partition_path": v.partition,
            "path": v.path,
            "bytes": v.bytes,
            "instant": v.instant,
            "superseded_at_ms": now,
            "modified_at_ms": None if v.modified_at is None else datetime_to_ms(v.modified_at),
        }
        for v in superseded
    ]
    if not versions:
        return
    connection.execute(insert(SupersededRow), versions)
    paths = [v.path for v in superseded]
    close_earlier_replacements(connection, row.table_name, commit.plan_id, commit.instant, paths)
    close_in_other_tables(connection, row.table_name, row.location, commit.plan_id, commit.instant, paths)


def error_of_attempt(reason: str) -> str:
    """Return the error in the ``reason`` of the event that ``ClaimedPlans.requeue`` recorded."""
    return reason.partition(_BEFORE_ERROR)[2] or reason


def cancel_requested_plan(
    connection: Connection, settings: StoreSettings, row: Row[Any], *, actor: str, reason: str, **values: Any
) -> None:
    """Cancel the requested plan of a locked ``row``. ``values`` are further columns to set."""
    connection.execute(
        update(PlanRow)
        .where(PlanRow.id == row.id)
        .values(
            state=PlanState.CANCELLED,
            finalized_at_ms=db_now(),
            error=reason,
            error_class=None,
            cancel_requested_by=actor,
            cancel_requested_at_ms=db_now(),
            cancel_reason=reason,
            **values,
        )
    )
    release_plan_partitions(connection, row.id)
    figures = {"input_files": row.input_files, "input_bytes": row.input_bytes, "attempts": row.attempts}
    enqueue_notification(
        connection,
        settings,
        NotifiedEvent(
            event="plan.cancelled", table=row.table_name, plan=row.id, epoch=row.epoch, reason=reason, figures=figures
        ),
    )
    record_event(
        connection, row.id, PlanState.REQUESTED, PlanState.CANCELLED, epoch=row.epoch, actor=actor, reason=reason
    )
