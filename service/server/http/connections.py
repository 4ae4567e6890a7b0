# SPDX-License-Identifier: Apache-2.0
"""The connections of the HTTP server: their maximum, their timeouts, and which one is closed to make room."""

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
#: bytes of one read; a connection may buffer this many bytes before its first request is checked
_READ_BYTES = 32 << 10
_REFUSAL_RESPONSE = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\nConnection: close\r\nContent-Type: text/plain\r\n"
    b"Content-Length: 49\r\n\r\nToo many connections are open (max_connections).\n"
)


class LogThrottle(logging.Filter):
    """The filter that logs each message at most once a minute, with the number of suppressed repetitions.

    Without it, requests of strangers could fill the disk. Records with a traceback always pass.
    """

    def __init__(self) -> None:
        super().__init__()
        #: message template → the time of the last logged record, and the number of records suppressed since
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
    """The times after which a connection ends because its client does nothing.

    ``headers_seconds`` is the time for the headers: of the first request from its connection's beginning, of each later
    request from its first byte. ``idle_seconds`` is the time without a next request, ``write_stall_seconds`` the time
    without reading the answer. ``linger_seconds`` is the time to read the answer to an incomplete request.
    """

    headers_seconds: float = 10.0
    idle_seconds: int = 60
    write_stall_seconds: float = 30.0
    linger_seconds: float = 2.0


def connection_limit(configured: int) -> int:
    """Return ``configured``, but at most half of the files this process may open.

    The other half is for the database, tables and logs.
    """
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return configured if files == resource.RLIM_INFINITY else min(configured, files // 2)


class BoundedConnections(ServerState):
    """The open connections of a server, at most ``max_connections``; used from the server's thread only.

    If the limit is reached, the connection that has waited for its client longest is closed to make room.
    """

    def __init__(self, max_connections: int, timeouts: ClientTimeouts) -> None:
        super().__init__()
        self.max_connections, self.timeouts = max_connections, timeouts
        #: the buffer of one read, shared by all connections; it is emptied before the next read
        self.buffer = memoryview(bytearray(_READ_BYTES))
        #: ordered by last activity, the oldest first
        self._open: OrderedDict[ServerConnection, None] = OrderedDict()

    def register(self, connection: "ServerConnection") -> None:
        """Count a new connection; if there are too many, close an idle one or else refuse the new one."""
        self._open[connection] = None
        if len(self._open) <= self.max_connections:
            return
        logger.warning(
            "%d connections are open, the maximum (http.max_connections and the limit of open files); "
            "connections that wait for their client are closed",
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
        """Remove a connection that has ended."""
        self._open.pop(connection, None)


class ServerConnection(H11Protocol, asyncio.BufferedProtocol):
    """One uvicorn connection with timeouts for its client."""

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
        #: the timer that aborts the connection if the headers are late, or if closing takes too long
        self._abort_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._is_lingering = False

    @property
    def is_waiting_for_client(self) -> bool:
        """True if the client must act next: send a request or the rest of a body, or read an answer."""
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
        """See uvicorn. If the client still sends a body that is not needed, close only the server's writing side.

        If both sides were closed while the client sends, the client's system would discard the unread answer.
        """
        sends_on = self.conn.their_state is h11.SEND_BODY
        super().on_response_complete()
        if sends_on and not self.transport.is_closing():
            self._is_lingering = True
            self._unset_keepalive_if_required()
            self.transport.write_eof()
            self._abort_timer = self.loop.call_later(self._timeouts.linger_seconds, self.transport.abort)

    def send_400_response(self, msg: str) -> None:
        """See uvicorn, which does not check whether an answer has begun."""
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
