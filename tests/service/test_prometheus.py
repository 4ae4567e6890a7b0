# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus scrapes real processes of lakefold: dashboards show data, alerts fire, the runbook clears them.

The processes are ``lakefold serve`` on toy tables: a scheduler, which also takes over leases and cleans, and an
executor. The rules are the shipped ones with shorter durations.
"""

import re
import signal

import pytest
from alembic import command
from daemon_toys import known
from installation import Lakefold
from monitoring import DASHBOARDS, RULES, commands, entry, metrics_in, prometheus, queries, rules
from toys.timeline import ToyFormat
from waiting import wait_for

from lake.plan import PlanState
from service.control.store import SchemaMismatch
from service.control.store.database import Database
from service.control.store.schema import alembic_config
from service.problems import ExitCode
from service.server.observability.metric_specs import SPECS

pytestmark = pytest.mark.slow
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def shortened(text):
    """The rules with what they wait for, look back at and call old cut short; nothing else changes."""

    def span(match):
        return f"{match[1]}{max(5, int(match[2]) * SECONDS[match[3]] // 400)}s"

    text = re.sub(r"(for: )\d+[smhd]", r"\g<1>1s", text)
    text = re.sub(r"(\[|offset )(\d+)([smhd])", span, text)
    return re.sub(r"\b(\d+) \* (60|3600)\b", lambda match: f"{int(match[1]) * int(match[2]) // 400} * 1", text)


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """(lakefold, Prometheus): an installation without tables, which commands find, and who watches it."""
    home = tmp_path_factory.mktemp("watched")
    fast = home / "rules.yaml"
    fast.write_text(shortened(RULES.read_text()))
    lakefold = Lakefold(home / "lakefold")
    with known(ToyFormat()), pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAKEFOLD_CONFIG", str(lakefold.config))
        patch.setenv("PATH", lakefold.path)
        try:
            lakefold.serve()
            lakefold.serve("lakefold serve --role executor")
            targets = [f"127.0.0.1:{port}" for port in lakefold.ports.values()]
            with prometheus(home / "prometheus", targets, fast) as server:
                wait_for(lambda: len(server.query("up == 1")) == 2, "both processes scraped")
                yield lakefold, server
        finally:
            lakefold.end()


def fires(server, alert, **labels):
    return wait_for(lambda: server.firing(alert, **labels), f"{alert} firing", 40)


def clears(server, alert, **labels):
    wait_for(lambda: not server.firing(alert, **labels), f"{alert} cleared", 40)


def test_only_durations_differ_from_the_shipped_rules():
    def without_durations(text):
        return re.sub(r"\b\d+[smhd]\b|\b(\d+ \* )+\d+\b", "…", text)

    shipped = RULES.read_text()
    assert shortened(shipped) != shipped
    assert without_durations(shortened(shipped)) == without_durations(shipped)


@pytest.mark.shown_by(
    "tests/service/test_incidents.py::test_an_executor_that_is_gone_is_named_and_another_one_takes_its_plan"
)
def test_leases_expiring_fires_for_a_deadly_plan_and_the_runbook_saves_the_others(watched):
    lakefold, server = watched
    deadly = lakefold.table("deadly", "deadly", "wait")
    others = [lakefold.table(f"other{number}", "wait") for number in (1, 2)]
    names = ["deadly", "other1", "other2"]
    wait_for(lambda: len(lakefold.plans(PlanState.INFLIGHT, *names)) == 3, "the executor has taken all three")
    (deadly / "wait").unlink()
    fires(server, "LeasesExpiring")
    for table in others:
        (table / "wait").unlink()
    assert lakefold.processes["executor"].wait(10) == -signal.SIGKILL
    (plan,) = wait_for(lambda: lakefold.plans(PlanState.REQUESTED, "deadly"), "requested again")
    lakefold.follow("LeasesExpiring", "Check", TABLE="deadly", PLAN=plan)
    lakefold.follow("LeasesExpiring", "Clear", TABLE="deadly", PLAN=plan)
    wait_for(lambda: lakefold.completed("other1", "other2"), "the plans of other tables got through")
    clears(server, "LeasesExpiring")


@pytest.mark.shown_by("tests/service/test_incidents.py::test_the_page_of_a_halted_table_links_its_plan_and_resumes_it")
def test_table_halted_fires_for_a_spoiled_rewrite_and_the_runbook_resumes_the_table(watched):
    lakefold, server = watched
    folder = lakefold.table("spoilt", "spoiled")
    (alert,) = fires(server, "TableHalted", table="spoilt")
    assert alert["labels"]["severity"] == "critical"
    (plan,) = lakefold.plans(PlanState.FAILED, "spoilt")
    lakefold.follow("TableHalted", "Check", TABLE="spoilt", PLAN=plan)
    (folder / "spoiled").unlink()
    lakefold.follow("TableHalted", "Clear", TABLE="spoilt")
    clears(server, "TableHalted", table="spoilt")
    wait_for(lambda: lakefold.completed("spoilt"), "compacted after all")


@pytest.mark.shown_by(
    "tests/service/test_incidents.py::test_a_long_pause_is_reported_with_actor_and_reason_and_can_be_ended"
)
def test_superseded_bytes_growing_fires_for_a_long_pause_and_the_runbook_ends_it(watched):
    lakefold, server = watched
    lakefold.table("paused", files=12)
    wait_for(lambda: lakefold.completed("paused"), "compacted")
    lakefold.store.pause("paused", "somebody")
    (alert,) = fires(server, "SupersededBytesGrowing", table="paused")
    assert float(alert["value"]) > 2
    lakefold.follow("SupersededBytesGrowing", "Check", TABLE="paused")
    lakefold.follow("SupersededBytesGrowing", "Clear", TABLE="paused")
    clears(server, "SupersededBytesGrowing", table="paused")


def test_every_registered_metric_is_scraped_and_every_query_of_the_dashboards_returns_data(watched):
    lakefold, server = watched
    lakefold.table("shown")
    where = '{job="lakefold", table="shown"}'
    wait_for(lambda: server.query(f"lakefold_cleaner_deleted_files_total{where} > 0"), "compacted and cleaned")
    named = {name for rule in rules() for name in metrics_in(rule["expr"])} | set(SPECS)
    scraped = {name for sample in server.get("label/__name__/values") for name in metrics_in(sample)}
    # No plan may be waiting at this moment, and then there is no oldest one; nothing is proposed, and no budget is set.
    assert named - scraped <= {
        "lakefold_plan_oldest_requested_timestamp_seconds",
        *("lakefold_plan_proposals", "lakefold_plan_oldest_proposal_timestamp_seconds"),
        *("lakefold_work_budget", "lakefold_work_used"),
    }
    values = {"job": "lakefold", "table": ".*", "stage": ".*", "__range": "1m", "__rate_interval": "10s"}
    without = []
    for board in DASHBOARDS.values():
        for title, query in queries(board):
            filled = re.sub(r"\$(\w+)", lambda match: values[match[1]], query)
            if not server.query(filled):
                without.append(f"{title}: {filled}")
    assert without == []


def test_planner_not_running_fires_without_a_scheduler_and_the_runbook_starts_one(watched):
    lakefold, server = watched
    lakefold.processes["all"].terminate()
    fires(server, "PlannerNotRunning")
    lakefold.follow("PlannerNotRunning", "Check")
    assert lakefold.processes["all"].wait(20) == 0
    lakefold.follow("PlannerNotRunning", "Clear")
    clears(server, "PlannerNotRunning")


def test_database_errors_fires_for_a_backup_of_an_older_lakefold_and_the_runbook_upgrades_it(watched):
    lakefold, server = watched
    config, database = alembic_config(), Database(lakefold.store.url)
    with database.write() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "0029")  # to before the columns that the metrics read
    database.close()
    with pytest.raises(SchemaMismatch):
        lakefold.store.check()
    fires(server, "DatabaseErrors")
    (check,) = commands(entry("DatabaseErrors", "Check"))
    code, said = lakefold.run(check, {})
    assert code == ExitCode.DATABASE
    assert "lakefold db upgrade" in said
    lakefold.follow("DatabaseErrors", "Clear")
    clears(server, "DatabaseErrors")
