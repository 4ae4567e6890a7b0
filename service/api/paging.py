# SPDX-License-Identifier: Apache-2.0
"""Lists over HTTP: ``items``, and the cursor of the next page."""

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import Query, Request
from starlette.responses import Response

from service.text import to_json

Limit = Annotated[int, Query(ge=1, le=1000, description="At most so many items.")]

#: how a list is described, for ``responses`` of its route
LISTED: dict[int | str, dict[str, Any]] = {
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


def document(value: Any) -> Response:
    """``value`` as JSON, in the form that ``--json`` has."""
    return Response(to_json(value), media_type="application/json")


def page(request: Request, items: Sequence[Any], after: str | None = None, **facts: Any) -> Response:
    """A list of which these are ``items``; ``after`` continues it, None on its last page. ``facts`` are of the list."""
    response = document({"items": items, "next": after, **facts})
    if after is not None:
        following = request.url.include_query_params(after=after)
        response.headers["Link"] = f'<{following.path}?{following.query}>; rel="next"'
    return response
