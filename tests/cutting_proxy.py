# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy on loopback that breaks a connection once: when a client sends certain bytes, or when it is answered."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum


class Lost(StrEnum):
    """What does not arrive."""

    REQUEST = "request"
    ANSWER = "answer"


class CuttingProxy:
    """Passes bytes between its clients and the server at ``host``:``port``."""

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._lock = threading.Lock()
        self._stays_down = False
        self._armed: tuple[bytes, Lost] | None = None
        self._is_down = threading.Event()
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def lose(self, what: Lost, marker: bytes, *, stay_down: bool = False) -> None:
        """Break the next connection whose client sends ``marker``, before or after the server got it.

        ``stay_down``: from then on every new connection is broken at once, until ``restore``.
        """
        with self._lock:
            self._armed, self._stays_down = (marker, what), stay_down

    def restore(self) -> None:
        """Serve new connections again."""
        self._is_down.clear()

    def close(self) -> None:
        """Accept no more clients."""
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self._is_down.is_set():
                    client.close()
                    continue
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(self._server) as server:
            swallow = threading.Event()
            answers = threading.Thread(target=self._answer, args=(server, client, swallow), daemon=True)
            answers.start()
            with suppress(OSError):
                tail = b""
                while data := client.recv(1 << 16):
                    lost = self._take(tail + data)
                    tail = data[-200:]
                    if lost is Lost.REQUEST:
                        _hang_up(client, server)
                        return
                    if lost is Lost.ANSWER:
                        swallow.set()
                    server.sendall(data)
            with suppress(OSError):
                server.shutdown(socket.SHUT_WR)
            answers.join()

    def _take(self, seen: bytes) -> Lost | None:
        with self._lock:
            if self._armed is None or self._armed[0] not in seen:
                return None
            what, self._armed = self._armed[1], None
            self.cuts += 1
            if self._stays_down:
                self._is_down.set()
            return what

    @staticmethod
    def _answer(server: socket.socket, client: socket.socket, swallow: threading.Event) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 16):
                if swallow.is_set():
                    _hang_up(client, server)
                    return
                client.sendall(data)
            client.shutdown(socket.SHUT_WR)


def _hang_up(*connections: socket.socket) -> None:
    for one in connections:
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


@contextmanager
def proxy_to(host: str, port: int) -> Iterator[CuttingProxy]:
    """A proxy for as long as it is needed."""
    proxy = CuttingProxy(host, port)
    try:
        yield proxy
    finally:
        proxy.close()
