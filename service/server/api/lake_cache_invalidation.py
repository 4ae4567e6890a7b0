# SPDX-License-Identifier: Apache-2.0
"""The dependency of routes that change the lake: after the answer every read shows the change."""

from collections.abc import Iterator
from typing import Annotated

from fastapi import Depends

from service.server.api.context import ContextDep
from service.server.api.security import Caller, require


def _invalidate_lake_cache(context: ContextDep, writer: Annotated[Caller, require("write")]) -> Iterator[None]:
    # Only for requests with the write scope: otherwise refused requests of strangers could cause queries of the lake.
    try:
        yield
    finally:
        context.lake_cache.invalidate()


invalidates_lake_cache = Depends(_invalidate_lake_cache, scope="function")
"""For routes that change tables or plans: after the answer, page and status show the change."""
