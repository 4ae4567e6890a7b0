# SPDX-License-Identifier: Apache-2.0
"""Connections of the server, with a small application behind it: bounds, time-outs, room for others, few log lines."""

import asyncio
import contextlib
import errno
import logging
import os
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from waiting import wait_for

from service.control.config.http import HttpSettings
from service.server.http import connections
from service.server.http.connections import ClientTimeouts, LogThrottle, connection_limit
from service.server.http.server import HttpServer

pytestmark = pytest.mark.slow

HASTE = ClientTimeouts(headers_seconds=0.2, idle_seconds=1, write_stall_seconds=0.2, linger_seconds=0.2)
UNHURRIED = ClientTimeouts()
GET = b"GET %s HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4000000\r\n\r\n"


class Application:
    """Answers ``/`` at once, ``/slow`` when it is let, ``/body`` when the body is there, ``/endless`` without end."""

    def __init__(self):
        self.let, self.sent = asyncio.Event(), 0

    async def __call__(self, scope, receive, send):
        if scope["path"] == "/slow":
            await self.let.wait()
        while scope["path"] == "/body" and (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while scope["path"] == "/endless" and self.sent < 64 << 20:
            await send({"type": "http.response.body", "body": bytes(65536), "more_body": True})
            self.sent += 65536
        await send({"type": "http.response.body", "body": b"fine"})


@pytest.fixture
def application():
    return Application()


@pytest.fixture
def serve(application):
    """Serves the application with a number of connections; what it returns is for ``opened`` and ``count``."""
    servers = []

    def start(most=1000, patience=UNHURRIED):
        server = HttpServer(HttpSettings(port=0, max_connections=most), application, timeouts=patience)
        servers.append(server.__enter__())
        return server

    yield start
    for server in servers:
        server.__exit__(None, None, None)


def opened(server, data=b""):
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=10)
    connection.sendall(data)
    return connection


def count(server):
    return len(server._server.server_state.connections)


def answer(connection):
    """All that comes until the server's end."""
    heard = b""
    while piece := connection.recv(1 << 16):
        heard += piece
        if heard.endswith((b"fine\r\n0\r\n\r\n", b"\r\n4\r\nfine\r\n0\r\n\r\n")):
            break
    return heard


def ended(connection):
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def is_open(connection):
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False
    finally:
        connection.settimeout(10)


def test_silent_connections_make_room_for_the_next_the_one_silent_for_longest_first(serve, caplog):
    server = serve(most=8)
    silent = []
    for _ in range(40):
        silent.append(opened(server))
        assert b"200 OK" in answer(opened(server, GET % b"/"))
    wait_for(lambda: count(server) <= 8, "the bound", 10)
    assert not any(map(is_open, silent[:30]))
    assert is_open(silent[-1])
    assert len([record for record in caplog.records if "the maximum (http.max_connections" in record.message]) == 1


def test_requests_over_the_limit_are_refused_with_retry_after_and_served_ones_continue(serve, application):
    server = serve(most=8)
    busy = [opened(server, GET % b"/slow") for _ in range(8)]
    wait_for(lambda: len(server._server.server_state.tasks) == 8, "eight at work", 10)
    refused = opened(server)
    head, _, text = answer(refused).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"Retry-After: 5" in head
    assert f"Content-Length: {len(text)}".encode() in head
    server._server.servers[0].get_loop().call_soon_threadsafe(application.let.set)
    assert all(b"200 OK" in answer(connection) for connection in busy)
    assert b"200 OK" in answer(opened(server, GET % b"/"))


def test_half_a_body_is_no_work_of_ours_and_makes_room(serve):
    server = serve(most=8)
    half = [opened(server, POST.replace(b"/ ", b"/body ") + b"x") for _ in range(8)]
    wait_for(lambda: len(server._server.server_state.tasks) == 8, "eight bodies begun", 10)
    assert b"200 OK" in answer(opened(server, GET % b"/"))
    assert ended(half[0])
    assert is_open(half[-1])


@pytest.mark.parametrize("data", [b"", b"GET / HTTP/1.1\r\nHost: a\r\n"], ids=["nothing", "half of them"])
def test_the_server_does_not_wait_for_a_client_that_sends_no_headers(serve, data):
    assert ended(opened(serve(patience=HASTE), data))


def test_headers_that_trickle_in_have_no_more_time_than_others(serve):
    connection = opened(serve(patience=HASTE), b"GET / HTTP/1.1\r\n")
    with contextlib.suppress(OSError):
        for number in range(40):
            connection.sendall(b"X-%d: y\r\n" % number)
            time.sleep(0.01)
    assert ended(connection)


def test_a_connection_without_a_next_request_ends_and_the_next_headers_have_their_time_again(serve):
    server = serve(patience=HASTE)
    idle, half = opened(server, GET % b"/"), opened(server, GET % b"/")
    assert b"200 OK" in answer(idle)
    assert b"200 OK" in answer(half)
    half.sendall(b"GET / HT")
    assert ended(half)
    assert is_open(idle)
    assert ended(idle)


def test_a_request_that_takes_long_is_not_the_clients_fault(serve, application):
    server = serve(patience=HASTE)
    slow = opened(server, GET % b"/slow")
    silent = opened(server)
    assert ended(silent)
    server._server.servers[0].get_loop().call_soon_threadsafe(application.let.set)
    assert b"200 OK" in answer(slow)


def test_the_server_does_not_wait_for_a_client_that_does_not_read(serve, application):
    server = serve(patience=HASTE)
    deaf = opened(server, GET % b"/endless")
    wait_for(lambda: application.sent, "a first piece", 10)
    wait_for(lambda: count(server) == 0, "the end of the connection", 10)
    assert not is_open(deaf) or deaf.recv(1 << 16), "what was sent before may still be read"


def test_a_client_that_still_sends_reads_the_whole_answer_to_half_a_request(serve):
    server = serve(patience=HASTE)
    sender = opened(server, POST + bytes(1 << 20))
    sender.sendall(bytes(1 << 20))
    assert b"fine" in answer(sender)
    assert ended(sender)
    wait_for(lambda: count(server) == 0, "the end of the connection", 10)


def test_requests_in_a_row_are_answered_in_a_row(serve):
    server = serve()
    piped = opened(server, (GET % b"/") * 2 + POST.replace(b"4000000", b"4") + b"body" + GET % b"/")
    heard = b""
    while heard.count(b"200 OK") < 4:
        heard += piped.recv(1 << 16)
    assert is_open(piped)


def test_a_hundred_requests_that_are_none_are_one_line_of_the_log(serve, caplog):
    server = serve()
    for _ in range(100):
        assert answer(opened(server, b"\x16\x03\x01 nonsense\r\n\r\n")).startswith(b"HTTP/1.1 400 ")
    wait_for(lambda: count(server) == 0, "their end", 10)
    assert len(caplog.records) <= 1


def test_nonsense_after_the_answer_has_begun_ends_the_connection_without_a_fault(serve, application, caplog):
    server = serve()
    with opened(server, b"POST /endless HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n") as connection:
        wait_for(lambda: application.sent, "the beginning of an answer", 10)
        connection.sendall(b"no number\r\n")
        wait_for(lambda: count(server) == 0, "its end", 10)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_a_repeated_message_is_logged_once_a_minute_with_its_count(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(connections.time, "monotonic", lambda: now[0])
    seldom = LogThrottle()

    def passes(message, exc_info=None):
        record = logging.LogRecord("x", logging.WARNING, "x", 1, message, (1,), exc_info)
        return seldom.filter(record) and record.getMessage()

    assert [passes("%d open") for _ in range(3)] == ["1 open", False, False]
    assert passes("%d others") == "1 others"
    assert passes("%d open", (ValueError, ValueError(), None)) == "1 open"
    now[0] = 61
    assert passes("%d open") == "1 open (and 2 times more since the last such line)"
    now[0] = 122
    assert passes("%d open") == "1 open"


@pytest.mark.parametrize(("files", "most"), [(1024, 512), (256, 128), (100_000, 1000), (resource.RLIM_INFINITY, 1000)])
def test_connections_take_at_most_half_of_the_files_a_process_may_open(monkeypatch, files, most):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, resource.RLIM_INFINITY))
    assert connection_limit(1000) == most


#: a server that may open 100 files, and takes all that are left, or gives them back, at a line on its standard input
FEW_FILES = """
import logging, os, resource, sys
logging.basicConfig(level="INFO")
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
from service.control.config.http import HttpSettings
from service.server.http.server import HttpServer
from test_connections import Application
with HttpServer(HttpSettings(port=0), Application()) as server:
    print(server.port, flush=True)
    taken = []
    for line in sys.stdin:
        while taken:
            os.close(taken.pop())
        try:
            while line == "take\\n":
                taken.append(os.dup(0))
        except OSError:
            pass
        print("done", flush=True)
"""


def test_more_connections_than_files_neither_end_the_service_nor_fill_the_log(tmp_path):
    root = Path(__file__).parents[2]
    paths = [root, root / "tests", root / "tests/service"]
    with (
        (tmp_path / "log").open("w+") as log,
        subprocess.Popen(
            [sys.executable, "-c", FEW_FILES],
            env={"PYTHONPATH": ":".join(map(str, paths))},
            cwd=root,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        try:
            port = int(process.stdout.readline())

            def asked():
                with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
                    connection.sendall(GET % b"/")
                    return b"200 OK" in answer(connection)

            silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(300)]
            assert asked()
            assert sum(map(is_open, silent)) < 100
            process.stdin.write("take\n")
            process.stdin.flush()
            assert process.stdout.readline() == "done\n"
            waiting = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
            wait_for(lambda: "no connection can be accepted" in (tmp_path / "log").read_text(), "the complaint", 10)
            process.stdin.write("give back\n")
            process.stdin.flush()
            assert asked()
            assert len(waiting) == 100
        finally:
            process.stdin.close()
            process.wait(20)
        lines = (tmp_path / "log").read_text().splitlines()
    assert sum(f"no connection can be accepted: {os.strerror(errno.EMFILE)}" in line for line in lines) == 1, lines
    assert len(lines) < 10, lines
