# SPDX-License-Identifier: Apache-2.0
"""The webhook's delivery and the heartbeat against a receiver in this process."""

import json
import logging
import threading
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from daemon_toys import running, write_config
from databases import store_at
from receiver import receiving
from toys.timeline_tables import create
from waiting import wait_for

from service.cli import main
from service.control.config.loader import ConfigError, load_config
from service.control.config.notify import EVENTS, NotifySettings, parse_signing_keys
from service.control.wiring import open_store
from service.server.daemon.process import Daemon
from service.server.notify.delivery import MessageDelivery, open_webhook, retry_delay
from service.server.notify.heartbeat import Heartbeat
from service.server.notify.webhook import Webhook, signature_headers
from service.server.observability.metrics import Metrics

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
TIMEOUT = timedelta(seconds=1)


@pytest.fixture
def receiver():
    with receiving() as receiver:
        yield receiver


@pytest.fixture
def home(tmp_path, monkeypatch, receiver):
    """A configuration with the receiver as its webhook, and its database."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path, receiver, f'webhook_secret = "{SECRET}"')
    store_at(tmp_path).close()
    return tmp_path


def write(home, receiver, *lines):
    """The configuration with ``lines`` in [notify]."""
    head = f'[database]\nurl = "sqlite:///{home}/lakefold.db"\n[notify]\nwebhook_url = "{receiver.url}/hook"\n'
    (home / "lakefold.toml").write_text(head + "\n".join(lines) + "\n")


class Rig:
    """Store, delivery and metrics of the configuration in the working directory."""

    def __init__(self):
        config = load_config()
        self.store, self.metrics, self.leading = open_store(config), Metrics("scheduler"), True
        self.webhook = open_webhook(config)
        self.delivery = MessageDelivery(
            config.notify, self.store, self.webhook, self.metrics, is_leader=lambda: self.leading
        )

    def tell(self, reason="", table="t"):
        """Write one message."""
        self.store.notify("clean.failing", table=table, reason=reason)

    def counted(self):
        """Attempts by outcome."""
        value = self.metrics.registry.get_sample_value
        outcomes = ("delivered", "failed", "dead")
        return {o: int(value("lakefold_notification_attempts_total", {"outcome": o})) for o in outcomes}


@pytest.fixture
def rig(home):
    rig = Rig()
    yield rig
    rig.webhook.close()
    rig.store.close()


def test_the_signature_is_that_of_standard_webhooks():
    headers = signature_headers(
        "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}', parse_signing_keys(SECRET)
    )
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_a_message_arrives_once_signed_over_exactly_its_bytes(rig, receiver):
    rig.tell("disk full")
    rig.delivery.tick()
    rig.delivery.tick()
    [request] = receiver.requests
    body = json.loads(request.body)
    assert (request.method, request.path, request.headers["content-type"]) == ("POST", "/hook", "application/json")
    assert set(body) == {"id", "event", "at", "table", "plan", "epoch", "reason", "figures", "link"}
    assert (body["event"], body["table"], body["reason"]) == ("clean.failing", "t", "disk full")
    at = int(request.headers["webhook-timestamp"])
    assert abs(time.time() - at) < 60
    again = signature_headers(body["id"], at, request.body, parse_signing_keys(SECRET))
    assert {name: request.headers[name] for name in again} == again
    assert [message.state for message in rig.store.notifications()] == ["delivered"]
    assert rig.counted() == {"delivered": 1, "failed": 0, "dead": 0}


def test_two_secrets_sign_each_message_so_that_a_receiver_can_change_over():
    keys = parse_signing_keys(f"{SECRET} {SECRET[:-4]}AAAA")
    signatures = signature_headers("m", 1, b"", keys)["webhook-signature"].split()
    assert len(set(signatures)) == 2
    assert signature_headers("m", 1, b"", keys[1:])["webhook-signature"] == signatures[1]


def test_a_failing_receiver_gets_the_message_again_with_the_same_id_and_is_reported_once(rig, receiver, caplog):
    receiver.answer = lambda request: (503, {})
    rig.tell()
    for _ in range(3):
        rig.delivery.tick()
        rig.store.retry_notifications(None, actor="test")
    [message] = rig.store.notifications()
    assert (message.state, message.attempts, message.error) == ("waiting", 1, "answered 503 Service Unavailable")
    assert timedelta(seconds=3) < message.not_before - message.created_at < timedelta(seconds=10)
    assert len(receiver.requests) == 1
    rig.tell()
    rig.delivery.tick()
    assert [r.levelname for r in caplog.records if r.name.startswith("service.server.notify")] == ["WARNING"]


def test_the_waits_double_to_a_limit_and_are_never_quite_the_same():
    for attempt in range(1, 40):
        usual = min(timedelta(seconds=5) * 2 ** (attempt - 1), timedelta(hours=6))
        assert usual * 0.8 <= retry_delay(attempt) <= usual * 1.2
    assert len({retry_delay(3) for _ in range(20)}) > 10


@pytest.mark.parametrize("form", [lambda then: "7200", lambda then: format_datetime(then, usegmt=True)])
def test_retry_after_of_the_receiver_is_honoured(rig, receiver, form):
    then = datetime.now(UTC) + timedelta(hours=2)
    receiver.answer = lambda request: (429, {"retry-after": form(then)})
    rig.tell()
    rig.delivery.tick()
    [message] = rig.store.notifications()
    assert abs(message.not_before - then) < timedelta(seconds=30)


def test_410_ends_a_message_at_once_and_the_last_attempt_does_too(home, receiver, caplog):
    write(home, receiver, f'webhook_secret = "{SECRET}"', "webhook_attempts = 1")
    rig = Rig()
    for status in (410, 500):
        receiver.answer = lambda request, status=status: (status, {})
        rig.tell()
        rig.delivery.tick()
    assert {message.state for message in rig.store.notifications()} == {"dead"}
    assert rig.counted() == {"delivered": 0, "failed": 0, "dead": 2}
    assert sum("lakefold notifications retry" in record.getMessage() for record in caplog.records) == 2


def test_a_redirect_is_not_followed(rig, receiver):
    receiver.answer = lambda request: (307, {"location": f"{receiver.url}/elsewhere"})
    rig.tell()
    rig.delivery.tick()
    assert [request.path for request in receiver.requests] == ["/hook"]
    assert "redirect" in rig.store.notifications()[0].error


def test_while_the_receiver_is_silent_one_message_is_tried_and_the_others_keep_their_attempts(rig, receiver):
    receiver.answer = lambda request: (200, {}) if receiver.ended.wait(30) else (504, {})
    rig.delivery._webhook = Webhook(f"{receiver.url}/hook", parse_signing_keys(SECRET), timedelta(seconds=0.2))
    for _ in range(3):
        rig.tell()
    began = time.monotonic()
    rig.delivery.tick()
    assert time.monotonic() - began < 30, "no answer is waited for"
    assert sorted(message.attempts for message in rig.store.notifications()) == [0, 0, 1]


def test_a_process_that_does_not_lead_sends_nothing(rig, receiver):
    rig.tell()
    rig.leading = False
    rig.delivery.tick()
    assert receiver.requests == []


def test_a_process_that_dies_between_sending_and_noting_it_sends_the_same_message_again(rig, receiver, monkeypatch):
    rig.tell()
    monkeypatch.setattr(rig.store, "mark_notification_delivered", lambda number: (_ for _ in ()).throw(SystemExit))
    with pytest.raises(SystemExit):
        rig.delivery.tick()
    monkeypatch.undo()
    rig.delivery.tick()
    first, second = receiver.requests
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert first.body == second.body


def test_links_lead_to_the_page_of_plan_or_table(home, receiver):
    write(home, receiver, f'webhook_secret = "{SECRET}"', 'page_url = "https://lakefold.example.org/x/"')
    rig = Rig()
    rig.tell(table="a/b c")
    rig.tell(table=None)
    rig.delivery.tick()
    links = [json.loads(request.body)["link"] for request in receiver.requests]
    assert links == ["https://lakefold.example.org/x/tables/a%2Fb%20c", "https://lakefold.example.org/x/tables"]


def test_the_secret_may_be_in_a_file_next_to_the_configuration(home, receiver):
    write(home, receiver, 'webhook_secret_file = "hook.key"')
    with pytest.raises(ConfigError, match=r"hook\.key: No such file"):
        open_webhook(load_config())
    (home / "hook.key").write_text("too short")
    with pytest.raises(ConfigError, match="base64 of 24 to 64 bytes"):
        open_webhook(load_config())
    (home / "hook.key").write_text(f"{SECRET}\n")
    with open_webhook(load_config()) as webhook:
        assert webhook.send({"id": "m"}).error is None


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ('webhook_url = "file:///etc/passwd"', "must be http"),
        ('webhook_url = "https://h/x"', "needs webhook_secret"),
        (f'webhook_secret = "{SECRET}"\nwebhook_secret_file = "x"', "exclude each other"),
        ('events = ["plan.exploded"]', r"'plan.exploded' is not one of plan\.proposed, plan\.completed"),
        ('webhook_timeout = "0s"', "above zero"),
        ("webhook_attempts = 0", "greater than or equal to 1"),
    ],
)
def test_a_setting_that_can_not_work_is_refused_with_its_rule(tmp_path, monkeypatch, lines, reason):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lakefold.toml").write_text(f"[notify]\n{lines}\n")
    with pytest.raises(ConfigError, match=reason):
        load_config()


def test_events_are_chosen_by_name_or_pattern():
    assert NotifySettings(events=("plan.*",)).selected_events == frozenset(), "without a webhook nothing is wanted"
    chosen = NotifySettings(webhook_url="https://h/", webhook_secret=SECRET, events=("plan.f*", "table.halted"))
    assert chosen.selected_events == {"plan.failed", "table.halted"}
    everything = NotifySettings(webhook_url="https://h/", webhook_secret=SECRET)
    assert everything.selected_events == set(EVENTS)


def test_the_command_line_lists_retries_drops_and_tries_out(rig, receiver, capsys):
    def run(*arguments):
        code = main.run(("notifications", *arguments))
        return code, *capsys.readouterr()

    receiver.answer = lambda request: (410, {})
    assert run("list")[2] == "No notifications.\n"
    for _ in range(2):
        rig.tell("disk full")
        rig.delivery.tick()
    numbers = [m.number for m in rig.store.notifications()]
    code, out, _ = run("list", "--state", "dead", "--json")
    documents = [json.loads(line) for line in out.splitlines()]
    assert [document["number"] for document in documents] == numbers
    assert {document["state"] for document in documents} == {"dead"}
    assert "answered 410 Gone" in run("list")[1]
    assert run("retry", str(numbers[0]))[1] == "1 notification will be sent again\n"
    assert run("retry", str(numbers[0]))[1] == "0 notifications will be sent again\n", "it waits already"
    assert run("drop", str(numbers[0]))[0] == 1, "it is not dead any more"
    assert run("retry", "4711")[0] == 10
    assert run("drop", "--all")[1] == "1 notification dropped\n"
    assert run("drop")[0] == 2
    assert run("list", "--state", "lost")[0] == 2
    code, out, err = run("test")
    assert (code, out) == (1, "")
    assert "answered 410" in err
    receiver.answer = lambda request: (204, {})
    code, out, _ = run("test")
    assert (code, out.strip().endswith("answered 204")) == (0, True)
    assert json.loads(receiver.requests[-1].body)["event"] == "test"


def test_a_heartbeat_goes_out_after_a_success_and_not_more_often_than_it_should(receiver):
    heartbeat = Heartbeat(NotifySettings(heartbeat_url=f"{receiver.url}/ping").heartbeat_url, timedelta(hours=1))
    heartbeat.beat()
    heartbeat.close()
    heartbeat.beat()
    heartbeat.close()
    assert [(request.method, request.path) for request in receiver.requests] == [("GET", "/ping")]
    Heartbeat(None, timedelta(hours=1)).beat()


def test_a_heartbeat_that_hangs_delays_no_loop_and_one_that_fails_is_logged_once(receiver, caplog):
    caplog.set_level(logging.INFO)
    heartbeat = Heartbeat(NotifySettings(heartbeat_url=f"{receiver.url}/ping").heartbeat_url, timedelta(0))
    may_answer = threading.Event()
    receiver.answer = lambda request: (may_answer.wait(60), (500, {}))[1]
    for _ in range(10):
        heartbeat.beat()
    may_answer.set()
    heartbeat.close()
    heartbeat.beat()
    heartbeat.close()
    receiver.answer = lambda request: (200, {})
    heartbeat.beat()
    heartbeat.close()
    told = [(r.levelname, r.getMessage()) for r in caplog.records if r.name == "service.server.notify.heartbeat"]
    assert [level for level, _ in told] == ["WARNING", "INFO"]
    assert "answered 500" in told[0][1]
    assert "/ping" not in str(told)
    assert len(receiver.requests) == 3, "a beat that had waited for its answer would have asked as well"


@pytest.mark.slow
def test_the_daemon_reports_its_plans_and_beats_after_scans_and_cleanings(toys, tmp_path, receiver):
    create(tmp_path / "lake" / "t1", name="t1")
    path = write_config(tmp_path)
    with path.open("a") as file:
        file.write(
            f'[notify]\nwebhook_url = "{receiver.url}/hook"\nwebhook_secret = "{SECRET}"\nevents = ["plan.*"]\n'
            f'heartbeat_url = "{receiver.url}/scan"\nclean_heartbeat_url = "{receiver.url}/clean"\n'
        )
    store_at(tmp_path).close()
    with running(Daemon(load_config(path), "all")) as daemon:
        wait_for(lambda: {r.path for r in receiver.requests} == {"/hook", "/scan", "/clean"}, "all three called")
        wait_for(lambda: daemon.store.notifications("delivered"), "the delivery noted")
        [message] = daemon.store.notifications()
    [request] = [request for request in receiver.requests if request.path == "/hook"]
    body = json.loads(request.body)
    assert body == {**message.body, "link": None}
    assert (body["event"], body["table"], body["epoch"]) == ("plan.completed", "t1", 1)
    assert body["figures"]["files_before"] == 6
    assert [request.path for request in receiver.requests].count("/scan") == 1, "once a minute is enough"
