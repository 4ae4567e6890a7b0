# SPDX-License-Identifier: Apache-2.0
"""An HTTP server of the test's own that keeps what it is sent and answers what it is told to."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Received:
    """One request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """``answer`` gives status and headers for each request; a new one may be set at any time."""

    url: str = ""
    requests: list[Received] = field(default_factory=list)
    answer: Callable[[Received], tuple[int, dict[str, str]]] = lambda request: (200, {})
    #: the body of each answer
    text: bytes = b""
    #: set when the block ends, for answers that take too long
    ended: threading.Event = field(default_factory=threading.Event)


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver on the loopback while the block runs."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def _take(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Received(self.command, self.path, headers, body)
            receiver.requests.append(request)
            status, answered = receiver.answer(request)
            with suppress(ConnectionError):  # who asked may have waited for long enough
                self.send_response(status)
                for name, value in {"content-length": str(len(receiver.text)), **answered}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(receiver.text)

        do_GET = do_POST = _take  # noqa: N815 - the base class's names

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    # Closing waits for every request: what one says late would be found in another test's output.
    server.daemon_threads = False
    receiver.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield receiver
    finally:
        receiver.ended.set()
        server.shutdown()
        thread.join()
        server.server_close()
