# SPDX-License-Identifier: Apache-2.0
"""A lakefold on another machine: what is asked again, and the one line for each way in which it does not answer."""

import json
import re
import socket
import ssl
import threading

import httpx
import pytest

from service import problems
from service.cli.client import connection as client_connection
from service.cli.client import plan_progress as client_progress
from service.cli.client.connection import ApiConnection
from service.cli.client.plan_progress import follow_progress
from service.problems import ExitCode, ProblemError

URL = "https://lake.example"


@pytest.fixture(autouse=True)
def naps(monkeypatch):
    """Every pause, not slept."""
    slept: list[float] = []
    monkeypatch.setattr(client_connection.time, "sleep", slept.append)
    return slept


def http_of(*answers, token="secret-token", url=URL):
    """An ``Connection`` whose service gives these answers in turn, raising those that are errors; the calls it got."""
    calls: list[httpx.Request] = []
    left = list(answers)

    def answer(request: httpx.Request) -> httpx.Response:
        calls.append(request)
        given = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(given, Exception):
            raise given
        return given

    return ApiConnection(url, token, httpx.MockTransport(answer)), calls


def ok(document=None, **headers):
    return httpx.Response(200, json=document or {}, headers=headers)


def problem(problem, detail="no", status=None, **facts):
    document = {
        "type": f"docs/problems.md#{problem.slug}",
        "title": problem.title,
        "status": problem.status,
        "detail": detail,
        "instance": "/v1/x",
        "exit_code": problem.code.value,
        **facts,
    }
    return httpx.Response(status or problem.status, json=document)


def refusal(http, method="GET", **options):
    with pytest.raises(ProblemError) as caught:
        http.call(method, "/v1/x", repeatable=method == "GET", **options)
    return caught.value


@pytest.mark.parametrize("kind", problems.PROBLEMS, ids=lambda kind: kind.slug)
def test_each_problem_of_the_service_becomes_the_same_error_with_the_same_exit_code_here(kind):
    http, _ = http_of(problem(kind, "because of this", plan_id="p1"))
    error = refusal(http)
    assert (error.problem, str(error), error.facts) == (kind, "because of this", {"plan_id": "p1"})


def test_a_problem_only_a_newer_service_knows_keeps_its_exit_code():
    answer = httpx.Response(
        409, json={"type": "docs/problems.md#frozen", "title": "Frozen", "detail": "it froze", "exit_code": 12}
    )
    error = refusal(http_of(answer)[0])
    assert (error.problem.slug, error.problem.code, str(error)) == ("frozen", ExitCode.HALTED, "it froze")


def test_a_repeatable_call_is_repeated_if_the_service_is_briefly_unavailable(naps):
    http, calls = http_of(httpx.Response(503), httpx.ReadError("cut"), ok({"a": 1}))
    assert http.get("/v1/x") == {"a": 1}
    assert (len(calls), len(naps)) == (3, 2)


@pytest.mark.parametrize("answer", [httpx.Response(503), httpx.ReadError("cut"), httpx.ReadTimeout("slow")])
def test_a_write_that_may_have_happened_is_not_repeated(answer, naps):
    http, calls = http_of(answer, ok())
    assert refusal(http, "POST").problem is problems.UNREACHABLE
    assert (len(calls), naps) == (1, [])


@pytest.mark.parametrize("answer", [httpx.ConnectError("refused"), httpx.Response(429, headers={"Retry-After": "3"})])
def test_a_write_that_was_not_taken_is_tried_again(answer, naps):
    http, calls = http_of(answer, ok({"done": True}))
    assert http.call("POST", "/v1/x") == {"done": True}
    assert len(calls) == 2
    assert naps == ([3.0] if isinstance(answer, httpx.Response) else [0.3])


def test_a_service_that_requests_a_long_wait_is_reported_at_once(naps):
    busy = problem(problems.TOO_MANY_REQUESTS, "too many requests")
    busy.headers["Retry-After"] = "600"
    assert refusal(http_of(busy)[0]).problem is problems.TOO_MANY_REQUESTS
    assert naps == []


def caused(error, cause):
    error.__cause__ = cause
    return error


UNTRUSTED = ssl.SSLCertVerificationError(1, "certificate verify failed")
UNTRUSTED.verify_message = "self-signed certificate"


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (httpx.ConnectError("[Errno 111] Connection refused"), "unreachable", "can't connect: .*Connection refused"),
        (httpx.ConnectTimeout(""), "unreachable", "no connection within 10 s"),
        (httpx.ReadTimeout(""), "unreachable", "did not answer in time"),
        (httpx.RemoteProtocolError("server disconnected"), "unreachable", "was lost: server disconnected"),
        (caused(httpx.ConnectError("tls"), UNTRUSTED), "unreachable", "not trusted: self-signed.*SSL_CERT_FILE"),
        (
            httpx.Response(502, text="<html>bad gateway"),
            "unreachable",
            "the response 502 Bad Gateway is not from lakefold",
        ),
        (
            httpx.Response(404, text="<html>"),
            "error",
            "/x: the response 404 Not Found is not from lakefold; check --url",
        ),
        (httpx.Response(200, text="<html>hello"), "error", "the response 200 OK is not from lakefold"),
        (httpx.Response(302, headers={"Location": "https://sso.example"}), "usage", "redirects to https://sso.example"),
        (problem(problems.FORBIDDEN, "token 'ci' has scope read"), "forbidden", "token 'ci' has scope read"),
        (problem(problems.UNAUTHENTICATED, "the token is wrong"), "unauthenticated", "the token is wrong"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_each_failure_to_answer_is_one_line_with_its_kind(answer, kind, words):
    error = refusal(http_of(answer)[0])
    assert error.problem.slug == kind
    assert "\n" not in str(error)
    assert re.search(words, str(error)), str(error)


def test_without_a_token_the_refusal_names_the_variable_to_set():
    http, calls = http_of(problem(problems.UNAUTHENTICATED, "a token is needed"), token=None)
    assert "LAKEFOLD_TOKEN is not set" in str(refusal(http))
    assert "Authorization" not in calls[0].headers


def test_the_token_travels_in_its_header_and_appears_in_no_error():
    http, calls = http_of(httpx.Response(500, text="oops"))
    error = refusal(http)
    assert calls[0].headers["Authorization"] == "Bearer secret-token"
    assert "secret" not in f"{error} {error.facts} {http.url}"
    with pytest.raises(ProblemError, match="has a space or a character that is not printable ASCII") as caught:
        ApiConnection(URL, "secret\r\nX: 1")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ftp://lake", "is not http://HOST or https://HOST"),
        ("lake:9464", "is not http://HOST or https://HOST"),
        ("https://", "is not http://HOST or https://HOST"),
        ("https://me:secret@lake", "contains a user name or password; set LAKEFOLD_TOKEN to the token"),
        ("https://lake/?token=secret", "has a query or a fragment"),
    ],
)
def test_an_address_that_is_none_is_wrong_usage(url, words):
    with pytest.raises(ProblemError, match=words) as caught:
        ApiConnection(url, None)
    assert caught.value.problem is problems.USAGE


def test_only_a_token_that_leaves_the_machine_unencrypted_is_warned_of():
    def in_clear(url, token="t"):
        return ApiConnection(url, token, httpx.MockTransport(lambda _: ok())).sends_token_unencrypted

    assert in_clear("http://lake.example")
    assert not in_clear("https://lake.example")
    assert not in_clear("http://127.0.0.1:9464")
    assert not in_clear("http://lake.example", None)


def test_a_path_in_front_of_the_service_is_kept():
    http, calls = http_of(ok(), url=f"{URL}/tools/lakefold/")
    http.get("/v1/status", after=None, limit=5)
    assert str(calls[0].url) == f"{URL}/tools/lakefold/v1/status?limit=5"


def test_an_address_without_a_server_is_reported_in_one_line():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    error = refusal(ApiConnection(f"http://127.0.0.1:{port}", None))
    assert (error.problem.code, "can't connect: " in str(error)) == (ExitCode.DATABASE, True)


def test_a_service_without_tls_at_an_https_address_is_an_error_of_one_line():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer():
            connection, _ = listener.accept()
            connection.recv(1000)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
            connection.close()

        threading.Thread(target=answer, daemon=True).start()
        error = refusal(ApiConnection(f"https://127.0.0.1:{listener.getsockname()[1]}", None))
    assert error.problem is problems.UNREACHABLE
    assert "the TLS handshake failed: " in str(error)


def news(state, done=0):
    document = dict.fromkeys(client_progress.PROGRESS_FIELDS) | {"state": state, "progress_bytes_done": done}
    return document | {"plan_id": "p1"}


def stream(*parts):
    return httpx.Response(200, text="".join(parts), headers={"Content-Type": "text/event-stream"})


def event(document):
    return f"event: progress\ndata: {json.dumps(document)}\n\n"


def test_progress_is_sent_as_events_and_a_comment_repeats_the_last():
    http, calls = http_of(stream(event(news("inflight", 1)), ": ping\n\n", event(news("completed", 2))))
    assert [(n["state"], n["progress_bytes_done"]) for n in follow_progress(http, "p1")] == [
        ("inflight", 1),
        ("inflight", 1),
        ("completed", 2),
    ]
    assert [call.headers["Accept"] for call in calls] == ["text/event-stream"]


def test_a_stream_that_breaks_off_is_taken_up_again():
    http, calls = http_of(
        stream(event(news("inflight", 1))), httpx.ReadError("cut"), stream(event(news("completed", 2)))
    )
    assert [n["progress_bytes_done"] for n in follow_progress(http, "p1")] == [1, 2]
    assert {call.url.path for call in calls} == {"/v1/plans/p1/progress"}


def test_progress_is_polled_where_streams_are_blocked():
    plan = news("inflight", 1) | {"format": "hudi"}
    http, calls = http_of(
        httpx.Response(404), httpx.Response(404), ok(plan), httpx.ConnectError("restarting"), ok(news("completed", 2))
    )
    assert list(follow_progress(http, "p1")) == [news("inflight", 1), news("completed", 2)]
    assert [call.url.path for call in calls][2:] == ["/v1/plans/p1"] * 3


def test_following_a_plan_ends_where_the_token_is_revoked():
    http, _ = http_of(problem(problems.UNAUTHENTICATED, "the token is wrong, expired or revoked"))
    with pytest.raises(ProblemError, match="revoked"):
        list(follow_progress(http, "p1"))
