# SPDX-License-Identifier: Apache-2.0
"""Layout objectives from the setting to the scan, the plan that goes first, metrics, status and table."""

import json
from pathlib import Path

import pytest
from daemon_toys import write_config
from databases import store_at
from store_plans import sql
from toys.timeline_tables import create, table_rows

from lake.plan import PlanState
from service.control import serializers
from service.control.config.loader import ConfigError, load_config
from service.control.config.table_settings import configure_table
from service.control.lake_cache import read_lake_state
from service.control.serializers import queries
from service.problems import ExitCode
from service.server.daemon.process import Daemon
from service.server.observability.stored_metrics import StoredFigures

pytestmark = pytest.mark.slow

RULE = """
[[tables]]
match = "held"
[tables.slo]
small_file_share = "5%"
oldest_small_file = "1d"
goal = 0.995
"""


class Home:
    """Toy tables with a database and a configuration in which ``held`` is held to something."""

    def __init__(self, path: Path) -> None:
        self.path, self.rule = path, RULE
        self.store = store_at(path)

    def table(self, name: str, **more: int):
        return create(self.path / "lake" / name, name=name, **more)

    def run(self, role: str) -> None:
        file = write_config(self.path, mode="compact")
        file.write_text(file.read_text() + self.rule)
        self.config = load_config(file)
        with Daemon(self.config, role) as daemon:
            daemon.run_once()

    def passes(self, hours: float) -> None:
        """Time goes by since the last scan."""
        ms = int(hours * 3_600_000)
        sql(
            self.store.url,
            f"UPDATE table_objective SET judged_at_ms = judged_at_ms - {ms}, changed_at_ms = changed_at_ms - {ms}",
        )

    def order(self) -> list[str]:
        """The tables of the plans that wait, in the order in which these start."""
        return [row.table_name for row in sql(self.store.url, "SELECT table_name FROM plan ORDER BY rank_ms, id")]

    def samples(self) -> dict[tuple[str, ...], float]:
        figures = StoredFigures()
        figures.publish(read_lake_state(self.store))
        return {
            (
                sample.name,
                *(value for key, value in sorted(sample.labels.items()) if key not in ("format", "table")),
            ): sample.value
            for metric in figures.tables.collect()
            for sample in metric.samples
            if "_slo_" in sample.name and sample.labels["table"] == "held"
        }


@pytest.fixture
def home(toys, tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_a_table_that_misses_its_objective_is_planned_first_and_meets_it_afterwards(home):
    held, rich = home.table("held", partitions=1, files=4), home.table("rich", partitions=4, files=40)
    before = table_rows(held), table_rows(rich)
    home.run("scheduler")
    small, oldest = home.store.objectives()["held"]
    assert (small.met, small.value, small.bound, small.goal) == (False, 1.0, 0.05, 0.995)
    assert oldest.met
    waiting = {plan.table: plan for plan in home.store.plans()}
    assert set(waiting) == {"held", "rich"}
    reason = home.store.plan_events(waiting["held"].plan_id)[0].reason
    assert reason == "planned; runs first: small_file_share is 100 % (at most 5 %)"
    assert home.store.plan_events(waiting["rich"].plan_id)[0].reason == "planned"
    home.run("executor")
    begun = {
        table: min(event.at for event in home.store.plan_events(plan.plan_id) if event.to_state is PlanState.INFLIGHT)
        for table, plan in waiting.items()
    }
    assert begun["held"] < begun["rich"]
    home.run("scheduler")
    small, oldest = home.store.objectives()["held"]
    assert small.met
    assert oldest.met
    assert small.missed_seconds > 0
    assert (table_rows(held), table_rows(rich)) == before


def test_a_waiting_plan_is_first_once_its_table_misses_its_objective(home):
    home.table("held", partitions=1, files=4)
    home.table("rich", partitions=4, files=40)
    rule, home.rule = home.rule, ""
    home.run("scheduler")
    assert home.order() == ["rich", "held"]
    home.rule = rule
    home.run("scheduler")
    assert home.order() == ["held", "rich"]
    home.rule = ""
    home.run("scheduler")
    assert home.order() == ["rich", "held"]


def test_status_the_tables_page_and_metrics_show_a_budget_that_burns(home):
    home.table("held", partitions=1, files=4)
    home.table("other")
    home.run("scheduler")
    assert home.samples()["lakefold_table_slo_met", "small_file_share"] == 0
    assert home.samples()["lakefold_table_slo_met", "oldest_small_file"] == 1
    home.passes(0.75)
    assert home.samples()["lakefold_table_slo_seconds_total", "small_file_share", "missed"] == pytest.approx(
        2640, abs=60
    )
    home.store.pause("held", "ada")
    home.run("scheduler")
    samples = home.samples()
    assert samples["lakefold_table_slo_goal_ratio", "small_file_share"] == 0.995
    left = samples["lakefold_table_slo_budget_remaining_ratio", "small_file_share"]
    assert left == pytest.approx(1 - 0.75 / (28 * 24 * 0.005), abs=0.01)
    assert samples["lakefold_table_slo_budget_remaining_ratio", "oldest_small_file"] == 1
    assert samples["lakefold_table_slo_seconds_total", "oldest_small_file", "met"] == pytest.approx(2700, abs=60)

    (entry,) = serializers.status(read_lake_state(home.store))["attention"]
    words = "small_file_share is 100 % (at most 5 %), 78 % of its error budget is left and burns fast"
    assert (entry["table"], entry["error_budget_problems"]) == ("held", words)

    table = configure_table(home.config, home.store.table_state("held").ref)
    small, oldest = queries.load_table(home.store, table)["objectives"]
    assert (small["objective"], small["met"], small["burn_pace"]) == ("small_file_share", False, "fast")
    assert (oldest["objective"], oldest["met"], oldest["burn_pace"]) == ("oldest_small_file", True, None)
    assert small["budget_left"] == left


def test_a_removed_objective_is_not_reported(home):
    home.table("held", partitions=1, files=4)
    home.run("scheduler")
    home.rule = ""
    home.run("scheduler")
    assert home.store.objectives() == {}
    assert home.samples() == {}


def test_commands_show_a_tables_objectives(home, run, monkeypatch):
    home.table("held", partitions=1, files=4)
    home.table("other")
    home.run("scheduler")
    home.store.pause("held", "ada")
    for _ in range(4):
        home.passes(0.9)
        home.run("scheduler")
    monkeypatch.setenv("LAKEFOLD_CONFIG", str(home.path / "lakefold.toml"))

    code, out, _ = run("status")
    burns = "held: small_file_share is 100 % (at most 5 %), its error budget is used up (docs/runbook.md"
    assert (code, burns in out) == (0, True), out
    code, out, _ = run("tables", "show", "held")
    shown = [line for line in out.splitlines() if line.startswith("Objective: ")]
    assert shown[0].startswith(
        "Objective: small_file_share is 100 % (at most 5 %): missed for 3.6 h; in the last 28 d missed for "
    )
    assert shown[0].endswith("(goal 99.5 %); its error budget is used up")
    assert (
        "(at most 24 h): met for 3.6 h; in the last 28 d missed for 0 s of 3.36 h allowed (goal 99.5 %); 100 % of its"
        in shown[1]
    )
    code, out, error = run("tables", "explain", "held")
    assert "Objective: small_file_share is 100 % (at most 5 %): missed" in error + out
    code, out, _ = run("tables", "list", "--state", "objective_missed", "--json")
    assert [line["table"] for line in map(json.loads, out.splitlines())] == ["held"]
    code, out, _ = run("tables", "list", "--sort", "error_budget", "--json")
    assert [line["table"] for line in map(json.loads, out.splitlines())] == ["held", "other"]
    code, out, error = run("tables", "list", "--sort", "-budget", "--state", "missed")
    assert (code, "held" in out) == (0, True)
    later = "; the next release will not accept the old name\n"
    assert error == (
        f"--state missed was renamed to --state objective_missed{later}"
        f"--sort -budget was renamed to --sort -error_budget{later}"
    )
    code, out, error = run("tables", "list", "--sort", "rewrite", "--json")
    assert (code, json.loads(error)["use"]) == (0, "--sort rewrite_bytes")
    _, _, error = run("plans", "request", "other", "--set", "receipt=hash", "--set", "slo.goal=0.9")
    assert error.startswith(f"--set receipt was renamed to --set verification{later}")
    code, out, error = run("plans", "request", "other", "--set", "slo.goal=0.9")
    assert (code, "slo.goal is an objective of a table" in error) == (2, True), error


def test_config_check_names_an_objective_that_makes_no_sense_and_one_that_can_hardly_be_met(home, run, monkeypatch):
    home.table("held")
    home.rule = RULE.replace("0.995", "101")
    with pytest.raises(ConfigError, match=r"lakefold.toml:\d+: slo_goal is 101 but must be above 0 and below 1"):
        home.run("scheduler")
    monkeypatch.setenv("LAKEFOLD_CONFIG", str(home.path / "lakefold.toml"))
    code, _, error = run("config", "check")
    assert (code, "slo_goal is 101" in error) == (ExitCode.ERROR, True), error
    file = home.path / "lakefold.toml"
    file.write_text(file.read_text().replace("goal = 101", "files_per_gib = 2"))
    code, out, error = run("config", "check")
    assert code == 0
    assert "slo_files_per_gib is 2: files of small_file_limit 1.0 MiB are left alone" in out + error


def test_tables_that_miss_an_objective_are_scanned_first_and_missing_tables_are_not_reported(home):
    for name in ("a", "held"):
        home.table(name, partitions=1, files=4)
    home.run("scheduler")
    for _ in range(2):
        home.passes(0.9)
        home.store.pause("held", "ada")
        home.run("scheduler")
    with Daemon(home.config, "scheduler") as daemon:
        daemon.scheduler.discover()
        assert list(daemon.scheduler._tables) == ["held", "a"]

    def told() -> list[str | None]:
        return [
            entry["error_budget_problems"] for entry in serializers.status(read_lake_state(home.store))["attention"]
        ]

    assert told() == ["small_file_share is 100 % (at most 5 %), 46 % of its error budget is left and burns fast"]
    home.passes(2)
    assert told() == [None]
    home.store.register_table(home.store.table_state("held").ref, "observe")
    home.passes(-2)
    assert told() == [None]
