# SPDX-License-Identifier: Apache-2.0
"""``POST /v1/plans/cancel`` and its like: done to all plans that a filter means, or first what that would be."""

from typing import Annotated

from fastapi import APIRouter, Header
from starlette.responses import Response

from lake.plan import PlanState
from service.api.bodies import Body, Moment, Reason, TableName
from service.api.changes import changes_the_lake
from service.api.context import Context, Here
from service.api.paging import document
from service.api.plan_terms import terms_of
from service.api.security import Caller, require
from service.planning import bulk
from service.store import ErrorClass

router = APIRouter(prefix="/plans", tags=["plans"], dependencies=[changes_the_lake])

Writer = Annotated[Caller, require("write")]
Key = Annotated[
    str | None,
    Header(
        min_length=1, max_length=255, description="A repeated call with the same key and token has no further effect."
    ),
]


class Chosen(Body):
    """Which plans, as the query of `GET /v1/plans` says it; why; and with `dry_run` only which ones they are."""

    table: TableName | None = None
    name: TableName | None = None
    state: PlanState | None = None
    proposed: bool | None = None
    error: ErrorClass | None = None
    since: Moment = None
    until: Moment = None
    after: TableName | None = None
    reason: Reason = ""
    dry_run: bool = False


@router.post("/cancel")
def cancel_plans(here: Here, caller: Writer, chosen: Chosen, idempotency_key: Key = None) -> Response:
    """Cancel the plans that `chosen` means: requested ones at once, inflight ones before their commit.

    At most 1,000 of them, newest first; `next` is the `after` of the next call, null where there are no more. `left`
    has those that could not be cancelled, each with the reason. 400 where nothing says which plans are meant.
    """
    return _act(here, "cancel", caller, chosen, idempotency_key)


@router.post("/retry")
def retry_plans(here: Here, caller: Writer, chosen: Chosen, idempotency_key: Key = None) -> Response:
    """Request the failed plans that `chosen` means again; those whose partitions are not free are `left`.

    At most 1,000 of them, newest first; `next` is the `after` of the next call, null where there are no more.
    """
    return _act(here, "retry", caller, chosen, idempotency_key)


@router.post("/approve")
def approve_plans(here: Here, caller: Writer, chosen: Chosen, idempotency_key: Key = None) -> Response:
    """Let those plans run that wait for it (mode `propose`) and that `chosen` means; `{"proposed": true}` means all.

    At most 1,000 of them, newest first; `next` is the `after` of the next call, null where there are no more. `left`
    has those on which somebody else has decided meanwhile. What a scan proposes after `until` is not meant; a dry run
    says until when it has looked.
    """
    return _act(here, "approve", caller, chosen, idempotency_key)


@router.post("/decline")
def decline_plans(here: Here, caller: Writer, chosen: Chosen, idempotency_key: Key = None) -> Response:
    """End those plans that wait for approval and that `chosen` means, as `approve` does.

    What they would have rewritten is not proposed again while it is as it is.
    """
    return _act(here, "decline", caller, chosen, idempotency_key)


def _act(here: Context, action: bulk.Action, caller: Caller, chosen: Chosen, key: str | None) -> Response:
    terms = terms_of(
        table=chosen.table,
        name=chosen.name,
        state=chosen.state,
        proposed=chosen.proposed,
        error=chosen.error,
        since=chosen.since,
        until=chosen.until,
    )
    if chosen.dry_run:
        return document(bulk.would(here.store, action, terms, chosen.after))
    done = bulk.act(here.store, action, terms, actor=caller.actor, reason=chosen.reason, key=key, after=chosen.after)
    return document(done)
