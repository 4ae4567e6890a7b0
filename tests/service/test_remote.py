# SPDX-License-Identifier: Apache-2.0
"""``lakefold --url``: each command on the machine itself and against its HTTP API, the same to the byte."""

import json
import re
import sqlite3
import threading
from contextlib import closing
from datetime import datetime

import pytest
from api_toys import add_token
from daemon_toys import running, write_config
from support import free_port
from toys.timeline import ToyFormat
from toys.timeline_tables import create
from waiting import wait_for

from lake.plan import PlanState
from service.cli import output
from service.cli.commands import audit, notifications, plans, status
from service.cli.output.command_output import CommandOutput
from service.control.config.loader import load_config
from service.control.store import NotificationState, Store, StoreSettings
from service.server.daemon.process import Daemon

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("clean_environment")]

READ_AT = re.compile(r'"(?:taken_at|seen_at)":"[^"]*",')


def _as_read(answer):
    """An answer without the time of its reading."""
    return answer[0], READ_AT.sub("", answer[1])


class Later(datetime):
    """A clock for commands that stands still, so that ages are the same in two runs."""

    @classmethod
    def now(cls, tz=None):
        return datetime(2100, 1, 1, tzinfo=tz)


class Service:
    """A scheduler and an API process without an executor: plans stay requested until ``execute``."""

    def __init__(self, home, store, port, run):
        self.home, self.store, self.url, self.run = home, store, f"http://127.0.0.1:{port}", run

    def execute(self):
        """Run the plans there are."""
        with Daemon(load_config(self.home / "lakefold.toml"), "executor") as daemon:
            assert daemon.run_once() == 0

    def there(self, *arguments):
        """A command from another machine."""
        return self.run("--url", self.url, *arguments)

    def both(self, *arguments):
        """A command here and there with the same exit code and output: code, output and the other machine's errors.

        But for the time of a status, and when processes were seen: nothing else changes between the two.
        """
        if arguments[0] == "status":  # over HTTP it may be a second old
            wait_for(lambda: _as_read(self.run(*arguments)) == _as_read(self.there(*arguments)), "the same status", 10)
        here, there = self.run(*arguments), self.there(*arguments)
        assert _as_read(here) == _as_read(there), there[2]
        return there


@pytest.fixture
def service(toys, tmp_path, store, monkeypatch, run):
    for module in (audit, notifications, plans, status, output.plans, output.tables):
        monkeypatch.setattr(module, "datetime", Later)
    for name in ("t1", "t2"):
        create(tmp_path / "lake" / name, name=name)
    monkeypatch.setenv("LAKEFOLD_TOKEN", add_token(store, "write"))
    port = free_port()
    config = load_config(write_config(tmp_path, http={"port": port}))
    scheduler = load_config(write_config(tmp_path, daemon={"leader_ttl": "1h"}, policy={"scan_interval": "1h"}))
    write_config(tmp_path, http={"port": port})
    with running(Daemon(scheduler, "scheduler")), running(Daemon(config, "api")):
        wait_for(lambda: store.figures().count(PlanState.REQUESTED) == 2, "both tables planned")
        yield Service(tmp_path, store, port, run)


def proposed_before(service, plan):
    """Let a plan be one that a scan has proposed."""
    with sqlite3.connect(service.home / "lakefold.db") as database:
        database.execute("UPDATE plan SET proposed_at_ms = created_at_ms WHERE id = ?", (plan,))
    database.close()


def scans_to_come(service):
    """How many reports of written partitions, the one after a table's last plan among them, wait for their scan."""
    with closing(sqlite3.connect(service.home / "lakefold.db")) as database:
        return database.execute("SELECT count(*) FROM written_partition").fetchone()[0]


def plan_of(service, table):
    return service.store.plans(table=table)[0].plan_id


def test_each_reading_command_prints_the_same_from_another_machine(service):
    service.store.pause("t2", "somebody")
    service.execute()
    wait_for(lambda: not scans_to_come(service), "what was executed scanned")
    done, waiting = plan_of(service, "t1"), plan_of(service, "t2")
    for command, code in {
        ("status",): 0,
        ("status", "--exit-code"): 4,
        ("tables", "list"): 0,
        ("tables", "list", "--exit-code"): 4,
        ("tables", "list", "--sort", "-name", "--limit", "1"): 0,
        ("tables", "list", "--name", "T2", "--state", "paused", "--mode", "compact", "--sort", "attention"): 0,
        ("tables", "list", "--owner", "nobody"): 0,
        ("tables", "list", "--sort", "sise"): 2,
        ("tables", "list", "--state", "halt"): 2,
        ("tables", "databases"): 0,
        ("tables", "databases", "--format", "toy"): 0,
        ("tables", "show", "t1"): 0,
        ("tables", "show", str(service.home / "lake" / "t2")): 0,
        ("tables", "explain", "t2"): 0,
        ("tables", "explain", "t2", "--files"): 0,
        ("tables", "explain", "t2", "--partition", "dt=0"): 0,
        ("tables", "replay", "t1"): 1,  # of a format that keeps no history
        ("tables", "replay", "t1", "--set", "target_file_max"): 2,
        ("tables", "advise", "t1"): 1,
        ("plans", "list"): 0,
        ("plans", "list", "--exit-code"): 4,
        ("plans", "list", "--table", "t1", "--state", "completed", "--limit", "1"): 0,
        ("plans", "list", "--after", waiting[5:]): 0,
        ("plans", "list", "--name", "T", "--since", "400d", "--until", "2099-01-01", "--state", "completed"): 0,
        ("plans", "list", "--error", "conflict"): 0,
        ("plans", "cancel", "--state", "requested", "--dry-run"): 0,
        ("plans", "retry", "--state", "failed", "--name", "t", "-n"): 0,
        ("plans", "retry", "--state", "failed", "--yes"): 0,
        ("plans", "retry"): 2,
        ("plans", "cancel", "--name", "t"): 2,
        ("plans", "show", done): 0,
        ("plans", "show", waiting[-10:]): 0,
        ("plans", "watch", done): 0,
        ("audit",): 0,
        ("audit", "--action", "paused", "--limit", "1"): 0,
        ("config", "show"): 0,
        ("config", "show", "t1"): 0,
        ("simulate", "--writer", "hudi-mor", "--batch", "insert=96MB", "--batch", "update=5000"): 0,
        ("simulate", "--writer", "hive", "--batch", "update=5000"): 2,
    }.items():
        assert service.both(*command)[0] == code, command
        assert service.both(*command, "--json")[0] == code, command


def test_each_error_ends_with_the_same_exit_code_and_one_line(service):
    service.execute()
    done, kind = plan_of(service, "t1"), ("type", "title", "status", "exit_code")
    for command, code in {
        ("tables", "show", "t9"): 10,
        ("tables", "explain", "t1", "--partition", "no/such"): 10,
        ("plans", "show", "ffffffff"): 10,
        ("plans", "watch", "ffffffff"): 10,
        ("plans", "list", "--table", "t9"): 10,
        ("plans", "request", "t9"): 10,
        ("plans", "request", "t1", "--partition", "no/such"): 10,
        ("plans", "request", "t1", "--set", "frobs=3"): 2,
        ("plans", "request", "t1", "--set", "small_file_limit=lots"): 2,
        ("plans", "request", "t1", "--kind", "frobbing"): 2,
        ("plans", "retry", done): 1,
        ("plans", "cancel", done): 1,
        ("plans", "approve", done): 1,
        ("plans", "decline", done): 1,
        ("plans", "approve", "ffffffff"): 10,
        ("pause", "t9"): 10,
        ("config", "show", "t9"): 10,
    }.items():
        here, there = service.run(*command, "--json"), service.there(*command, "--json")
        assert here[:2] == there[:2] == (code, ""), command
        problems = json.loads(here[2]), json.loads(there[2])
        assert [problems[0][key] for key in kind] == [problems[1][key] for key in kind], command
        assert "\n" not in problems[1]["detail"], command
    assert service.both("plans", "retry", done)[2].count("\n") == 1


def test_a_table_that_cannot_be_read_is_shown_as_last_scanned_with_the_reason(service, monkeypatch):
    def unreachable(*_):
        raise FileNotFoundError(2, "No such file or directory", "/lake/t2")

    for question in ("describe", "pending_actions", "snapshot"):
        monkeypatch.setattr(ToyFormat, question, unreachable)
    code, out, _ = service.both("tables", "show", "t2")
    assert (code, "unreadable" in out, "Scanned" in out) == (0, True, True)
    code, _, err = service.both("tables", "explain", "t2")
    assert (code, err.count("\n")) == (1, 1)
    assert "t2 can't be listed here: No such file or directory: /lake/t2" in err


def test_a_dry_run_prints_the_same_plan_and_stores_none(service):
    def same_plan(text):
        return re.sub(r'("(plan_id|taken_at)":)"[^"]*"', r"\1…", text)

    assert service.run("plans", "cancel", plan_of(service, "t1"))[0] == 0
    assert service.both("plans", "request", "t1", "-n", "--files")[0] == 0
    here, there = (run("plans", "request", "t1", "-n", "--json") for run in (service.run, service.there))
    assert same_plan(here[1]) == same_plan(there[1])
    assert service.store.figures().count(PlanState.REQUESTED) == 1


def test_a_plan_that_waits_for_approval_is_shown_and_decided_on_from_another_machine(service):
    first, second = plan_of(service, "t1"), plan_of(service, "t2")
    for plan in (first, second):
        proposed_before(service, plan)
    assert "requested, waits for approval" in service.both("plans", "list")[1]
    assert re.search(r"approval +waiting for", service.both("plans", "show", first)[1])
    assert service.there("plans", "approve", first[-10:], "--reason", "quiet now")[0] == 0
    code, out, _ = service.there("plans", "decline", second, "--json")
    assert (code, json.loads(out)) == (0, {"plan_id": second, "state": "cancelled", "decision": "declined"})
    assert service.store.plan(first).decision == "approved"
    assert [event.reason for event in service.store.plan_events(first)][-1] == "approved: quiet now"
    assert "approved by" in service.both("plans", "show", first)[1]
    assert service.there("plans", "approve", first)[0] == 1
    service.execute()
    assert service.store.plan_state(first) is PlanState.COMPLETED
    assert service.store.plan_state(second) is PlanState.CANCELLED


def test_a_plan_is_requested_refused_cancelled_and_watched_from_another_machine(service):
    first = plan_of(service, "t1")
    assert service.both("plans", "request", "t1")[0] == 11
    assert "is held by live plan" in service.there("plans", "request", "t1")[2]
    assert service.there("plans", "cancel", first[-10:], "--reason", "not now") == (0, f"Plan {first} cancelled\n", "")
    assert service.store.plan(first).cancel_reason == "not now"
    assert service.both("plans", "watch", first, "--json")[0] == 3

    def execute_it():
        wait_for(lambda: service.store.plans(table="t1")[0].state is PlanState.REQUESTED, "asked for")
        service.execute()

    executor = threading.Thread(target=execute_it)
    executor.start()
    code, out, err = service.there("plans", "request", "t1", "--wait", "--json")
    executor.join()
    answer, *changes = map(json.loads, out.splitlines())
    (plan_id,) = answer["plan_ids"]
    assert (code, err) == (0, "")
    assert {change["plan_id"] for change in changes} == {plan_id}
    states = list(dict.fromkeys(change["state"] for change in changes))
    assert states[-1] == "completed"
    assert set(states) <= {"requested", "inflight", "completed"}
    assert changes[-1]["files_after"] < changes[-1]["files_before"]


def test_many_plans_are_cancelled_and_requested_again_after_a_question(service, monkeypatch):
    plans = [plan_of(service, table) for table in ("t1", "t2")]
    code, out, err = service.there("plans", "cancel", "--since", "100d")
    assert (code, out) == (2, "")
    assert "2 plans to cancel; add --yes to confirm, or --dry-run to list them" in err
    asked = []
    monkeypatch.setattr(CommandOutput, "can_prompt", True)
    monkeypatch.setattr("typer.confirm", lambda text, **_: asked.append(text))
    code, out, _ = service.there("plans", "cancel", "--name", "t", "--reason", "the lake moves")
    assert (code, asked) == (0, ["Cancel 2 plans?"])
    assert out.splitlines()[-1] == "2 plans cancelled, or asked to stop before the commit"
    for plan in plans:
        assert service.store.plan(plan).cancel_reason == "the lake moves"
    code, out, _ = service.there("plans", "cancel", "--name", "t", "--json")
    assert (code, out) == (0, ""), "none is left"
    code, _, err = service.there("plans", "cancel", plans[0], "--name", "t")
    assert code == 2
    assert "give either PLAN or options that select plans" in err


def test_many_proposals_are_listed_and_decided_on_after_a_question(service, monkeypatch):
    plans = [plan_of(service, table) for table in ("t1", "t2")]
    assert service.both("plans", "list", "--proposed", "--json")[:2] == (0, "")
    for plan in plans:
        proposed_before(service, plan)
    assert service.both("plans", "list", "--proposed")[1].count("waits for approval") == 2
    code, _, err = service.there("plans", "approve", "--all")
    assert (code, "2 plans to approve; add --yes to confirm, or --dry-run to list them" in err) == (2, True)
    assert service.both("plans", "approve", "--name", "T", "-n")[0] == 0
    assert service.both("plans", "approve")[0] == 2
    assert "give either PLAN or options" in service.there("plans", "decline", plans[0], "--all")[2]
    asked = []
    monkeypatch.setattr(CommandOutput, "can_prompt", True)
    monkeypatch.setattr("typer.confirm", lambda text, **_: asked.append(text))
    code, out, _ = service.there("plans", "approve", "--table", "t1", "--reason", "quiet now")
    assert (code, asked, out.splitlines()[-1]) == (0, ["Approve 1 plan?"], "1 plan approved")
    assert service.there("plans", "decline", "--all", "--yes")[1].splitlines()[-1] == "1 plan declined"
    decided = [service.store.plan(plan) for plan in plans]
    assert [plan.decision for plan in decided] == ["approved", "declined"]
    assert service.both("plans", "approve", "--all", "--yes")[:2] == (0, "0 plans approved\n")


def test_the_same_idempotency_key_of_the_same_caller_makes_one_request(service):
    service.run("plans", "cancel", plan_of(service, "t1"))
    ask = ("plans", "request", "t1", "--idempotency-key", "k1", "--json")
    first, again = service.there(*ask), service.there(*ask)
    assert first == again
    assert json.loads(first[1])["outcome"] == "planned"
    assert service.there("plans", "request", "t2", "--idempotency-key", "k1")[0] == 2
    assert service.run(*ask)[0] == 11, "a key of another actor is not met"


def test_a_pause_and_its_end_are_the_same_from_another_machine(service):
    for command in ("pause", "resume"):
        for table in ((), ("t1",)):
            assert service.both(command, *table)[0] == 0
            assert service.both(command, *table, "--json")[0] == 0
    service.there("pause", "t1", "--reason", "upgrade")
    code, _, err = service.both("plans", "request", "t1")
    assert (code, "t1 is paused by token write: upgrade; to continue: lakefold resume t1" in err) == (12, True)
    assert "t1 is paused by token write: upgrade\n" in service.both("status")[1]
    assert [table.pause and table.pause.words for table in service.store.table_states()] == [
        "by token write: upgrade",
        None,
    ]


def test_messages_that_were_given_up_are_listed_sent_again_and_dropped_from_another_machine(service):
    outbox = Store(f"sqlite:///{service.home}/lakefold.db", StoreSettings(notify_events=frozenset({"clean.failing"})))
    for _ in range(4):
        outbox.notify("clean.failing", table="t1", reason="disk full")
    fourth, third, second, first = (message.number for message in outbox.notifications())
    for number in (first, second, third):
        outbox.mark_notification_failed(number, "answered 410 Gone", None)
    outbox.mark_notification_delivered(fourth)
    for command, code in {
        ("list",): 0,
        ("list", "--state", "dead", "--limit", "2", "--after", str(fourth)): 0,
        ("list", "--after", "1", "--state", "delivered"): 0,
        ("list", "--state", "lost"): 2,
        ("retry",): 2,
        ("retry", str(first), "4711"): 10,
        ("retry", str(first), str(fourth)): 1,
        ("drop", str(fourth)): 1,
    }.items():
        assert service.both("notifications", *command)[0] == code, command
        assert service.both("notifications", *command, "--json")[0] == code, command
    assert "3 notifications could not be delivered" in service.both("status")[1]
    for _ in range(2):
        service.there("notifications", "retry", str(first))
    assert [message.number for message in outbox.notifications(NotificationState.WAITING)] == [first]
    assert service.there("notifications", "drop", str(second), "--json")[1] == '{"dropped":1}\n'
    assert service.there("notifications", "retry", "--all", "--json")[1] == '{"retried":1}\n'
    assert not outbox.notifications(NotificationState.DEAD)
    outbox.close()


def test_a_token_that_is_missing_wrong_or_may_not_write_is_one_line_and_1(service, monkeypatch):
    reader = add_token(service.store, "read")
    for token, words in (("", "LAKEFOLD_TOKEN is not set"), ("wrong-token", "wrong"), (reader, "scope read")):
        monkeypatch.setenv("LAKEFOLD_TOKEN", token)
        wait_for(lambda words=words: words in service.there("pause")[2], words)
        code, out, err = service.there("pause")
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert not token or token not in err


def test_the_environment_names_the_service_and_the_option_wins(service, monkeypatch):
    monkeypatch.setenv("LAKEFOLD_URL", service.url)
    (service.home / "lakefold.toml").unlink()
    assert service.run("plans", "list")[0] == 0
    code, _, err = service.run("--url", "http://127.0.0.1:1", "plans", "list")
    assert (code, "http://127.0.0.1:1: can't connect" in err) == (13, True)
