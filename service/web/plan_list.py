# SPDX-License-Identifier: Apache-2.0
"""The list of plans, what of it is shown, and what can be done to all of them at once."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode
from uuid import uuid4

from lake.plan import PlanState
from service.planning.bulk import MOST_PLANS, POSSIBLE, Action
from service.store import BulkAction, ErrorClass, Figures, PlanTerms, PlanView
from service.store.listing import Listing
from service.text import plural
from service.web.words import shell

PLANS_A_PAGE = 50
#: plans listed on the page that asks before anything is done to them
_MOST_LISTED = 100
ERROR_WORDS: Mapping[str, str] = {kind.value: kind.value.replace("_", " ") for kind in ErrorClass}
_DONE: Mapping[str, str] = {"cancel": "cancelled, or asked to stop before the commit", "retry": "requested again"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tab:
    """A state to filter by; ``state`` is '' for all, ``plans`` None where nobody has counted."""

    state: str
    name: str
    plans: int | None
    href: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanList:
    """A page of plans. ``query`` is what was asked, as the address has it; ``many`` what can be done to all of it."""

    tabs: tuple[Tab, ...]
    query: Mapping[str, str]
    filtered: bool
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
    counts = {
        known: sum(
            f.plans
            for f in figures.plans
            if f.state is known and (not table or f.table == table) and name in f.table.lower()
        )
        for known in (PlanState if counted else ())
    }
    found = store.plans(**terms, after=after, limit=PLANS_A_PAGE + 1)
    shown = found[:PLANS_A_PAGE]
    state = terms.get("state")
    answer = done.answer if done is not None else None
    return PlanList(
        tabs=(
            Tab(state="", name="all", plans=sum(counts.values()) if counted else None, href=list_path(query, state="")),
            *(
                Tab(state=known, name=known, plans=counts.get(known), href=list_path(query, state=known))
                for known in PlanState
            ),
        ),
        query=query,
        filtered=any(value for key, value in query.items() if key != "state"),
        plans=tuple(shown),
        in_all=sum(counts.values()) if counted else 1,
        command=shell("lakefold", "plans", "request", table or "TABLE", "--dry-run"),
        first=list_path(query) if after else "",
        next=list_path(query, after=shown[-1].plan_id) if len(found) > PLANS_A_PAGE else "",
        error_words=ERROR_WORDS,
        many=tuple((action, _bulk_path(action, query)) for action in POSSIBLE if shown and state in POSSIBLE[action]),
        outcome=f"{plural(len(answer['plans']), 'plan')} {_DONE[answer['action']]}" if answer else "",
        left=tuple(answer["left"]) if answer else (),
    )


def bulk_page(action: Action, would: Mapping[str, Any], query: Mapping[str, str]) -> BulkPage:
    """The question before ``action`` is done to the plans of the document ``would``."""
    plans = would["plans"]
    return BulkPage(
        action=action,
        found=len(plans),
        more=len(plans) == MOST_PLANS and would["next"] is not None,
        plans=tuple(plans[:_MOST_LISTED]),
        key=str(uuid4()),
        confirm=_bulk_path(f"{action}/confirm", query),
        back=list_path(query),
    )


def list_path(query: Mapping[str, str], **changed: str) -> str:
    """The list that ``query`` asks for, with some of it ``changed``."""
    kept = {key: value for key, value in {**query, **changed}.items() if value}
    return f"/plans?{urlencode(kept)}" if kept else "/plans"


def _bulk_path(action: str, query: Mapping[str, str]) -> str:
    return f"/bulk/{action}?{urlencode({key: value for key, value in query.items() if value})}"
