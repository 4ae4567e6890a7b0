# SPDX-License-Identifier: Apache-2.0
"""Connections: how many there may be, how long each may keep us waiting, and which one makes room for another."""

import asyncio
import logging
import resource
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

logger = logging.getLogger(__name__)

_REPEAT_LOG_SECONDS = 60.0
#: bytes read of a connection in one go; so many of each may have come before the first request has been looked at
_READ_BYTES = 32 << 10
_REFUSAL_RESPONSE = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\nConnection: close\r\nContent-Type: text/plain\r\n"
    b"Content-Length: 49\r\n\r\nToo many connections are open (max_connections).\n"
)


class LogThrottle(logging.Filter):
    """Lets a message through once a minute, with how often it came meanwhile; what strangers do must not fill a disk.

    What has a traceback always passes.
    """

    def __init__(self) -> None:
        super().__init__()
        #: message without its values → when it was last let through, and how often it was not since
        self._last_logged: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """See logging."""
        if record.exc_info:
            return True
        at, more = self._last_logged.get(record.msg, (float("-inf"), 0))
        now = time.monotonic()
        if now - at < _REPEAT_LOG_SECONDS:
            self._last_logged[record.msg] = at, more + 1
            return False
        self._last_logged[record.msg] = now, 0
        if more:
            record.msg += f" (and {more} times more since the last such line)"
        return True


for _chatty in (logger, logging.getLogger("uvicorn.error")):
    _chatty.addFilter(LogThrottle())


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTimeouts:
    """How long a client may keep a connection without doing its part.

    ``headers``: until the first request's, and from the first byte of every other's, have come; ``idle``: without a
    next request; ``unread``: without reading what was sent; ``linger``: to read an answer to half a request.
    """

    headers_seconds: float = 10.0
    idle_seconds: int = 60
    write_stall_seconds: float = 30.0
    linger_seconds: float = 2.0


def connection_limit(configured: int) -> int:
    """``wanted``, or half of the files this process may open; the other half is for database, tables and logs."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return configured if files == resource.RLIM_INFINITY else min(configured, files // 2)


class BoundedConnections(ServerState):
    """The open connections of a server, at most ``most``; used from the server's own thread.

    Where there are as many, the one that has kept us waiting for longest makes room for the next.
    """

    def __init__(self, max_connections: int, timeouts: ClientTimeouts) -> None:
        super().__init__()
        self.max_connections, self.timeouts = max_connections, timeouts
        #: what one read has brought, of whichever connection; it is taken out before the next read
        self.buffer = memoryview(bytearray(_READ_BYTES))
        #: the one not heard of for longest comes first
        self._open: OrderedDict[ServerConnection, None] = OrderedDict()

    def register(self, connection: "ServerConnection") -> None:
        """Count a new connection, and end another one or refuse this one where there are too many."""
        self._open[connection] = None
        if len(self._open) <= self.max_connections:
            return
        logger.warning(
            "%d connections are open, as many as may be (http.max_connections and the limit of open files); "
            "those that wait for their client end",
            self.max_connections,
        )
        idle = next((other for other in self._open if other is not connection and other.is_waiting_for_client), None)
        del self._open[idle or connection]
        if idle is not None:
            idle.transport.abort()
        else:
            connection.transport.write(_REFUSAL_RESPONSE)
            connection.transport.close()

    def note_activity(self, connection: "ServerConnection") -> None:
        """Note that the client of ``connection`` has sent something."""
        if connection in self._open:
            self._open.move_to_end(connection)

    def unregister(self, connection: "ServerConnection") -> None:
        """Forget a connection that has ended."""
        self._open.pop(connection, None)


class ServerConnection(H11Protocol, asyncio.BufferedProtocol):
    """One connection of uvicorn's, whose client is not waited for without end."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        assert isinstance(server_state, BoundedConnections)
        self._registry, self._timeouts = server_state, server_state.timeouts
        #: what ends the connection unless headers, or the end of one that is closing, come before
        self._abort_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._is_lingering = False

    @property
    def is_waiting_for_client(self) -> bool:
        """Whether it is the client's turn: to ask, to send the rest of a body, to read."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete or self.flow.write_paused:
            return True
        return cycle.more_body and not cycle.response_started

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See asyncio."""
        super().connection_made(transport)
        self._start_header_timer()
        self._registry.register(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        self._registry.unregister(self)
        for due in (self._abort_timer, self._write_timer):
            if due is not None:
                due.cancel()
        super().connection_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        """See asyncio."""
        return self._registry.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """See asyncio."""
        if self._is_lingering:
            return
        self._registry.note_activity(self)
        self.data_received(bytes(self._registry.buffer[:nbytes]))
        if self.conn.their_state is not h11.IDLE:
            self._cancel_header_timer()
        elif self._abort_timer is None:
            self._start_header_timer()

    def pause_writing(self) -> None:
        """See asyncio."""
        super().pause_writing()
        self._write_timer = self.loop.call_later(self._timeouts.write_stall_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """See asyncio."""
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def on_response_complete(self) -> None:
        """See uvicorn. Where the rest of the request is not wanted the client is told so by our end.

        Ours alone: were both closed while it still sends, its system would forget the answer it has not read.
        """
        sends_on = self.conn.their_state is h11.SEND_BODY
        super().on_response_complete()
        if sends_on and not self.transport.is_closing():
            self._is_lingering = True
            self._unset_keepalive_if_required()
            self.transport.write_eof()
            self._abort_timer = self.loop.call_later(self._timeouts.linger_seconds, self.transport.abort)

    def send_400_response(self, msg: str) -> None:
        """See uvicorn, which does not ask whether an answer has begun."""
        if self.cycle is not None:
            self.cycle.disconnected = True
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.abort()

    def _start_header_timer(self) -> None:
        self._abort_timer = self.loop.call_later(self._timeouts.headers_seconds, self.timeout_keep_alive_handler)

    def _cancel_header_timer(self) -> None:
        if self._abort_timer is not None:
            self._abort_timer.cancel()
            self._abort_timer = None
