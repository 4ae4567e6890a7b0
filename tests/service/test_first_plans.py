# SPDX-License-Identifier: Apache-2.0
"""The first requests for plans: no executor, impatient users, misspelt variables, a quiet log."""

import json
import logging
import os
import re
from datetime import UTC, datetime, timedelta

import pytest
from databases import store_at
from hudi_by_hand import T1, ByHand
from pages import ROOT

from service.cli.commands import plans
from service.control.config import environment
from service.control.store import ProcessFacts
from service.server.daemon import process
from service.server.observability import logs
from service.text import cause_first, format_age


@pytest.fixture(autouse=True)
def store(clean_environment, tmp_path):
    """The database of a configuration with one table of small files, in mode compact."""
    table_of(tmp_path / "lake/orders")
    store = store_at(tmp_path)
    (tmp_path / "lakefold.toml").write_text(
        f'[database]\nurl = "sqlite:///{tmp_path}/lakefold.db"\n[[sources]]\npath = "lake"\n'
        '[[tables]]\nmatch = "orders"\nmode = "compact"\nconcurrency = "single_writer"\n'
    )
    yield store
    store.close()


def table_of(base):
    """A table of three small files that were written long ago."""
    base.mkdir(parents=True)
    made = ByHand(base)
    made.complete(T1, "deltacommit", *(made.base_file(T1, f"p/f-{number}") for number in range(3)))
    for path in (*base.glob("p/*.parquet"), *base.glob(".hoodie/*.deltacommit")):
        os.utime(path, (1.7e9, 1.7e9))


def test_config_check_lists_the_tables_of_each_source(run, tmp_path):
    table_of(tmp_path / "lake/sales/returns")
    (tmp_path / "empty").mkdir()
    with (tmp_path / "lakefold.toml").open("a") as file:
        file.write('[[sources]]\npath = "empty"\n')
    code, out, _ = run("config", "check")
    first, *lines = (re.split(r"\s{2,}", line.strip()) for line in out.splitlines())
    assert (code, first[0].endswith("OK (2 tables: 1 compact, 1 observe)")) == (0, True), out
    assert lines == [["SOURCE", "TABLES", "NAMES"], ["lake", "2", "orders, sales.returns"], ["empty", "0", "none"]]
    (found,) = map(json.loads, run("config", "check", "--json")[1].splitlines())
    assert [source["tables"] for source in found["sources"]] == [["orders", "sales.returns"], []]


def test_a_dry_run_of_an_observed_table_states_the_refusal_and_its_reason(run, tmp_path):
    table_of(tmp_path / "lake/watched")
    code, out, err = run("plans", "request", "watched", "-n")
    assert (code, "3 files" in out) == (0, True)
    assert "without -n the request would be refused: watched is in mode observe" in err
    answer = json.loads(run("plans", "request", "watched", "-n", "--json")[1])
    assert (answer["plans"][0]["input_files"], answer["reasons"]) == (3, []), "what is planned is not left alone"


def test_a_request_states_that_no_executor_can_run_its_plans(run, store):
    code, _, err = run("plans", "request", "orders")
    assert (code, "Not started: no executor is running; lakefold worker starts one" in err) == (0, True)


def test_a_request_prints_nothing_about_executors_if_one_is_alive(run, store):
    executor = ProcessFacts(name="e", role="executor", host="h", version="1", slots=1, spark="running")
    store.register_process(executor, timedelta(minutes=1))
    assert run("plans", "request", "orders")[::2] == (0, "")


def test_a_dry_run_beside_a_live_plan_answers_as_the_request_does(run):
    assert run("plans", "request", "orders")[0] == 0
    asked, dry = run("plans", "request", "orders"), run("plans", "request", "orders", "-n")
    assert (asked[0], dry) == (11, asked)
    assert "every requested partition of orders is held by live plan" in dry[2]


def test_an_interrupted_wait_states_that_the_plan_continues_and_how_to_follow_it(run, monkeypatch):
    def interrupted(run, plan):
        raise KeyboardInterrupt

    monkeypatch.setattr(plans, "follow", interrupted)
    code, out, err = run("plans", "request", "orders", "--wait", "--json")
    plan = json.loads(out)["plan_ids"][0]
    assert (code, json.loads(err)["plans"]) == (130, [plan])
    assert (
        f"plan {plan} continues without this command. To follow: lakefold plans watch {plan}"
        in json.loads(err)["detail"]
    )


def test_variables_that_nothing_reads_are_named_with_the_nearest_that_something_does(run, monkeypatch):
    monkeypatch.setenv("LAKEFOLD_DATABASE_URL", "postgresql://db")
    monkeypatch.setenv("LAKEFOLD_SERVICE_HOST", "10.0.0.1")  # as Kubernetes has it
    monkeypatch.setenv("LAKEFOLD_PORT_9464_TCP_ADDR", "10.0.0.1")
    monkeypatch.setenv("LAKEFOLD_HTTP__PORT", "9470")
    monkeypatch.setenv("LAKEFOLD_DEBUG", "0")
    code, _, err = run("config", "check")
    assert code == 0
    hint = "did you mean 'LAKEFOLD_DATABASE__URL'?"
    assert err == f"warning: environment variable LAKEFOLD_DATABASE_URL is unknown and has no effect; {hint}\n"
    assert json.loads(run("config", "check", "--json")[1])["unknown_variables"] == ["LAKEFOLD_DATABASE_URL"]


def test_every_variable_that_the_code_reads_is_known():
    read = {
        name
        for room in ("service", "executors", "lake", "planner", "migrations")
        for path in (ROOT / room).rglob("*.py")
        for name in re.findall(r"LAKEFOLD_[A-Z_]*[A-Z]", path.read_text())
        if "__" not in name
    }
    assert read == environment.OTHER_VARIABLES


def test_the_log_has_no_line_of_the_schedulers_library_but_its_errors(monkeypatch, capsys):
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", list(root.handlers))
    monkeypatch.setattr(root, "level", root.level)
    logs.configure_logging("info", "text")
    logging.getLogger("apscheduler.scheduler").warning(
        "Execution of job %r skipped: maximum number of instances", "scan"
    )
    logging.getLogger("apscheduler.executors.default").error("broken")
    logging.getLogger(process.__name__).info("ours")
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(": ")[2] for line in lines] == ["broken", "ours"]


def test_ages_are_in_whole_units_and_an_error_begins_with_its_cause():
    now = datetime(2026, 11, 26, 12, tzinfo=UTC)
    ages = [format_age(now - timedelta(seconds=seconds), now) for seconds in (0.4, 4.2, 195, 7300, 200_000)]
    assert ages == ["0 s ago", "4 s ago", "3 min ago", "2 h ago", "2 d ago"]
    assert (
        cause_first("/lake/t/p/f.parquet can't be read: No space left")
        == "No space left (/lake/t/p/f.parquet can't be read)"
    )
    assert cause_first("/lake/t/f.parquet can't be read: No space") == "No space (/lake/t/f.parquet can't be read)"
    assert cause_first("s3://b/t: hudi-rs can't list it: timeout") == "hudi-rs can't list it: timeout (s3://b/t)"
    assert cause_first("cancelled: not needed") == "cancelled: not needed"
