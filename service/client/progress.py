# SPDX-License-Identifier: Apache-2.0
"""A plan followed from afar: by server-sent events, taken up again where they break off, or else by polling."""

import json
import time
from collections.abc import Iterable, Iterator

import httpx

from service import problems
from service.client import Document
from service.client.connection import Connection
from service.documents import PROGRESS, TERMINAL
from service.problems import CommandError

#: the service sends at least a comment this often; longer silence is a broken connection
_SILENCE_SECONDS = 45.0
_AGAIN_SECONDS = 1.0
_POLL_SECONDS = 2.0
#: streams in a row without a word before polling takes over: something on the way holds them back
_MUTE_STREAMS = 2
#: nothing heard for this long ends in the error; a service restarts faster
_PATIENCE_SECONDS = 300.0
_PASSING = (problems.UNREACHABLE, problems.TRANSIENT, problems.DATABASE)


def progress(http: Connection, plan_id: str) -> Iterator[Document]:
    """The plan's progress at each change and now and then without, until its end. Raises CommandError."""
    mute, last = 0, None
    while mute < _MUTE_STREAMS:
        mute += 1
        try:
            with http.lines(f"/v1/plans/{plan_id}/progress", read_seconds=_SILENCE_SECONDS) as lines:
                for news in _events(lines, last):
                    mute, last = 0, news
                    yield news
                    if news["state"] in TERMINAL:
                        return
        except (httpx.TransportError, CommandError):
            pass  # whatever it is: polling meets it too, and says it where it does not pass
        time.sleep(_AGAIN_SECONDS)
    yield from _polled(http, plan_id)


def _polled(http: Connection, plan_id: str) -> Iterator[Document]:
    heard = time.monotonic()
    while True:
        try:
            plan = http.get(f"/v1/plans/{plan_id}")
        except CommandError as error:
            if error.problem not in _PASSING or time.monotonic() - heard > _PATIENCE_SECONDS:
                raise
        else:
            heard = time.monotonic()
            yield {key: plan[key] for key in PROGRESS}
            if plan["state"] in TERMINAL:
                return
        time.sleep(_POLL_SECONDS)


def _events(lines: Iterable[str], last: Document | None) -> Iterator[Document]:
    """The data of each event; ``last`` again for each comment, the sign of life between events."""
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
