# SPDX-License-Identifier: Apache-2.0
"""The list of plans with its filters, and the bulk actions on all listed plans."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from lake.plan import PlanState
from service.control.planning.bulk_actions import ALLOWED_STATES, APPROVAL_ACTIONS, MAX_PLANS, BulkActionName
from service.control.store import BulkAction, ErrorClass, Figures, PlanFilter, PlanView
from service.former_names import both_names
from service.server.api.context import Context
from service.server.web.charts import Sparkline, sparkline
from service.server.web.formatting import shell_command
from service.server.web.plan_page import proposal_cost
from service.server.web.rendering import PageContent, query_path
from service.text import plural

PLANS_PER_PAGE = 50
#: plans listed on the page that confirms a bulk action
_MAX_LISTED = 100
ERROR_WORDS: Mapping[str, str] = {kind.value: kind.value.replace("_", " ") for kind in ErrorClass}
_RESULT_TEXT: Mapping[str, str] = {
    "cancel": "cancelled, or asked to stop before the commit",
    "retry": "to be tried again",
    "approve": "approved",
    "decline": "declined",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tab:
    """A state to filter by; ``plans`` is None if the number of plans is unknown."""

    name: str
    plans: int | None
    href: str
    is_current: bool


def plan_list_page(
    context: Context,
    figures: Figures,
    plan_filter: PlanFilter,
    query: Mapping[str, str],
    after: str | None,
    done: BulkAction | None,
) -> PageContent:
    """Return the page of plans that match ``plan_filter`` and follow plan ``after``, newest first.

    ``query`` has the filter fields of the address. ``done`` is a finished bulk action, whose result is shown.
    """
    table, name = plan_filter.get("table"), (plan_filter.get("name") or "").lower()
    # The figures count plans by table, kind and state, but not by time or error.
    counted = not {"error_class", "since", "until"} & plan_filter.keys()

    def is_selected(table_name: str) -> bool:
        return (not table or table_name == table) and name in table_name.lower()

    counts = dict.fromkeys(PlanState if counted else (), 0)
    for entry in figures.plans if counted else ():
        if is_selected(entry.table):
            counts[entry.state] += entry.plans
    proposed = sum(entry.plans for entry in figures.proposals if is_selected(entry.table)) if counted else None
    found = context.store.plans(**plan_filter, after=after, limit=PLANS_PER_PAGE + 1)
    shown = found[:PLANS_PER_PAGE]
    answer = both_names("bulk action", done.answer) if done is not None and done.answer is not None else None
    return PageContent(
        tabs=(
            _tab("all", sum(counts.values()) if counted else None, query),
            *_proposal_tab(proposed, query),
            *(_tab(known, counts.get(known), query, state=known) for known in PlanState),
        ),
        query=query,
        filtered=any(value for key, value in query.items() if key not in ("state", "proposed")),
        unfiltered_url=plan_list_path({key: query[key] for key in ("state", "proposed")}),
        plans=tuple(shown),
        costs={plan.plan_id: proposal_cost(plan) for plan in shown} if query["proposed"] == "true" else {},
        sizes=_proposal_sizes(context, shown) if query["proposed"] == "true" else {},
        total=sum(counts.values()) if counted else 1,
        command=shell_command("lakefold", "plans", "request", table or "TABLE", "--dry-run"),
        first_url=plan_list_path(query) if after else "",
        next_url=plan_list_path(query, after=shown[-1].plan_id) if len(found) > PLANS_PER_PAGE else "",
        error_words=ERROR_WORDS,
        bulk_actions=tuple(
            (action, query_path(f"/bulk/{action}", query)) for action in _possible_actions(plan_filter) if shown
        ),
        outcome=f"{plural(len(answer['plans']), 'plan')} {_RESULT_TEXT[answer['action']]}" if answer else "",
        skipped=tuple(answer["skipped"]) if answer else (),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalSizes:
    """Two small histograms on the same axes: files that a plan rewrites, and files that it is expected to write."""

    before: Sparkline
    after: Sparkline
    before_text: str
    after_text: str


def _proposal_sizes(context: Context, plans: Sequence[PlanView]) -> dict[str, ProposalSizes]:
    """Return the histograms of ``plans`` by their ids; plans that rewrite no base file are left out."""
    tables = {state.name: state for state in context.store.table_states({plan.table for plan in plans})}
    found = {}
    for plan, sizes in zip(plans, context.plan_sizes([plan.plan_id for plan in plans]), strict=True):
        if not sizes["files_before"] or plan.table not in tables:
            continue
        limit = context.configured_table(tables[plan.table]).policy.small_file_limit_bytes
        most = max(*sizes["before"], *sizes["after"])
        before, after = (sparkline(tuple(sizes[when]), None, limit, most=most) for when in ("before", "after"))
        found[plan.plan_id] = ProposalSizes(
            before=before,
            after=after,
            before_text=f"before: {plural(sizes['files_before'], 'file')}",
            after_text=f"expected: {plural(sizes['files_after'], 'file')}",
        )
    return found


def _tab(name: str, plans: int | None, query: Mapping[str, str], *, state: str = "", proposed: str = "") -> Tab:
    chosen = (query["state"], query["proposed"]) == (state, proposed)
    return Tab(name=name, plans=plans, href=plan_list_path(query, state=state, proposed=proposed), is_current=chosen)


def _proposal_tab(plans: int | None, query: Mapping[str, str]) -> Iterator[Tab]:
    """Yield the tab of plans that wait for approval, unless there are none and it was not requested."""
    if plans != 0 or query["proposed"] == "true":
        yield _tab("to approve", plans, query, proposed="true")


def _possible_actions(plan_filter: PlanFilter) -> Iterator[BulkActionName]:
    """Yield the bulk actions that the filter allows."""
    if plan_filter.get("proposed"):
        yield from APPROVAL_ACTIONS
    state = plan_filter.get("state")
    yield from (
        action for action, states in ALLOWED_STATES.items() if state in states and action not in APPROVAL_ACTIONS
    )


def bulk_page(action: BulkActionName, would: Mapping[str, Any], query: Mapping[str, str]) -> PageContent:
    """Return the confirmation of ``action`` on the plans of the preview ``would``."""
    plans = would["plans"]
    return PageContent(
        action=action,
        plan_count=len(plans),
        has_more=len(plans) == MAX_PLANS and would["next"] is not None,
        plans=tuple(plans[:_MAX_LISTED]),
        key=str(uuid4()),  # idempotency key: the button acts only once
        confirm_url=query_path(f"/bulk/{action}/confirm", query),
        back_url=plan_list_path(query),
    )


def plan_list_path(query: Mapping[str, str], **changed: str) -> str:
    """Return the address of the list with the fields of ``query``, some of them ``changed``."""
    return query_path("/plans", query, **changed)
