# SPDX-License-Identifier: Apache-2.0
"""Plans whose executor fell silent: ask the table, then record, requeue or cancel; and what sleepers left behind."""

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import timedelta

from executors.observer import NullObserver, Observer
from executors.outcome import Outcome
from executors.run import ASK_AGAIN_SECONDS, HEARTBEAT, settle
from lake.logfields import about
from lake.model import TableRef
from lake.plan import LIVE_STATES
from lake.ports import PlanStore, SparkProvider, TableFormat

log = logging.getLogger(__name__)

Formats = Callable[[str], TableFormat]
"""Gives the adapter of a table format by its name; Rejected where there is none."""


def rescue_one(
    executor: str,
    *,
    formats: Formats,
    store: PlanStore,
    spark: SparkProvider,
    observer: Observer | None = None,
    heartbeat: timedelta = HEARTBEAT,
    ask_again: Sequence[float] = ASK_AGAIN_SECONDS,
) -> Outcome | None:
    """Take over one plan whose lease has run out; how that ended, None when there is no such plan.

    Committed plans are recorded. Of others everything pending is withdrawn, then they are requeued, or cancelled
    where an operator asked for it. A plan whose table gives no answer stays inflight and is asked about again.
    """
    observer = observer or NullObserver()
    claim = store.expired(executor)
    if claim is None:
        return None
    with about(claim):
        log.warning("plan %s of %s: its executor fell silent", claim.plan.plan_id, claim.plan.table.name)
        observer.lease_expired(claim)
        format_ = formats(claim.plan.table.format)
        return settle(
            claim, format=format_, store=store, spark=spark, observer=observer, heartbeat=heartbeat, ask_again=ask_again
        )


def sweep(table: TableRef, *, format: TableFormat, store: PlanStore, spark: SparkProvider) -> int:
    """Withdraw pending instants of plans that ended, such as one published by an executor that had lost its lease.

    Instants of plans this database does not know belong to another lakefold and are left alone. Returns how many
    were withdrawn. Raises what the format raises.
    """
    ended: dict[str, list[str]] = defaultdict(list)
    for instant, plan_id in format.pending(table).items():
        state = store.plan_state(plan_id)  # asked after the timeline was read: a plan that ended meanwhile has nothing
        if state is not None and state not in LIVE_STATES:
            ended[plan_id].append(instant)
    if not ended:
        return 0
    withdrawn = 0
    with format.writer(table, spark) as writer:
        for plan_id, instants in ended.items():
            withdrawn += writer.discard(plan_id, instants)
            log.warning("plan %s of %s has ended: withdrew %s", plan_id, table.name, ", ".join(instants))
    return withdrawn
