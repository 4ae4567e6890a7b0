# SPDX-License-Identifier: Apache-2.0
"""Requests for plans: checked, stored and answered by the same code for commands, programs over HTTP and the page."""

import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from lake.errors import LakefoldError
from service import problems
from service.control.config.loader import Config
from service.control.config.table_settings import ConfiguredTable, configure_table
from service.control.leadership import SCAN_ROLE, leader_lease
from service.control.planning.plan_request import PlanRequest, PlanResponse
from service.control.planning.refusals import partitions_locked_error, planning_refusal
from service.control.planning.scan import scan_and_plan
from service.control.store.views import Request
from service.problems import ProblemError

if TYPE_CHECKING:
    from service.control.store import Store

_POLL_SECONDS = 0.2


class TableResolver(Protocol):
    """Finds a table by its name, as ``service.control.config.catalog.Catalog`` does."""

    def find(self, word: str) -> ConfiguredTable:
        """Return the table called ``word``. Raises ProblemError if there is none."""


@dataclass(frozen=True, slots=True)
class _SingleTable:
    """Resolves every name to the only table, which a command has found already."""

    table: ConfiguredTable

    def find(self, word: str) -> ConfiguredTable:
        return self.table


def serve_request(config: Config, store: "Store", tables: TableResolver, request: Request) -> PlanResponse:
    """Serve one open request and store its answer; an error becomes the answer. Raises only the store's errors."""
    try:
        answer = scan_and_plan(config, store, tables.find(request.table), request=request, actor=request.actor)
    except (LakefoldError, OSError) as error:
        if problems.classify(error) is problems.DATABASE:
            raise
        answer = PlanResponse.from_error(request.table, error)
    store.answer_request(request.request_id, plan_ids=answer.plan_ids, answer=answer.document())
    return answer


def submit_request(
    config: Config,
    store: "Store",
    table: ConfiguredTable,
    plan_request: PlanRequest,
    *,
    actor: str,
) -> str:
    """Store a request; return its id.

    Raises OverrideError for a bad override before anything is stored, IdempotencyMismatch for the key of another
    request, and the store's other errors.
    """
    configure_table(config, table.ref, plan_request.overrides)
    return store.add_request(
        table.name,
        partitions=None
        if plan_request.partitions is None
        else sorted({name.strip("/") for name in plan_request.partitions}),
        overrides=plan_request.overrides,
        dry_run=plan_request.dry_run,
        idempotency_key=plan_request.idempotency_key,
        actor=actor,
        kind=plan_request.kind,
    )


def raise_if_refused(
    config: Config, store: "Store", table: ConfiguredTable, partitions: Collection[str] | None
) -> None:
    """Raise the ProblemError that would answer a request for plans, if the refusal is known without a scan.

    This is the case if the table may not be planned, or if live plans hold all of ``partitions``. Proposals do not
    count, because a request replaces them.
    """
    refused = planning_refusal(config, store, table, store.table_state(table.name))
    if refused is not None:
        raise refused
    if partitions is not None:
        held = store.locked_partitions(table.name, include_proposals=False)
        names = {name.strip("/") for name in partitions}
        if names and names <= held.keys():
            raise partitions_locked_error(table.name, {name: held[name] for name in sorted(names)})


def submit_and_wait(
    config: Config,
    store: "Store",
    table: ConfiguredTable,
    plan_request: PlanRequest,
    *,
    actor: str,
    timeout_seconds: float,
) -> PlanResponse:
    """Submit a request and return its answer. Without a live scheduler this process answers the request.

    Raises OverrideError or IdempotencyMismatch for a bad request, and ProblemError if the answer is a problem or the
    scheduler did not answer in time. Also raises the store's errors.
    """
    request_id = submit_request(config, store, table, plan_request, actor=actor)
    holder, deadline = f"{actor} request {request_id}", time.monotonic() + timeout_seconds
    while (request := store.request(request_id)).answer is None:
        with leader_lease(store, SCAN_ROLE, holder) as held_by_us:
            if held_by_us:
                serve_request(config, store, _SingleTable(table), request)
                continue
        if time.monotonic() > deadline:
            leader = next((leader.holder for leader in store.leaders() if leader.role == SCAN_ROLE), "no leader")
            raise ProblemError(
                problems.TRANSIENT,
                f"the scheduler ({leader}) has not answered request {request_id} in {timeout_seconds:.0f} s; it stays "
                "open; raise --timeout to wait longer",
                request_id=request_id,
            )
        time.sleep(_POLL_SECONDS)
    answer = PlanResponse.from_document(request.answer)
    answer.raise_problem()
    return answer
