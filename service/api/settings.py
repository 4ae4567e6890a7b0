# SPDX-License-Identifier: Apache-2.0
"""``[http]``: where a process listens, and what it takes from whom."""

from typing import Annotated

from pydantic import BeforeValidator, Field

from lake.units import parse_bytes
from service.sections import Section


class Http(Section):
    """``[http]``. ``hosts`` are names by which clients may call the process besides those of the loopback.

    ``rate_limit`` is requests a second of one client, 0 for no limit; ``max_body`` is bytes.
    """

    address: str = "127.0.0.1"
    port: int = Field(default=9464, ge=0, le=65535)
    hosts: tuple[str, ...] = ()
    metrics_token: bool = False
    max_body: Annotated[int, BeforeValidator(parse_bytes)] = Field(default=1024 * 1024, gt=0)
    rate_limit: float = Field(default=50.0, ge=0)
