# SPDX-License-Identifier: Apache-2.0
"""Alerts, dashboards and runbook agree with each other, with the metrics and with the commands; promtool agrees too."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from monitoring import RULES, RUNBOOK, commands, entry, metrics_in, rules, section
from support import needs_server

from service.cli import main
from service.server.observability.metric_specs import SPECS

pytestmark = pytest.mark.slow

HEADINGS = re.findall(r"^## (.+)$", RUNBOOK, re.MULTILINE)
CASES = sorted(Path(__file__).parent.glob("rules_*test.yaml"))


ALERTS = {rule["alert"]: rule for rule in rules("alert")}


def promtool(*arguments):
    program = shutil.which("promtool")
    if program is None:
        needs_server("promtool not found; tests/servers.sh installs it (Debian package prometheus)")
    return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=False)


def test_promtool_finds_no_fault_in_the_rules():
    done = promtool("check", "rules", "--lint=all", "--lint-fatal", RULES)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("cases", CASES, ids=lambda path: path.stem)
def test_each_alert_stays_silent_fires_and_clears_as_its_cases_say(cases):
    done = promtool("test", "rules", cases)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not():
    checks = [
        check
        for cases in CASES
        for test in yaml.safe_load(cases.read_text())["tests"]
        for check in test.get("promql_expr_test", ())
    ]
    for alert in ALERTS:
        own = [check for check in checks if f'alertname="{alert}"' in check["expr"]]
        assert any(check.get("exp_samples") for check in own), f"{alert} fires in no case"
        assert any(not check.get("exp_samples") for check in own), f"{alert} is silent in no case"


@pytest.mark.parametrize("alert", sorted(ALERTS))
def test_each_alert_has_a_severity_a_text_and_its_heading_in_the_runbook(alert):
    rule = ALERTS[alert]
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    assert rule["annotations"]["runbook_url"] == f"docs/runbook.md#{alert.lower()}"
    entry = section(alert)
    assert entry.startswith(f"**{rule['labels']['severity'].capitalize()}, "), "the severity begins the entry"
    lasts = {None: "at once", "2m": "2 minutes", "5m": "5 minutes", "15m": "15 minutes", "6h": "6 hours"}
    assert lasts[rule.get("for")] in entry.split(".**")[0], "and how long it must last"


def test_each_heading_of_the_runbook_is_an_alert():
    assert sorted(HEADINGS) == sorted(ALERTS)


@pytest.mark.parametrize("alert", sorted(ALERTS))
def test_each_entry_of_the_runbook_has_commands_and_they_exist(alert):
    assert commands(entry(alert, "Check"))
    for line in [*commands(section(alert)), *re.findall(r"`(lakefold [^`]+)`", section(alert))]:
        name, *words = shlex.split(line)
        assert name == "lakefold", line
        command = main.root_command()
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        assert not hasattr(command, "commands"), f"{line}: no such command"
        options = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("-")} <= options, f"{line}: no such option"


def test_every_metric_in_rules_and_runbook_is_registered():
    named = metrics_in("\n".join(rule["expr"] for rule in rules())) | metrics_in(RUNBOOK)
    assert len(named) > 10
    assert named <= set(SPECS)
