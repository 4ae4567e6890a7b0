# SPDX-License-Identifier: Apache-2.0
"""``/v1/tables``: what there is, as the last scan of each table saw it."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from service import reading
from service.api.context import Here
from service.api.naming import named
from service.api.paging import document, page
from service.documents import table_summary

router = APIRouter(prefix="/tables", tags=["tables"])


@router.get("")
def list_tables(here: Here, request: Request) -> Response:
    """The tables, the largest backlog first."""
    scans = here.store.last_scans()
    found = [(here.configured(state), state, scans.get(state.name)) for state in here.store.tables()]
    found.sort(key=lambda entry: (-(entry[2].backlog_bytes if entry[2] else 0), entry[0].name))
    return page(request, [table_summary(*entry) for entry in found])


@router.get("/{table}")
def show_table(here: Here, table: str) -> Response:
    """One table: what its format says of it, its last scan, and the policy in force."""
    return document(reading.table(here.store, named(here, table)))
