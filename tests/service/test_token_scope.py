# SPDX-License-Identifier: Apache-2.0
"""Tokens limited to some tables: no answer of any route shows other tables; the audit names the callers."""

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from api_toys import client_of, context_at
from fastapi.routing import iter_route_contexts
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine, literal, select
from uuid_utils import uuid7

from lake.model import FileSlice, SizeHistogram, TableRef
from lake.plan import ClusteringGroup, Plan, PlanKind, RewriteOptions
from service.cli.main import run
from service.control.store import ScanRecord, Store, TableScope
from service.server.api.token_cache import new_token, token_digest
from service.server.http.app import create_bare_app

RULES = '[[tables]]\nmatch = "*"\nmode = "compact"\nconcurrency = "single_writer"\n'
MIB = 1 << 20
SEEN, HIDDEN = "sales.orders", "hr.salaries"
BROWSER = {"Accept": "text/html", "Sec-Fetch-Site": "same-origin"}


def plan_of(store, name):
    plan = Plan(
        plan_id=str(uuid7()),
        table=TableRef(name=name, format="toy", location=f"/lake/{name}"),
        kind=PlanKind.CLUSTERING,
        options=RewriteOptions(target_file_max_bytes=1),
        snapshot_instant="1",
        groups=(
            ClusteringGroup(
                partition="p", slices=(FileSlice(partition="p", file_id="f", path="p/f", bytes=1),), output_files=1
            ),
        ),
    )
    store.add_plan(plan, request_id=None, actor="test", estimate={})
    return plan.plan_id


@pytest.fixture
def lake(tmp_path):
    """The process behind an application with two tables, and for each of them a plan and a request."""
    context = context_at(tmp_path, rules=RULES, rate_limit=0)
    made = {}
    for name in (SEEN, HIDDEN):
        context.store.register_table(TableRef(name=name, format="toy", location=f"/lake/{name}"), "compact")
        sizes = SizeHistogram.of(pa.chunked_array([[MIB] * 7]), 300 * MIB)
        scan = ScanRecord(table=name, taken_at=datetime.now(UTC), files=7, reducible_files=3, histogram=sizes.counts)
        context.store.record_scan(scan)
        request = context.store.add_request(name, actor="test")
        made[name] = {"plan_id": plan_of(context.store, name), "request_id": request, "table": name, "name": name}
    yield context, made
    context.store.close()


def limited(context, scope="write", pattern="sales.*"):
    token = new_token()
    context.store.add_token(
        scope,
        digest=token_digest(token),
        scope=scope,
        expires_in=None,
        actor="test",
        table_scope=TableScope((pattern,)),
    )
    return token


@pytest.fixture
def client(lake):
    """A client whose token may write, and sees ``sales.*``."""
    context, _ = lake
    with client_of(context, limited(context)) as client:
        yield client


def routes(method):
    """Every route of the API and the page that answers ``method``."""
    found = {
        route.path
        for route in iter_route_contexts(create_bare_app(serves_api=True).routes)
        if method in (route.methods or ()) and not route.path.startswith(("/static", "/-/", "/login", "/logout"))
    }
    assert len(found) > 8
    return sorted(found)


def address(path, values):
    filled = re.sub(r"\{(\w+)(?::path)?\}", lambda part: values.get(part[1], "1"), path)
    return re.sub("/progress$", "/events", filled)


@pytest.mark.slow
def test_no_route_reveals_a_table_that_the_token_may_not_see(lake, client):
    _, made = lake
    secrets = {HIDDEN, made[HIDDEN]["plan_id"], made[HIDDEN]["request_id"]}
    told = 0
    for path in routes("GET"):
        for headers in ({}, BROWSER):
            answer = client.get(address(path, made[SEEN]), headers=headers)
            assert answer.status_code < 500, path
            assert not [secret for secret in secrets if secret in answer.text], path
            told += SEEN in answer.text
    assert told > 12, "the table that it may see is in many of them"


def test_totals_of_all_tables_are_hidden_from_tokens_for_some_tables(lake, client):
    context, _ = lake
    context.store.record_trends()
    context.store.record_scan(replace(context.store.last_scan(SEEN), taken_at=datetime.now(UTC)))
    assert client.get("/v1/trend").json()["trends"] == client.get("/v1/status").json()["trends"] == []
    assert [told["days"] for told in client.get(f"/v1/tables/{SEEN}/trend").json()["trends"]] == [7, 30]
    assert [len(context.store.limited_to(TableScope(patterns)).trend(None)) for patterns in (("*",), None)] == [0, 1]


def test_every_route_of_a_table_that_the_token_may_not_see_answers_as_for_an_unknown_table(lake, client):
    _, made = lake
    asked = 0
    for method in ("GET", "POST"):
        for path in routes(method):
            if "{" not in path or {"notifications", "problems", "bulk"} & set(path.split("/")):
                continue
            body = {"headers": BROWSER} if not path.startswith("/v1") else {}
            answer = client.request(method, address(path, made[HIDDEN]), **body)
            assert answer.status_code == 404, (method, path)
            asked += 1
    assert asked > 15
    for body in ({"table": HIDDEN}, {"table": f"/lake/{HIDDEN}"}):
        assert client.post("/v1/events/commit", json=body).status_code == 404
        assert client.post("/v1/requests", json=body | {"dry_run": True}).status_code == 404
    assert client.get("/v1/settings", params={"table": HIDDEN}).status_code == 404


def test_an_ambiguous_id_prefix_does_not_reveal_a_hidden_plan(lake, client):
    _, made = lake
    shared = made[SEEN]["plan_id"][:4]
    assert made[HIDDEN]["plan_id"].startswith(shared)
    assert client.get(f"/v1/plans/{shared}").json()["plan_id"] == made[SEEN]["plan_id"]


def test_counts_are_those_of_the_tables_that_the_token_may_see(lake, client):
    status = client.get("/v1/status").json()
    assert (status["tables"], status["requested"], status["layout"]["compact"]["files"]) == (1, 1, 7)
    assert [table["table"] for table in client.get("/v1/tables").json()["items"]] == [SEEN]
    assert [plan["table"] for plan in client.get("/v1/plans").json()["items"]] == [SEEN]
    assert client.get("/v1/plans", params={"table": HIDDEN}).json()["items"] == []


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/pause"),
        ("POST", "/v1/resume"),
        ("GET", "/v1/notifications"),
        ("GET", "/v1/settings"),
        ("POST", "/v1/notifications/retry"),
        ("POST", "/v1/notifications/1/drop"),
        ("POST", "/pause/confirm"),
        ("POST", "/resume"),
        ("POST", "/notifications/retry"),
        ("GET", "/settings"),
        ("GET", "/notifications"),
    ],
)
def test_actions_on_all_tables_are_refused_with_the_tables_of_the_token(lake, client, method, path):
    context, _ = lake
    answer = client.request(method, path)
    assert (answer.status_code, "limited to sales.*" in answer.text) == (403, True)
    assert context.store.service_pause() is None


def test_metrics_of_all_tables_are_refused_where_they_need_a_token(tmp_path):
    context = context_at(tmp_path, rules=RULES, metrics_need_token=True)
    with client_of(context, limited(context, "read")) as client:
        assert client.get("/metrics").status_code == 403
    context.store.close()


def test_a_limited_token_writes_only_to_visible_tables(lake, client):
    context, made = lake
    assert client.post(f"/v1/tables/{SEEN}/pause", json={"reason": "a backfill"}).status_code == 200
    assert client.post(f"/v1/plans/{made[SEEN]['plan_id']}/cancel").status_code == 200
    assert (context.store.table_state(SEEN).paused, context.store.table_state(HIDDEN).paused) == (True, False)


names = st.text(alphabet="ab.*?[]_%\\-AÄ\n", max_size=6)


@given(name=names, pattern=st.text(alphabet="ab.*?_%\\-AÄ\n", min_size=1, max_size=4))
@settings(max_examples=300, deadline=None)
@pytest.mark.slow
def test_python_and_sqlite_see_the_same_tables(name, pattern):
    reach = TableScope((pattern,))
    with create_engine("sqlite://").connect() as connection:
        assert connection.execute(select(reach.sql_condition(literal(name), "sqlite"))).scalar() == reach.has_table(
            name
        )


def test_both_databases_see_the_same_tables_as_python(database_url):
    store = Store(database_url)
    known = ["a.b", "a.B", "axb", "a_b", "a%b", "a\\b", "a.bc", "a[b]", "A.b", "sales.orders", "sales", "*", "a?"]
    for name in known:
        store.register_table(TableRef(name=name, format="toy", location=f"/{name}"), "observe")
    kept = {name for name in known if name != "*"}  # stands for all tables
    for pattern in ("*", "a?b", "a.b", "a_b", "a%b", "a\\b", "sales.*", "?", "*b", "A*"):
        reach = TableScope((pattern, "sales"))
        assert {state.name for state in store.limited_to(reach).table_states()} == {
            name for name in kept if reach.has_table(name)
        }
    store.close()


@pytest.mark.parametrize("pattern", ["", "a[bc]", "x]"])
def test_a_pattern_that_databases_would_read_differently_is_refused(pattern):
    with pytest.raises(ValueError, match="not a pattern for table names"):
        TableScope((pattern,))


def entries(store):
    return [(e.actor, e.door.value, e.action, e.table, e.subject) for e in reversed(store.audit_entries(limit=1000))]


def test_every_write_by_command_over_http_and_on_the_page_is_in_the_audit(lake, tmp_path, capsys):
    context, made = lake
    store, token = context.store, new_token()
    store.add_token("me", digest=token_digest(token), scope="write", expires_in=None, actor="admin@host")
    plan = {name: made[name]["plan_id"] for name in made}
    before = len(entries(store))
    with client_of(context, token) as http:
        http.post(f"/v1/tables/{SEEN}/pause", json={"reason": "a backfill"})
        http.post(f"/v1/tables/{SEEN}/resume")
        request = http.post("/v1/requests?dry_run=true&wait=0", json={"table": SEEN}).json()["request_id"]
        http.post(f"/v1/plans/{plan[SEEN]}/cancel")
        http.post("/v1/notifications/retry")
        http.post("/pause/confirm", data={"reason": "tonight"}, headers=BROWSER)
        http.post("/resume", headers=BROWSER)
        http.post(f"/plans/{plan[HIDDEN]}/cancel", headers=BROWSER)
    config = str(tmp_path / "lakefold.toml")
    assert run(["pause", "--config", config]) == 0
    assert run(["tokens", "add", "ci", "--scope", "read", "--tables", "sales.*", "--config", config]) == 0
    assert run(["tokens", "revoke", "ci", "--config", config]) == 0
    assert run(["notifications", "drop", "--all", "--config", config]) == 0
    found = entries(store)[before:]
    me = "token me"
    assert found[:8] == [
        (me, "http", "paused", SEEN, ""),
        (me, "http", "resumed", SEEN, ""),
        (me, "http", "dry run requested", SEEN, request),
        (me, "http", "plan cancelled", SEEN, plan[SEEN]),
        (me, "http", "notifications sent again", None, "all"),
        (me, "page", "paused", None, ""),
        (me, "page", "resumed", None, ""),
        (me, "page", "plan cancelled", HIDDEN, plan[HIDDEN]),
    ]
    assert [(door, action, subject) for _, door, action, _, subject in found[8:]] == [
        ("cli", "paused", ""),
        ("cli", "token added", "ci"),
        ("cli", "token revoked", "ci"),
        ("cli", "notifications dropped", "all"),
    ]
    assert all("@" in actor for actor, door, *_ in found if door == "cli")
    capsys.readouterr()
    assert run(["audit", "--table", SEEN, "--json", "--config", config]) == 0
    listed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [entry["action"] for entry in listed][:2] == ["plan cancelled", "dry run requested"]
    assert run(["audit", "--config", config]) == 0
    assert "tonight" in capsys.readouterr().out


def test_refused_requests_are_not_in_the_audit(lake, client):
    context, made = lake
    before = entries(context.store)
    client.post(f"/v1/tables/{HIDDEN}/pause")
    client.post(f"/v1/plans/{made[SEEN]['plan_id']}/retry")
    client.post("/v1/pause")
    assert entries(context.store) == before


def test_the_audit_is_paged_and_its_rows_are_bounded(database_url, monkeypatch):
    store = Store(database_url)
    for number in range(30):
        store.add_request(f"t{number}", actor="test")
    first = store.audit_entries(limit=10)
    assert [entry.table for entry in store.audit_entries(limit=2, after=first[-1].number)] == ["t19", "t18"]
    monkeypatch.setattr("service.control.store.audit.MAX_ENTRIES", 5)
    assert store.prune_audit(timedelta()) == 25
    assert [entry.table for entry in store.audit_entries()] == ["t29", "t28", "t27", "t26", "t25"]
    assert store.prune_audit(timedelta(days=1)) == 0
    store.close()


def test_a_token_for_some_tables_sees_only_their_audit(lake, client):
    assert {entry["table"] for entry in client.get("/v1/audit").json()["items"]} == {SEEN}
    page = client.get("/audit", headers=BROWSER).text
    assert (SEEN in page, HIDDEN in page) == (True, False)
    assert replace(TableScope(), patterns=("x",)).has_table(None) is False
