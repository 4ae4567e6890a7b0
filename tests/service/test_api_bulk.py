# SPDX-License-Identifier: Apache-2.0
"""Cancel, retry, approve and decline of many plans over HTTP: which ones, once for each key, and what is left."""

from datetime import UTC, datetime, timedelta

import pytest
from api_toys import add_token, client_of, context_at
from store_plans import add, claimed, make_plan, sql

from lake.model import TableRef
from lake.plan import PlanState
from service.cli.output.command_output import CommandOutput
from service.control.planning import bulk_actions
from service.control.store import TableScope
from service.control.store.plan_creation import QueueEntry
from service.server.api.security import TOKEN_COOKIE
from service.server.api.token_cache import new_token, token_digest

SALES, OPS = (TableRef(name=name, format="hudi", location=f"/lake/{name}") for name in ("sales.orders", "ops.jobs"))


@pytest.fixture
def context(tmp_path):
    made = context_at(tmp_path)
    yield made
    made.store.close()


@pytest.fixture
def client(context):
    with client_of(context, add_token(context.store, "write", "ada")) as made:
        yield made


def failed(store, table, partition):
    plan = add(store, partition, table=table)
    store.fail(claimed(store), "no such codec")
    return plan.plan_id


def propose(store, partition, table, **more):
    plan = make_plan(partition, table=table)
    store.add_plan(
        plan,
        request_id=None,
        actor="scheduler",
        estimate={},
        settings_digest="s",
        queued=QueueEntry(needs_approval=True),
        **more,
    )
    return plan.plan_id


def ids(document):
    return [plan["plan_id"] for plan in document["plans"]]


def test_failed_plans_are_found_tried_dry_and_requested_again_with_the_reason_and_the_caller(context, client):
    store = context.store
    wanted = [failed(store, SALES, f"dt={n}") for n in range(3)]
    failed(store, OPS, "dt=1")
    chosen = {"name": "SALES", "error": "rejected", "since": "1h"}
    listed = client.get("/v1/plans", params=chosen | {"state": "failed"}).json()["items"]
    assert [plan["plan_id"] for plan in listed] == wanted[::-1]
    assert {plan["error_class"] for plan in listed} == {"rejected"}
    dry = client.post("/v1/plans/retry", json=chosen | {"dry_run": True}).json()
    assert (ids(dry), dry["dry_run"], dry["action_id"]) == (wanted[::-1], True, None)
    assert store.figures().count(PlanState.FAILED) == 4
    done = client.post("/v1/plans/retry", json=chosen | {"reason": "the codec is there"}).json()
    assert (ids(done), done["skipped"], done["next"]) == (wanted[::-1], [], None)
    assert store.figures().count(PlanState.REQUESTED) == 3
    last = store.plan_events(wanted[0])[-1]
    assert (last.actor, last.reason) == ("token ada", "retried: the codec is there")
    assert store.bulk_action(done["action_id"], "token ada").plan_ids == tuple(wanted[::-1])


def test_a_bulk_action_skips_impossible_plans_with_the_reason(context, client):
    taken, free = failed(context.store, SALES, "dt=1"), failed(context.store, SALES, "dt=2")
    holder = add(context.store, "dt=1", table=SALES).plan_id
    done = client.post("/v1/plans/retry", json={"state": "failed"}).json()
    assert ids(done) == [free]
    [left] = done["skipped"]
    assert (left["plan_id"], left["table"]) == (taken, "sales.orders")
    assert f"dt=1 by plan {holder}" in left["reason"]


def test_the_same_key_acts_once_after_any_later_actions(context, client):
    first = add(context.store, "dt=1", table=SALES).plan_id
    bob = add_token(context.store, "write", "bob")
    key = {"Idempotency-Key": "tonight"}
    done = client.post("/v1/plans/cancel", json={"table": "sales.orders"}, headers=key)
    assert ids(done.json()) == [first]
    later = add(context.store, "dt=1", table=SALES).plan_id
    assert client.post("/v1/plans/cancel", json={"table": "sales.orders"}, headers=key).json() == done.json()
    assert context.store.plan_state(later) is PlanState.REQUESTED
    other = client.post("/v1/plans/cancel", json={"table": "ops.jobs"}, headers=key)
    assert (other.status_code, other.json()["type"]) == (422, "/docs/problems.md#setting")
    with client_of(context, bob) as another:
        assert ids(another.post("/v1/plans/cancel", json={"table": "sales.orders"}, headers=key).json()) == [later]


@pytest.mark.parametrize("action", ["approve", "decline", "cancel", "retry"])
def test_an_action_repeated_after_a_crash_records_all_of_its_effects(context, client, monkeypatch, action):
    monkeypatch.setattr(bulk_actions, "MAX_PLANS", 2)
    store = context.store
    make = {
        "cancel": lambda partition: add(store, partition, table=SALES).plan_id,
        "retry": lambda partition: failed(store, SALES, partition),
    }.get(action, lambda partition: propose(store, partition, SALES))
    plans = [make(f"dt={number}") for number in range(4)]
    sql(store.url, "UPDATE plan SET created_at_ms = created_at_ms - 1000")
    name = "request_cancel" if action == "cancel" else action
    do, done = getattr(store, name), []

    def dies(plan_id, *more):
        if done:
            raise SystemExit
        done.append(plan_id)
        return do(plan_id, *more)

    terms = {"table": SALES.name}
    monkeypatch.setattr(store, name, dies)
    with pytest.raises(SystemExit):
        bulk_actions.run_bulk_action(store, action, terms, actor="token ada", reason="", idempotency_key="tonight")
    monkeypatch.setattr(store, name, do)
    if action == "retry":  # it failed again meanwhile, and is not retried twice under one key
        store.fail(claimed(store), "no such codec")
    body, key = {"table": SALES.name}, {"Idempotency-Key": "tonight"}
    repeated = client.post(f"/v1/plans/{action}", json=body, headers=key).json()
    assert (ids(repeated), repeated["skipped"]) == (plans[:1:-1], [])
    if action == "retry":
        assert store.plan_state(plans[3]) is PlanState.FAILED
    rest = client.post(f"/v1/plans/{action}", json=body | {"after": repeated["next"]}).json()
    assert (ids(rest), rest["next"]) == (plans[1::-1], None), "it goes on behind what the first call has meant"


def test_a_cancellation_ends_the_running_plan_and_no_later_one(context, client):
    running = add(context.store, "dt=1", table=SALES).plan_id
    claimed(context.store)
    waiting = add(context.store, "dt=2", table=SALES).plan_id
    until = datetime.now(UTC) + timedelta(seconds=1)
    later = add(context.store, "dt=3", table=SALES).plan_id
    sql(context.store.url, "UPDATE plan SET created_at_ms = created_at_ms + 60000 WHERE id = :id", id=later)
    done = client.post(
        "/v1/plans/cancel", json={"until": until.isoformat(), "since": "1d", "reason": "too late"}
    ).json()
    assert ids(done) == [waiting, running]
    assert context.store.plan(running).cancel_reason == "too late"
    states = [context.store.plan_state(plan) for plan in (running, waiting, later)]
    assert states == [PlanState.INFLIGHT, PlanState.CANCELLED, PlanState.REQUESTED]


def test_proposals_are_listed_and_approved_and_declined_by_the_filter_of_lists_and_nothing_else_is(context, client):
    store = context.store
    sales, other = (propose(store, partition, table=SALES) for partition in ("dt=1", "dt=2"))
    ops, plain = propose(store, "dt=1", table=OPS), add(store, "dt=3", table=SALES).plan_id
    for asked, found in (("true", [ops, other, sales]), ("false", [plain]), (None, [plain, ops, other, sales])):
        listed = client.get("/v1/plans", params={"proposed": asked} if asked else {}).json()["items"]
        assert [plan["plan_id"] for plan in listed] == found
    dry = client.post("/v1/plans/approve", json={"table": "sales.orders", "dry_run": True}).json()
    assert ids(dry) == [other, sales]
    assert {key: dry["plans"][0][key] for key in ("input_files", "output_files")} == {
        "input_files": 2,
        "output_files": 1,
    }
    store.decline(other, "ada", "not this one")
    done = client.post("/v1/plans/approve", json={"table": "sales.orders", "reason": "looked at"}).json()
    assert (ids(done), done["skipped"]) == ([sales], [])
    assert store.plan_events(sales)[-1].reason == "approved: looked at"
    assert [store.plan(plan).decision for plan in (sales, other, ops, plain)] == ["approved", "declined", None, None]
    assert ids(client.post("/v1/plans/decline", json={"proposed": True}).json()) == [ops]
    assert store.plan(ops).decided_by == "token ada"
    assert ids(client.post("/v1/plans/decline", json={"proposed": True}).json()) == []
    assert store.plan_state(plain) is PlanState.REQUESTED


def test_plans_proposed_after_the_listing_are_not_approved_with_the_others(context, client):
    seen = propose(context.store, "dt=1", table=SALES)
    until = datetime.now(UTC) + timedelta(seconds=1)
    later = propose(context.store, "dt=2", table=SALES)
    sql(context.store.url, "UPDATE plan SET created_at_ms = created_at_ms + 60000 WHERE id = :id", id=later)
    assert ids(client.post("/v1/plans/approve", json={"proposed": True, "until": until.isoformat()}).json()) == [seen]
    assert context.store.plan(later).waits_for_approval


@pytest.mark.parametrize("until", ["", "2099-01-01", "0s"])
def test_a_dry_run_states_its_time_and_later_files_are_not_approved_with_it(context, client, until):
    seen = propose(context.store, "dt=1", table=SALES)
    sql(context.store.url, "UPDATE plan SET created_at_ms = created_at_ms - 1000")
    dry = client.post("/v1/plans/approve", json={"proposed": True, "until": until, "dry_run": True}).json()
    later = propose(context.store, "dt=2", table=SALES)
    assert ids(dry) == [seen]
    assert ids(client.post("/v1/plans/approve", json={"proposed": True, "until": dry["until"]}).json()) == [seen]
    assert context.store.plan(later).waits_for_approval


@pytest.mark.usefixtures("clean_environment")
def test_the_command_decides_on_the_plans_that_it_listed_for_any_until(context, run, monkeypatch):
    seen = propose(context.store, "dt=1", table=SALES)
    sql(context.store.url, "UPDATE plan SET created_at_ms = created_at_ms - 1000")
    later, asked = list[str](), list[str]()

    def read(question, **_):
        asked.append(question)
        later.append(propose(context.store, "dt=2", table=SALES))

    monkeypatch.setattr(CommandOutput, "can_prompt", True)
    monkeypatch.setattr("typer.confirm", read)
    code, out, _ = run("plans", "approve", "--all", "--until", "2099-01-01")
    assert (code, asked, out.splitlines()[-1]) == (0, ["Approve 1 plan?"], "1 plan approved")
    assert [context.store.plan(plan).decision for plan in (seen, *later)] == ["approved", None]


def test_the_default_time_limit_of_a_bulk_action_is_the_databases_time(context, client):
    propose(context.store, "dt=1", table=SALES)
    sql(context.store.url, "UPDATE plan SET created_at_ms = created_at_ms + 60000")
    dry = client.post("/v1/plans/approve", json={"proposed": True, "until": "2099-01-01", "dry_run": True}).json()
    assert ids(dry) == []
    assert abs(datetime.fromisoformat(dry["until"]) - context.store.database_time()) < timedelta(seconds=30)


def test_a_proposal_that_its_successor_replaced_meanwhile_is_left_with_the_reason(context, client, monkeypatch):
    old = propose(context.store, "dt=1", table=SALES)
    begin = context.store.begin_bulk_action

    def overtaken(*arguments, **more):
        begun = begin(*arguments, **more)
        propose(context.store, "dt=1", table=SALES, replaced_proposals={old: "a file changed"})
        return begun

    monkeypatch.setattr(context.store, "begin_bulk_action", overtaken)
    done = client.post("/v1/plans/approve", json={"table": "sales.orders"}).json()
    assert (ids(done), [left["plan_id"] for left in done["skipped"]]) == ([], [old])
    assert "is cancelled and does not wait for approval" in done["skipped"][0]["reason"]
    assert [plan.waits_for_approval for plan in context.store.plans()] == [True, False]


@pytest.mark.slow
def test_a_bulk_action_over_the_limit_of_a_call_continues_in_the_next_call(context, client, monkeypatch):
    monkeypatch.setattr(bulk_actions, "MAX_PLANS", 2)
    plans = [add(context.store, f"dt={n}", table=SALES).plan_id for n in range(5)]
    seen, after = [], None
    while True:
        done = client.post("/v1/plans/cancel", json={"state": "requested", "after": after}).json()
        seen += ids(done)
        after = done["next"]
        if after is None:
            break
    assert seen == plans[::-1]


@pytest.mark.parametrize(
    ("action", "chosen", "status", "says"),
    [
        ("retry", {}, 400, "retry needs a filter of plans"),
        ("cancel", {"until": "1d"}, 400, "cancel needs a filter of plans"),
        ("retry", {"state": "completed"}, 400, "only failed plans can be retried"),
        ("cancel", {"state": "failed"}, 400, "only requested and inflight plans can be cancelled"),
        ("approve", {}, 400, "approve needs a filter of plans"),
        ("approve", {"state": "inflight"}, 400, "only plans that wait for approval can be approved"),
        (
            "decline",
            {"table": "sales.orders", "proposed": False},
            400,
            "only plans that wait for approval can be declined",
        ),
        ("cancel", {"since": "yesterday"}, 422, "since: 'yesterday' is not a time; write 2026-03-01"),
        ("cancel", {"since": "-3d"}, 422, "is not a time"),
        ("retry", {"error": "bad luck"}, 422, "body.error"),
        ("retry", {"sate": "failed"}, 422, "body.sate"),
        ("delete", {"state": "failed"}, 405, "/v1/plans/delete does not accept POST"),
    ],
)
def test_terms_that_mean_nothing_or_everything_are_refused(context, client, action, chosen, status, says):
    plan = add(context.store, "dt=1", table=SALES).plan_id
    answer = client.post(f"/v1/plans/{action}", json=chosen)
    assert answer.status_code == status, answer.text
    assert says in answer.json()["detail"]
    assert context.store.plan_state(plan) is PlanState.REQUESTED


@pytest.mark.parametrize("action", ["cancel", "retry", "approve", "decline"])
def test_an_action_on_many_plans_needs_the_same_rights_as_on_one(context, action):
    plan, body = (
        add(context.store, "dt=1", table=SALES).plan_id,
        {"state": "failed" if action == "retry" else "requested"},
    )
    reads, writes = add_token(context.store, "read"), add_token(context.store, "write")
    with client_of(context) as nobody:
        assert nobody.post(f"/v1/plans/{action}", json=body).status_code == 401
    with client_of(context, reads) as reader:
        assert reader.post(f"/v1/plans/{action}", json=body | {"dry_run": True}).status_code == 403
    with client_of(context) as browser:
        browser.cookies.set(TOKEN_COOKIE, writes)
        elsewhere = {"Origin": "http://evil.example"}
        assert browser.post(f"/v1/plans/{action}", json=body, headers=elsewhere).status_code == 403
    assert context.store.plan_state(plan) is PlanState.REQUESTED


def test_a_token_limited_to_tables_means_plans_of_these_only(context):
    theirs, others = (add(context.store, "dt=1", table=table).plan_id for table in (SALES, OPS))
    token = new_token()
    context.store.add_token(
        "sales",
        digest=token_digest(token),
        scope="write",
        expires_in=None,
        actor="test",
        table_scope=TableScope(("sales.*",)),
    )
    with client_of(context, token) as limited:
        for chosen in ({"state": "requested"}, {"name": "o"}, {"since": "1d"}):
            assert ids(limited.post("/v1/plans/cancel", json=chosen | {"dry_run": True}).json()) == [theirs]
        assert [plan["plan_id"] for plan in limited.get("/v1/plans?name=o").json()["items"]] == [theirs]
        assert ids(limited.post("/v1/plans/cancel", json={"since": "1d"}).json()) == [theirs]
        assert limited.get(f"/v1/plans?after={others[-8:]}").status_code == 404
    assert context.store.plan_state(others) is PlanState.REQUESTED


def test_times_are_given_as_dates_times_and_ages(client, context):
    plan = add(context.store, "dt=1", table=SALES).plan_id
    today = datetime.now(UTC)
    for since, found in (
        (today.date().isoformat(), 1),
        ((today - timedelta(minutes=1)).isoformat(), 1),
        ("2d", 1),
        ("15min", 1),
        ((today + timedelta(days=1)).date().isoformat(), 0),
        ("2099-01-01T00:00Z", 0),
        ("0s", 0),
    ):
        assert len(client.get("/v1/plans", params={"since": since}).json()["items"]) == found, since
    for until, found in (("2d", 0), ("0s", 1), ((today + timedelta(days=1)).date().isoformat(), 1)):
        assert len(client.get("/v1/plans", params={"until": until}).json()["items"]) == found, until
    for wrong in ("1970-01-01", "9999-12-31", "nan", "1e400d", "2026-13-01"):
        assert client.get("/v1/plans", params={"since": wrong}).status_code == 422, wrong
    assert client.get("/v1/plans?name=%25").json()["items"] == []
    assert [item["plan_id"] for item in client.get("/v1/plans?name=.ORD").json()["items"]] == [plan]
