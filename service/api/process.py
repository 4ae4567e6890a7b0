# SPDX-License-Identifier: Apache-2.0
"""``/metrics``, ``/-/healthy`` and ``/-/ready``: what every role serves."""

from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse, Response

from service.api.context import Here

health = APIRouter(prefix="/-", include_in_schema=False, default_response_class=PlainTextResponse)
metrics = APIRouter(include_in_schema=False)


@health.get("/healthy")
async def healthy() -> str:
    """The process answers."""
    return "healthy\n"


@health.get("/ready")
async def ready(here: Here) -> Response:
    """The database answered lately; 503 with the reason where it did not."""
    reason = here.not_ready()
    return PlainTextResponse(f"{reason or 'ready'}\n", status_code=200 if reason is None else 503)


@metrics.get("/metrics")
async def scrape(here: Here, request: Request) -> Response:
    """The metrics as they were at the last refresh."""
    gzipped = "gzip" in request.headers.get("accept-encoding", "")
    headers = {"Vary": "Accept-Encoding"} | ({"Content-Encoding": "gzip"} if gzipped else {})
    return Response(here.page.body(gzipped=gzipped), headers=headers, media_type=here.page.content_type)
