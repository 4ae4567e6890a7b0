# SPDX-License-Identifier: Apache-2.0
"""The list of plans, what of it is shown, and what can be done to all of them at once."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from lake.plan import PlanState
from service.control.planning.bulk_actions import ALLOWED_STATES, APPROVAL_ACTIONS, MAX_PLANS, BulkActionName
from service.control.store import BulkAction, ErrorClass, Figures, PlanFilter, PlanView
from service.control.store.plan_queries import PlanQueries
from service.server.web.formatting import shell_command
from service.server.web.rendering import query_path
from service.text import plural

PLANS_PER_PAGE = 50
#: plans listed on the page that asks before anything is done to them
_MAX_LISTED = 100
ERROR_WORDS: Mapping[str, str] = {kind.value: kind.value.replace("_", " ") for kind in ErrorClass}
_RESULT_TEXT: Mapping[str, str] = {
    "cancel": "cancelled, or asked to stop before the commit",
    "retry": "requested again",
    "approve": "approved",
    "decline": "declined",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tab:
    """A state to filter by, ``chosen`` or not; ``plans`` is None where nobody has counted."""

    name: str
    plans: int | None
    href: str
    is_current: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanListPage:
    """A page of plans. ``query`` is what was asked, as the address has it; ``many`` what can be done to all of it."""

    tabs: tuple[Tab, ...]
    query: Mapping[str, str]
    filtered: bool
    unfiltered_url: str
    plans: tuple[PlanView, ...]
    total: int
    first_url: str
    next_url: str
    command: str
    error_words: Mapping[str, str]
    bulk_actions: tuple[tuple[BulkActionName, str], ...]
    outcome: str
    skipped: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkPage:
    """The question before something is done to many plans; ``key`` makes the button do it once."""

    action: BulkActionName
    plan_count: int
    has_more: bool
    plans: tuple[Mapping[str, Any], ...]
    key: str
    confirm_url: str
    back_url: str


def plan_list_page(
    store: PlanQueries,
    figures: Figures,
    plan_filter: PlanFilter,
    query: Mapping[str, str],
    after: str | None,
    done: BulkAction | None,
) -> PlanListPage:
    """Plans newest first that ``terms`` mean, those behind plan ``after``; ``query`` is how the address says it.

    ``done`` is what was done to many of them just now.
    """
    table, name = plan_filter.get("table"), (plan_filter.get("name") or "").lower()
    # Figures know tables, kinds and states; of times and errors nobody keeps count.
    counted = not {"error_class", "since", "until"} & plan_filter.keys()

    def meant(of: str) -> bool:
        return (not table or of == table) and name in of.lower()

    counts = dict.fromkeys(PlanState if counted else (), 0)
    for entry in figures.plans if counted else ():
        if meant(entry.table):
            counts[entry.state] += entry.plans
    proposed = sum(entry.plans for entry in figures.proposals if meant(entry.table)) if counted else None
    found = store.plans(**plan_filter, after=after, limit=PLANS_PER_PAGE + 1)
    shown = found[:PLANS_PER_PAGE]
    answer = done.answer if done is not None else None
    return PlanListPage(
        tabs=(
            _tab("all", sum(counts.values()) if counted else None, query),
            *_proposal_tab(proposed, query),
            *(_tab(known, counts.get(known), query, state=known) for known in PlanState),
        ),
        query=query,
        filtered=any(value for key, value in query.items() if key not in ("state", "proposed")),
        unfiltered_url=plan_list_path({key: query[key] for key in ("state", "proposed")}),
        plans=tuple(shown),
        total=sum(counts.values()) if counted else 1,
        command=shell_command("lakefold", "plans", "request", table or "TABLE", "--dry-run"),
        first_url=plan_list_path(query) if after else "",
        next_url=plan_list_path(query, after=shown[-1].plan_id) if len(found) > PLANS_PER_PAGE else "",
        error_words=ERROR_WORDS,
        bulk_actions=tuple(
            (action, query_path(f"/bulk/{action}", query)) for action in _possible_actions(plan_filter) if shown
        ),
        outcome=f"{plural(len(answer['plans']), 'plan')} {_RESULT_TEXT[answer['action']]}" if answer else "",
        skipped=tuple(answer["left"]) if answer else (),
    )


def _tab(name: str, plans: int | None, query: Mapping[str, str], *, state: str = "", proposed: str = "") -> Tab:
    chosen = (query["state"], query["proposed"]) == (state, proposed)
    return Tab(name=name, plans=plans, href=plan_list_path(query, state=state, proposed=proposed), is_current=chosen)


def _proposal_tab(plans: int | None, query: Mapping[str, str]) -> Iterator[Tab]:
    """What waits for approval, where something does or may, or was asked for."""
    if plans != 0 or query["proposed"] == "true":
        yield _tab("to approve", plans, query, proposed="true")


def _possible_actions(plan_filter: PlanFilter) -> Iterator[BulkActionName]:
    """What can be done to all plans that are meant."""
    if plan_filter.get("proposed"):
        yield from APPROVAL_ACTIONS
    state = plan_filter.get("state")
    yield from (
        action for action, states in ALLOWED_STATES.items() if state in states and action not in APPROVAL_ACTIONS
    )


def bulk_page(action: BulkActionName, would: Mapping[str, Any], query: Mapping[str, str]) -> BulkPage:
    """The question before ``action`` is done to the plans of the document ``would``."""
    plans = would["plans"]
    return BulkPage(
        action=action,
        plan_count=len(plans),
        has_more=len(plans) == MAX_PLANS and would["next"] is not None,
        plans=tuple(plans[:_MAX_LISTED]),
        key=str(uuid4()),
        confirm_url=query_path(f"/bulk/{action}/confirm", query),
        back_url=plan_list_path(query),
    )


def plan_list_path(query: Mapping[str, str], **changed: str) -> str:
    """The list of plans that ``query`` asks for, with some of it ``changed``."""
    return query_path("/plans", query, **changed)
