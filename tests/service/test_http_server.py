# SPDX-License-Identifier: Apache-2.0
"""The HTTP server of a process: where it listens, what each role serves, and how it ends."""

import gzip
import json
import socket
import urllib.error
import urllib.request

import pytest
from api_toys import add_token, client_of, context_at

from lake.errors import Rejected
from service.control.config.http import HttpSettings
from service.server.api.security import check_exposure
from service.server.http.app import create_app
from service.server.http.server import HttpServer


@pytest.fixture
def context(tmp_path):
    context = context_at(tmp_path)
    yield context
    context.store.close()


def fetch(url):
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read().decode()


def test_the_server_answers_on_its_port_until_it_is_left(context):
    with HttpServer(HttpSettings(port=0), create_app(context)) as server:
        status, kind, text = fetch(f"{server.url}/metrics")
        assert (status, kind.split(";")[0]) == (200, "text/plain")
        assert "lakefold_build_info{" in text
        assert fetch(f"{server.url}/-/healthy")[::2] == (200, "healthy\n")
        status, kind, text = fetch(f"{server.url}/elsewhere")
        assert (status, kind, json.loads(text)["detail"]) == (
            404,
            "application/problem+json",
            "there is nothing at /elsewhere",
        )
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"{server.url}/-/healthy", timeout=2)


def test_a_port_in_use_is_refused_with_the_setting_to_change(context):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            Rejected, match=rf"can't listen on 127\.0\.0\.1:{port}: .*; change \[http\] address or port"
        ):
            HttpServer(HttpSettings(port=port), create_app(context))
    with pytest.raises(Rejected, match="can't listen on no-such-host"):
        HttpServer(HttpSettings(address="no-such-host.invalid", port=0), create_app(context))


def test_readiness_gives_the_reason(context, monkeypatch):
    reason = ["the database has not answered yet"]
    monkeypatch.setattr(type(context), "readiness_problem", lambda self: reason[0])
    with client_of(context) as client:
        answer = client.get("/-/ready")
        assert (answer.status_code, answer.text) == (503, "the database has not answered yet\n")
        reason[0] = None
        answer = client.get("/-/ready")
        assert (answer.status_code, answer.text) == (200, "ready\n")


def test_metrics_are_the_bytes_of_the_last_refresh_gzipped_on_request(context):
    with client_of(context) as client:
        context.metrics.record_database_error()
        before = client.get("/metrics", headers={"Accept-Encoding": "identity"})
        assert b"lakefold_database_errors_total 0.0" in before.content
        context.metrics_page.render()
        after = client.get("/metrics", headers={"Accept-Encoding": "identity"})
        assert b"lakefold_database_errors_total 1.0" in after.content
        assert "Content-Encoding" not in after.headers
        with client.stream("GET", "/metrics", headers={"Accept-Encoding": "gzip"}) as answer:
            assert gzip.decompress(b"".join(answer.iter_raw())) == after.content


@pytest.mark.parametrize("role", ["scheduler", "executor"])
def test_only_the_roles_all_and_api_serve_v1(tmp_path, role):
    context = context_at(tmp_path, role)
    with client_of(context) as client:
        assert client.get("/metrics").status_code == 200
        assert client.get("/-/ready").status_code == 200
        assert client.get("/v1/plans").status_code == 404
        assert client.get("/openapi.json").status_code == 404
    context.store.close()


def test_without_a_token_no_role_listens_beyond_this_machine(tmp_path):
    context = context_at(tmp_path, address="0.0.0.0")
    with pytest.raises(Rejected, match=r"lakefold tokens add NAME --scope read, or set \[http\] address"):
        check_exposure(context)
    add_token(context.store, "read")
    check_exposure(context)
    context.store.close()
    for settings in ({"address": "127.0.0.1"}, {"address": "::1"}, {"address": "localhost"}):
        check_exposure(context_at(tmp_path, **settings))


def test_a_process_that_only_shows_metrics_needs_no_token_unless_they_do(tmp_path):
    check_exposure(context_at(tmp_path, "executor", address="0.0.0.0"))
    with pytest.raises(Rejected, match="no token is stored"):
        check_exposure(context_at(tmp_path, "executor", address="0.0.0.0", metrics_need_token=True))


def answered(context):
    """(method, route, status) → how many answers have been counted."""
    (family,) = (f for f in context.metrics.registry.collect() if f.name == "lakefold_http_request_duration_seconds")
    return {
        (sample.labels["method"], sample.labels["route"], sample.labels["status"]): sample.value
        for sample in family.samples
        if sample.name.endswith("_count") and sample.value
    }


def test_each_answer_is_counted_under_the_template_of_its_route(context):
    with client_of(context) as client:
        for path in ("/metrics", "/v1/plans", "/v1/plans?limit=1", "/v1/plans/0198"):
            client.get(path)
    assert answered(context) == {
        ("GET", "/metrics", "200"): 1,
        ("GET", "/v1/plans", "200"): 2,
        ("GET", "/v1/plans/{plan_id}", "404"): 1,
    }


def test_no_caller_can_make_new_series_and_refusals_and_faults_are_counted(context, monkeypatch):
    with client_of(context) as client:
        client.get("/v1/nowhere/at-all")
        client.get("/elsewhere")
        client.request("BREW", "/v1/plans")
        client.get("/v1/plans", headers={"Host": "other.example"})
        monkeypatch.setattr(context.store, "plans", lambda **_: 1 / 0)
        client.get("/v1/plans")
    assert answered(context) == {
        ("GET", "other", "404"): 2,
        ("other", "/v1/plans", "405"): 1,
        ("GET", "other", "421"): 1,
        ("GET", "/v1/plans", "500"): 1,
    }


def test_the_second_part_of_an_answer_does_not_wait_for_the_first_to_be_acknowledged(context):
    with (
        HttpServer(HttpSettings(port=0), create_app(context)) as server,
        socket.create_connection(("127.0.0.1", server.port)),
    ):
        # asyncio turns Nagle's algorithm off for sockets that name their protocol, and only for those.
        assert server._socket.proto == socket.IPPROTO_TCP
