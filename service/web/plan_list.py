# SPDX-License-Identifier: Apache-2.0
"""The list of plans, what of it is shown, and what can be done to all of them at once."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from lake.plan import PlanState
from service.planning.bulk import DECISIONS, MOST_PLANS, POSSIBLE, Action
from service.store import BulkAction, ErrorClass, Figures, PlanTerms, PlanView
from service.store.listing import Listing
from service.text import plural
from service.web.rendering import query_path
from service.web.words import shell

PLANS_A_PAGE = 50
#: plans listed on the page that asks before anything is done to them
_MOST_LISTED = 100
ERROR_WORDS: Mapping[str, str] = {kind.value: kind.value.replace("_", " ") for kind in ErrorClass}
_DONE: Mapping[str, str] = {
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
    chosen: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanList:
    """A page of plans. ``query`` is what was asked, as the address has it; ``many`` what can be done to all of it."""

    tabs: tuple[Tab, ...]
    query: Mapping[str, str]
    filtered: bool
    unfiltered: str
    plans: tuple[PlanView, ...]
    in_all: int
    first: str
    next: str
    command: str
    error_words: Mapping[str, str]
    many: tuple[tuple[Action, str], ...]
    outcome: str
    left: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkPage:
    """The question before something is done to many plans; ``key`` makes the button do it once."""

    action: Action
    found: int
    more: bool
    plans: tuple[Mapping[str, Any], ...]
    key: str
    confirm: str
    back: str


def plan_list(
    store: Listing,
    figures: Figures,
    terms: PlanTerms,
    query: Mapping[str, str],
    after: str | None,
    done: BulkAction | None,
) -> PlanList:
    """Plans newest first that ``terms`` mean, those behind plan ``after``; ``query`` is how the address says it.

    ``done`` is what was done to many of them just now.
    """
    table, name = terms.get("table"), (terms.get("name") or "").lower()
    # Figures know tables, kinds and states; of times and errors nobody keeps count.
    counted = not {"error_class", "since", "until"} & terms.keys()

    def meant(of: str) -> bool:
        return (not table or of == table) and name in of.lower()

    counts = dict.fromkeys(PlanState if counted else (), 0)
    for entry in figures.plans if counted else ():
        if meant(entry.table):
            counts[entry.state] += entry.plans
    proposed = sum(entry.plans for entry in figures.proposals if meant(entry.table)) if counted else None
    found = store.plans(**terms, after=after, limit=PLANS_A_PAGE + 1)
    shown = found[:PLANS_A_PAGE]
    answer = done.answer if done is not None else None
    return PlanList(
        tabs=(
            _tab("all", sum(counts.values()) if counted else None, query),
            *_to_approve(proposed, query),
            *(_tab(known, counts.get(known), query, state=known) for known in PlanState),
        ),
        query=query,
        filtered=any(value for key, value in query.items() if key not in ("state", "proposed")),
        unfiltered=list_path({key: query[key] for key in ("state", "proposed")}),
        plans=tuple(shown),
        in_all=sum(counts.values()) if counted else 1,
        command=shell("lakefold", "plans", "request", table or "TABLE", "--dry-run"),
        first=list_path(query) if after else "",
        next=list_path(query, after=shown[-1].plan_id) if len(found) > PLANS_A_PAGE else "",
        error_words=ERROR_WORDS,
        many=tuple((action, query_path(f"/bulk/{action}", query)) for action in _possible(terms) if shown),
        outcome=f"{plural(len(answer['plans']), 'plan')} {_DONE[answer['action']]}" if answer else "",
        left=tuple(answer["left"]) if answer else (),
    )


def _tab(name: str, plans: int | None, query: Mapping[str, str], *, state: str = "", proposed: str = "") -> Tab:
    chosen = (query["state"], query["proposed"]) == (state, proposed)
    return Tab(name=name, plans=plans, href=list_path(query, state=state, proposed=proposed), chosen=chosen)


def _to_approve(plans: int | None, query: Mapping[str, str]) -> Iterator[Tab]:
    """What waits for approval, where something does or may, or was asked for."""
    if plans != 0 or query["proposed"] == "true":
        yield _tab("to approve", plans, query, proposed="true")


def _possible(terms: PlanTerms) -> Iterator[Action]:
    """What can be done to all plans that are meant."""
    if terms.get("proposed"):
        yield from DECISIONS
    state = terms.get("state")
    yield from (action for action, states in POSSIBLE.items() if state in states and action not in DECISIONS)


def bulk_page(action: Action, would: Mapping[str, Any], query: Mapping[str, str]) -> BulkPage:
    """The question before ``action`` is done to the plans of the document ``would``."""
    plans = would["plans"]
    return BulkPage(
        action=action,
        found=len(plans),
        more=len(plans) == MOST_PLANS and would["next"] is not None,
        plans=tuple(plans[:_MOST_LISTED]),
        key=str(uuid4()),
        confirm=query_path(f"/bulk/{action}/confirm", query),
        back=list_path(query),
    )


def list_path(query: Mapping[str, str], **changed: str) -> str:
    """The list of plans that ``query`` asks for, with some of it ``changed``."""
    return query_path("/plans", query, **changed)
