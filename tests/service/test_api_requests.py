# SPDX-License-Identifier: Apache-2.0
"""Asking for plans over HTTP, answered by a real scheduler on toy tables; cancel, retry, pause and resume."""

import time
from dataclasses import replace

import pytest
from api_toys import add_token, client_of, context_at
from daemon_toys import running, write_config
from toys.timeline_tables import create
from waiting import wait_for

from lake.plan import PlanState
from service.control.config.loader import load_config
from service.server.daemon.process import Daemon

RARELY = {"scan_interval": "1h"}


@pytest.fixture
def table(tmp_path):
    """A table ``t1`` with three partitions of three small files each."""
    return create(tmp_path / "lake" / "t1", name="t1", partitions=3)


@pytest.fixture
def context(tmp_path, toys, table):
    """The process behind an application that knows ``t1`` in mode compact."""
    context = context_at(tmp_path)
    context.store.register_table(table, "compact")
    yield replace(context, config=load_config(write_config(tmp_path, policy=RARELY)))
    context.store.close()


@pytest.fixture
def token(context):
    return add_token(context.store, "write", "ci")


@pytest.fixture
def client(context, token):
    """A client with the write scope."""
    with client_of(context, token) as client:
        yield client


def scheduler(home, **settings):
    config = load_config(write_config(home, policy=RARELY, **settings))
    return running(Daemon(config, "scheduler"))


def ask(client, query="", **body):
    return client.post(f"/v1/requests{query}", json={"table": "t1", **body})


@pytest.mark.slow
def test_a_request_is_accepted_at_once_and_answered_at_its_location(toys, tmp_path, context, client):
    context.store.pause(None, "test")  # so that the scheduler's own first scan plans nothing
    with scheduler(tmp_path):
        wait_for(lambda: context.store.last_scan("t1"), "the first scan")
        context.store.resume(None, "test")
        answer = ask(client, partitions=["dt=1", "dt=2/"], overrides={"max_num_groups": 1})
        assert answer.status_code == 202
        assert (answer.json()["answer"], answer.json()["plan_ids"]) == (None, [])
        there = answer.headers["Location"]
        assert there == f"/v1/requests/{answer.json()['request_id']}"
        wait_for(lambda: client.get(there).json()["answer"], "an answer")
        request = client.get(there).json()
    assert (request["table"], request["partitions"], request["actor"]) == ("t1", ["dt=1", "dt=2"], "token ci")
    assert request["answer"]["outcome"] == "planned"
    assert request["answer"]["plan_ids"] == request["plan_ids"]
    assert [reason["text"] for reason in request["answer"]["reasons"]] == ["partition not requested"]
    plans = context.store.plans()
    assert sorted(plan.plan_id for plan in plans) == sorted(request["plan_ids"])
    assert {p for plan in plans for p in context.store.plan(plan.plan_id).partitions} == {"dt=1", "dt=2"}


@pytest.mark.slow
def test_a_request_with_the_wait_option_waits_for_its_answer(toys, tmp_path, context, client):
    context.store.pause(None, "test")
    with scheduler(tmp_path):
        wait_for(lambda: context.store.last_scan("t1"), "the first scan")
        context.store.resume(None, "test")
        answer = ask(client, "?wait=20", partitions=["dt=1"])
        assert answer.status_code == 200
        (plan_id,) = answer.json()["answer"]["plan_ids"]
        again = ask(client, "?wait=20", partitions=["dt=1", "dt=2"])
        assert again.status_code == 200
        assert again.json()["answer"]["holders"] == {"dt=1": plan_id}, "who holds what was taken"
        missing = ask(client, "?wait=20", partitions=["dt=7"])
        assert missing.status_code == 404
        assert missing.json()["detail"].startswith("t1 has no partition 'dt=7'; did you mean 'dt=")
        assert context.store.request(missing.json()["request_id"]).answer is not None


@pytest.mark.slow
def test_a_dry_run_answers_with_the_plans_and_stores_none(toys, tmp_path, context, client):
    context.store.pause(None, "test")
    with scheduler(tmp_path):
        wait_for(lambda: context.store.last_scan("t1"), "the first scan")
        for answer in (ask(client, "?dry_run=true"), ask(client, dry_run=True)):
            assert answer.status_code == 200
            assert answer.json()["answer"]["outcome"] == "dry_run"
            assert [len(group["files"]) for plan in answer.json()["answer"]["plans"] for group in plan["groups"]] == [
                3,
                3,
                3,
            ]
    assert context.store.plans() == []


def test_a_dry_run_without_an_answer_stays_open_after_its_time(client):
    began = time.monotonic()
    answer = ask(client, "?dry_run=true&wait=0.4")
    assert 0.4 <= time.monotonic() - began < 10
    assert (answer.status_code, answer.json()["answer"]) == (202, None)
    assert client.get(answer.headers["Location"]).json()["answer"] is None


@pytest.mark.slow
def test_a_request_for_partitions_of_live_plans_is_refused_at_once_and_names_the_plans(toys, tmp_path, context, client):
    with scheduler(tmp_path):
        (plan,) = wait_for(lambda: context.store.plans(), "the scheduler's own plan")
    before = len(context.store.open_requests())
    answer = ask(client, partitions=["dt=0", "dt=2"])
    assert answer.status_code == 409
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.json()["type"].endswith("#live-plan")
    assert answer.json()["holders"] == {"dt=0": plan.plan_id, "dt=2": plan.plan_id}
    assert answer.headers["Link"] == f'</v1/plans/{plan.plan_id}>; rel="related"'
    assert len(context.store.open_requests()) == before, "nothing is stored"


@pytest.mark.slow
def test_a_whole_table_that_is_held_is_refused_by_the_scheduler_in_the_same_words(toys, tmp_path, context, client):
    with scheduler(tmp_path):
        (plan,) = wait_for(lambda: context.store.plans(), "the scheduler's own plan")
        answer = ask(client, "?wait=20")
    assert answer.status_code == 409
    assert set(answer.json()["holders"].values()) == {plan.plan_id}
    assert answer.headers["Link"] == f'</v1/plans/{plan.plan_id}>; rel="related"'


def test_a_dry_run_states_why_its_plans_would_not_be_stored(toys, tmp_path, context, client):
    with running(Daemon(load_config(write_config(tmp_path, policy=RARELY, mode="observe")), "scheduler")):
        answer = ask(client, "?dry_run=true").json()["answer"]
    assert (answer["outcome"], len(answer["plans"])) == ("dry_run", 1)
    assert answer["refused"].startswith("t1 is in mode observe")


@pytest.mark.slow
def test_nothing_is_planned_in_mode_compact_before_the_writers_are_declared(toys, tmp_path, context, client, token):
    config = load_config(write_config(tmp_path, concurrency=None))
    with running(Daemon(config, "scheduler")):
        scan = wait_for(lambda: context.store.last_scan("t1"), "a scan")
        assert 'concurrency = "single_writer"' in scan.not_planned
        assert ask(client, "?dry_run=true&wait=20").json()["answer"]["plans"]
        (entry,) = client.get("/v1/status").json()["attention"]
        assert (entry["table"], entry["not_planned"]) == ("t1", scan.not_planned)
    with client_of(replace(context, config=config, _configured={}), token) as of_the_same_file:
        refused = ask(of_the_same_file)
    assert (refused.status_code, "single_writer" in refused.json()["detail"]) == (409, True)
    assert context.store.plans() == []


def test_files_of_one_of_several_plans_do_not_count_as_left_alone(toys, tmp_path, context, client):
    context.store.pause(None, "test")
    with scheduler(tmp_path):
        answer = ask(client, "?dry_run=true", overrides={"max_num_groups": 1}).json()["answer"]
    assert (len(answer["plans"]), answer["files"]) == (3, 9)
    assert sum(plan["input_files"] for plan in answer["plans"]) == 9
    assert answer["reasons"] == []


def test_the_same_key_makes_only_one_request(context, client):
    key = {"Idempotency-Key": "airflow-2026-03-01"}
    body = {"table": "t1", "partitions": ["dt=1"]}
    first = client.post("/v1/requests", json=body, headers=key)
    context.store.pause("t1", "ada")
    again = client.post("/v1/requests", json=body, headers=key)
    assert (first.status_code, again.status_code) == (202, 202), "also where a new request would be refused"
    assert again.json() == first.json()
    other = client.post("/v1/requests", json={**body, "partitions": ["dt=2"]}, headers=key)
    assert other.status_code == 422
    assert "was used for another request" in other.json()["detail"]
    assert len(context.store.open_requests()) == 1


def test_no_token_meets_the_key_of_another_token(context, client):
    key, theirs = {"Idempotency-Key": "k"}, add_token(context.store, "write", "another")
    first = client.post("/v1/requests", json={"table": "t1"}, headers=key)
    other = client.post(
        "/v1/requests",
        json={"table": "t1", "partitions": ["dt=2"]},
        headers=key | {"Authorization": f"Bearer {theirs}"},
    )
    assert (first.status_code, other.status_code) == (202, 202)
    assert first.json()["request_id"] != other.json()["request_id"]
    assert {request.idempotency_key for request in context.store.open_requests()} == {"k"}


@pytest.mark.parametrize(
    ("stop", "words"),
    [
        (lambda store: store.pause("t1", "ada"), "t1 is paused"),
        (lambda store: store.pause(None, "ada"), "lakefold is paused"),
    ],
)
def test_a_table_that_may_not_be_planned_is_refused_but_not_for_a_dry_run(context, client, stop, words):
    stop(context.store)
    answer = ask(client)
    assert (answer.status_code, answer.json()["exit_code"]) == (409, 12)
    assert answer.json()["detail"].startswith(words)
    assert context.store.open_requests() == []
    assert ask(client, "?dry_run=true&wait=0").status_code == 202


def test_a_table_in_mode_observe_is_refused_with_the_rule_that_changes_it(tmp_path, context, token):
    config = load_config(write_config(tmp_path, mode="observe"))
    with client_of(replace(context, config=config), token) as client:
        answer = ask(client)
    assert answer.status_code == 409
    assert 'mode = "compact"' in answer.json()["detail"]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"table": "t11"}, 404, "no table 't11'; did you mean 't1'?"),
        ({"table": "/etc/passwd"}, 404, "no table '/etc/passwd'"),
        ({"overrides": {"small_file_limt": "1MiB"}}, 422, "small_file_limt"),
        ({"overrides": {"small_file_limit": "much"}}, 422, "small_file_limit"),
        ({"overrides": {"<b>=\u0004": ["x"]}}, 422, "String should match pattern"),
        ({"overrides": {"small-file-limit": 1}}, 422, "small-file-limit is not a setting"),
        ({"partitions": ["dt=1/../../etc"]}, 422, "a partition is a path inside its table"),
        ({"partitions": []}, 422, "at least 1 item"),
        ({"kind": "sorting"}, 422, "'clustering' or 'compaction'"),
        ({"tabel": "t1"}, 422, "Extra inputs"),
    ],
)
def test_a_bad_request_is_refused_with_a_reason_and_not_stored(context, client, body, status, words):
    answer = ask(client, **body)
    assert (answer.status_code, answer.headers["Content-Type"]) == (status, "application/problem+json")
    assert words in answer.json()["detail"]
    assert context.store.open_requests() == []


def test_a_half_of_a_surrogate_pair_is_a_bad_request(client):
    headers = {"Content-Type": "application/json"}
    body = rb'{"table": "t1", "overrides": {"\ud800": 1}}'
    answer = client.post("/v1/requests", content=body, headers=headers)
    assert (answer.status_code, answer.headers["Content-Type"]) == (422, "application/problem+json")
    assert "overrides" in answer.json()["detail"]


def test_an_unknown_request_is_not_found_and_a_nul_is_in_no_address(client):
    assert client.get("/v1/requests/nope").status_code == 404
    for address in ("/v1/requests/%00", "/v1/plans?table=a%00b"):
        answer = client.get(address)
        assert (answer.status_code, answer.headers["Content-Type"]) == (400, "application/problem+json")


@pytest.mark.slow
def test_a_plan_is_cancelled_and_only_a_failed_one_retried(toys, tmp_path, context, client):
    with scheduler(tmp_path):
        (plan,) = wait_for(lambda: context.store.plans(), "a plan")
    assert client.post(f"/v1/plans/{plan.plan_id}/retry").status_code == 409
    answer = client.post(f"/v1/plans/{plan.plan_id[:23]}/cancel", json={"reason": "wrong day"})
    assert (answer.status_code, answer.json()) == (
        200,
        {"plan_id": plan.plan_id, "state": "cancelled", "cancel_requested": False},
    )
    assert context.store.plan(plan.plan_id).cancel_reason == "wrong day"
    assert context.store.plan_events(plan.plan_id)[-1].actor == "token ci"
    assert client.post(f"/v1/plans/{plan.plan_id}/cancel").status_code == 409
    assert client.post("/v1/plans/0199/cancel").status_code == 404


@pytest.mark.slow
def test_a_proposal_is_approved_or_declined_once_and_by_a_writer(toys, tmp_path, context, client):
    reader = add_token(context.store, "read", "reader")
    with scheduler(tmp_path, mode="propose"):
        (plan,) = wait_for(lambda: context.store.plans(), "a plan")
    shown = client.get(f"/v1/plans/{plan.plan_id}").json()
    assert (shown["state"], shown["waits_for_approval"], shown["decision"]) == ("requested", True, None)
    assert shown["cost_benefit"]["predicted"]["payback_days"] is not None
    assert {group["partition"] for group in shown["group_details"]} == set(shown["partition_names"])
    with client_of(context, reader) as other:
        assert other.post(f"/v1/plans/{plan.plan_id}/approve").status_code == 403
    answer = client.post(f"/v1/plans/{plan.plan_id[:23]}/decline", json={"reason": "month end"})
    assert (answer.status_code, answer.json()) == (
        200,
        {"plan_id": plan.plan_id, "state": "cancelled", "decision": "declined"},
    )
    for again in ("approve", "decline"):
        refused = client.post(f"/v1/plans/{plan.plan_id}/{again}")
        assert (refused.status_code, "was already declined by token ci" in refused.json()["detail"]) == (409, True)
    shown = client.get(f"/v1/plans/{plan.plan_id}").json()
    assert (shown["decision"], shown["decided_by"], shown["epoch"]) == ("declined", "token ci", 0)
    assert client.post("/v1/plans/0199/approve").status_code == 404


@pytest.mark.slow
def test_an_inflight_plan_is_cancelled_and_a_failed_one_requested_again(toys, tmp_path, context, client):
    with scheduler(tmp_path):
        (plan,) = wait_for(lambda: context.store.plans(), "a plan")
    claim = context.store.claim("executor")
    answer = client.post(f"/v1/plans/{plan.plan_id}/cancel")
    assert (answer.status_code, answer.json()["state"], answer.json()["cancel_requested"]) == (202, "inflight", True)
    context.store.fail(claim, "a broken file")
    answer = client.post(f"/v1/plans/{plan.plan_id}/retry")
    assert (answer.status_code, answer.json()) == (200, {"plan_id": plan.plan_id, "state": "requested"})
    assert context.store.plan_state(plan.plan_id) is PlanState.REQUESTED


def test_tables_and_the_service_are_paused_and_resumed(context, client):
    assert client.post("/v1/tables/t1/pause").json() == {"table": "t1", "paused": True}
    assert context.store.table_state("t1").pause.by == "token ci"
    assert client.post("/v1/tables/t1/resume").json() == {"table": "t1", "paused": False}
    assert not context.store.table_state("t1").paused
    assert client.post("/v1/pause", json={"reason": " new\n metastore "}).json() == {"table": None, "paused": True}
    assert context.store.service_pause().words == "by token ci: new metastore"
    refused = ask(client)
    assert (refused.status_code, refused.json()["type"]) == (409, "/docs/problems.md#not-served")
    assert refused.json()["detail"] == "lakefold is paused by token ci: new metastore; to continue: lakefold resume"
    status = client.get("/v1/status").json()
    assert (status["paused"], status["paused_by"], status["paused_reason"]) == (True, "token ci", "new metastore")
    assert client.post("/v1/pause", json={"reason": "x" * 1001}).status_code == 422
    assert client.post("/v1/resume").json() == {"table": None, "paused": False}
    assert not context.store.service_pause()
    assert client.get("/v1/status").json()["paused_at"] is None
    missing = client.post("/v1/tables/t11/pause")
    assert (missing.status_code, missing.json()["detail"]) == (404, "no table 't11'; did you mean 't1'?")


@pytest.mark.slow
def test_a_proposal_can_be_approved_on_its_page(toys, tmp_path, context, client):
    with scheduler(tmp_path, mode="propose"):
        (plan,) = wait_for(lambda: context.store.plans(), "a plan")
    page = client.get(f"/plans/{plan.plan_id}").text
    assert "Waits for approval" in page
    assert f'action="/plans/{plan.plan_id}/decline"' in page
    answer = client.post(f"/plans/{plan.plan_id}/approve", follow_redirects=False)
    assert (answer.status_code, answer.headers["Location"]) == (303, f"/plans/{plan.plan_id}")
    assert context.store.plan(plan.plan_id).decided_by == "token ci"
    assert "Approve plan" not in client.get(f"/plans/{plan.plan_id}").text


def test_a_request_with_a_former_name_of_a_setting_is_answered_with_a_deprecation(client):
    former, present = ask(client, overrides={"receipt": "hash"}), ask(client, overrides={"verification": "hash"})
    assert (former.status_code, present.status_code) == (202, 202)
    assert ("Deprecation" in former.headers, "Deprecation" in present.headers) == (True, False)
