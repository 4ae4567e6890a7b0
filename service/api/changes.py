# SPDX-License-Identifier: Apache-2.0
"""Routes that change the lake: whoever has had the answer sees the change."""

from collections.abc import Iterator
from typing import Annotated

from fastapi import Depends

from service.api.context import Here
from service.api.security import Caller, require


def _changing(here: Here, writer: Annotated[Caller, require("write")]) -> Iterator[None]:
    # Only a writer's: else strangers could have the lake read anew as often as they like, by being refused.
    try:
        yield
    finally:
        here.lake_cache.changed()


changes_the_lake = Depends(_changing, scope="function")
"""For routes that change tables or plans: whoever has had the answer sees the change, on the page and in the status."""
