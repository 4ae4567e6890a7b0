# SPDX-License-Identifier: Apache-2.0
"""The routes that show pages. They change nothing and start no Spark session.

Only ``/replay`` and ``/history`` read a table.
"""

from datetime import UTC, datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from lake.plan import LIVE_STATES, PlanKind
from service.control.planning import bulk_actions
from service.control.planning.observed_reads import with_observed_reads
from service.control.planning.replay import DEFAULT_DAYS as DAYS_REPLAYED
from service.control.serializers import (
    ATTEMPTS_PERIOD,
    TREND_DAYS,
    attempt_history,
    has_scheduler,
    held_reason,
    lake_points,
    load_objectives,
    load_savings,
    queries,
    service_settings,
    table_points,
    table_settings,
)
from service.control.store import NotificationState, PlanView
from service.problems import NOT_FOUND, ProblemError
from service.server.api.context import Context, ContextDep
from service.server.api.filters import Sort, TableFilterQuery, parse_sort
from service.server.api.history import MAX_KEY_LENGTH
from service.server.api.request_types import MAX_ROW_NUMBER
from service.server.api.security import Caller, require
from service.server.api.table_lookup import find_table
from service.server.web.audit import audit_page
from service.server.web.burn_chart import burn_charts
from service.server.web.cleaning import cleaning_page
from service.server.web.gantt import executor_day
from service.server.web.history import history_page
from service.server.web.notifications import notifications_page
from service.server.web.overview import overview_page
from service.server.web.plan_filter import AddressPlanFilter, plan_filter_query
from service.server.web.plan_list import bulk_page, plan_list_page
from service.server.web.plan_page import PlanSizes, plan_page
from service.server.web.problems import PageRoute
from service.server.web.processes import processes_page
from service.server.web.rendering import render, static_file
from service.server.web.replay import replay_page
from service.server.web.report import report_page
from service.server.web.request_form import MAX_OVERRIDES, request_form
from service.server.web.request_page import request_page
from service.server.web.savings import savings_panel
from service.server.web.settings import settings_page
from service.server.web.simulation import simulation_page
from service.server.web.table_list import databases_page, table_list_page
from service.server.web.table_list import table_filter_query as table_list_query
from service.server.web.table_page import TableRecords, table_page
from service.server.web.trend import tiles, trend_panel

router = APIRouter(include_in_schema=False, route_class=PageRoute)
#: needs no scope, because the sign-in page uses these files
public_router = APIRouter(include_in_schema=False)

_PLANS_OF_TABLE = 10
#: maximum length of a search for partitions
_MAX_PATH_LENGTH = 1000
#: maximum length of a scenario in an address; an address may need twelve bytes for one letter
_MAX_SCENARIO_LENGTH = 5_000
Reader = Annotated[Caller, require("read")]
_ALL_TABLES = [require("read", all_tables=True)]


@public_router.get("/static/{name}")
async def static(name: str) -> Response:
    """Serve the style sheet, the script or the icon."""
    found = static_file(name)
    if found is None:
        raise ProblemError(NOT_FOUND, f"no file {name!r}")
    return Response(found[0], media_type=found[1], headers={"Cache-Control": "public, max-age=31536000, immutable"})


@router.get("/")
def show_overview(
    context: ContextDep,
    request: Request,
    table_filter: TableFilterQuery,
    sort: Sort = "-rewrite_bytes",
    page: Annotated[int, Query(ge=1, le=MAX_ROW_NUMBER)] = 1,
    days: int = TREND_DAYS[0],
) -> Response:
    """Show the lake in one line, and the tables."""
    now, (order, descending) = datetime.now(UTC), parse_sort(request, sort)
    lake = context.lake_cache.get()
    points = lake.cached("points", lambda: lake_points(lake))
    # Charts are drawn once for each reading of the database. Links differ by the page's address, such as its sort
    # order.
    shown_tiles = lake.cached(f"tiles {days in TREND_DAYS and days}", lambda: tiles(points, days))
    changes = trend_panel(points, days, request.url)
    tables = table_list_page(context, table_filter, order, descending, page, table_list_query(request.query_params))
    shown = overview_page(context, lake, tables, shown_tiles, changes, now)
    return render(request, "overview.html", shown, section="/", now=now)


@router.get("/databases")
def show_databases(context: ContextDep, request: Request, table_filter: TableFilterQuery) -> Response:
    """Show the totals of each database's tables."""
    shown = databases_page(context, table_filter, table_list_query(request.query_params))
    return render(request, "databases.html", shown, section="/")


@router.get("/report")
def show_report(
    context: ContextDep,
    request: Request,
    table_filter: TableFilterQuery,
    by: Literal["owner", "tag", "database"] = "owner",
) -> Response:
    """Show tables and savings by owner, tag or database."""
    shown = report_page(context, by, table_filter, table_list_query(request.query_params))
    return render(request, "report.html", shown, section="/")


def _strip_view(
    start: Annotated[int, Query(ge=0)] = 0,
    search: Annotated[str, Query(max_length=_MAX_PATH_LENGTH)] = "",
    former_start: Annotated[int, Query(ge=0, alias="from")] = 0,
    find: Annotated[str, Query(max_length=_MAX_PATH_LENGTH)] = "",
) -> tuple[int, str]:
    """Return the first partition on the strip and the search text; ``from`` and ``find`` are their former names."""
    return start or former_start, (search or find).strip()


StripViewQuery = Annotated[tuple[int, str], Depends(_strip_view)]


@router.get("/tables/{name:path}")
def show_table(
    context: ContextDep,
    request: Request,
    name: str,
    view: StripViewQuery,
    partition: str | None = None,
    kind: PlanKind | Literal[""] = "",
    key: Annotated[list[str] | None, Query(max_length=MAX_OVERRIDES)] = None,
    value: Annotated[list[str] | None, Query(max_length=MAX_OVERRIDES)] = None,
    days: int = TREND_DAYS[0],
) -> Response:
    """Show one table; ``kind`` and the settings ``key`` and ``value`` fill the form that requests plans."""
    store, now = context.store, datetime.now(UTC)
    table = find_table(context, name)
    good, first = store.last_scan(name, ok=True), store.first_scan(name)
    known = TableRecords(
        state=store.table_state(name),
        scans=store.scans(name),
        last_good_scan=good,
        over_time=trend_panel(table_points(store, name, good, first), days, request.url),
        first_scan=first,
        plans=store.plans(table=name, limit=_PLANS_OF_TABLE),
        layout=store.partition_layout(table.name),
        objectives=store.objectives([name]).get(name, ()),
        retrying=store.retrying_plans(name).get(name, ()),
        savings=savings_panel(load_savings(store, name, now)),
        burn_charts=burn_charts(load_objectives(store, name)),
    )
    form = request_form(context.config, table, kind=kind, keys=key or (), values=value or ())
    page = table_page(table, known, form=form, partition=partition, start=view[0], search=view[1], now=now)
    return render(request, "table_page.html", page, section="/", now=now)


@router.get("/plans")
def show_plans(
    context: ContextDep,
    request: Request,
    caller: Reader,
    plan_filter: AddressPlanFilter,
    after: str | None = None,
    action_id: Annotated[str | None, Query()] = None,
    done: str | None = None,
) -> Response:
    """Show plans, newest first; ``action_id`` is the caller's last bulk action, whose result is shown.

    ``done`` is the former name of ``action_id``.
    """
    figures, shown = context.lake_cache.get().figures, action_id or done
    action = context.store.bulk_action(shown, caller.actor) if shown else None
    page = plan_list_page(context, figures, plan_filter, plan_filter_query(request.query_params), after, action)
    return render(request, "plan_list.html", page, section="/plans")


@router.get("/bulk/{action}")
def confirm_bulk(
    context: ContextDep, request: Request, action: bulk_actions.BulkActionName, plan_filter: AddressPlanFilter
) -> Response:
    """Show the plans of a bulk action, and the button that applies it to them but not to later plans."""
    would = bulk_actions.preview_bulk_action(context.store, action, plan_filter)
    # Times are absolute: a relative time would mean another moment when the button is pressed.
    since = plan_filter.get("since")
    times = {"until": would["until"]} | ({} if since is None else {"since": since.isoformat()})
    page = bulk_page(action, would, plan_filter_query(request.query_params) | times)
    return render(request, "bulk.html", page, section="/plans", now=datetime.now(UTC))


@router.get("/plans/{plan_id}")
def show_plan(context: ContextDep, request: Request, plan_id: str) -> Response:
    """Show one plan."""
    plan, now = context.store.plan(plan_id), datetime.now(UTC)
    no_executor = queries.no_executor_for(context.store, plan)
    held = held_reason(context.store, plan)
    sizes = _plan_sizes(context, plan) if plan.state in LIVE_STATES else None
    page = plan_page(plan, context.store.plan_events(plan.plan_id), no_executor, held, sizes, now)
    return render(request, "plan_page.html", page, section="/plans", now=now)


def _plan_sizes(context: Context, plan: PlanView) -> PlanSizes:
    policy = context.configured_table(context.store.table_state(plan.table)).policy
    limits = {"small-file limit": policy.small_file_limit_bytes, "target": policy.target_file_max_bytes}
    return PlanSizes(document=context.plan_sizes([plan.plan_id])[0], limits=limits)


@router.get("/requests/{request_id}")
def show_request(context: ContextDep, request: Request, request_id: str) -> Response:
    """Show one request and its answer."""
    scheduler = has_scheduler(context.store.leaders())
    return render(
        request, "request_page.html", request_page(context.store.request(request_id), has_scheduler=scheduler)
    )


@router.get("/processes")
def show_processes(context: ContextDep, request: Request) -> Response:
    """Show the processes, their running plans, the state of Spark, and the attempts of the last day."""
    lake, now = context.lake_cache.get(), datetime.now(UTC)
    # Drawn once for each reading: the bars are as old as the list of processes above them.
    day = lake.cached("day", lambda: executor_day(attempt_history(context.store.attempts(ATTEMPTS_PERIOD))))
    return render(request, "processes.html", processes_page(lake, day, now), section="/processes", now=now)


@router.get("/history")
def show_history(
    context: ContextDep,
    request: Request,
    table: str,
    after: Annotated[str | None, Query(max_length=MAX_KEY_LENGTH)] = None,
) -> Response:
    """Show the actions on a table, newest first."""
    return render(request, "history.html", history_page(context, find_table(context, table), after))


@router.get("/replay")
def show_replay(
    context: ContextDep,
    request: Request,
    table: str,
    days: Annotated[float, Query(gt=0, le=366)] = DAYS_REPLAYED,
    settings: Annotated[list[str] | None, Query(alias="set", max_length=20)] = None,
) -> Response:
    """Show a table's own history under other policies, and the advice for its writer."""
    return render(request, "replay.html", replay_page(context, find_table(context, table), days, settings or ()))


@router.get("/simulate")
def show_simulation(
    request: Request,
    example: Annotated[str, Query(max_length=100)] = "",
    scenario: Annotated[str, Query(max_length=_MAX_SCENARIO_LENGTH)] = "",
) -> Response:
    """Show which files a writer makes in a scenario, the user's own or a shipped one."""
    return render(request, "simulation.html", simulation_page(example, scenario), section="/simulate")


@router.get("/cleaning")
def show_cleaning(context: ContextDep, request: Request) -> Response:
    """Show superseded files by the day of their deletion."""
    now = datetime.now(UTC)
    page = cleaning_page(queries.load_deletion_days(context.store, context.configured_table), now.date())
    return render(request, "cleaning.html", page, section="/cleaning", now=now)


@router.get("/notifications", dependencies=_ALL_TABLES)
def show_notifications(
    context: ContextDep,
    request: Request,
    state: NotificationState | None = None,
    after: Annotated[int | None, Query(le=MAX_ROW_NUMBER)] = None,
) -> Response:
    """Show messages to the webhook and to channels, delivered and not delivered."""
    notify = context.config.notify
    configured = notify.webhook_url is not None or bool(notify.channels)
    page = notifications_page(context.store, state=state, after=after, configured=configured)
    return render(request, "notifications.html", page, section="/notifications")


@router.get("/audit")
def show_audit(
    context: ContextDep,
    request: Request,
    table: str = "",
    actor: str = "",
    after: Annotated[int | None, Query(ge=0, le=MAX_ROW_NUMBER)] = None,
) -> Response:
    """Show actions and their actors."""
    return render(
        request, "audit.html", audit_page(context.store, table=table, actor=actor, after=after), section="/audit"
    )


@router.get("/pause", dependencies=_ALL_TABLES)
def confirm_pause(request: Request) -> Response:
    """Explain the pause of the whole service, with the button for it."""
    return render(request, "pause.html", None)


@router.get("/settings")
def show_settings(
    context: ContextDep,
    request: Request,
    caller: Reader,
    table: str = "",
    search: Annotated[str, Query(max_length=_MAX_PATH_LENGTH)] = "",
) -> Response:
    """Show every setting of the service or of a table, or those whose name, value or origin contains ``search``."""
    if not table:
        caller.require_all_tables()
    settings = (
        table_settings(with_observed_reads(context.store, find_table(context, table)))
        if table
        else service_settings(context.config)
    )
    return render(
        request, "settings.html", settings_page(settings, table, search.strip(), context.config), section="/settings"
    )
