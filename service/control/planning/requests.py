# SPDX-License-Identifier: Apache-2.0
"""Requests: how one is checked, stored and answered, whoever asks: a command, a program over HTTP, the page."""

import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from lake.errors import LakefoldError
from service import problems
from service.control.config.loader import Config
from service.control.config.tables import ConfiguredTable, configure_table
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
    """Finds a table by its name; ``service.control.config.catalog.Catalog`` does."""

    def find(self, word: str) -> ConfiguredTable:
        """The table called ``word``. Raises CommandError where there is none."""


@dataclass(frozen=True, slots=True)
class _SingleTable:
    """Resolves every name to the one table that a command already found."""

    table: ConfiguredTable

    def find(self, word: str) -> ConfiguredTable:
        return self.table


def serve_request(config: Config, store: "Store", tables: TableResolver, request: Request) -> PlanResponse:
    """Serve one open request and store its answer; errors become the answer. Raises only what the store raises."""
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
    """Store a request; its id. Raises OverrideError for a bad override before anything is stored, else what the store
    raises: IdempotencyMismatch for a known key with another request.
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
    """Raise the CommandError with which a request for plans would be answered, where that is known without a scan.

    That is so where the table may not be planned, and where live plans hold all of ``partitions``; proposals make way.
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
    """Submit a request and return its answer: the live scheduler's, else our own.

    Raises what a bad request raises, CommandError where nobody answered in time, and what the store raises.
    """
    request_id = submit_request(config, store, table, plan_request, actor=actor)
    holder, deadline = f"{actor} request {request_id}", time.monotonic() + timeout_seconds
    while (request := store.request(request_id)).answer is None:
        with leader_lease(store, SCAN_ROLE, holder) as held_by_us:
            if held_by_us:
                serve_request(config, store, _SingleTable(table), request)
                continue
        if time.monotonic() > deadline:
            leader = next((leader.holder for leader in store.leaders() if leader.role == SCAN_ROLE), "nobody")
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
