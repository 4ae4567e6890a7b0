# SPDX-License-Identifier: Apache-2.0
"""Writing from the page: who may, what is stored, and what another site can't do."""

import html
import re
from datetime import timedelta
from urllib.parse import quote

import pytest
from api_toys import add_token, client_of, context_at
from web_lake import RULES, add_plan, failed, messages, proposed, register
from web_pages import SAME_ORIGIN

from lake.plan import PlanKind, PlanState
from service.control.planning.plan_request import PlanResponse
from service.control.store import NotificationState

TABLE = "sales.orders"
ACTIONS = (
    f"/tables/{TABLE}/request",
    f"/tables/{TABLE}/pause",
    f"/tables/{TABLE}/resume",
    "/plans/{}/cancel",
    "/bulk/cancel/confirm",
    "/pause/confirm",
    "/resume",
    "/notifications/retry",
    "/notifications/drop",
)


@pytest.fixture
def desk(fresh):
    """The empty database with one table and one waiting plan; the plan's id."""
    register(fresh.store, TABLE, "compact")
    return add_plan(fresh.store, TABLE, "dt=1").plan_id


def post(client, path, **fields):
    return client.post(path, data=fields, headers=SAME_ORIGIN, follow_redirects=False)


def nothing_happened(store, plan_id):
    free = not store.table_state(TABLE).paused and store.service_pause() is None
    return free and not store.open_requests() and store.plan_state(plan_id) is PlanState.REQUESTED


@pytest.mark.parametrize("action", ACTIONS)
def test_without_a_token_a_button_requires_signing_in_and_returns_to_its_page(fresh, desk, action):
    path = action.format(desk)
    with client_of(fresh) as client:
        answer = post(client, path)
    assert answer.status_code == 303
    assert answer.headers["Location"] == f"/login?next={quote(path.rpartition('/')[0] or '/', safe='')}"
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


@pytest.mark.parametrize("headers", [{}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://evil.example"}])
def test_another_site_can_not_sign_a_person_out(signed_in, headers):
    answer = signed_in.post("/logout", headers=headers, follow_redirects=False)
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers
    assert "Sign out (write)" in signed_in.get("/").text


def test_the_token_is_kept_where_no_script_and_no_other_site_gets_it(fresh):
    with client_of(fresh) as client:
        token = add_token(fresh.store, "write")
        answer = post(client, "/login", token=f" {token}\n", next="/plans?state=failed")
        assert answer.headers["Location"] == "/plans?state=failed"
        cookie = answer.headers["Set-Cookie"]
        assert {"HttpOnly", "SameSite=strict", "Path=/"} <= {part.strip() for part in cookie.split(";")}
        assert "Max-Age" not in cookie
        page = client.get("/").text
        assert "Sign out (write)" in page
        assert token not in page
        post(client, "/logout")
        assert "Sign in" in client.get("/").text


@pytest.mark.parametrize("given", ["", "wrong", "lakefold_" + "x" * 43, "<script>", "\x00é"])
def test_a_wrong_token_does_not_sign_in(fresh, given):
    with client_of(fresh) as client:
        answer = post(client, "/login", token=given)
    assert answer.status_code == 403
    assert "wrong, expired or revoked" in answer.text
    assert "set-cookie" not in answer.headers


def test_an_expired_token_is_removed_and_requires_a_new_sign_in(fresh):
    expired = add_token(fresh.store, "write", expires_in=timedelta(seconds=-1))
    with client_of(fresh) as client:
        client.cookies.set("lakefold_token", expired)
        answer = client.get("/plans", follow_redirects=False)
        assert answer.headers["Location"] == "/login?next=%2Fplans"
        answer = client.get("/login?next=/plans")
        assert "no longer valid" in answer.text
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


def test_a_dry_run_and_its_plans_are_requested_and_their_page_waits_for_the_answer(fresh, signed_in, desk):
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


def test_an_unknown_kind_is_refused(fresh, signed_in, desk):
    assert post(signed_in, f"/tables/{TABLE}/request", kind="sorting").status_code == 422
    assert not fresh.store.open_requests()


def test_plans_are_cancelled_and_requested_again(fresh, signed_in, desk):
    assert post(signed_in, f"/plans/{desk}/cancel").headers["Location"] == f"/plans/{desk}"
    assert fresh.store.plan_state(desk) is PlanState.CANCELLED
    given_up = failed(fresh.store, TABLE, "dt=9", "no good").plan_id
    post(signed_in, f"/plans/{given_up}/retry")
    assert fresh.store.plan_state(given_up) is PlanState.REQUESTED
    assert [event.actor for event in fresh.store.plan_events(given_up)][-1] == "token write"
    assert post(signed_in, f"/plans/{desk}/retry").status_code == 409


def test_many_plans_are_listed_cancelled_once_and_reported_with_the_reason(fresh, signed_in, desk):
    register(fresh.store, "ops.jobs", "compact")
    other = add_plan(fresh.store, "ops.jobs", "dt=1").plan_id
    fresh.lake_cache.invalidate()
    listed = signed_in.get("/plans?name=SALES&state=requested").text
    assert desk in listed
    assert other not in listed
    [ask] = re.findall(r'href="(/bulk/cancel[^"]*)"', listed)
    question = signed_in.get(html.unescape(ask)).text
    assert "Cancel 1 plan</h1>" in question
    assert other not in question
    [confirm] = re.findall(r'action="(/bulk/cancel/confirm[^"]*)"', question)
    [key] = re.findall(r'name="key" value="([^"]*)"', question)
    later = add_plan(fresh.store, TABLE, "dt=2").plan_id
    form = {"reason": "the lake moves", "key": key}
    first = post(signed_in, html.unescape(confirm), **form)
    again = post(signed_in, html.unescape(confirm), **form)
    assert (first.status_code, first.headers["Location"]) == (303, again.headers["Location"])
    told = signed_in.get(first.headers["Location"]).text
    assert "1 plan cancelled, or asked to stop before the commit." in told
    assert fresh.store.plan(desk).cancel_reason == "the lake moves"
    assert fresh.store.plan_events(desk)[-1].actor == "token write"
    assert {fresh.store.plan_state(plan) for plan in (other, later)} == {PlanState.REQUESTED}


def test_failed_plans_are_requested_again_and_plans_with_locked_partitions_are_named(fresh, signed_in):
    again, taken = (failed(fresh.store, "ops.jobs", partition, "no such codec") for partition in ("dt=1", "dt=2"))
    register(fresh.store, "ops.jobs", "compact")
    holder = add_plan(fresh.store, "ops.jobs", "dt=2").plan_id
    answer = post(signed_in, "/bulk/retry/confirm?error=rejected")
    told = signed_in.get(answer.headers["Location"]).text
    assert "1 plan to be tried again, 1 left alone:" in told
    assert f"held: dt=2 by plan {holder}" in told
    assert [fresh.store.plan_state(plan.plan_id) for plan in (again, taken)] == [PlanState.REQUESTED, PlanState.FAILED]


def test_proposals_are_on_the_first_page_in_a_tab_and_decided_together(fresh, signed_in, desk):
    assert "to approve" not in signed_in.get("/").text + signed_in.get("/plans").text
    asked = [proposed(fresh.store, TABLE, partition).plan_id for partition in ("dt=2", "dt=3")]
    fresh.lake_cache.invalidate()
    first = signed_in.get("/").text
    assert "2 plans to approve or decline." in first
    assert 'href="/plans?proposed=true"' in first
    listed = signed_in.get("/plans?proposed=true").text
    assert all(plan in listed for plan in asked)
    assert desk not in listed
    assert set(re.findall(r'href="/bulk/(\w+)', listed)) == {"approve", "decline"}
    [ask] = re.findall(r'href="(/bulk/approve[^"]*)"', listed)
    question = signed_in.get(html.unescape(ask)).text
    assert "Approve 2 plans</h1>" in question
    [confirm] = re.findall(r'action="(/bulk/approve/confirm[^"]*)"', question)
    later = proposed(fresh.store, TABLE, "dt=4").plan_id
    answer = post(signed_in, html.unescape(confirm), reason="month end is over")
    told = signed_in.get(answer.headers["Location"]).text
    assert "2 plans approved." in told
    assert [fresh.store.plan(plan).decision for plan in (*asked, later, desk)] == ["approved", "approved", None, None]
    assert fresh.store.plan_events(asked[0])[-1].reason == "approved: month end is over"
    post(signed_in, "/bulk/decline/confirm?proposed=true")
    assert fresh.store.plan(later).decision == "declined"


@pytest.mark.parametrize("until", ["0s", "2099-01-01"])
def test_a_button_acts_on_the_shown_plans_for_each_form_of_the_time(fresh, signed_in, desk, until):
    asked = proposed(fresh.store, TABLE, "dt=2").plan_id
    question = signed_in.get(f"/bulk/approve?proposed=true&since=1h&until={until}").text
    assert "Approve 1 plan</h1>" in question
    [confirm] = re.findall(r'action="(/bulk/approve/confirm[^"]*)"', question)
    later = proposed(fresh.store, TABLE, "dt=3").plan_id
    post(signed_in, html.unescape(confirm))
    assert [fresh.store.plan(plan).decision for plan in (asked, later)] == ["approved", None]
    assert "since=1h" not in confirm, "plans would leave the selection while a person reads"


def test_a_person_who_signs_in_first_returns_to_the_selected_plans(fresh, desk):
    with client_of(fresh) as client:
        answer = post(client, "/bulk/cancel/confirm?state=requested&name=sales")
    assert answer.headers["Location"] == "/login?next=%2Fbulk%2Fcancel%3Fstate%3Drequested%26name%3Dsales"


def test_a_question_about_all_plans_or_about_ended_ones_is_refused(signed_in, desk):
    for path, says in (
        ("/bulk/cancel", "cancel needs a filter of plans"),
        ("/bulk/retry?state=completed", "only failed plans can be retried"),
        ("/bulk/delete?state=failed", "action"),
        ("/bulk/cancel?since=soon", "is not a time"),
    ):
        answer = signed_in.get(path)
        assert answer.status_code in (400, 422), path
        assert says in html.unescape(answer.text), path


def test_a_halted_table_is_resumed(fresh, signed_in, desk):
    post(signed_in, f"/plans/{desk}/cancel")
    failed(fresh.store, TABLE, "dt=9", "rows differ", halt=True)
    assert "Resume table" in signed_in.get(f"/tables/{TABLE}").text
    post(signed_in, f"/tables/{TABLE}/resume")
    assert not fresh.store.table_state(TABLE).halted


def test_everything_is_paused_with_a_reason_and_resumed_from_the_page_one_is_on(fresh, signed_in, desk):
    assert "Yes, pause everything" in signed_in.get("/pause").text
    answer = post(signed_in, "/pause/confirm", reason="new metastore")
    assert answer.headers["Location"] == "/"
    assert fresh.store.service_pause().words == "by token write: new metastore"
    page = signed_in.get("/pause").text
    assert "It is paused already." in page
    assert "Yes, pause everything" not in page
    refused = post(signed_in, f"/tables/{TABLE}/request", dry_run="")
    assert (refused.status_code, "paused by token write: new metastore" in refused.text) == (409, True)
    answer = post(signed_in, "/resume", next=f"/plans/{desk}")
    assert answer.headers["Location"] == f"/plans/{desk}"
    assert fresh.store.service_pause() is None
    assert post(signed_in, "/resume", next="//evil.example").headers["Location"] == "/"
    assert post(signed_in, "/pause/confirm", reason="x" * 1001).status_code == 422


def test_a_table_is_paused_with_a_reason(fresh, signed_in, desk):
    post(signed_in, f"/tables/{TABLE}/pause", reason="is moved")
    assert "by token write: is moved. Running plans finish" in signed_in.get(f"/tables/{TABLE}").text


def test_dead_messages_are_sent_again_or_pruned(fresh, signed_in):
    numbers = messages(fresh.store.url, *"abcd")
    for number in numbers[:3]:
        fresh.store.mark_notification_failed(number, "answered 410 Gone", None)

    def dead():
        return [message.number for message in reversed(fresh.store.notifications(NotificationState.DEAD))]

    assert post(signed_in, "/notifications/retry", number=numbers[0]).headers["Location"] == "/notifications"
    assert dead() == numbers[1:3]
    post(signed_in, "/notifications/drop", number=numbers[1])
    assert dead() == numbers[2:3]
    post(signed_in, "/notifications/retry")
    assert dead() == []
    assert post(signed_in, "/notifications/retry", number=4711).status_code == 404
    assert post(signed_in, "/notifications/drop", number=numbers[3]).status_code == 409
    assert post(signed_in, "/notifications/drop").status_code == 422


def settings(*pairs):
    """The fields of settings as a form sends them."""
    return {"key": [key for key, _ in pairs], "value": [value for _, value in pairs]}


def test_settings_for_one_request_apply_from_the_dry_run_to_the_plans(fresh, signed_in, desk):
    form = signed_in.get(f"/tables/{TABLE}").text
    assert 'placeholder="300 MiB"' in form, "what is in force"
    pairs = ("small_file_limit", " 64MiB "), ("sort_columns", ""), ("max_num_groups", "3"), ("", "")
    answer = post(signed_in, f"/tables/{TABLE}/request", dry_run="yes", **settings(*pairs))
    [request] = fresh.store.open_requests()
    assert request.overrides == {"small_file_limit": "64MiB", "max_num_groups": "3"}
    plan = {"kind": "clustering", "input_files": 4, "input_bytes": 4, "output_files": 1, "groups": []}
    planned = PlanResponse(table=TABLE, outcome="dry_run", text="1 plan", plans=(plan,))
    fresh.store.answer_request(request.request_id, plan_ids=[], answer=planned.document())
    page = signed_in.get(answer.headers["Location"]).text
    words = re.sub(r"<[^>]+>", "", page)
    assert "--set max_num_groups=3 --set small_file_limit=64MiB" in words
    for key, value in request.overrides.items():
        assert f'name="key" value="{key}"><input type="hidden" name="value" value="{value}">' in page
    again = re.search(r'href="([^"]+)">Change options', page)[1].replace("&amp;", "&")
    again = signed_in.get(again).text
    assert 'value="64MiB" placeholder="300 MiB"' in again
    assert '<details class="whole" open>' in again


def test_the_dry_run_of_a_table_that_may_not_be_planned_offers_to_store_nothing(fresh, signed_in, desk):
    answer = post(signed_in, f"/tables/{TABLE}/request", dry_run="yes")
    [request] = fresh.store.open_requests()
    plan = {"kind": "clustering", "input_files": 4, "input_bytes": 4, "output_files": 1, "groups": []}
    planned = PlanResponse(
        table=TABLE, outcome="dry_run", text="1 plan", plans=(plan,), refused="it is in mode observe"
    )
    fresh.store.answer_request(request.request_id, plan_ids=[], answer=planned.document())
    page = signed_in.get(answer.headers["Location"]).text
    assert "can&#39;t be created now: it is in mode observe" in page or "can't be created now: it is in mode" in page
    assert "Create this plan" not in page


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        ([("small_file_limit", "lots")], "small_file_limit"),
        ([("small_file_limit", "2GiB")], "target_file_max"),
        ([("frobs", "3")], "frobs"),
        ([("quiet_period", "")], None),
        ([("small_file_limit", "1MiB"), ("small_file_limit", "2MiB")], "set twice"),
        ([("", "3")], "has no setting"),
    ],
)
def test_an_invalid_setting_returns_to_the_form_with_the_error_of_the_api(fresh, signed_in, desk, pairs, words):
    answer = post(signed_in, f"/tables/{TABLE}/request", dry_run="yes", kind="compaction", **settings(*pairs))
    if words is None:
        assert fresh.store.open_requests()[0].overrides == {}
        return
    assert not fresh.store.open_requests()
    assert answer.status_code == 303
    assert answer.headers["Location"].startswith(f"/tables/{TABLE}?kind=compaction&key=")
    page = signed_in.get(answer.headers["Location"].partition("#")[0]).text
    [said] = re.findall(r'role="alert">([^<]+)<', page)
    assert words in said
    assert "<option selected>compaction" in page
    assert f'value="{pairs[0][1]}"' in page
    body = {"table": TABLE, "overrides": dict(pairs)}
    if len(body["overrides"]) == len(pairs) and pairs[0][0]:
        problem = signed_in.post("/v1/requests", json=body, headers=SAME_ORIGIN)
        assert (problem.status_code, problem.json()["detail"]) == (422, html.unescape(said))
