# SPDX-License-Identifier: Apache-2.0
"""Take over plans whose lease has run out: find their commits, then record, requeue or cancel the plans."""

import logging

from executors.context import RunContext
from executors.outcome import RunOutcome, RunResult
from executors.run import end_taken_over_plan
from lake.errors import Rejected, one_line
from lake.logfields import claim_log_fields
from lake.plan import Claim

log = logging.getLogger(__name__)


def take_over_one(executor: str, context: RunContext) -> RunOutcome | None:
    """Take over one plan whose lease has run out. Returns its outcome, None if there is no such plan.

    A committed plan is recorded. Otherwise all pending work is withdrawn, and the plan is requeued, or cancelled if an
    operator requested it. A plan whose table does not answer stays inflight; a later take-over checks the table again.
    """
    claim = context.store.take_over_expired(executor)
    if claim is None:
        return None
    with claim_log_fields(claim):
        log.warning("plan %s of %s: its executor stopped renewing its lease", claim.plan.plan_id, claim.plan.table.name)
        context.observer.lease_expired(claim)
        try:
            format_ = context.formats(claim.plan.table.format)
        except Rejected as error:
            return leave_to_other_executor(claim, error)
        return end_taken_over_plan(claim, context, format=format_)


def leave_to_other_executor(claim: Claim, error: Rejected) -> RunOutcome:
    """Leave a plan inflight, since this executor has no adapter for its table and the commit may exist."""
    log.error("plan %s of %s stays inflight: %s", claim.plan.plan_id, claim.plan.table.name, one_line(error))
    return RunOutcome(result=RunResult.INFLIGHT, reason=type(error).__name__, error=one_line(error))
