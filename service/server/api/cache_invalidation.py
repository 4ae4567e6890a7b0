# SPDX-License-Identifier: Apache-2.0
"""Routes that change the lake: whoever has had the answer sees the change."""

from collections.abc import Iterator
from typing import Annotated

from fastapi import Depends

from service.server.api.context import ContextDep
from service.server.api.security import Caller, require


def _invalidate_lake_cache(context: ContextDep, writer: Annotated[Caller, require("write")]) -> Iterator[None]:
    # Only a writer's: else strangers could have the lake read anew as often as they like, by being refused.
    try:
        yield
    finally:
        context.lake_cache.invalidate()


invalidates_lake_cache = Depends(_invalidate_lake_cache, scope="function")
"""For routes that change tables or plans: whoever has had the answer sees the change, on the page and in the status."""
