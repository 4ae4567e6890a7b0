# SPDX-License-Identifier: Apache-2.0
"""The trace that work belongs to, as W3C's ``traceparent``: passed on, never interpreted here."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_traceparent: ContextVar[str | None] = ContextVar("traceparent", default=None)
_VALID = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


@contextmanager
def traced(traceparent: str | None) -> Iterator[None]:
    """Assign the work that this thread begins inside the block to this trace; to no trace if it is not valid."""
    token = _traceparent.set(traceparent if traceparent is not None and _VALID.fullmatch(traceparent) else None)
    try:
        yield
    finally:
        _traceparent.reset(token)


def current_traceparent() -> str | None:
    """Return the trace that this thread works for."""
    return _traceparent.get()
