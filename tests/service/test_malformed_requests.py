# SPDX-License-Identifier: Apache-2.0
"""Hostile and malformed requests on real connections: odd host names, two lengths, silence, floods."""

import asyncio
import json
import random
import socket
from dataclasses import replace
from datetime import timedelta

import pytest
from api_toys import add_token, context_at
from fastapi import HTTPException
from pydantic import ValidationError
from waiting import wait_for

from service.control.config.http import HttpSettings
from service.server.http import guard
from service.server.http.app import create_app
from service.server.http.request_body import CHUNK_BYTES as PIECE
from service.server.http.request_body import BodyMemory, send_chunked
from service.server.http.server import HttpServer


@pytest.fixture(scope="module")
def context(tmp_path_factory):
    """A process on the loopback."""
    context = context_at(tmp_path_factory.mktemp("doors"), rate_limit=0)
    yield context
    context.store.close()


@pytest.fixture(scope="module")
def writer(context):
    return add_token(context.store, "write")


@pytest.fixture(scope="module")
def server(context):
    with HttpServer(HttpSettings(port=0), create_app(context)) as server:
        yield server


def connect(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=10)


def answer_of(connection):
    """Status, headers and document of one answer."""
    answer = b""
    while b"\r\n\r\n" not in answer and (piece := connection.recv(65536)):
        answer += piece
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    while len(body) < int(headers.get("content-length", 0)):
        body += connection.recv(65536)
    kind = headers.get("content-type", "")
    return int(status.split()[1]), headers, json.loads(body) if kind.endswith("json") else body.decode()


def ask(connection, target, *lines, method="GET", body=b"", host="Host: 127.0.0.1"):
    """Send one request as it stands; its answer."""
    head = "\r\n".join(filter(None, (f"{method} {target} HTTP/1.1", host, *lines)))
    connection.sendall(head.encode("latin-1") + b"\r\n\r\n" + body)
    return answer_of(connection)


def ended(connection):
    """Whether the server has closed the connection, which it says by its end or, with bytes unread, by a reset."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(
    "host",
    [
        "localhost@evil.example",
        "localhost, evil.example",
        "127.0.0.1 evil.example",
        "localhost:9464:80",
        "localhost:port",
        "localhost/",
        "[::1",
        "::1",
        "[localhost]",
        "http://localhost",
        "löcalhost",
        "",
    ],
)
def test_a_host_header_that_is_no_name_with_a_port_is_refused_on_every_route(server, host):
    with connect(server) as connection:
        for target in ("/v1/plans", "/metrics", "/"):
            status, _, document = ask(connection, target, host=f"Host: {host}")
            assert status == (400 if host else 421), document


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1:9464", "[::1]:9464", "[::1]"])
def test_the_names_of_the_loopback_are_taken_with_any_port(server, host):
    with connect(server) as connection:
        assert ask(connection, "/v1/plans", host=f"Host: {host}")[0] == 200


def test_a_request_without_a_token_gets_only_health(server):
    for target, expected in (("/-/healthy", 200), ("/v1/plans", 421)):
        with connect(server) as connection:
            connection.sendall(f"GET {target} HTTP/1.0\r\n\r\n".encode())
            assert answer_of(connection)[0] == expected


@pytest.mark.parametrize("target", ["/v1/pause", "/pause/confirm", "/login", "/-/healthy"])
@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_a_body_of_two_lengths_is_refused_and_nothing_after_it_is_read(context, server, writer, target, version):
    smuggled = f"POST /v1/pause HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {writer}\r\n\r\n".encode()
    length = "Content-Length: 5\r\n" if version == "1.1" else ""
    head = f"POST {target} HTTP/{version}\r\nHost: 127.0.0.1\r\n{length}Transfer-Encoding: chunked\r\n\r\n"
    with connect(server) as connection:
        connection.sendall(head.encode() + b"0\r\n\r\n" + smuggled)
        status, headers, document = answer_of(connection)
        assert (status, headers["connection"]) == (400, "close"), document
        assert ended(connection)
    assert context.store.service_pause() is None


#: a body that is announced and never comes
STALLED = ("Content-Type: application/json", "Content-Length: 1000000")


def bearer(token):
    return f"Authorization: Bearer {token}"


@pytest.mark.parametrize("target", ["/v1/requests", "/v1/pause", "/v1/events/hudi", "/tables/sales/request"])
@pytest.mark.parametrize("who", ["nobody", "a stranger", "a reader"])
def test_a_caller_without_write_scope_is_refused_before_its_body_is_read_and_the_cache_stays(
    context, server, target, who, monkeypatch
):
    changes = []
    monkeypatch.setattr(context.lake_cache, "invalidate", lambda: changes.append(who))
    token = {
        "nobody": "",
        "a stranger": bearer("lakefold_x"),
        "a reader": bearer(add_token(context.store, "read", f"{who} {target}")),
    }[who]
    for more in ((), ("Expect: 100-continue",)):
        with connect(server) as connection:
            status, headers, _ = ask(connection, target, token, *STALLED, *more, method="POST")
            assert status in (303, 401, 403)
            assert status == 401 or target != "/v1/events/hudi"
            assert headers.get("location", "/login").startswith("/login")
            assert ended(connection)
    assert changes == []


def test_a_body_that_is_announced_too_large_is_not_waited_for(server, writer):
    for target, token in (("/v1/requests", bearer(writer)), ("/v1/requests", ""), ("/login", "")):
        with connect(server) as connection:
            assert ask(connection, target, token, "Content-Length: 2000000", method="POST")[0] == 413
            assert ended(connection)


def test_a_request_body_has_a_time_limit(context, writer):
    settings = context.config.http.model_copy(update={"body_timeout": timedelta(milliseconds=100)})
    hasty = replace(context, config=replace(context.config, http=settings))
    with HttpServer(HttpSettings(port=0), create_app(hasty)) as server:
        for target, token, kind in (
            ("/v1/requests", bearer(writer), "json"),
            ("/login", "Accept: text/html", "x-www-form-urlencoded"),
        ):
            lines = (token, f"Content-Type: application/{kind}", "Content-Length: 1000")
            with connect(server) as connection:
                status, _, said = ask(connection, target, *lines, method="POST", body=b'{"table": "')
                assert status == 408
                assert "http.body_timeout" in (said["detail"] if kind == "json" else said)
                assert ended(connection)
        with connect(server) as connection:
            for target in ("/v1/pause", "/v1/resume"):
                assert ask(connection, target, bearer(writer), "Content-Length: 0", method="POST")[0] == 200


def test_all_bodies_together_have_a_memory_limit(context, writer, monkeypatch):
    held = BodyMemory(1 << 20)
    monkeypatch.setattr(guard, "BodyMemory", lambda most: held)
    lines = (bearer(writer), "Content-Type: application/json", "Content-Length: 600000")
    head = "\r\n".join(("POST /v1/requests HTTP/1.1", "Host: 127.0.0.1", *lines, "\r\n")).encode()
    with HttpServer(HttpSettings(port=0), create_app(context)) as server:
        first = connect(server)
        first.sendall(head + b" " * 599_999)
        wait_for(lambda: held._reserved == 599_999, "the first is read", 10)
        with connect(server) as second:
            status, headers, said = ask(second, "/v1/requests", *lines, method="POST", body=b" " * 599_999)
            assert (status, headers["retry-after"]) == (503, "5")
            assert "memory" in said["detail"]
        first.sendall(b" ")
        assert answer_of(first)[0] == 422
        with connect(server) as third:
            assert ask(third, "/v1/requests", *lines, method="POST", body=b" " * 600_000)[0] == 422
    assert held._reserved == 0


def test_one_body_alone_may_be_as_large_as_its_route_takes():
    held = BodyMemory(100)
    held.reserve(90, already_reserved=0)
    held.reserve(90, already_reserved=90)
    with pytest.raises(HTTPException):
        held.reserve(1, already_reserved=0)
    held.release(180)
    held.reserve(100, already_reserved=0)
    with pytest.raises(HTTPException):
        held.reserve(1, already_reserved=0)


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE, 3 * PIECE + 7])
def test_an_answer_is_handed_over_in_pieces_that_are_all_of_it_and_no_more(size):
    body, sent = random.Random(size).randbytes(size), []

    async def send(message):
        sent.append(message)

    asyncio.run(send_chunked(send)({"type": "http.response.body", "body": body}))
    assert b"".join(message["body"] for message in sent) == body
    assert max(len(message["body"]) for message in sent) <= PIECE
    assert [message.get("more_body", False) for message in sent] == [True] * (len(sent) - 1) + [False]


@pytest.mark.parametrize(("trusted", "told_apart"), [((), False), (("127.0.0.0/8",), True)])
def test_only_a_trusted_proxy_names_the_caller(tmp_path, trusted, told_apart):
    context = context_at(tmp_path, rate_limit=1)
    with (
        HttpServer(HttpSettings(port=0, trusted_proxies=trusted), create_app(context)) as server,
        connect(server) as connection,
    ):
        statuses = [ask(connection, "/v1/plans", f"X-Forwarded-For: 192.0.2.{n}")[0] for n in range(8)]
    context.store.close()
    assert set(statuses) == ({401} if told_apart else {401, 429})


@pytest.mark.parametrize("proxy", ["*", "proxy.example", "10.0.0.0/40", ""])
def test_a_proxy_is_trusted_by_its_address_only(proxy):
    with pytest.raises(ValidationError, match=r"an IP address or a network such as 10\.0\.0\.0/8"):
        HttpSettings(trusted_proxies=(proxy,))
