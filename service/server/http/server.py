# SPDX-License-Identifier: Apache-2.0
"""The HTTP server of a process, in its own thread."""

import asyncio
import errno
import logging
import socket
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from lake.errors import Rejected
from service.control.config.http import HttpSettings
from service.server.http.connections import (
    BoundedConnections,
    ClientTimeouts,
    LogThrottle,
    ServerConnection,
    connection_limit,
)

logger = logging.getLogger(__name__)
logger.addFilter(LogThrottle())

#: how long open responses may take after the server was stopped; then streams are cut
_GRACE_SECONDS = 3
_BACKLOG = 512
#: connections accepted in one step of the server; the maximum may be exceeded by this many
_ACCEPT_BATCH = 4
_TIMEOUTS = ClientTimeouts()
_OUT_OF_FILES_ERRNOS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
#: a computing thread, such as a refresh of the metrics, yields after this time; with Python's default, each of the many
#: steps of a request may wait for 5 ms
_SWITCH_SECONDS = 0.001


class HttpServer:
    """The server of ``app``, used as a context manager; port 0 takes a free port.

    Raises Rejected if the address can't be bound. ``on_stop`` is called before the server waits for open responses.
    """

    def __init__(
        self,
        http: HttpSettings,
        app: ASGIApp,
        on_stop: Callable[[], None] = lambda: None,
        timeouts: ClientTimeouts = _TIMEOUTS,
    ) -> None:
        self._on_stop = on_stop
        self._address, self._socket = http.address, _bind_socket(http.address, http.port)
        self.port: int = self._socket.getsockname()[1]
        self._server = _BoundedServer(
            BoundedConnections(connection_limit(http.max_connections), timeouts),
            uvicorn.Config(
                app,
                loop="asyncio",
                http=ServerConnection,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=bool(http.trusted_proxies),
                forwarded_allow_ips=list(http.trusted_proxies),
                backlog=_ACCEPT_BATCH,
                timeout_keep_alive=timeouts.idle_seconds,
                timeout_graceful_shutdown=_GRACE_SECONDS,
            ),
        )
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), name="http", daemon=True)

    def __enter__(self) -> "HttpServer":
        sys.setswitchinterval(_SWITCH_SECONDS)
        self._socket.listen(_BACKLOG)  # connections queue until the thread runs
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._on_stop()
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()

    @property
    def url(self) -> str:
        """The URL of the server, such as ``http://127.0.0.1:9464``."""
        host = f"[{self._address}]" if ":" in self._address else self._address
        return f"http://{host}:{self.port}"


class _BoundedServer(uvicorn.Server):
    """The uvicorn server with bounded connections."""

    def __init__(self, connections: BoundedConnections, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._connections = self.server_state = connections

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn."""
        asyncio.get_running_loop().set_exception_handler(self._on_loop_error)
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(_BACKLOG)  # asyncio uses its backlog for both the queue and the number accepted at once

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log once a minute that no file is free for a connection; asyncio logs it thousands of times a second."""
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in _OUT_OF_FILES_ERRNOS:
            logger.error(
                "no connection can be accepted: %s; %d are open (ulimit -n, LimitNOFILE= of the unit)",
                *(error.strerror, len(self._connections.connections)),
            )
        else:
            loop.default_exception_handler(context)


def _bind_socket(address: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        # The explicit protocol makes asyncio turn Nagle's algorithm off. Otherwise the second write of an answer, its
        # body, waits 40 ms until the client acknowledges the first.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address, port))
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        raise Rejected(
            f"can't listen on {address}:{port}: {error.strerror or error}; change [http] address or port"
        ) from error
    return listener
