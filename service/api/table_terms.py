# SPDX-License-Identifier: Apache-2.0
"""Which tables a request means and in which order, from its query: the same for ``/v1/tables`` and for the page."""

from typing import Annotated, Literal

from fastapi import Depends, Query

from service.modes import Mode
from service.store import TableFilter, TableOrder

StateFilter = Literal["halted", "paused", "compact", "propose", "observe", "off", "unreadable", "missed"]
_ORDERS = "|".join(TableOrder)
Sort = Annotated[
    str, Query(pattern=f"^-?({_ORDERS})$", description=f"One of {', '.join(TableOrder)}; a leading - means descending.")
]


def _table_filter_from_query(
    name: Annotated[
        str, Query(max_length=1024, description="Only tables whose name contains this, in either case.")
    ] = "",
    database: Annotated[
        str | None, Query(max_length=1024, description="Only tables of this database (name up to the last dot).")
    ] = None,
    state: Annotated[
        StateFilter | Literal[""], Query(description="`unreadable`: their last scan failed; `missed`: an objective is.")
    ] = "",
    format: Annotated[str, Query(max_length=100, description="Only tables of this format.")] = "",
    mode: Annotated[Mode | Literal[""], Query(description="Only tables in this mode.")] = "",
    owner: Annotated[str, Query(max_length=200, description="Only tables with this owner in the configuration.")] = "",
) -> TableFilter:
    table_filter: TableFilter = {}
    if database is not None:
        table_filter["database"] = database
    if name:
        table_filter["name"] = name
    if state:
        table_filter["state"] = state
    if format:
        table_filter["format"] = format
    if mode:
        table_filter["mode"] = mode
    if owner:
        table_filter["owner"] = owner
    return table_filter


TableFilterQuery = Annotated[TableFilter, Depends(_table_filter_from_query)]


def parse_sort(sort: str) -> tuple[TableOrder, bool]:
    """The order that a checked ``sort`` asks for, and whether it is descending."""
    return TableOrder(sort.removeprefix("-")), sort.startswith("-")
