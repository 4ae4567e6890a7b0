# SPDX-License-Identifier: Apache-2.0
"""Channels for people against a real SMTP server and a real HTTP receiver in this process."""

import email
import json
import logging
from contextlib import contextmanager
from datetime import timedelta
from email.policy import default

import pytest
from aiosmtpd.controller import Controller
from api_toys import client_of, context_at
from daemon_toys import running, write_config
from databases import store_at
from receiver import receiving
from support import free_port
from waiting import wait_for

from lake import redaction
from service.control.config.loader import ConfigError, load_config
from service.control.serializers import service_settings
from service.control.wiring import open_store
from service.server.notify.channels import _secret_parts, open_channels
from service.server.notify.delivery import MessageDelivery
from service.server.observability.metrics import Metrics

pytestmark = pytest.mark.usefixtures("clean_environment")

TOKEN = "k3yOfTheChannel99"
MAIL_PASSWORD = "pa55-of-the-mail"


class Mailbox:
    """Keeps what the server takes; ``refuses`` makes it answer 550 to every recipient."""

    def __init__(self):
        self.messages, self.refuses = [], False

    async def handle_RCPT(self, server, session, envelope, address, options):  # noqa: N802 - aiosmtpd's name
        if self.refuses:
            return f"550 {address} is unknown here, {MAIL_PASSWORD}"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server, session, envelope):  # noqa: N802 - aiosmtpd's name
        self.messages.append(email.message_from_bytes(envelope.content, policy=default))
        return "250 OK"


@contextmanager
def mail_server():
    box = Mailbox()
    controller = Controller(box, hostname="127.0.0.1", port=free_port())
    controller.start()
    try:
        yield box, controller.port
    finally:
        controller.stop()


@pytest.fixture
def mail():
    with mail_server() as found:
        yield found


def write(home, *channels, more=""):
    """A configuration with these channels: name, address, and a line more."""
    lines = [f'[database]\nurl = "sqlite:///{home}/lakefold.db"\n[notify]\n{more}']
    lines += [
        f'[[notify.channels]]\nname = "{name}"\naddress = "{address}"\n{rest}' for name, address, rest in channels
    ]
    (home / "lakefold.toml").write_text("\n".join(lines))


def mail_address(port, to="ops@example.org"):
    return f"mailto://127.0.0.1:{port}?from=lakefold@example.org&to={to}"


class Rig:
    """Store and deliveries of the configuration in the working directory."""

    def __init__(self, home):
        store_at(home).close()
        config = load_config()
        self.store, self.metrics = open_store(config), Metrics("scheduler")
        self.deliveries = {
            name: MessageDelivery(
                config.notify, self.store, channel, self.metrics, is_leader=lambda: True, channel=name
            )
            for name, channel in open_channels(config).items()
        }

    def states(self):
        return {(one.channel, one.event): one.state.value for one in self.store.notifications()}


@pytest.fixture
def rig(tmp_path):
    made = []

    def build():
        made.append(Rig(tmp_path))
        return made[-1]

    yield build
    for one in made:
        one.store.close()


def test_an_event_reaches_slack_mail_and_chat_as_text_each_by_its_own_events(tmp_path, rig, mail, monkeypatch):
    box, port = mail
    with receiving() as receiver:
        receiver.text = b"ok"  # as Slack answers
        plugins = pytest.importorskip("apprise.plugins.slack")
        monkeypatch.setattr(plugins.NotifySlack, "webhook_url", f"{receiver.url}/services")
        slack = "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ"
        chat = f"mmost://127.0.0.1:{receiver.url.rpartition(':')[2]}/{TOKEN}"
        write(
            tmp_path,
            ("ops", slack, 'events = ["scan.*"]'),
            ("owners", mail_address(port), ""),
            ("chat", chat, 'events = ["table.halted"]'),
            more='page_url = "https://lake.example.org"',
        )
        one = rig()
        one.store.notify("scan.failing", table="sales.orders", reason="no such directory")
        one.store.notify("scan.recovered", table="sales.orders", reason="")
        one.store.notify("table.halted", table="sales.items", reason="rows differ")
        for delivery in one.deliveries.values():
            delivery.tick()
        assert set(one.states().values()) == {"delivered"}
        assert sorted(key for key in one.states()) == [
            ("chat", "table.halted"),
            ("ops", "scan.failing"),
            ("ops", "scan.recovered"),
            ("owners", "scan.failing"),
            ("owners", "table.halted"),
        ]
        to_slack = [json.loads(r.body) for r in receiver.requests if r.path.startswith("/services/T1JJ3T3L2/")]
        (to_chat,) = [json.loads(r.body) for r in receiver.requests if TOKEN in r.path]
    text = json.dumps(to_slack[0])
    assert "lakefold: scan failing: sales.orders" in text
    assert "no such directory" in text
    assert "https://lake.example.org/tables/sales.orders" in text
    assert "rows differ" in json.dumps(to_chat)
    assert [str(message["Subject"]) for message in box.messages] == [
        "lakefold: scan failing: sales.orders",
        "lakefold: table halted: sales.items",
    ]
    assert box.messages[0]["To"] == "ops@example.org"
    body = box.messages[0].get_body(("plain", "html")).get_content()
    assert "no such directory" in body
    assert "https://lake.example.org/tables/sales.orders" in body


def test_a_receiver_that_refuses_is_tried_again_delays_no_other_and_ends_dead(tmp_path, rig, mail, monkeypatch):
    box, port = mail
    with mail_server() as (other, other_port):
        write(
            tmp_path,
            ("broken", mail_address(port), ""),
            ("fine", mail_address(other_port), ""),
            more="webhook_attempts = 2",
        )
        box.refuses, one = True, rig()
        monkeypatch.setattr("service.server.notify.delivery._FIRST_RETRY_DELAY", timedelta(0))
        for number in range(3):
            one.store.notify("scan.failing", table=f"t{number}", reason="")
        for _ in range(8):
            for delivery in one.deliveries.values():
                delivery.tick()
        states = [(message.channel, message.state.value) for message in one.store.notifications()]
        assert sorted(states) == [("broken", "dead")] * 3 + [("fine", "delivered")] * 3
        assert (len(other.messages), len(box.messages)) == (3, 0)
        dead = [message for message in one.store.notifications() if message.channel == "broken"]
        assert {message.attempts for message in dead} == {2}
        assert all(message.error for message in dead)
        box.refuses = False
        one.store.retry_notifications(None, actor="test")
        one.deliveries["broken"].tick()
        assert len(box.messages) == 3


def test_no_secret_of_an_address_is_in_a_log_an_error_a_setting_or_the_page(tmp_path, rig, mail, caplog, run):
    box, port = mail
    box.refuses = True
    secret_mail = f"mailto://alice:{MAIL_PASSWORD}@127.0.0.1:{port}?from=a@example.org&to=b@example.org"
    with receiving() as receiver, caplog.at_level(logging.DEBUG):
        receiver.answer = lambda request: (403, {})
        chat = f"mmost://127.0.0.1:{receiver.url.rpartition(':')[2]}/{TOKEN}"
        write(tmp_path, ("mail", secret_mail, ""), ("chat", chat, ""))
        one = rig()
        one.store.notify("scan.failing", table="t", reason="why")
        for delivery in one.deliveries.values():
            delivery.tick()
        assert receiver.requests
    errors = [message.error or "" for message in one.store.notifications()]
    assert all(errors)
    shown = json.dumps(service_settings(load_config()), default=str)
    context = context_at(
        tmp_path, rules=(tmp_path / "lakefold.toml").read_text().partition("[notify]")[2].join(("[notify]", ""))
    )
    with client_of(context) as client:
        pages = [client.get(path).text for path in ("/notifications", "/settings", "/v1/settings", "/v1/notifications")]
    context.store.close()
    _, out, err = run("config", "show")
    for text in (caplog.text, *errors, shown, *pages, out, err):
        assert TOKEN not in text
        assert MAIL_PASSWORD not in text
    assert "channel chat (Mattermost)" in caplog.text


@pytest.mark.parametrize(
    ("address", "secrets"),
    [
        (
            "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ",
            {"T1JJ3T3L2", "A1BRTD4JD", "TIiajkdnlazkcOXrIdevi7FQ"},
        ),
        ("mailtos://me:pa55-word@smtp.example.com:587?to=ops%40example.com", {"pa55-word", "ops%40example.com"}),
        ("jsons://127.0.0.1:8080/k3yOfTheChannel99", {"k3yOfTheChannel99"}),
    ],
)
def test_the_host_of_a_channel_is_no_secret_of_every_text(address, secrets, monkeypatch):
    """A metastore on the same host would be *** in each message."""
    monkeypatch.setattr(redaction, "_secrets", set())
    redaction.add_secrets(_secret_parts(address))
    assert redaction._secrets == secrets


def test_the_daemon_delivers_to_channels_without_a_webhook(tmp_path, mail):
    box, port = mail
    (tmp_path / "lake").mkdir()
    config = write_config(tmp_path)
    config.write_text(f'{config.read_text()}\n[[notify.channels]]\nname = "m"\naddress = "{mail_address(port)}"\n')
    from service.server.daemon.process import Daemon

    store_at(tmp_path).close()
    with Daemon(load_config(config), "scheduler") as daemon, running(daemon):
        daemon.store.notify("scan.failing", table="t", reason="gone")
        wait_for(lambda: box.messages, "the message")


def test_a_test_message_goes_to_the_named_channel(tmp_path, run, mail):
    box, port = mail
    (tmp_path / "mail.address").write_text(mail_address(port) + "\n")
    write(tmp_path)
    with (tmp_path / "lakefold.toml").open("a") as file:
        file.write('\n[[notify.channels]]\nname = "ops"\naddress_file = "mail.address"\n')
    store_at(tmp_path).close()
    code, out, err = run("notifications", "test", "--channel", "ops")
    assert (code, err) == (0, "")
    assert "channel ops (E-Mail) accepted the message" in out
    assert str(box.messages[0]["Subject"]) == "lakefold: test: all tables"
    code, _, err = run("notifications", "test", "--channel", "opps")
    assert (code, "did you mean 'ops'" in err) == (2, True)
    box.refuses = True
    code, _, err = run("notifications", "test", "--channel", "ops")
    assert code != 0
    assert "channel ops (E-Mail): " in err


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ('name = "a"\naddress = "nosuch://secretword1/x"', "Apprise can't use its address (scheme nosuch)"),
        ('name = "a"\naddress_file = "none"', "address_file = "),
        ('name = "a"', "needs either address or address_file"),
        ('name = "a b"\naddress = "json://x"', "name"),
        ('name = "a"\naddress = "json://x"\nevents = ["plan.gone"]', "'plan.gone' is not one of"),
        ('name = "a"\naddress = "json://x"\n[[notify.channels]]\nname = "a"\naddress = "json://y"', "called 'a'"),
    ],
)
def test_a_channel_that_can_not_be_used_is_refused_in_one_line_without_its_address(tmp_path, lines, says):
    (tmp_path / "lakefold.toml").write_text(f"[[notify.channels]]\n{lines}\n")
    with pytest.raises(ConfigError) as refused:
        open_channels(load_config())
    assert says in str(refused.value)
    assert "secretword1" not in str(refused.value)
