# SPDX-License-Identifier: Apache-2.0
"""Who may call what over HTTP, and what is refused: every route, every field, and nothing stored by a refusal."""

import json
import re
import sqlite3
from contextlib import closing
from datetime import timedelta
from urllib.parse import quote

import pytest
import time_machine
from api_toys import add_token, bearer, client_of, context_at, problem
from fastapi.routing import iter_route_contexts

from lake.model import TableRef
from service.server.api.security import TOKEN_COOKIE
from service.server.http.app import create_bare_app

#: these need no token: health, the meanings of problems, and the sign-in page with its style sheet
OPEN = {
    "/-/healthy",
    "/-/ready",
    "/metrics",
    "/docs/problems.md",
    "/docs/runbook.md",
    "/static/{name}",
    "/login",
    "/login/oidc",
    "/login/oidc/callback",
    "/logout",
}
#: it has a key of its own in a header of its own
OWN_KEY = {"/v1/events/hudi"}
#: they act on what a filter finds, and a filter may find nothing
BULK = {f"/v1/plans/{act}" for act in ("approve", "cancel", "decline", "retry")}
ROUTES = sorted(
    (method, found.path)
    for found in iter_route_contexts(create_bare_app(serves_api=True).routes)
    for method in found.methods
    if method != "HEAD"
)
READS = [path for method, path in ROUTES if method == "GET" and path not in OPEN]
#: what asks with a body and changes nothing
ASKS = {"/v1/simulate"}
WRITES = [path for method, path in ROUTES if method != "GET" and path not in OPEN | OWN_KEY | ASKS]
HOSTILE = (
    "'; DROP TABLE plan; --",
    "x' OR '1'='1",
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "../../../../etc/passwd",
    "..%2f..%2fetc%2fpasswd",
    "\x00",
    "%00",
    "\ud800",
    "a" * 5000,
    "9" * 5000 + ":x",
)


@pytest.fixture
def context(tmp_path):
    """A process on the loopback that knows one table."""
    context = context_at(
        tmp_path, rules='[[tables]]\nmatch = "*"\nmode = "compact"\nconcurrency = "single_writer"\n', rate_limit=0
    )
    context.store.register_table(TableRef(name="sales.orders", format="toy", location="/lake/orders"), "compact")
    yield context
    context.store.close()


@pytest.fixture
def exposed(tmp_path):
    """The same, listening on every address."""
    context = context_at(tmp_path, rate_limit=0, address="0.0.0.0")
    yield context
    context.store.close()


def filled(path):
    """``path`` with something in the place of its parameters that does not exist."""
    return re.sub(r"{[^}]+}", "no-such-thing", path)


def rows(context):
    """Everything the database holds but for when a token was last used."""
    with closing(sqlite3.connect(context.config.file.parent / "lakefold.db")) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        found = {name: connection.execute(f"SELECT * FROM {name}").fetchall() for name in tables}
    return {name: rows for name, rows in found.items() if name != "api_token"}


def test_the_walk_knows_the_routes():
    assert {"/v1/plans", "/v1/tables/{table}/partitions", "/openapi.json", "/v1/status"} <= set(READS)
    assert {"/v1/requests", "/v1/plans/{plan_id}/cancel", "/v1/events/commit", "/v1/pause"} <= set(WRITES)


@pytest.mark.slow
def test_every_write_route_demands_the_write_scope(context):
    reader, writer, before = add_token(context.store, "read"), add_token(context.store, "write"), rows(context)
    with client_of(context) as client:
        for path in WRITES:
            assert refused(client.post(filled(path), follow_redirects=False)), f"{path} without a token"
            assert client.post(filled(path), headers=bearer(reader)).status_code == 403, f"{path} to read only"
        assert rows(context) == before
        for path in WRITES:
            assert client.post(filled(path), headers=bearer(writer)).status_code not in (401, 403, 500), path


def test_a_query_by_post_changes_nothing_and_needs_json_and_a_token_beyond_the_loopback(context, exposed):
    question = {"writer": "hive", "batches": [{"operation": "insert", "rows": 5}]}
    before = rows(context)
    with client_of(context) as client:
        for path in ASKS:
            assert client.post(path, json=question).status_code == 200, path
            # what a page of another site can send without asking us first
            plain = client.post(path, content=json.dumps(question), headers={"Content-Type": "text/plain"})
            assert plain.status_code == 422, path
    assert rows(context) == before
    with client_of(exposed) as client:
        for path in ASKS:
            assert client.post(path, json=question).status_code == 401, path
            reader = add_token(exposed.store, "read")
            assert client.post(path, json=question, headers=bearer(reader)).status_code == 200, path


def test_beyond_the_loopback_every_read_route_demands_a_token(exposed):
    reader = add_token(exposed.store, "read")
    with client_of(exposed) as client:
        for path in READS:
            assert refused(client.get(filled(path), follow_redirects=False)), f"{path} without a token"
            assert client.get(filled(path), headers=bearer(reader)).status_code not in (401, 403, 500), path
        for path in OPEN - {"/logout"}:
            assert client.get(filled(path)).status_code in (200, 404), path


def test_on_the_loopback_reading_needs_no_token(context):
    with client_of(context) as client:
        for path in READS:
            assert client.get(filled(path)).status_code in (200, 400, 404, 422), path


def refused(answer):
    """A refusal for want of a token: 401, or the page's way to where one is asked for."""
    return answer.status_code == 401 or (answer.status_code == 303 and answer.headers["Location"].startswith("/login"))


def test_missing_wrong_expired_and_revoked_tokens_get_401_and_insufficient_scopes_403(context):
    store = context.store
    revoked, reader = add_token(store, "write", "revoked"), add_token(store, "read")
    expired = add_token(store, "write", "expired", expires_in=timedelta(milliseconds=1))
    store.revoke_token("revoked", actor="test")
    with client_of(context) as client:
        none = client.post("/v1/pause")
        assert "Authorization: Bearer" in problem(none, 401, "unauthenticated")["detail"]
        assert none.headers["WWW-Authenticate"] == 'Bearer realm="lakefold", scope="write"'
        for token in ("wrong", "lakefold_" + "A" * 43, revoked, expired, "ü"):
            answer = client.post("/v1/pause", headers={"Authorization": f"Bearer {token}".encode()})
            assert problem(answer, 401, "unauthenticated")["detail"] == "the token is wrong, expired or revoked"
            assert 'error="invalid_token"' in answer.headers["WWW-Authenticate"]
            # A token that is no good is an error even where none is needed.
            assert client.get("/v1/plans", headers={"Authorization": f"Bearer {token}".encode()}).status_code == 401
        answer = client.post("/v1/pause", headers=bearer(reader))
        assert problem(answer, 403, "forbidden")["detail"] == "token 'read' has scope read; this needs scope write"
    assert not store.service_pause()


def test_a_token_is_accepted_and_revoked_within_seconds_without_a_restart(context):
    with client_of(context) as client, time_machine.travel(0, tick=False) as clock:
        first = add_token(context.store, "write", "first")
        assert client.post("/v1/pause", headers=bearer(first)).status_code == 200
        second = add_token(context.store, "write", "second")
        context.store.revoke_token("first", actor="test")
        clock.shift(3.1)
        context.tokens._read_at -= 3.1  # its clock is monotonic
        assert client.post("/v1/resume", headers=bearer(second)).status_code == 200
        assert client.post("/v1/pause", headers=bearer(first)).status_code == 401


def test_a_token_costs_no_query_while_it_is_fresh_and_its_use_is_noted(context, monkeypatch):
    token, asked = add_token(context.store, "read"), []
    real = context.store.tokens_in_force
    monkeypatch.setattr(context.store, "tokens_in_force", lambda: asked.append(1) or real())
    with client_of(context, token) as client:
        for _ in range(5):
            assert client.get("/v1/plans").status_code == 200
        assert len(asked) == 1
        assert context.store.tokens()[0].last_used_at is None
        context.tokens._read_at -= 10
        assert client.get("/v1/plans").status_code == 200
    (kept,) = context.store.tokens()
    assert kept.last_used_at is not None


def test_a_read_by_another_name_or_through_a_proxy_needs_a_token(tmp_path):
    context = context_at(tmp_path, allowed_hosts=["lakefold.example.com"])
    token = add_token(context.store, "read")
    with client_of(context, host="lakefold.example.com") as client:
        assert client.get("/v1/plans").status_code == 401
        assert client.get("/v1/plans", headers=bearer(token)).status_code == 200
    with client_of(context, host="rebound.example.net") as client:
        document = problem(client.get("/v1/plans", headers=bearer(token)), 421, "host")
        assert document["host"] == "rebound.example.net"
        assert client.get("/metrics").status_code == 421
        assert client.get("/-/healthy").status_code == 200
    with client_of(context) as client:
        for header in ("Forwarded", "X-Forwarded-For", "X-Real-IP", "Via"):
            assert client.get("/v1/plans", headers={header: "192.0.2.1"}).status_code == 401, header
    for host in ("localhost:9464", "127.0.0.1", "[::1]:9464"):
        with client_of(context, host=host) as client:
            assert client.get("/v1/plans").status_code == 200, host
    context.store.close()


def test_metrics_need_a_token_where_the_setting_requires_it(tmp_path):
    context = context_at(tmp_path, address="0.0.0.0", metrics_need_token=True)
    token = add_token(context.store, "read")
    with client_of(context) as client:
        problem(client.get("/metrics"), 401, "unauthenticated")
        assert client.get("/metrics", headers=bearer(token)).status_code == 200
    context.store.close()


def test_a_write_by_cookie_is_taken_only_from_the_page_itself(context):
    token = add_token(context.store, "write")
    with client_of(context) as client:
        client.cookies.set(TOKEN_COOKIE, token)
        for headers in (
            {},
            {"Origin": "http://evil.example"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site", "Origin": "http://127.0.0.1"},
        ):
            problem(client.post("/v1/pause", headers=headers), 403, "forbidden")
        assert client.get("/v1/plans", headers={"Origin": "http://evil.example"}).status_code == 200
        assert not context.store.service_pause()
        assert client.post("/v1/pause", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200
        assert client.post("/v1/resume", headers={"Origin": "http://127.0.0.1"}).status_code == 200


def test_a_body_that_is_too_large_is_refused_announced_or_not(tmp_path):
    context = context_at(tmp_path, max_body_size="1000B")
    writer, before = add_token(context.store, "write"), rows(context)
    body = b'{"table": "' + b"x" * 2000 + b'"}'
    with client_of(context, writer) as client:
        for content in (body, iter([body[:900], body[900:]])):
            answer = client.post("/v1/requests", content=content, headers={"Content-Type": "application/json"})
            assert "more than 1000 bytes" in problem(answer, 413, "too-large")["detail"]
    assert rows(context) == before
    context.store.close()


@pytest.mark.slow
def test_hostile_text_in_any_field_is_refused_and_nothing_is_stored(context):
    writer, before = add_token(context.store, "write"), rows(context)
    schema = create_bare_app(serves_api=True).openapi()
    tried = 0
    with client_of(context, writer) as client:
        for text in HOSTILE:
            for method, path, arguments in hostile_calls(schema, text):
                answer = client.request(method, path, **arguments)
                tried += 1
                where = f"{method} {path} {arguments} → {answer.status_code} {answer.text[:300]}"
                assert answer.status_code in (200, 400, 404, 405, 422), where
                if answer.status_code == 200:  # a filter that matches nothing
                    found = answer.json()
                    assert method == "GET" or path in BULK, where
                    assert not found.get("items", found.get("plans")), where
                else:
                    assert answer.headers["Content-Type"] == "application/problem+json", where
                assert "root:" not in answer.text, where
    assert tried > 200
    # The text of a filter is kept with what was asked, which is no plan's end.
    assert {**rows(context), "bulk_action": []} == before


def hostile_calls(schema, text):
    """One call for each place of the API that names something: parts of paths, queries, headers, members of bodies."""
    quoted = quote(text.encode(errors="surrogatepass"), safe="")
    for path, operations in schema["paths"].items():
        if path in OWN_KEY:
            continue
        for method, operation in operations.items():
            places = operation.get("parameters", [])
            body = {"table": "sales.orders"} if "requestBody" in operation else None
            if "{" in path:
                yield method.upper(), re.sub(r"{[^}]+}", quoted, path), {}
                continue
            for place in places:
                if place["in"] == "query" and place["name"] not in ("wait", "limit", "dry_run", "files"):
                    yield method.upper(), f"{path}?{place['name']}={quoted}", {"json": body} if body else {}
            if body is not None:
                for member in (
                    {"table": text},
                    {"kind": text},
                    {"overrides": {text: 1}},
                    {"overrides": {"small_file_limit": text}},
                    {"partitions": text},
                    {"partitions": ["../x", text]},
                    {text: text},
                    {"dry_run": text},
                ):
                    content = json.dumps({**body, **member})
                    yield method.upper(), path, {"content": content, "headers": {"Content-Type": "application/json"}}


def test_errors_of_the_framework_are_problem_documents_too(context):
    with client_of(context, add_token(context.store, "write")) as client:
        assert problem(client.get("/v1/nothing"), 404, "not-found")["instance"] == "/v1/nothing"
        answer = client.delete("/v1/plans")
        problem(answer, 405, "method")
        assert answer.headers["Allow"] == "GET"
        answer = client.post("/v1/requests", content="{", headers={"Content-Type": "application/json"})
        assert problem(answer, 422, "invalid")["errors"]
        document = problem(client.get("/v1/plans?limit=many"), 422, "invalid")
        assert document["errors"][0]["where"] == "query.limit"
        assert document["detail"].startswith("query.limit: ")


def test_the_type_of_a_problem_names_a_heading_of_the_page_that_explains_it(context):
    with client_of(context) as client:
        page, _, heading = client.get("/v1/nothing").json()["type"].partition("#")
        answer = client.get(page)
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "text/markdown; charset=utf-8")
    assert f"\n## {heading}\n" in answer.text


def test_an_unexpected_error_shows_the_caller_no_internals(context, monkeypatch, caplog):
    def broken(**_):
        raise RuntimeError("the secret inside")

    monkeypatch.setattr(context.store, "plans", broken)
    with client_of(context) as client:
        document = problem(client.get("/v1/plans"), 500, "error")
    assert document["detail"] == "an unexpected error; lakefold's log has the details"
    assert "the secret inside" in caplog.text


def test_an_unavailable_database_is_503_for_callers_with_a_token_too(context):
    from service.control.store import DatabaseUnreachable

    def away(*_, **__):
        raise DatabaseUnreachable("database can't be used")

    with client_of(context) as client, pytest.MonkeyPatch.context() as patch:
        for name in ("plans", "tokens_in_force"):
            patch.setattr(context.store, name, away)
        problem(client.get("/v1/plans"), 503, "database")
        problem(client.get("/v1/plans", headers=bearer("any")), 503, "database")
        assert client.get("/metrics").status_code == 200


def test_every_answer_has_the_headers_of_a_careful_server(context):
    with client_of(context) as client:
        for path in ("/-/healthy", "/metrics", "/v1/plans", "/v1/nothing", "/v1/plans?limit=x"):
            headers = client.get(path).headers
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["X-Frame-Options"] == "DENY"
            assert headers["Referrer-Policy"] == "same-origin"
            assert headers["Content-Security-Policy"] == "default-src 'none'; frame-ancestors 'none'"
            assert headers["Cache-Control"] == "no-store"
            assert "Server" not in headers
