# SPDX-License-Identifier: Apache-2.0
"""``[http]`` of the configuration: the address of a process's HTTP server, and the limits of requests."""

import ipaddress
from datetime import timedelta
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr

from lake.capabilities import ReportsCommits
from lake.formats import load_formats
from lake.units import parse_bytes
from service.control.config.field_types import Duration, SettingsSection

_MIN_KEY_LENGTH = 16


def _check_callback_key(key: SecretStr) -> SecretStr:
    value = key.get_secret_value()
    defaults = [one.commit_callback.default_key for one in load_formats() if isinstance(one, ReportsCommits)]
    if len(value) < _MIN_KEY_LENGTH or value in defaults:
        raise ValueError(
            f"the key of Hudi's callback must have {_MIN_KEY_LENGTH} characters or more, and must not be Hudi's default"
        )
    return key


def _check_network(text: str) -> str:
    try:
        return str(ipaddress.ip_network(text))
    except ValueError:
        raise ValueError("a trusted proxy must be an IP address or a network such as 10.0.0.0/8") from None


class HttpSettings(SettingsSection):
    """``[http]``: the address of a process's HTTP server, and the limits of requests."""

    address: str = Field(default="127.0.0.1", description="the address to listen on")
    port: int = Field(default=9464, ge=0, le=65535, description="the port to listen on; 0: any free port")
    allowed_hosts: tuple[str, ...] = Field(
        default=(),
        description="host names, without port, under which clients may call the server, besides `localhost`, "
        "`127.0.0.1` and `[::1]`; on an address other than the loopback, an empty list allows all names",
    )
    metrics_need_token: bool = Field(default=False, description="whether `/metrics` needs a token too")
    max_body_size: Annotated[int, BeforeValidator(parse_bytes)] = Field(
        default=1024 * 1024, gt=0, description="requests with a larger body are refused with 413"
    )
    body_timeout: Annotated[Duration, Field(gt=timedelta(0))] = Field(
        default=timedelta(seconds=30),
        description="a request whose body is not complete after this time is refused with 408",
    )
    max_connections: int = Field(
        default=1000,
        ge=8,
        description="the largest number of open connections, but at most half of the files that the process may open; "
        "at this limit, a new connection closes the one whose client has been silent for the longest time",
    )
    rate_limit: float = Field(
        default=50.0,
        ge=0,
        description="the average number of requests per second that one token, or one client without a token, may "
        "send. A burst may have the requests of four seconds; further ones are refused with 429; 0: no limit",
    )
    trusted_proxies: tuple[Annotated[str, AfterValidator(_check_network)], ...] = Field(
        default=(),
        description="addresses or networks of proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` name the client "
        "and the scheme; if a request comes from any other address, these headers are ignored",
    )
    hudi_callback_key: Annotated[SecretStr, AfterValidator(_check_callback_key)] | None = Field(
        default=None,
        description="the key that a Hudi writer sends with its commit callback, 16 characters or more; if it is unset, "
        "`/v1/events/hudi` is off",
    )
