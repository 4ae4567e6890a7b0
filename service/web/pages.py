# SPDX-License-Identifier: Apache-2.0
"""Reading: every page of ``/``. Nothing here changes anything or starts a session; only ``/replay`` reads a table."""

from datetime import UTC, datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from lake.plan import PlanKind
from service.api.bodies import LARGEST
from service.api.context import Here
from service.api.security import Caller, require
from service.api.table_lookup import named
from service.api.table_terms import Sort, order_of
from service.api.table_terms import Terms as TableTerms
from service.documents import (
    DAYS,
    has_scheduler,
    lake_points,
    nobody_runs_plans,
    readings,
    service_settings,
    table_points,
    table_settings,
    why_held,
)
from service.planning import bulk
from service.planning.replay import DAYS as DAYS_REPLAYED
from service.problems import NOT_FOUND, CommandError
from service.store import NotificationState
from service.web.audit import audit_page
from service.web.cleaning import cleaning_page
from service.web.notifications import notifications_page
from service.web.over_time import over_time
from service.web.overrides import MOST_OVERRIDES, request_form
from service.web.overview import overview
from service.web.plan_list import bulk_page, plan_list
from service.web.plan_terms import AddressTerms, query_of
from service.web.plans import plan_page
from service.web.problems import PageRoute
from service.web.processes import processes_page
from service.web.rendering import render, static_file
from service.web.replay import replay_page
from service.web.requests import request_page
from service.web.settings import settings_page
from service.web.simulation import simulation_page
from service.web.table_list import databases_page, table_list
from service.web.table_list import query_of as table_list_query
from service.web.tables import Known, table_page

router = APIRouter(include_in_schema=False, route_class=PageRoute)
#: served to everybody: without it the page for signing in could not look like one
public = APIRouter(include_in_schema=False)

_PLANS_OF_TABLE = 10
#: of a partition that is searched for
_LONGEST_PATH = 1000
#: a letter may be twelve bytes of an address
_LONGEST_SCENARIO = 5_000
Reader = Annotated[Caller, require("read")]
_ALL_TABLES = [require("read", everything=True)]


@public.get("/static/{name}")
async def static(name: str) -> Response:
    """The style sheet, the script, the icon."""
    found = static_file(name)
    if found is None:
        raise CommandError(NOT_FOUND, f"no file {name!r}")
    return Response(found[0], media_type=found[1], headers={"Cache-Control": "public, max-age=31536000, immutable"})


@router.get("/")
def show_overview(
    here: Here,
    request: Request,
    terms: TableTerms,
    sort: Sort = "worst",
    page: Annotated[int, Query(ge=1, le=LARGEST)] = 1,
    days: int = DAYS[0],
) -> Response:
    """The lake in one line, and the tables."""
    now, (order, descending) = datetime.now(UTC), order_of(sort)
    lake = here.lake_cache.lake()
    changes = over_time(lake.once("points", lambda: lake_points(lake)), days, request.url)
    tables = table_list(here, terms, order, descending, page, table_list_query(request.query_params))
    shown = overview(here, lake, tables, changes, now)
    return render(request, "overview.html", shown, section="/", now=now)


@router.get("/databases")
def show_databases(here: Here, request: Request, terms: TableTerms) -> Response:
    """What the tables of each database add up to."""
    shown = databases_page(here, terms, table_list_query(request.query_params))
    return render(request, "databases.html", shown, section="/")


@router.get("/tables/{name:path}")
def show_table(
    here: Here,
    request: Request,
    name: str,
    partition: str | None = None,
    start: Annotated[int, Query(ge=0, alias="from")] = 0,
    find: Annotated[str, Query(max_length=_LONGEST_PATH)] = "",
    kind: PlanKind | Literal[""] = "",
    key: Annotated[list[str] | None, Query(max_length=MOST_OVERRIDES)] = None,
    value: Annotated[list[str] | None, Query(max_length=MOST_OVERRIDES)] = None,
    days: int = DAYS[0],
) -> Response:
    """One table; ``kind`` and the settings ``key`` and ``value`` are those of the form that asks for plans."""
    store, now = here.store, datetime.now(UTC)
    table = named(here, name)
    good = store.last_scan(name, ok=True)
    known = Known(
        state=store.table_state(name),
        scans=store.scans(name),
        good=good,
        over_time=over_time(table_points(store, name, good), days, request.url),
        first=store.first_scan(name),
        plans=store.plans(table=name, limit=_PLANS_OF_TABLE),
        layout=store.partition_layout(table.name),
        objectives=store.objectives([name]).get(name, ()),
    )
    form = request_form(here.config, table, kind=kind, keys=key or (), values=value or ())
    page = table_page(table, known, form=form, partition=partition, start=start, search=find.strip(), now=now)
    return render(request, "table.html", page, section="/", now=now)


@router.get("/plans")
def show_plans(
    here: Here,
    request: Request,
    caller: Reader,
    terms: AddressTerms,
    after: str | None = None,
    done: str | None = None,
) -> Response:
    """Plans, newest first; ``done`` is what the caller did to many of them just now."""
    figures, action = here.lake_cache.lake().figures, here.store.bulk_action(done, caller.actor) if done else None
    page = plan_list(here.store, figures, terms, query_of(request.query_params), after, action)
    return render(request, "plans.html", page, section="/plans")


@router.get("/bulk/{action}")
def ask_before_bulk(here: Here, request: Request, action: bulk.Action, terms: AddressTerms) -> Response:
    """Which plans something would be done to, and the button that does it to them and to none that come later."""
    would = bulk.would(here.store, action, terms)
    # As points in time: how long ago, said once more by the button, would be another time.
    since = terms.get("since")
    times = {"until": would["until"]} | ({} if since is None else {"since": since.isoformat()})
    page = bulk_page(action, would, query_of(request.query_params) | times)
    return render(request, "bulk.html", page, section="/plans", now=datetime.now(UTC))


@router.get("/plans/{plan_id}")
def show_plan(here: Here, request: Request, plan_id: str) -> Response:
    """One plan."""
    plan, now = here.store.plan(plan_id), datetime.now(UTC)
    nobody = nobody_runs_plans(here.store.processes())
    held = why_held(here.store, plan)
    page = plan_page(plan, here.store.events(plan.plan_id), nobody, held, now)
    return render(request, "plan.html", page, section="/plans", now=now)


@router.get("/requests/{request_id}")
def show_request(here: Here, request: Request, request_id: str) -> Response:
    """One request and its answer."""
    scheduler = has_scheduler(here.store.leaders())
    return render(request, "request.html", request_page(here.store.request(request_id), scheduler=scheduler))


@router.get("/processes")
def show_processes(here: Here, request: Request) -> Response:
    """Who works, on what, and how it is with Spark."""
    return render(request, "processes.html", processes_page(here.lake_cache.lake()), section="/processes")


@router.get("/replay")
def show_replay(
    here: Here,
    request: Request,
    table: str,
    days: Annotated[float, Query(gt=0, le=366)] = DAYS_REPLAYED,
    settings: Annotated[list[str] | None, Query(alias="set", max_length=20)] = None,
) -> Response:
    """A table's own history under other policies, and what to change at its writer."""
    return render(request, "replay.html", replay_page(here, named(here, table), days, settings or ()))


@router.get("/simulate")
def show_simulation(
    request: Request,
    example: Annotated[str, Query(max_length=100)] = "",
    scenario: Annotated[str, Query(max_length=_LONGEST_SCENARIO)] = "",
) -> Response:
    """Which files a writer will make, of a scenario or of one that is shipped."""
    return render(request, "simulate.html", simulation_page(example, scenario))


@router.get("/cleaning")
def show_cleaning(here: Here, request: Request) -> Response:
    """What disappears when."""
    now = datetime.now(UTC)
    page = cleaning_page(readings.deletion_days(here.store, here.configured), now.date())
    return render(request, "cleaning.html", page, section="/cleaning", now=now)


@router.get("/notifications", dependencies=_ALL_TABLES)
def show_notifications(
    here: Here,
    request: Request,
    state: NotificationState | None = None,
    after: Annotated[int | None, Query(le=LARGEST)] = None,
) -> Response:
    """What the webhook was told, and what it could not be told."""
    configured = here.config.notify.webhook_url is not None
    page = notifications_page(here.store, state=state, after=after, configured=configured)
    return render(request, "notifications.html", page)


@router.get("/audit")
def show_audit(
    here: Here,
    request: Request,
    table: str = "",
    actor: str = "",
    after: Annotated[int | None, Query(ge=0, le=LARGEST)] = None,
) -> Response:
    """Who asked for what."""
    return render(request, "audit.html", audit_page(here.store, table=table, actor=actor, after=after))


@router.get("/pause", dependencies=_ALL_TABLES)
def ask_before_pause(request: Request) -> Response:
    """What a pause of everything means, and the button that does it."""
    return render(request, "pause.html", None)


@router.get("/settings")
def show_settings(here: Here, request: Request, caller: Reader, table: str = "") -> Response:
    """Every setting, of the service or of a table."""
    if not table:
        caller.check_everything()
    settings = table_settings(named(here, table)) if table else service_settings(here.config)
    return render(request, "settings.html", settings_page(settings, table, here.config), section="/settings")
