# SPDX-License-Identifier: Apache-2.0
"""The webhook's outbox over HTTP: what it lists, what is sent again or dropped, and what is refused."""

import json

import pytest
from api_toys import add_token, client_of, context_at

from service.cli import main
from service.control.config.notify import EVENTS
from service.control.store import NotificationState, Store, StoreSettings


@pytest.fixture
def context(tmp_path, monkeypatch):
    """A process with messages 1 to 6: 1 and 2 dead, 3 delivered, the others waiting."""
    monkeypatch.chdir(tmp_path)
    context = context_at(tmp_path)
    outbox = Store(context.store.url, StoreSettings(notify_events=frozenset(EVENTS)))
    for number in range(1, 7):
        outbox.notify("clean.failing", table="t1" if number % 2 else None, reason=f"disk {number} full")
    for number in (1, 2):
        outbox.mark_notification_failed(number, "answered 410 Gone", None)
    outbox.mark_notification_delivered(3)
    outbox.close()
    yield context
    context.store.close()


@pytest.fixture
def client(context):
    """A client with the write scope."""
    with client_of(context, add_token(context.store, "write")) as client:
        yield client


def states(context):
    return {message.number: message.state.value for message in context.store.notifications()}


def test_messages_are_paged_newest_first_as_the_command_line_prints_them(client, capsys):
    found, path = [], "/v1/notifications?limit=4"
    while path:
        answer = client.get(path)
        assert answer.status_code == 200
        found.append(answer.json()["items"])
        path = answer.links["next"]["url"] if answer.json()["next"] else None
    assert [[message["number"] for message in page] for page in found] == [[6, 5, 4, 3], [2, 1]]
    assert main.run(["notifications", "list", "--json"]) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [message for page in found for message in page] == printed
    [first] = found[-1][1:]
    assert (first["state"], first["table"], first["reason"]) == ("dead", "t1", "disk 1 full")
    assert (first["attempts"], first["error"], first["delivered_at"]) == (1, "answered 410 Gone", None)


def test_messages_are_listed_by_state(client):
    for state, numbers in {"waiting": [6, 5, 4], "delivered": [3], "dead": [2, 1]}.items():
        items = client.get(f"/v1/notifications?state={state}").json()["items"]
        assert [message["number"] for message in items] == numbers
    assert client.get("/v1/notifications?state=dead&after=2").json() == {
        "items": client.get("/v1/notifications?after=2").json()["items"],
        "next": None,
    }
    for wrong in ("state=lost", "after=x", "limit=0", f"after={1 << 63}"):
        assert client.get(f"/v1/notifications?{wrong}").status_code == 422


def test_status_and_metrics_count_the_same(context, client):
    status = client.get("/v1/status").json()
    assert (status["notifications_waiting"], status["notifications_dead"]) == (3, 2)
    context.metrics.stored.publish(context.lake_cache.refresh())
    value = context.metrics.registry.get_sample_value
    assert [value("lakefold_notifications", {"state": state}) for state in ("waiting", "dead")] == [3, 2]


def test_a_repeated_request_resends_a_dead_message_once(context, client):
    assert client.post("/v1/notifications/1/retry").json() == {"retried": 1}
    assert client.post("/v1/notifications/1/retry").json() == {"retried": 0}
    [again] = [message for message in context.store.notifications() if message.number == 1]
    assert (again.state, again.attempts) == (NotificationState.WAITING, 0)
    assert states(context)[2] == "dead"
    assert client.post("/v1/notifications/retry", json={"numbers": [1, 2, 2]}).json() == {"retried": 1}
    assert client.post("/v1/notifications/retry").json() == {"retried": 0}


def test_all_that_are_dead_are_dropped_or_sent_again_at_once(context, client):
    assert client.post("/v1/notifications/2/drop").json() == {"dropped": 1}
    assert client.post("/v1/notifications/drop", json={}).json() == {"dropped": 1}
    assert sorted(states(context)) == [3, 4, 5, 6]


@pytest.mark.parametrize(
    ("path", "body", "status", "detail"),
    [
        ("99/retry", None, 404, "no notification 99"),
        ("99/drop", None, 404, "no notification 99"),
        ("3/retry", None, 409, "notification 3 is delivered; only dead ones can be sent again"),
        ("4/drop", None, 409, "notification 4 is waiting; only dead ones can be dropped"),
        ("retry", {"numbers": [1, 3]}, 409, "notification 3 is delivered; only dead ones can be sent again"),
        ("drop", {"numbers": [1, 99]}, 404, "no notification 99"),
        ("drop", {"numbers": []}, 422, "body.numbers"),
        ("retry", {"number": 1}, 422, "body.number"),
        ("0/retry", None, 422, "path.number"),
        (f"{1 << 63}/retry", None, 422, "path.number"),
    ],
)
def test_an_impossible_action_is_a_problem_and_changes_nothing(context, client, path, body, status, detail):
    before = states(context)
    answer = client.post(f"/v1/notifications/{path}", json=body)
    assert (answer.status_code, answer.headers["Content-Type"]) == (status, "application/problem+json")
    assert answer.json()["detail"].startswith(detail)
    assert states(context) == before


@pytest.mark.parametrize("path", ["retry", "drop", "1/retry", "1/drop"])
def test_a_token_that_may_only_read_changes_nothing(context, path):
    with client_of(context, add_token(context.store, "read")) as reader:
        assert reader.post(f"/v1/notifications/{path}").status_code == 403
    assert states(context)[1] == "dead"
