# SPDX-License-Identifier: Apache-2.0
"""Secrets planted everywhere a configuration has them, and every output searched for them."""

import json
import logging
import sys
import traceback

import pytest
from api_toys import client_of
from toys.timeline_tables import create

from lake import redaction
from lake.errors import Transient, one_line
from service.cli import main
from service.control.config.loader import ConfigError
from service.control.lake_cache import LakeCache
from service.control.store import Store
from service.control.wiring import open_config, open_store
from service.problems import problem_document
from service.server.api.context import Context
from service.server.api.token_cache import TokenCache
from service.server.observability.logs import JsonFormatter, TextFormatter
from service.server.observability.metrics import Metrics
from service.server.observability.metrics_page import MetricsPage

pytestmark = pytest.mark.filterwarnings("ignore:Query string argument")  # SQLite has no password
SIGNING_KEY = "cGxhbnRlZC1zaWduaW5nLWtleS1vZi0zMi1ieXRlcyE="
PLANTED = {
    "database password": "Pl4nted-db-pass",
    "signing key": SIGNING_KEY,
    "webhook path": "T0000/B0000/planted-in-path",
    "ping id": "7f0c-planted-ping",
    "S3 secret": "pl4nted/s3/secret+key",
    "store password": "pl4nted-jks-pass",
    "callback key": "pl4nted-callback-key",
    "metastore password": "pl4nted-hive-pass",
    "session token": "pl4nted-session-token",
    "Hudi's key": "pl4nted-hudi-callback-key",
    "lineage key": "pl4nted-lineage-key",
    "tracing header": "pl4nted-tracing-header",
}


@pytest.fixture
def home(toys, tmp_path, monkeypatch):
    """A configuration with every planted secret, next to one toy table that states some of them too."""
    create(tmp_path / "lake" / "t", name="t")
    monkeypatch.setattr(redaction, "_secrets", set())
    config = tmp_path / "lakefold.toml"
    config.write_text(
        f"""
[database]
url = "sqlite:///{tmp_path}/lakefold.db?password={PLANTED["database password"]}"
[notify]
webhook_url = "https://hooks.example.org/{PLANTED["webhook path"]}"
webhook_secret = "whsec_{SIGNING_KEY}"
heartbeat_url = "https://user:secret@ping.example.org/{PLANTED["ping id"]}"
[http]
hudi_callback_key = "{PLANTED["Hudi's key"]}"
[openlineage]
url = "https://lineage.example.org"
api_key = "{PLANTED["lineage key"]}"
[opentelemetry]
traces_url = "https://traces.example.org"
headers = {{authorization = "Bearer {PLANTED["tracing header"]}"}}
[spark]
"spark.hadoop.fs.s3a.secret.key" = "{PLANTED["S3 secret"]}"
"spark.driver.extraJavaOptions" = "-Xmx1g -Djavax.net.ssl.keyStorePassword={PLANTED["store password"]}"
[[sources]]
path = "lake/t"
format = "toy"
name = "t"
[[tables]]
match = "*"
[tables.write_options]
hoodie.write.commit.callback.http.api.key = "{PLANTED["callback key"]}"
hoodie.datasource.hive_sync.jdbcurl = "jdbc:hive2://hive:10000/;user=h;password={PLANTED["metastore password"]}"
hoodie.write.lock.s3.session.token = "{PLANTED["session token"]}"
hoodie.write.lock.zookeeper.lock_key = "the_name_of_a_lock"
"""
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def planted_in(text: str) -> list[str]:
    """What secrets ``text`` tells."""
    return [name for name, secret in PLANTED.items() if secret in text]


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_no_command_prints_a_secret(home, capsys, form):
    assert main.run(("db", "upgrade")) == 0
    for command in (("config", "show"), ("config", "show", "t"), ("config", "check"), ("status",), ("tables", "list")):
        main.run((*command, *form))
        output = "".join(capsys.readouterr())
        assert planted_in(output) == [], command
        if command[:2] == ("config", "show"):
            assert redaction.REDACTED in output
    main.run(("config", "show", "t", *form))
    assert "the_name_of_a_lock" in capsys.readouterr().out, "a lock's name is no secret"


def test_no_page_or_response_contains_a_secret(home):
    config = open_config()
    store = Store(config.database.url.get_secret_value())
    store.upgrade()
    store.register_table(daemon_toys_ref(config), "compact")
    metrics = Metrics("all")
    page = MetricsPage(metrics.process_registry, metrics.table_series)
    context = Context(
        config=config,
        store=store,
        metrics=metrics,
        metrics_page=page,
        lake_cache=LakeCache(store),
        readiness_problem=lambda: None,
        role="all",
        tokens=TokenCache(store),
    )
    paths = ("/v1/settings", "/v1/settings?table=t", "/v1/status", "/v1/tables/t", "/settings", "/settings?table=t")
    with client_of(context) as client:
        for path in paths:
            answer = client.get(path)
            assert answer.status_code == 200, path
            assert planted_in(answer.text) == [], path
        assert redaction.REDACTED in client.get("/v1/settings").text
    store.close()


def test_addresses_that_are_secrets_themselves_are_shown_by_their_host(home, capsys):
    main.run(("config", "show"))
    shown = capsys.readouterr().out
    assert "https://hooks.example.org/***" in shown
    assert "https://ping.example.org/***" in shown


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_no_log_line_of_any_library_contains_a_secret(home, formatter):
    open_config()
    everything = " ".join(PLANTED.values())
    try:
        try:
            raise OSError(f"403 for {everything}")
        except OSError as error:
            raise Transient(f"the store refused {everything}") from error
    except Transient:
        record = logging.LogRecord("x", logging.ERROR, "f", 1, "with %s", (everything,), sys.exc_info())
    record.options = {"fs.s3a.secret.key": "short"}
    record.others = (everything,)
    line = formatter.format(record)
    assert planted_in(line) == []
    assert "short" not in line
    if isinstance(formatter, JsonFormatter):
        assert json.loads(line)["message"] == " ".join(["with", *[redaction.REDACTED] * len(PLANTED)])


def test_problems_and_the_database_s_texts_contain_no_secret(home):
    config = open_config()
    error = Transient("refused: " + " ".join(PLANTED.values()))
    assert planted_in(json.dumps(problem_document(error))) == []
    assert planted_in(one_line(error)) == [], "what a run and the cleaner report of themselves"
    Store(config.database.url.get_secret_value()).upgrade()
    store = open_store(config)
    ref = daemon_toys_ref(config)
    store.register_table(ref, "compact")
    store.record_scan(failed_scan(ref.name, str(error)))
    assert planted_in(str(store.last_scan(ref.name))) == []
    store.close()


def test_representations_contain_no_secret(home):
    config = open_config()
    assert planted_in(repr(config) + str(config) + repr(daemon_toys_ref(config))) == []


@pytest.mark.parametrize(
    "lines",
    [
        '[notify]\nwebhook_url = "ftp://host/Pl4nted-db-pass"',
        '[notify]\nwebhook_url = "https://host/Pl4nted-db-pass"\nwebhook_secret = "pl4nted-callback-key"',
        '[database]\nurl = ["Pl4nted-db-pass"]',
        '[tables.write_options]\nx = "Pl4nted-db-pass"',
    ],
)
def test_a_wrong_setting_is_named_and_never_quoted_where_it_may_be_a_secret(home, lines):
    (home / "lakefold.toml").write_text(lines)
    with pytest.raises(ConfigError) as refused:
        open_config()
    told = "".join(traceback.format_exception(refused.value))
    assert planted_in(told) == []
    assert "lakefold.toml" in str(refused.value)


def daemon_toys_ref(config):
    """The one table with its write options."""
    from service.control.config.catalog import Catalog

    return Catalog(config).find("t").ref


def failed_scan(table: str, error: str):
    """A scan that ended in ``error``."""
    from datetime import UTC, datetime

    from service.control.store import ScanRecord

    return ScanRecord(table=table, taken_at=datetime.now(UTC), outcome="error", error=error)


def test_text_that_merely_resembles_a_secret_stays_unchanged(home):
    for text in (
        "a token is needed: Authorization: Bearer …",
        "http://127.0.0.1:9464/plans, told to ada@example.org",
        "hoodie.write.lock.zookeeper.lock_key = sales.orders",
        "jdbc:hive2://hive:10000/default;user=h",
    ):
        assert redaction.redact(text) == text
    assert redaction.redact("Authorization: Bearer lkf_0123456789") == "Authorization: Bearer ***"
