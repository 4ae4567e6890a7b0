# SPDX-License-Identifier: Apache-2.0
"""Take over plans whose lease has run out: record, requeue or cancel each of them as the table's answer demands."""

import logging
from collections.abc import Sequence
from datetime import timedelta

from executors.observer import Observer
from executors.outcome import RunOutcome, RunResult
from executors.run import HEARTBEAT_INTERVAL, RETRY_DELAYS_SECONDS, end_taken_over_plan
from lake.errors import Rejected, one_line
from lake.logfields import claim_log_fields
from lake.plan import Claim
from lake.ports import FormatLoader, SparkProvider
from lake.relocation_store import RelocationStore

log = logging.getLogger(__name__)


def take_over_one(
    executor: str,
    *,
    formats: FormatLoader,
    store: RelocationStore,
    spark: SparkProvider,
    observer: Observer | None = None,
    heartbeat: timedelta = HEARTBEAT_INTERVAL,
    retry_delays: Sequence[float] = RETRY_DELAYS_SECONDS,
) -> RunOutcome | None:
    """Take over one plan whose lease has run out; how that ended, None when there is no such plan.

    Committed plans are recorded. Of others everything pending is withdrawn, then they are requeued, or cancelled
    where an operator asked for it. A plan whose table gives no answer stays inflight and is asked about again.
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
    """A plan that may have committed to a table which this executor has no adapter for: another one has to ask it."""
    log.error("plan %s of %s stays inflight: %s", claim.plan.plan_id, claim.plan.table.name, one_line(error))
    return RunOutcome(result=RunResult.INFLIGHT, reason=type(error).__name__, error=one_line(error))
