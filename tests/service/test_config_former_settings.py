# SPDX-License-Identifier: Apache-2.0
"""Former names of settings: they work, say what they are called now, and exclude the present name."""

from datetime import timedelta

import pytest
from config_files import MIB, ORDERS, refused, written

from lake.plan import VerificationLevel
from planner.policy.policy import SizingPolicy
from service.control.config.former_settings import RENAMED_KEYS
from service.control.config.loader import load_config
from service.control.config.table_settings import check_rules, configure_table

pytestmark = pytest.mark.usefixtures("clean_environment")

#: a configuration with every former name
FORMER = """
[database]
keep_finished = "10d"
keep_audit = "20d"
[daemon]
merge_events = "/tmp/merges.jsonl"
[work]
objective = "worth"
[notify]
keep_delivered = "1d"
keep_dead = "2d"
[http]
hosts = ["lake.example.com"]
metrics_token = true
max_body = "2MiB"
[oidc]
session = "1h"
[defaults]
receipt = "hash"
missing_base = "5MiB"
[[tables]]
match = "other"
[[tables]]
match = "sales.*"
weight = 3
"""


def test_a_configuration_with_all_former_names_has_the_same_settings():
    path = written(FORMER)
    config = load_config()
    check_rules(config)
    assert (config.database.plan_retention, config.database.audit_retention) == (timedelta(days=10), timedelta(days=20))
    assert (config.notify.delivered_retention, config.notify.dead_retention) == (timedelta(days=1), timedelta(days=2))
    assert config.http.allowed_hosts == ("lake.example.com",)
    assert (config.http.metrics_need_token, config.http.max_body_size) == (True, 2 * MIB)
    assert str(config.daemon.merge_events_file) == "/tmp/merges.jsonl"
    assert (config.oidc.session_lifetime, config.work.objective) == (timedelta(hours=1), "benefit")
    policy = configure_table(config, ORDERS).policy
    assert (policy.verification, policy.log_only_slice_size_bytes) == (VerificationLevel.HASH, 5 * MIB)
    assert policy.priority_weight == 3
    lines = {line: number for number, line in enumerate(FORMER.splitlines(), 1)}
    for line, notice in (
        ('keep_audit = "20d"', "[database] keep_audit was renamed to audit_retention"),
        ('max_body = "2MiB"', "[http] max_body was renamed to max_body_size"),
        ('objective = "worth"', '[work] objective = "worth" was renamed to "benefit"'),
        ('receipt = "hash"', "receipt was renamed to verification"),
        ("weight = 3", "weight was renamed to priority_weight"),
    ):
        expected = f"{path}:{lines[line]}: {notice}; the next release will not accept the old name"
        assert config.renamed.count(expected) == 1, config.renamed
    assert len(config.renamed) == sum(map(len, RENAMED_KEYS.values())) + 4
    assert config.origins["http.allowed_hosts"] == "lakefold.toml [http]"


def test_present_names_need_no_notice():
    written('[http]\nallowed_hosts = []\n[defaults]\nverification = "hash"\n[work]\nobjective = "benefit"\n')
    assert load_config().renamed == ()


def test_former_names_of_variables_work_and_the_environment_still_wins(monkeypatch):
    written('[http]\nallowed_hosts = ["file.example.com"]\n')
    monkeypatch.setenv("LAKEFOLD_HTTP__HOSTS", '["env.example.com"]')
    monkeypatch.setenv("LAKEFOLD_WORK__OBJECTIVE", "worth")
    monkeypatch.setenv("LAKEFOLD_DATABASE", '{"keep_audit": "7d"}')
    monkeypatch.setenv("LAKEFOLD_DEFAULTS__RECEIPT", "hash")
    config = load_config()
    assert config.http.allowed_hosts == ("env.example.com",)
    assert (config.work.objective, config.database.audit_retention) == ("benefit", timedelta(days=7))
    assert configure_table(config, ORDERS).policy.verification is VerificationLevel.HASH
    assert config.origins["http.allowed_hosts"] == "env LAKEFOLD_HTTP__HOSTS"
    assert sorted(notice.split(";")[0] for notice in config.renamed) == [
        "env LAKEFOLD_DEFAULTS__RECEIPT: receipt was renamed to verification",
        "environment variable LAKEFOLD_DATABASE: [database] keep_audit was renamed to audit_retention",
        "environment variable LAKEFOLD_HTTP__HOSTS: [http] hosts was renamed to allowed_hosts",
        'environment variable LAKEFOLD_WORK__OBJECTIVE: [work] objective = "worth" was renamed to "benefit"',
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            '[http]\nmax_body = "1MiB"\nmax_body_size = "2MiB"\n',
            "2: http.max_body is the former name of http.max_body_size",
        ),
        ('[defaults]\nreceipt = "hash"\nverification = "footer"\n', "2: receipt is the former name of verification"),
        (
            '[[tables]]\nmatch = "*"\npriority_weight = 2\nweight = 3\n',
            "4: weight is the former name of priority_weight",
        ),
        ('[database]\n\nkeep_audit = "long"\n', "3: database.audit_retention = 'long'"),
        ('[defaults]\nreceipt = "none"\n', "2: receipt: 'none' is not one of footer, hash"),
    ],
)
def test_both_names_at_once_and_bad_values_are_refused_with_their_line(text: str, line: str):
    assert refused(text).partition("lakefold.toml:")[2].startswith(line)


def test_a_bad_value_of_a_variable_names_the_variable_as_written(monkeypatch):
    monkeypatch.setenv("LAKEFOLD_DATABASE__KEEP_AUDIT", "long")
    assert refused("").startswith("environment variable LAKEFOLD_DATABASE__KEEP_AUDIT: database.audit_retention")
    monkeypatch.setenv("LAKEFOLD_DATABASE__AUDIT_RETENTION", "1d")
    assert "database.keep_audit is the former name of database.audit_retention; set one of them" in refused("")


def test_a_request_may_use_a_former_name_and_its_notes_have_the_present_one():
    written("")
    policy = configure_table(load_config(), ORDERS, {"receipt": "hash"}).policy
    assert policy.verification is VerificationLevel.HASH
    note = "receipt = hash: the setting was renamed to verification; the next release will not accept the old name"
    assert policy.notes == (note,)
    assert "receipt" not in SizingPolicy().to_settings()
