# SPDX-License-Identifier: Apache-2.0
"""Take over plans whose lease has run out: find their commits, then record, requeue or cancel the plans."""

import logging
from collections.abc import Sequence
from datetime import timedelta

from executors.observer import Observer
from executors.outcome import RunOutcome, RunResult
from executors.run import HEARTBEAT_INTERVAL, RETRY_DELAYS_SECONDS, end_taken_over_plan
from lake.errors import Rejected, one_line
from lake.logfields import claim_log_fields
from lake.plan import Claim
from lake.plan_store import PlanStore
from lake.ports import FormatLoader, SparkProvider

log = logging.getLogger(__name__)


def take_over_one(
    executor: str,
    *,
    formats: FormatLoader,
    store: PlanStore,
    spark: SparkProvider,
    observer: Observer | None = None,
    heartbeat: timedelta = HEARTBEAT_INTERVAL,
    retry_delays: Sequence[float] = RETRY_DELAYS_SECONDS,
) -> RunOutcome | None:
    """Take over one plan whose lease has run out. Returns its outcome, None if there is no such plan.

    A committed plan is recorded. Otherwise all pending work is withdrawn, and the plan is requeued, or cancelled if an
    operator requested it. A plan whose table does not answer stays inflight; a later take-over checks it again.
    """
    observer = observer or Observer()
    claim = store.take_over_expired(executor)
    if claim is None:
        return None
    with claim_log_fields(claim):
        log.warning("plan %s of %s: its executor fell silent", claim.plan.plan_id, claim.plan.table.name)
        observer.lease_expired(claim)
        try:
            format_ = formats(claim.plan.table.format)
        except Rejected as error:
            return unserved_outcome(claim, error)
        return end_taken_over_plan(
            claim,
            format=format_,
            store=store,
            spark=spark,
            observer=observer,
            heartbeat=heartbeat,
            retry_delays=retry_delays,
        )


def unserved_outcome(claim: Claim, error: Rejected) -> RunOutcome:
    """Leave a plan inflight for another executor: this one has no adapter for the table, which may have its commit."""
    log.error("plan %s of %s stays inflight: %s", claim.plan.plan_id, claim.plan.table.name, one_line(error))
    return RunOutcome(result=RunResult.INFLIGHT, reason=type(error).__name__, error=one_line(error))
