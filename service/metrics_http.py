# SPDX-License-Identifier: Apache-2.0
"""``/metrics``, ``/-/healthy`` and ``/-/ready`` over plain HTTP from a thread of the daemon."""

import socket
import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

from lake.errors import Rejected

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

Ready = Callable[[], str | None]
"""None when the process is ready, else why it is not."""


class _SilentHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """A scrape every few seconds is not worth a line."""


class MetricsServer:
    """Serves until left. ``address`` and ``port`` are where it listens; port 0 takes a free one.

    Raises Rejected where the address can't be bound.
    """

    def __init__(self, address: str, port: int, registry: CollectorRegistry, ready: Ready) -> None:
        self._metrics = make_wsgi_app(registry)
        self._ready = ready
        try:
            family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]

            class Server(ThreadingWSGIServer):
                address_family = family

            self._server = make_server(address, port, self._answer, Server, handler_class=_SilentHandler)
        except OSError as error:
            raise Rejected(
                f"metrics can't be served on {address}:{port}: {error.strerror or error}; "
                "change [daemon] metrics_address or metrics_port"
            ) from error
        self.address, self.port = address, self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics-http", daemon=True)

    def __enter__(self) -> "MetricsServer":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        """Where a scrape goes."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"http://{host}:{self.port}/metrics"

    def _answer(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/metrics":
            return self._metrics(environ, start_response)  # type: ignore[no-any-return]
        if path == "/-/healthy":
            status, text = "200 OK", "healthy"
        elif path == "/-/ready":
            reason = self._ready()
            status, text = ("200 OK", "ready") if reason is None else ("503 Service Unavailable", reason)
        else:
            status, text = "404 Not Found", "here are /metrics, /-/healthy and /-/ready"
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [f"{text}\n".encode()]
