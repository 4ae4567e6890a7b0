# SPDX-License-Identifier: Apache-2.0
"""The completion of a plan, with or without a claim: the columns of its row, and the notification."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from sqlalchemy import Connection, Row, update

from lake.plan import LIVE_STATES, Commit, PartitionFigures, Plan, PlanState, ProposalDecision, Step
from service.control.store.base import record_event
from service.control.store.budget_ledger import charge_excess
from service.control.store.database import db_now
from service.control.store.halts import record_partition_halt, record_table_halt
from service.control.store.models import PlanRow
from service.control.store.notifications import NotifiedEvent, enqueue_notification
from service.control.store.partition_locks import release_plan_partitions
from service.control.store.rows import load_plan
from service.control.store.staged_files import clear_committed
from service.control.store.views import StoreSettings
from service.control.store.write_reports import schedule_rescan

_FIGURES = ("files_before", "bytes_before", "files_after", "bytes_after")


def complete_without_claim(
    connection: Connection,
    settings: StoreSettings,
    row: Row[Any],
    commit: Commit,
    figures: Callable[[Plan], Sequence[PartitionFigures]],
) -> None:
    """Complete the plan of a locked ``row``, whose table holds ``commit``. The caller records the replaced versions.

    If the plan is inflight, its claim ends, and each later write with the claim raises LeaseLost. A live plan releases
    its partitions; those of an ended plan stay with their present holders.
    """
    plan, reason = load_plan(connection, row), f"the table holds its commit {commit.instant}: state corrected"
    values = {**completion_values(commit, figures(plan)), "finalized_at_ms": db_now(), "lease_until_ms": None}
    this_plan, before = update(PlanRow).where(PlanRow.id == row.id), PlanState(row.state)
    path = [before, PlanState.COMPLETED]
    if before is PlanState.REQUESTED:
        # The triggers do not allow a requested plan to become completed in one step.
        path.insert(1, PlanState.CANCELLED)
        connection.execute(this_plan.values(state=PlanState.CANCELLED, finalized_at_ms=db_now()))
    if before is PlanState.INFLIGHT:
        # The epoch is a new one, so that an executor which merely lost its lease does not take this record for its own.
        values["epoch"] = row.epoch + 1
    if row.proposed_at_ms is not None and row.decision != ProposalDecision.APPROVED:
        # The plan ran, so it was approved: the database was restored to an earlier state.
        values |= {"decision": ProposalDecision.APPROVED, "decided_by": "sweep", "decided_at_ms": db_now()}
    connection.execute(this_plan.values(state=PlanState.COMPLETED, **values))
    for former, state in pairwise(path):
        record_event(connection, row.id, former, state, epoch=row.epoch, actor="sweep", reason=reason)
    if before is PlanState.INFLIGHT and settings.limits.is_limited:
        charge_excess(connection, row.id, settings.cores_per_plan)
    if before in LIVE_STATES:
        release_plan_partitions(connection, row.id)
    event = end_event(plan, PlanState.COMPLETED, row.epoch, row.attempts, values, reason)
    enqueue_notification(connection, settings, event)
    schedule_rescan(connection, plan.table.name)


def end_committed_attempt(connection: Connection, settings: StoreSettings, row: Row[Any], commit: Commit) -> None:
    """Clear the stagings of the attempt that made the ``commit`` of the plan ``row``.

    If this database has no record of the attempt, halts the table: see ``halt_unknown_attempt``.
    """
    clear_committed(connection, commit, row.epoch)
    halt_unknown_attempt(connection, settings, row, commit)


def halt_unknown_attempt(connection: Connection, settings: StoreSettings, row: Row[Any], commit: Commit) -> None:
    """Halt the table of the plan ``row`` if this database has no record of the attempt that made the ``commit``.

    There are two possible causes. The database was restored to an earlier state; the caller's record corrects this. Or
    another lakefold runs plans from a copy of the database, and will continue. If the plan is requested, its next
    attempt counts as recorded, because its claim would have recorded it before the commit was found.
    """
    is_claimable = row.state == PlanState.REQUESTED and (row.proposed_at_ms is None or row.decision is not None)
    if commit.epoch is not None and commit.epoch > row.epoch + is_claimable:
        halt_of_plan(
            connection,
            settings,
            row,
            f"attempt {commit.epoch} committed {commit.instant}, above the newest attempt of this database "
            f"({row.epoch}): the database was restored from an earlier state, or another lakefold runs on a copy; "
            f"find that lakefold and stop it, then lakefold resume {row.table_name}",
        )


def halt_of_plan(
    connection: Connection,
    settings: StoreSettings,
    row: Row[Any],
    error: str,
    partitions: Mapping[str, str] | None = None,
) -> None:
    """Halt ``partitions`` of the plan ``row``, each with its own reason, or the plan's table if none are named."""
    event_fields = {"plan_id": row.id, "epoch": row.epoch}
    if not partitions:
        record_table_halt(connection, settings, row.table_name, f"plan {row.id}: {error}", **event_fields)
        return
    for partition, why in partitions.items():
        record_partition_halt(connection, settings, row.table_name, partition, f"plan {row.id}: {why}", **event_fields)


def end_event(
    plan: Plan, state: PlanState, epoch: int, attempts: int, values: Mapping[str, Any], reason: str
) -> NotifiedEvent:
    """Return the event that ``plan`` has ended in ``state``.

    ``attempts`` is the number of its attempts. ``values`` are columns of its row; the event has those that are figures.
    """
    figures = {"input_files": plan.input_files, "input_bytes": plan.bytes, "attempts": attempts}
    figures |= {key: values[key] for key in _FIGURES if key in values}
    return NotifiedEvent(
        event=f"plan.{state}",
        table=plan.table.name,
        plan=plan.plan_id,
        epoch=epoch,
        reason=reason,
        figures=figures,
    )


def completion_values(commit: Commit, figures: Sequence[PartitionFigures]) -> dict[str, Any]:
    """Return the columns of a committed plan; an earlier attempt's error and a late cancel are cleared."""
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
