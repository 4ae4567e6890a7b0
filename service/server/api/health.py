# SPDX-License-Identifier: Apache-2.0
"""The routes of every role: ``/metrics``, ``/-/healthy``, ``/-/ready``, and the pages about problems."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from service.server.api.context import ContextDep

health = APIRouter(prefix="/-", include_in_schema=False, default_response_class=PlainTextResponse)
metrics = APIRouter(include_in_schema=False)
explanations = APIRouter(include_in_schema=False)
#: an installed lakefold has the pages beside this module, a clone has them in docs/
_DOC_DIRECTORIES = (Path(__file__).parent, Path(__file__).parents[3] / "docs")


@explanations.get("/docs/problems.md")
def problems() -> Response:
    """Serve the page that the ``type`` of a problem document links to."""
    return _doc_page("problems.md")


@explanations.get("/docs/runbook.md")
def runbook() -> Response:
    """Serve the page that alerts, status and halted tables link to."""
    return _doc_page("runbook.md")


def _doc_page(name: str) -> Response:
    page = next(path for folder in _DOC_DIRECTORIES if (path := folder / name).is_file())
    return Response(page.read_bytes(), media_type="text/markdown; charset=utf-8")


@health.get("/healthy")
async def healthy() -> str:
    """Answer that the process runs."""
    return "healthy\n"


@health.get("/ready")
async def ready(context: ContextDep) -> Response:
    """Answer 200 if the process can work, else 503 with the reason, see ``Daemon.readiness_problem``."""
    reason = context.readiness_problem()
    return PlainTextResponse(f"{reason or 'ready'}\n", status_code=200 if reason is None else 503)


@metrics.get("/metrics")
async def scrape(context: ContextDep, request: Request) -> Response:
    """Serve the metrics of the last refresh."""
    gzipped = "gzip" in request.headers.get("accept-encoding", "")
    headers = {"Vary": "Accept-Encoding"} | ({"Content-Encoding": "gzip"} if gzipped else {})
    return _ChunkedResponse(
        context.metrics_page.body_parts(gzipped=gzipped), headers, context.metrics_page.content_type
    )


class _ChunkedResponse(Response):
    """A response of many megabytes that is sent in parts and never joined in memory."""

    def __init__(self, parts: Sequence[bytes], headers: Mapping[str, str], media_type: str) -> None:
        length = sum(map(len, parts))
        super().__init__(headers={**headers, "Content-Length": str(length)}, media_type=media_type)
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for part in self._parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body"})
