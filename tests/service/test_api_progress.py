# SPDX-License-Identifier: Apache-2.0
"""Server-sent events of a plan's progress, from a real server: changes, heartbeat, resume, end, bounds."""

import json
import sqlite3
import threading
import time

import httpx
import pytest
from api_toys import add_token, context_at
from store_plans import TRIPS, add, commit_of, figures_of
from waiting import wait_for

from lake.plan import RewriteProgress, Step
from service.control.config.http import HttpSettings
from service.server.api import progress, token_cache
from service.server.http import server as http_server
from service.server.http.app import create_app
from service.server.http.server import HttpServer

#: how long after its revocation a token may be heard at most
LATEST = token_cache._CACHE_SECONDS + progress._POLL_SECONDS
ROUND = 0.02


@pytest.fixture
def context(tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "_POLL_SECONDS", ROUND)
    context = context_at(tmp_path)
    context.store.register_table(TRIPS, "compact")
    yield context
    context.store.close()


@pytest.fixture
def app(context):
    return create_app(context)


@pytest.fixture
def server(app):
    with HttpServer(HttpSettings(port=0), app, on_stop=app.state.progress.close) as server:
        yield server


class Listener:
    """Hears the progress of a plan in a thread; ``events`` are (id, data), ``status`` is None until the answer."""

    def __init__(self, server, plan_id, **headers):
        self.events, self.lines, self.status, self.ended = [], [], None, threading.Event()
        self._url, self._headers = f"{server.url}/v1/plans/{plan_id}/progress", headers
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        try:
            with httpx.stream("GET", self._url, headers=self._headers, timeout=30) as answer:
                self.status, self.headers = answer.status_code, answer.headers
                event = {}
                for line in answer.iter_lines():
                    self.lines.append(line)
                    name, _, value = line.partition(": ")
                    event[name] = value
                    if not line and "data" in event:
                        assert event["event"] == "progress"
                        self.events.append((event["id"], json.loads(event["data"])))
                        event = {}
        finally:
            self.ended.set()

    def hears(self, **facts):
        """Wait for an event with these ``facts``."""
        wait_for(lambda: any(facts.items() <= data.items() for _, data in self.events), f"{facts}", 10)


def test_a_plan_is_followed_through_its_steps_and_bytes_to_its_end(context, server):
    plan = add(context.store, "dt=1")
    listener = Listener(server, plan.plan_id[:20])
    listener.hears(state="requested", progress_bytes_done=0)
    claim = context.store.claim("executor")
    listener.hears(state="inflight")
    context.store.record_step(claim, Step.PREPARE)
    listener.hears(step="prepare")
    context.store.heartbeat(claim, RewriteProgress(bytes_done=5, bytes_total=plan.bytes))
    listener.hears(progress_bytes_done=5, progress_bytes_total=plan.bytes)
    context.store.complete(claim, commit_of(plan), figures_of(plan), {})
    assert listener.ended.wait(10)
    assert listener.events[-1][1]["state"] == "completed"
    assert listener.events[-1][1]["files_after"] == 1
    ids = [event_id for event_id, _ in listener.events]
    assert len(ids) == len(set(ids)), "an event for each change and none for none"
    assert listener.headers["Content-Type"].startswith("text/event-stream")
    assert listener.headers["Cache-Control"] == "no-store"


def test_a_client_with_the_last_event_of_an_ended_plan_gets_204(context, server):
    plan = add(context.store, "dt=1")
    context.store.request_cancel(plan.plan_id, "ada")
    first = Listener(server, plan.plan_id)
    assert first.ended.wait(10)
    ((event_id, data),) = first.events
    assert data["state"] == "cancelled"
    again = Listener(server, plan.plan_id, **{"Last-Event-ID": event_id})
    assert again.ended.wait(10)
    assert (again.status, again.events) == (204, [])


def test_a_resumed_stream_sends_only_new_events_for_any_id(context, server):
    plan = add(context.store, "dt=1")
    first = Listener(server, plan.plan_id)
    first.hears(state="requested")
    knowing = Listener(server, plan.plan_id, **{"Last-Event-ID": first.events[0][0]})
    strange = Listener(server, plan.plan_id, **{"Last-Event-ID": "<b>1' OR 1=1"})
    strange.hears(state="requested")
    context.store.request_cancel(plan.plan_id, "ada")
    assert all(listener.ended.wait(10) for listener in (first, knowing, strange))
    assert [data["state"] for _, data in knowing.events] == ["cancelled"]
    assert [data["state"] for _, data in strange.events] == ["requested", "cancelled"]


@pytest.mark.slow
def test_all_listeners_cost_one_query_a_round_and_none_when_they_have_gone(context, server, monkeypatch):
    asked = []
    real = type(context.store).plans_by_id

    def plans_by_id(self, plan_ids):
        asked.append(len(plan_ids))
        return real(self, plan_ids)

    monkeypatch.setattr(type(context.store), "plans_by_id", plans_by_id)
    plans = [add(context.store, f"dt={n}") for n in range(3)]
    listeners = [Listener(server, plan.plan_id) for plan in plans for _ in range(4)]
    for listener in listeners:
        listener.hears(state="requested")
    asked.clear()
    began = time.monotonic()
    wait_for(lambda: len(asked) >= 3, "three rounds")
    assert len(asked) <= 1 + (time.monotonic() - began) / ROUND
    assert set(asked) == {3}
    for plan in plans:
        context.store.request_cancel(plan.plan_id, "ada")
    assert all(listener.ended.wait(10) for listener in listeners)

    def silent():
        asked.clear()
        time.sleep(10 * ROUND)
        return asked == []

    wait_for(silent, "ten rounds without a query")


@pytest.mark.slow
def test_silence_is_broken_by_comments(context, server, monkeypatch):
    monkeypatch.setattr(progress, "_HEARTBEAT_SECONDS", 0.2)
    listener = Listener(server, add(context.store, "dt=1").plan_id)
    wait_for(lambda: sum(line.startswith(":") for line in listener.lines) >= 2, "two comments", 10)
    assert len(listener.events) == 1


def test_a_short_database_outage_ends_no_stream(context, server, monkeypatch):
    from service.control.store import DatabaseUnreachable

    plan = add(context.store, "dt=1")
    listener = Listener(server, plan.plan_id)
    listener.hears(state="requested")

    asked = []

    def away(self, plan_ids):
        asked.append(plan_ids)
        raise DatabaseUnreachable("the database does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(type(context.store), "plans_by_id", away)
        wait_for(lambda: len(asked) >= 3, "three rounds without an answer")
        assert not listener.ended.is_set()
    context.store.request_cancel(plan.plan_id, "ada")
    listener.hears(state="cancelled")


def test_a_stream_ends_with_its_token_and_streams_of_other_tokens_continue(context, server, monkeypatch):
    monkeypatch.setattr(token_cache, "_CACHE_SECONDS", 0.1)
    plan = add(context.store, "dt=1")
    listeners = {
        name: Listener(server, plan.plan_id, Authorization=f"Bearer {add_token(context.store, 'read', name)}")
        for name in ("revoked", "expired", "kept")
    }
    listeners["nobody"] = Listener(server, plan.plan_id)
    for listener in listeners.values():
        listener.hears(state="requested")
    context.store.revoke_token("revoked", actor="test")
    with sqlite3.connect(context.config.file.parent / "lakefold.db") as database:
        database.execute("UPDATE api_token SET expires_at_ms = 1 WHERE name = 'expired'")
    assert listeners["revoked"].ended.wait(10)
    assert listeners["expired"].ended.wait(10)
    context.store.claim("executor")
    for name in ("kept", "nobody"):
        listeners[name].hears(state="inflight")
    assert [len(listeners[name].events) for name in ("revoked", "expired")] == [1, 1]
    assert LATEST < 5


def test_more_streams_than_there_may_be_are_refused(context, app, server):
    app.state.progress.max_streams = 2
    plan = add(context.store, "dt=1")
    for _ in range(2):
        Listener(server, plan.plan_id).hears(state="requested")
    answer = httpx.get(f"{server.url}/v1/plans/{plan.plan_id}/progress")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "10")
    assert answer.headers["Content-Type"] == "application/problem+json"


def test_streams_leave_half_of_the_connections_to_others(tmp_path):
    context = context_at(tmp_path, max_connections=20)
    assert create_app(context).state.progress.max_streams == 10
    context.store.close()


def test_an_unknown_plan_is_a_problem_and_no_stream(server):
    assert httpx.get(f"{server.url}/v1/plans/nope/progress").status_code == 404


def test_a_server_that_ends_closes_its_streams_without_waiting_for_its_grace(context, monkeypatch):
    monkeypatch.setattr(http_server, "_GRACE_SECONDS", 120)
    app = create_app(context)
    with HttpServer(HttpSettings(port=0), app, on_stop=app.state.progress.close) as server:
        listener = Listener(server, add(context.store, "dt=1").plan_id)
        listener.hears(state="requested")
        began = time.monotonic()
    assert listener.ended.wait(10)
    assert time.monotonic() - began < 60
