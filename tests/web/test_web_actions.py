# SPDX-License-Identifier: Apache-2.0
"""Writing from the page: who may, what is stored, and what another site can't do."""

from datetime import timedelta
from urllib.parse import quote

import pytest
from api_toys import add_token, client_of, context_at
from conftest import SAME_ORIGIN
from web_lake import RULES, add_plan, failed, register

from lake.plan import PlanKind, PlanState

TABLE = "sales.orders"
ACTIONS = (f"/tables/{TABLE}/request", f"/tables/{TABLE}/pause", f"/tables/{TABLE}/resume", "/plans/{}/cancel")


@pytest.fixture
def desk(fresh):
    """The empty database with one table and one waiting plan; the plan's id."""
    register(fresh.store, TABLE, "compact")
    return add_plan(fresh.store, TABLE, "dt=1").plan_id


def post(client, path, **fields):
    return client.post(path, data=fields, headers=SAME_ORIGIN, follow_redirects=False)


def nothing_happened(store, plan_id):
    state = store.table_state(TABLE)
    return not store.open_requests() and not state.paused and store.plan_state(plan_id) is PlanState.REQUESTED


@pytest.mark.parametrize("action", ACTIONS)
def test_without_a_token_a_button_leads_to_signing_in_and_from_there_back(fresh, desk, action):
    path = action.format(desk)
    with client_of(fresh) as client:
        answer = post(client, path)
    assert answer.status_code == 303
    assert answer.headers["Location"] == f"/login?next={quote(path.rpartition('/')[0], safe='')}"
    assert nothing_happened(fresh.store, desk)


@pytest.mark.parametrize("action", ACTIONS)
def test_a_token_that_may_only_read_changes_nothing(fresh, desk, action):
    with client_of(fresh) as client:
        post(client, "/login", token=add_token(fresh.store, "read"))
        answer = post(client, action.format(desk))
    assert answer.status_code == 403
    assert "scope read" in answer.text
    assert nothing_happened(fresh.store, desk)


@pytest.mark.parametrize("headers", [{}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://evil.example"}])
@pytest.mark.parametrize("action", ACTIONS)
def test_a_form_of_another_site_changes_nothing(fresh, signed_in, desk, action, headers):
    answer = signed_in.post(action.format(desk), headers=headers, follow_redirects=False)
    assert answer.status_code == 403
    assert nothing_happened(fresh.store, desk)


def test_signing_in_from_another_site_is_refused(fresh):
    with client_of(fresh) as client:
        answer = client.post("/login", data={"token": add_token(fresh.store, "write")}, headers={})
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


def test_the_token_is_kept_where_no_script_and_no_other_site_gets_it(fresh):
    with client_of(fresh) as client:
        token = add_token(fresh.store, "write")
        answer = post(client, "/login", token=f" {token}\n", next="/plans?state=failed")
        assert answer.headers["Location"] == "/plans?state=failed"
        cookie = answer.headers["Set-Cookie"]
        assert {"HttpOnly", "SameSite=strict", "Path=/"} <= {part.strip() for part in cookie.split(";")}
        assert "Max-Age" not in cookie
        page = client.get("/").text
        assert "Sign out write" in page
        assert token not in page
        post(client, "/logout")
        assert "Sign in" in client.get("/").text


@pytest.mark.parametrize("given", ["", "wrong", "lakefold_" + "x" * 43, "<script>", "\x00é"])
def test_a_wrong_token_signs_nobody_in(fresh, given):
    with client_of(fresh) as client:
        answer = post(client, "/login", token=given)
    assert answer.status_code == 403
    assert "wrong, expired or revoked" in answer.text
    assert "set-cookie" not in answer.headers


def test_a_token_that_has_expired_leads_to_signing_in_again_and_is_forgotten(fresh):
    expired = add_token(fresh.store, "write", expires_in=timedelta(seconds=-1))
    with client_of(fresh) as client:
        client.cookies.set("lakefold_token", expired)
        answer = client.get("/plans", follow_redirects=False)
        assert answer.headers["Location"] == "/login?next=%2Fplans"
        answer = client.get("/login?next=/plans")
        assert "not in force any more" in answer.text
        assert 'lakefold_token=""' in answer.headers["Set-Cookie"]


def test_elsewhere_than_on_the_loopback_reading_needs_a_token_too(tmp_path):
    context = context_at(tmp_path, rules=RULES, address="0.0.0.0")
    with client_of(context, host="lakefold.example") as client:
        for path in ("/", "/plans", "/cleaning", "/settings", "/tables/a.b", "/requests/1"):
            answer = client.get(path, follow_redirects=False)
            assert answer.status_code == 303, path
            assert answer.headers["Location"].startswith("/login?next=")
        assert client.get("/login").status_code == 200
        post(client, "/login", token=add_token(context.store, "read"))
        assert client.get("/").status_code == 200
    context.store.close()


def test_a_dry_run_and_then_its_plans_are_asked_for_and_their_page_waits_for_the_answer(fresh, signed_in, desk):
    answer = post(signed_in, f"/tables/{TABLE}/request", dry_run="yes", partition="dt=2", kind="clustering")
    [request] = fresh.store.open_requests()
    assert answer.headers["Location"] == f"/requests/{request.request_id}"
    assert (request.dry_run, request.partitions, request.kind) == (True, ("dt=2",), PlanKind.CLUSTERING)
    assert request.actor == "token write"
    assert "No scheduler is running" in signed_in.get(answer.headers["Location"]).text
    post(signed_in, f"/tables/{TABLE}/request", partition="")
    real = fresh.store.open_requests()[1]
    assert (real.dry_run, real.partitions, real.kind) == (False, None, None)


def test_partitions_that_a_live_plan_holds_are_refused_at_once(fresh, signed_in, desk):
    answer = post(signed_in, f"/tables/{TABLE}/request", partition="dt=1")
    assert answer.status_code == 409
    assert desk in answer.text
    assert not fresh.store.open_requests()


def test_a_kind_nobody_knows_is_refused(fresh, signed_in, desk):
    assert post(signed_in, f"/tables/{TABLE}/request", kind="sorting").status_code == 422
    assert not fresh.store.open_requests()


def test_plans_are_cancelled_and_requested_again(fresh, signed_in, desk):
    assert post(signed_in, f"/plans/{desk}/cancel").headers["Location"] == f"/plans/{desk}"
    assert fresh.store.plan_state(desk) is PlanState.CANCELLED
    given_up = failed(fresh.store, TABLE, "dt=9", "no good").plan_id
    post(signed_in, f"/plans/{given_up}/retry")
    assert fresh.store.plan_state(given_up) is PlanState.REQUESTED
    assert [event.actor for event in fresh.store.events(given_up)][-1] == "token write"
    assert post(signed_in, f"/plans/{desk}/retry").status_code == 409


def test_a_halted_table_is_resumed(fresh, signed_in, desk):
    post(signed_in, f"/plans/{desk}/cancel")
    failed(fresh.store, TABLE, "dt=9", "rows differ", halt=True)
    assert "Resume table" in signed_in.get(f"/tables/{TABLE}").text
    post(signed_in, f"/tables/{TABLE}/resume")
    assert not fresh.store.table_state(TABLE).halted
