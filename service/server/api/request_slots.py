# SPDX-License-Identifier: Apache-2.0
"""Limits how many requests do costly work at the same time; further ones are refused at once."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from service import problems
from service.server.api.problems import HttpProblemError


class RequestSlots:
    """The slots for one kind of work."""

    def __init__(self, count: int, *, refusal: str, retry_seconds: int) -> None:
        """``refusal`` says why no slot is free; the client may try again after ``retry_seconds``."""
        self._slots = threading.BoundedSemaphore(count)
        self._refusal, self._retry_seconds = refusal, retry_seconds

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Take a slot for the block. Raises ProblemError if all are taken."""
        if not self._slots.acquire(blocking=False):
            raise HttpProblemError(problems.TOO_MANY_REQUESTS, self._refusal, {"Retry-After": str(self._retry_seconds)})
        try:
            yield
        finally:
            self._slots.release()
