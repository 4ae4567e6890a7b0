# SPDX-License-Identifier: Apache-2.0
"""Follow a plan over HTTP: by server-sent events, or by polling if no events arrive."""

import json
import time
from collections.abc import Iterable, Iterator

import httpx

from service import problems
from service.cli.client import Document
from service.cli.client.connection import ApiConnection
from service.control.serializers import PROGRESS_FIELDS, TERMINAL_STATES
from service.problems import ProblemError

#: the service sends at least a comment within this time; a longer silence means a broken connection
_STREAM_SILENCE_SECONDS = 45.0
_RECONNECT_SECONDS = 1.0
_POLL_SECONDS = 2.0
#: polling starts after this many consecutive streams without an event: a proxy probably buffers the streams
_MAX_SILENT_STREAMS = 2
#: if polling fails for longer than this, the error is raised; a restart of the service takes less time
_MAX_POLL_FAILURE_SECONDS = 300.0
_TRANSIENT_PROBLEMS = (problems.UNREACHABLE, problems.TRANSIENT, problems.DATABASE)


def follow_progress(http: ApiConnection, plan_id: str) -> Iterator[Document]:
    """Yield the plan's progress at each change, and occasionally without a change, until it ends.

    Raises ProblemError.
    """
    mute, last = 0, None
    while mute < _MAX_SILENT_STREAMS:
        mute += 1
        try:
            with http.stream_lines(f"/v1/plans/{plan_id}/progress", read_seconds=_STREAM_SILENCE_SECONDS) as lines:
                for news in _read_events(lines, last):
                    mute, last = 0, news
                    yield news
                    if news["state"] in TERMINAL_STATES:
                        return
        except (httpx.TransportError, ProblemError):
            pass  # if the error persists, polling raises it
        time.sleep(_RECONNECT_SECONDS)
    yield from _poll_progress(http, plan_id)


def _poll_progress(http: ApiConnection, plan_id: str) -> Iterator[Document]:
    heard = time.monotonic()
    while True:
        try:
            plan = http.get(f"/v1/plans/{plan_id}")
        except ProblemError as error:
            if error.problem not in _TRANSIENT_PROBLEMS or time.monotonic() - heard > _MAX_POLL_FAILURE_SECONDS:
                raise
        else:
            heard = time.monotonic()
            yield {key: plan[key] for key in PROGRESS_FIELDS}
            if plan["state"] in TERMINAL_STATES:
                return
        time.sleep(_POLL_SECONDS)


def _read_events(lines: Iterable[str], last: Document | None) -> Iterator[Document]:
    """Yield the data of each event, and the last event again for each keep-alive comment."""
    data: list[str] = []
    for line in lines:
        if line.startswith("data:"):
            data.append(line.removeprefix("data:").removeprefix(" "))
        elif line.startswith(":") and last is not None:
            yield last
        elif not line and data:
            last = json.loads("\n".join(data))
            data = []
            yield last
