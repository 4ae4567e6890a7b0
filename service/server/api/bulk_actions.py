# SPDX-License-Identifier: Apache-2.0
"""The routes ``POST /v1/plans/cancel``, ``retry``, ``approve`` and ``decline``: one action on all plans of a filter."""

from typing import Annotated

from fastapi import APIRouter, Header
from starlette.responses import Response

from service.control.planning import bulk_actions
from service.server.api.context import Context, ContextDep
from service.server.api.filters import PlanSelection
from service.server.api.lake_cache_invalidation import invalidates_lake_cache
from service.server.api.request_types import Reason, RequestBody, TableName
from service.server.api.responses import json_response
from service.server.api.security import Caller, require

router = APIRouter(prefix="/plans", tags=["plans"], dependencies=[invalidates_lake_cache])

Writer = Annotated[Caller, require("write")]
IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1, max_length=255, description="A repeated call with the same key and token has no further effect."
    ),
]


class BulkSelection(PlanSelection, RequestBody):
    """Plans selected as in the query of `GET /v1/plans`, and the reason; `dry_run` only lists them."""

    table: TableName | None = None
    name: TableName | None = None
    after: TableName | None = None
    reason: Reason = ""
    dry_run: bool = False


@router.post("/cancel")
def cancel_plans(
    context: ContextDep, caller: Writer, chosen: BulkSelection, idempotency_key: IdempotencyKey = None
) -> Response:
    """Cancel the selected plans: requested ones at once, inflight ones before their commit.

    At most 1,000 plans, newest first; `next` is the `after` of the next call, null if there are no further plans.
    `skipped` has the plans that could not be cancelled, each with the reason. 400 if the body has no filter.
    """
    return _apply(context, "cancel", caller, chosen, idempotency_key)


@router.post("/retry")
def retry_plans(
    context: ContextDep, caller: Writer, chosen: BulkSelection, idempotency_key: IdempotencyKey = None
) -> Response:
    """Request the selected failed plans again; `skipped` has the plans whose partitions are not free.

    At most 1,000 plans, newest first; `next` is the `after` of the next call, null if there are no further plans.
    """
    return _apply(context, "retry", caller, chosen, idempotency_key)


@router.post("/approve")
def approve_plans(
    context: ContextDep, caller: Writer, chosen: BulkSelection, idempotency_key: IdempotencyKey = None
) -> Response:
    """Approve the selected plans that wait for approval (mode `propose`); `{"proposed": true}` selects all.

    At most 1,000 plans, newest first; `next` is the `after` of the next call, null if there are no further plans.
    `skipped` has the plans that others have decided meanwhile. Plans proposed after `until` are excluded; a dry run
    returns the `until` of its listing.
    """
    return _apply(context, "approve", caller, chosen, idempotency_key)


@router.post("/decline")
def decline_plans(
    context: ContextDep, caller: Writer, chosen: BulkSelection, idempotency_key: IdempotencyKey = None
) -> Response:
    """Decline the selected plans that wait for approval, with the limits of `approve`.

    Their files are not proposed again until they change.
    """
    return _apply(context, "decline", caller, chosen, idempotency_key)


def _apply(
    context: Context, action: bulk_actions.BulkActionName, caller: Caller, chosen: BulkSelection, key: str | None
) -> Response:
    plan_filter = chosen.plan_filter()
    if chosen.dry_run:
        return json_response(bulk_actions.preview_bulk_action(context.store, action, plan_filter, chosen.after))
    done = bulk_actions.run_bulk_action(
        context.store,
        action,
        plan_filter,
        actor=caller.actor,
        reason=chosen.reason,
        idempotency_key=key,
        after=chosen.after,
    )
    return json_response(done)
