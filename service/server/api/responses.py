# SPDX-License-Identifier: Apache-2.0
"""JSON responses, and lists with ``items`` and the cursor of the next page."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

from fastapi import Query, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from service.text import to_json

Limit = Annotated[int, Query(ge=1, le=1000, description="At most this many items.")]
_Count = Annotated[int, Field(ge=0)]
_Share = Annotated[float | None, Field(description="null without files")]


class ListPage(BaseModel):
    """A page of a list."""

    items: list[dict[str, Any]]
    next: str | None = Field(description="`after` of the next page")


class TrendFigures(BaseModel):
    """The figures of a table, or of all planned tables, at one time."""

    at: datetime
    files: _Count
    bytes: _Count
    small_files: _Count
    small_share: _Share
    reducible_files: _Count
    reducible_share: _Share
    rewritten_bytes: _Count
    freed_bytes: _Count


class TrendChange(BaseModel):
    """The changes in a period that begins at `since`."""

    days: _Count
    since: datetime
    files_before: _Count
    files: _Count
    small_share_before: _Share
    small_share: _Share
    reducible_share_before: _Share
    reducible_share: _Share
    rewritten_bytes: _Count
    freed_bytes: _Count


class TrendDocument(BaseModel):
    """A trend: its points, and their changes."""

    points: list[TrendFigures] = Field(description="oldest first")
    trends: list[TrendChange] = Field(description="over 7 and over 30 days; empty before there are two points")


class SavingsPoint(BaseModel):
    """Cumulative figures of a table's plans at one time."""

    at: datetime
    cpu_seconds_spent: float
    cpu_seconds_saved: float
    files_removed: int


class SavingsDocument(BaseModel):
    """The CPU time that a table's plans cost and save."""

    since: datetime | None = Field(description="the end of the first plan that counts; null without plans")
    plans: _Count
    cpu_seconds_saved_per_day: float = Field(description="by all these plans together")
    points: list[SavingsPoint] = Field(description="oldest first")


class PlanSizesDocument(BaseModel):
    """The files of a plan by size."""

    plan_id: str
    files_before: _Count
    files_after: _Count
    before: list[_Count]
    after: list[_Count]


#: for ``responses`` of routes
LIST_RESPONSES: dict[int | str, dict[str, Any]] = {200: {"description": "One page of a list", "model": ListPage}}
TREND_RESPONSES: dict[int | str, dict[str, Any]] = {200: {"description": "A trend", "model": TrendDocument}}
SIZES_RESPONSES: dict[int | str, dict[str, Any]] = {200: {"description": "Files by size", "model": PlanSizesDocument}}
SAVINGS_RESPONSES: dict[int | str, dict[str, Any]] = {200: {"description": "Savings", "model": SavingsDocument}}


def json_response(value: Any) -> Response:
    """Return ``value`` as JSON, in the same form as ``--json``."""
    return Response(to_json(value), media_type="application/json")


def list_response(request: Request, items: Sequence[Any], after: str | None = None, **facts: Any) -> Response:
    """Return one page of a list with its ``items`` and ``facts`` about the list.

    ``after`` is the cursor of the next page, None on the last page.
    """
    response = json_response({"items": items, "next": after, **facts})
    if after is not None:
        following = request.url.include_query_params(after=after)
        response.headers["Link"] = f'<{following.path}?{following.query}>; rel="next"'
    return response
