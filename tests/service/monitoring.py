# SPDX-License-Identifier: Apache-2.0
"""What deploy/ watches lakefold with, as tests read it, and a Prometheus server of the tests' own."""

import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from support import free_port, needs_server
from waiting import wait_for

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "rules.yaml"
SCRAPE = ROOT / "deploy" / "prometheus" / "scrape.yaml"
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text()
DASHBOARDS = {path.stem: json.loads(path.read_text()) for path in sorted((ROOT / "deploy" / "grafana").glob("*.json"))}
PANELS = [
    (f"{name}: {panel['title']}", panel)
    for name, board in DASHBOARDS.items()
    for panel in board["panels"]
    if panel["type"] != "row"
]


def rules(kind: str = "expr") -> list[dict[str, Any]]:
    """The shipped rules that have ``kind``: alert, record, or expr, which is all."""
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"] if kind in rule]


def section(alert: str) -> str:
    """The runbook's entry of an alert."""
    return RUNBOOK.split(f"\n## {alert}\n")[1].split("\n## ")[0].strip()


def entry(alert: str, step: str) -> str:
    """One step of an alert's entry, ``Check`` or ``Clear``: from that word to the end of the first code block."""
    text = re.search(rf"^{step}\b.*?^```$", section(alert), re.MULTILINE | re.DOTALL)
    assert text, f"{alert}: no step {step} with a code block"
    return text[0]


def commands(text: str) -> list[str]:
    """The lines of the code blocks, which are commands."""
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [line for line in "".join(blocks).splitlines() if line]


def metrics_in(text: str) -> set[str]:
    """The metrics that queries name, without what the exposition adds to the samples of a histogram."""
    found = re.findall(r"(?<![\w:])lakefold_\w+", text)
    return {re.sub(r"_(bucket|count|sum|gcount|gsum)$", "", name) for name in found}


def queries(board: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(where, query) of every panel and of every variable of a dashboard."""
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield f"{board['title']}, {panel['title']} {target['refId']}", target["expr"]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            (series,) = re.findall(r"^label_values\((.+), \w+\)$", variable["query"]["query"])
            yield f"{board['title']}, variable {variable['name']}", series


def in_words(number: int) -> str:
    """A number below thirty as pages spell it."""
    words = "no one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
    known = f"{words} seventeen eighteen nineteen twenty".split()
    return known[number] if number < len(known) else f"twenty-{known[number - 20]}"


class Prometheus:
    """A running server's answers."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str, **parameters: Any) -> Any:
        """``data`` of an answer of the HTTP API."""
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=10) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[Any]:
        """The samples of an instant query."""
        return list(self.get("query", query=expression)["result"])

    def firing(self, alert: str, **labels: str) -> list[dict[str, Any]]:
        """The alerts of that name that fire now and have the labels."""
        return [
            found
            for found in self.get("alerts")["alerts"]
            if found["state"] == "firing" and {"alertname": alert, **labels}.items() <= found["labels"].items()
        ]


@contextmanager
def prometheus(home: Path, targets: list[str], rules_file: Path, interval: str = "500ms") -> Iterator[Prometheus]:
    """A Prometheus that scrapes ``targets`` as deploy/prometheus/scrape.yaml says, each ``interval``."""
    program = shutil.which("prometheus")
    if program is None:
        needs_server("prometheus not found; tests/servers.sh installs it (Debian package prometheus)")
    (job,) = yaml.safe_load(SCRAPE.read_text())
    job |= {"scrape_interval": interval, "scrape_timeout": interval, "static_configs": [{"targets": targets}]}
    settings = {
        "global": {"evaluation_interval": interval},
        "rule_files": [str(rules_file)],
        "scrape_configs": [job],
    }
    home.mkdir()
    config = home / "prometheus.yml"
    config.write_text(yaml.safe_dump(settings))
    server = Prometheus(f"http://127.0.0.1:{(port := free_port())}")
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                program,
                f"--config.file={config}",
                f"--storage.tsdb.path={home / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--log.level=warn",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        wait_for(lambda: process.poll() is not None or _answers(server), "Prometheus ready")
        assert process.poll() is None, (home / "log").read_text()
        yield server
    finally:
        process.terminate()
        process.wait(20)


def _answers(server: Prometheus) -> bool:
    try:
        with urllib.request.urlopen(f"{server.url}/-/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
