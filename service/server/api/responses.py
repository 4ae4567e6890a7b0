# SPDX-License-Identifier: Apache-2.0
"""JSON responses, and lists with ``items`` and the cursor of the next page."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import Query, Request
from starlette.responses import Response

from service.text import to_json

_COUNT: Mapping[str, Any] = {"type": "integer", "minimum": 0}
_SHARE: Mapping[str, Any] = {"type": ["number", "null"], "description": "null without files"}
_TIME: Mapping[str, Any] = {"type": "string", "format": "date-time"}


def _array_schema(meaning: str, **properties: Mapping[str, Any]) -> dict[str, Any]:
    item = {"type": "object", "required": list(properties), "properties": properties}
    return {"type": "array", "description": meaning, "items": item}


Limit = Annotated[int, Query(ge=1, le=1000, description="At most this many items.")]

#: the description of a list, for ``responses`` of its route
LIST_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "One page of a list",
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["items", "next"],
                    "properties": {
                        "items": {"type": "array", "items": {"type": "object"}},
                        "next": {"type": ["string", "null"], "description": "`after` of the next page"},
                    },
                }
            }
        },
    }
}

#: the description of a trend, for ``responses`` of its route
TREND_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "A trend",
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["points", "trends"],
                    "properties": {
                        "points": _array_schema(
                            "oldest first",
                            at=_TIME,
                            files=_COUNT,
                            bytes=_COUNT,
                            small_files=_COUNT,
                            small_share=_SHARE,
                            reducible_files=_COUNT,
                            reducible_share=_SHARE,
                            rewritten_bytes=_COUNT,
                            freed_bytes=_COUNT,
                        ),
                        "trends": _array_schema(
                            "of 7 days and of 30; empty before there are two points",
                            days=_COUNT,
                            since=_TIME,
                            files_before=_COUNT,
                            files=_COUNT,
                            small_share_before=_SHARE,
                            small_share=_SHARE,
                            reducible_share_before=_SHARE,
                            reducible_share=_SHARE,
                            rewritten_bytes=_COUNT,
                            freed_bytes=_COUNT,
                        ),
                    },
                }
            }
        },
    }
}


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
