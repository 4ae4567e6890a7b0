# SPDX-License-Identifier: Apache-2.0
"""``[http]``: where a process listens, and what it takes from whom."""

from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr

from lake.units import parse_bytes
from service.sections import Section

#: what Hudi sends where nobody set a key
_HUDIS_OWN_KEY = "hudi_write_commit_http_callback"
_SHORTEST_KEY = 16


def _secret_key(key: SecretStr) -> SecretStr:
    value = key.get_secret_value()
    if len(value) < _SHORTEST_KEY or value == _HUDIS_OWN_KEY:
        raise ValueError(f"the key of Hudi's callback has {_SHORTEST_KEY} characters or more and is not Hudi's default")
    return key


class Http(Section):
    """``[http]``. ``hosts`` are names by which clients may call the process besides those of the loopback.

    ``rate_limit`` is requests a second of one client, 0 for no limit; ``max_body`` is bytes. Without
    ``hudi_callback_key`` Hudi's commit callback is not served.
    """

    address: str = "127.0.0.1"
    port: int = Field(default=9464, ge=0, le=65535)
    hosts: tuple[str, ...] = ()
    metrics_token: bool = False
    max_body: Annotated[int, BeforeValidator(parse_bytes)] = Field(default=1024 * 1024, gt=0)
    rate_limit: float = Field(default=50.0, ge=0)
    hudi_callback_key: Annotated[SecretStr, AfterValidator(_secret_key)] | None = None
