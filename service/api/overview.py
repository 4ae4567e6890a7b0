# SPDX-License-Identifier: Apache-2.0
"""``/v1/status``, ``/v1/cleaning`` and ``/v1/settings``: one look at the service, and what it was told."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from service import documents
from service.api.context import Here
from service.api.paging import LISTED, TREND, document, page
from service.api.security import Caller, require
from service.api.table_lookup import named
from service.documents import readings

router = APIRouter(tags=["service"])


@router.get("/status")
def status(here: Here) -> Response:
    """How the lake is, who works on it and what needs a person, as it was `taken_at`, a second ago at most."""
    return document(documents.status(here.lake_cache.lake(fresh=True)))


@router.get("/trend", responses=TREND)
def trend(here: Here) -> Response:
    """How the tables in modes propose and compact changed together over 30 days, in points as of a table's trend."""
    return document(readings.trend(documents.lake_points(here.lake_cache.lake(fresh=True))))


@router.get("/processes", responses=LISTED)
def processes(here: Here, request: Request) -> Response:
    """The processes of this lakefold: what each does, runs and leads, how it is with Spark, and when it was last seen.

    One that ended without taking leave is shown for a day, with `live` false.
    """
    lake = here.lake_cache.lake(fresh=True)
    return page(request, documents.process_list(lake.processes, lake.leaders, lake.running))


@router.get("/cleaning", responses=LISTED)
def cleaning(here: Here, request: Request) -> Response:
    """Bytes that plans replaced by the day (UTC) on which their retention ends, earliest first, an item a table.

    Days in the past are what the cleaner has not come to yet, or keeps for a reason that `lakefold clean -n` tells.
    """
    return page(request, readings.deletion_days(here.store, here.configured))


@router.get("/settings", responses=LISTED)
def settings(
    here: Here,
    request: Request,
    caller: Annotated[Caller, require("read")],
    table: Annotated[str | None, Query(description="The settings of this table instead of the service's.")] = None,
) -> Response:
    """Every setting in force and where it came from; secrets are hidden."""
    if table is None:
        caller.check_everything()
        return page(request, documents.service_settings(here.config))
    return page(request, documents.table_settings(named(here, table)))
