# SPDX-License-Identifier: Apache-2.0
"""The webhook's outbox on SQLite and PostgreSQL: what is written with which change, and how a message ends."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from store_plans import TRIPS, add, claimed, commit_of, figures_of, sql

from lake.errors import LeaseLost
from service.control.config.notify import EVENTS
from service.control.store import NotFound, NotificationState, ScanRecord, Store, StoreSettings, WrongState
from service.control.store.views import ProcessFacts

pytestmark = pytest.mark.paired("database_url")

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    store = Store(database_url, StoreSettings(notify_events=frozenset(EVENTS), max_attempts=1))
    store.register_table(TRIPS, "compact")
    yield store
    store.close()


def told(store: Store) -> list[tuple[str, str | None, str | None]]:
    """Event, table and reason of each message, oldest first."""
    return [(m.event, m.body["table"], m.body["reason"]) for m in reversed(store.notifications())]


def test_without_a_webhook_nothing_is_written(database_url: str) -> None:
    store = Store(database_url)
    store.register_table(TRIPS, "compact")
    plan = add(store)
    store.request_cancel(plan.plan_id, "ada")
    store.pause(TRIPS.name, "ada")
    store.notify("clean.failing", table=TRIPS.name, reason="x")
    assert store.notifications() == []
    store.close()


def test_only_the_requested_events_are_written(database_url: str) -> None:
    store = Store(database_url, StoreSettings(notify_events=frozenset({"plan.failed"})))
    store.request_cancel(add(store).plan_id, "ada")
    add(store)
    store.fail(claimed(store), "broken")
    assert [event for event, _, _ in told(store)] == ["plan.failed"]
    store.close()


def test_each_end_of_a_plan_is_notified_with_its_figures_in_the_transaction_that_ends_it(store: Store) -> None:
    plan = add(store, "dt=1")
    claim = claimed(store)
    commit = commit_of(plan)
    store.complete(claim, commit, figures_of(plan), {})
    store.complete(claim, commit, figures_of(plan), {})
    [message] = store.notifications()
    body = message.body
    assert (body["event"], body["table"], body["plan"], body["epoch"]) == (
        "plan.completed",
        TRIPS.name,
        plan.plan_id,
        1,
    )
    assert body["figures"]["files_before"] == 2
    assert body["figures"]["input_files"] == 2
    assert datetime.fromisoformat(body["at"]) == message.created_at
    stale = add(store, "dt=2")
    claim = claimed(store)
    store.requeue(claim, "the last attempt")
    with pytest.raises(LeaseLost):
        store.fail(claim, "too late")
    store.request_cancel(add(store, "dt=3").plan_id, "ada", "not today")
    assert told(store)[1:] == [
        ("plan.failed", TRIPS.name, "attempt 1 of 1 (max_attempts): the last attempt"),
        ("plan.cancelled", TRIPS.name, "not today"),
    ]
    assert store.notifications()[1].body["plan"] == stale.plan_id


def test_halt_pause_and_resume_are_each_notified_once(store: Store) -> None:
    first = add(store, "dt=1")
    store.fail(claimed(store), "rows differ", halt=True)
    store.resume(TRIPS.name, "ada")
    store.resume(TRIPS.name, "ada")
    for _ in range(2):
        store.pause(TRIPS.name, "ada")
        store.pause(None, "bob", "new metastore")
    store.resume(None, "bob")
    assert told(store) == [
        ("plan.failed", TRIPS.name, "rows differ"),
        ("table.halted", TRIPS.name, f"plan {first.plan_id}: rows differ"),
        ("table.resumed", TRIPS.name, "by ada"),
        ("table.paused", TRIPS.name, "by ada"),
        ("table.paused", None, "by bob: new metastore"),
        ("table.resumed", None, "by bob"),
    ]


def test_the_halt_of_a_partition_names_it(store: Store) -> None:
    for _ in range(2):
        store.halt_partition(TRIPS, "dt=1", "both overwritten")
    store.resume_partitions(TRIPS.name, ["dt=1"], "ada")
    told_ = [(one.event, one.body["partition"], one.body["reason"]) for one in store.notifications()]
    assert told_ == [
        ("table.resumed", "dt=1", "partition dt=1, by ada"),
        ("table.halted", "dt=1", "both overwritten"),
    ]


def test_the_first_failed_scan_and_the_recovery_are_notified(store: Store) -> None:
    for outcome in ("ok", "error", "error", "ok", "ok"):
        error = "no such directory" if outcome == "error" else None
        store.record_scan(ScanRecord(table=TRIPS.name, taken_at=NOW, outcome=outcome, error=error))
    assert told(store) == [
        ("scan.failing", TRIPS.name, "no such directory"),
        ("scan.recovered", TRIPS.name, ""),
    ]


def test_a_message_waits_is_tried_again_later_and_ends_delivered_or_dead(store: Store) -> None:
    for number in range(3):
        store.notify("clean.failing", table=TRIPS.name, reason=str(number))
    first, second, third = store.due_notifications(10)
    assert len({message.body["id"] for message in (first, second, third)}) == 3
    store.mark_notification_delivered(first.number)
    store.mark_notification_failed(second.number, "answered 500", timedelta(hours=1))
    store.mark_notification_failed(third.number, "answered 410", None)
    assert store.due_notifications(10) == []
    figures = store.figures()
    assert (figures.notifications_waiting, figures.notifications_dead) == (1, 1)
    states = {m.number: (m.state, m.attempts, m.error) for m in store.notifications()}
    assert states == {
        first.number: ("delivered", 1, None),
        second.number: ("waiting", 1, "answered 500"),
        third.number: ("dead", 1, "answered 410"),
    }
    assert [m.number for m in store.notifications(NotificationState.DEAD)] == [third.number]
    store.mark_notification_delivered(third.number)
    assert store.notifications(NotificationState.DEAD), "what was given up does not change behind a person's back"


def test_dead_messages_are_tried_again_or_dropped_one_by_one_or_all(store: Store) -> None:
    for _ in range(4):
        store.notify("clean.failing", table=None, reason="")
    numbers = [message.number for message in store.due_notifications(10)]
    for number in numbers[:3]:
        store.mark_notification_failed(number, "gone", None)
    assert store.retry_notifications([numbers[0]], actor="test") == 1
    assert [m.number for m in store.due_notifications(10)] == [numbers[3], numbers[0]]
    with pytest.raises(WrongState, match=f"notification {numbers[3]} is waiting; only dead ones can be dropped"):
        store.drop_notifications([numbers[1], numbers[3]], actor="test")
    with pytest.raises(NotFound, match="no notification 4711"):
        store.retry_notifications([numbers[1], 4711], actor="test")
    assert len(store.notifications(NotificationState.DEAD)) == 2, "both or neither"
    assert store.retry_notifications([numbers[0], numbers[3]], actor="test") == 0, "they wait already"
    store.mark_notification_delivered(numbers[3])
    with pytest.raises(WrongState, match="is delivered; only dead ones can be sent again"):
        store.retry_notifications([numbers[1], numbers[3]], actor="test")
    assert store.drop_notifications([numbers[1]], actor="test") == 1
    assert store.retry_notifications(None, actor="test") == 1
    assert store.drop_notifications(None, actor="test") == 0


def test_messages_are_paged_newest_first(store: Store) -> None:
    for number in range(5):
        store.notify("clean.failing", table=None, reason=str(number))
    newest, second, *rest = store.notifications()
    assert [m.body["reason"] for m in (newest, second)] == ["4", "3"]
    assert store.notifications(limit=2, after=second.number) == rest[:2]
    store.mark_notification_failed(rest[0].number, "gone", None)
    assert store.notifications(NotificationState.WAITING, after=second.number) == rest[1:]


def test_ended_messages_are_pruned_after_their_time_and_waiting_ones_never(store: Store, database_url: str) -> None:
    for _ in range(4):
        store.notify("clean.failing", table=None, reason="")
    delivered, dead, fresh, _ = (message.number for message in store.due_notifications(10))
    store.mark_notification_delivered(delivered)
    store.mark_notification_delivered(fresh)
    store.mark_notification_failed(dead, "gone", None)
    day = 86_400_000
    sql(database_url, f"UPDATE notification SET delivered_at_ms = delivered_at_ms - {4 * day} WHERE id = {delivered}")
    sql(database_url, f"UPDATE notification SET dead_at_ms = dead_at_ms - {4 * day} WHERE id = {dead}")
    assert store.prune_notifications(delivered=timedelta(days=3), dead=timedelta(days=30)) == 1
    assert store.prune_notifications(delivered=timedelta(days=3), dead=timedelta(days=3)) == 1
    assert len(store.notifications()) == 2


def test_a_message_does_not_wait_because_the_databases_clock_was_set_back(store: Store, database_url: str) -> None:
    store.notify("clean.failing", table=TRIPS.name, reason="x")
    hours = "created_at_ms = created_at_ms + 28800000, not_before_ms = not_before_ms + 28800000"
    sql(database_url, f"UPDATE notification SET {hours}")
    assert store.due_notifications(10) == []
    facts = ProcessFacts(name="a daemon", role="all", host="h", version="1", slots=1)
    store.register_process(facts, timedelta(seconds=20))
    assert [one.event for one in store.due_notifications(10)] == ["clean.failing"]
