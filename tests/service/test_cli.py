# SPDX-License-Identifier: Apache-2.0
"""The command line without tables: help, usage errors, exit codes, JSON, signals."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cli_commands import every_command

from lake.errors import CommitUnknown, Conflict, Integrity, Rejected, Transient
from lake.model import FileSlice, TableRef
from lake.plan import ClusteringGroup, Plan, PlanKind, RewriteOptions, SkippedGroup
from service.cli.output.column_widths import TableColumn, fit_columns
from service.cli.output.command_output import CommandOutput, bar_chart
from service.control.config.loader import ConfigError, load_config
from service.control.config.table_settings import OverrideError
from service.control.store import (
    AmbiguousId,
    DatabaseUnreachable,
    NotFound,
    PartitionsLocked,
    SchemaMismatch,
    WrongState,
)
from service.control.wiring import open_store
from service.problems import (
    EXIT_CODE_MEANING,
    PROBLEM_BASE,
    PROBLEMS,
    ExitCode,
    ProblemError,
    classify,
    describe_error,
    problem_document,
)
from service.text import to_json, to_jsonable

ROOT = Path(__file__).parents[2]
LAKEFOLD = [sys.executable, "-m", "service.cli.main"]

#: every command with arguments that get past its own checks
COMMANDS = [
    ("status",),
    ("pause",),
    ("resume",),
    ("tables", "list"),
    ("tables", "show", "t"),
    ("tables", "explain", "t"),
    ("plans", "list"),
    ("plans", "show", "p"),
    ("plans", "request", "t"),
    ("plans", "cancel", "p"),
    ("plans", "retry", "p"),
    ("plans", "watch", "p"),
    ("clean",),
    ("clean", "-n"),
    ("verify", "t"),
    ("config", "show", "t"),
    ("db", "check"),
    ("tokens", "list"),
    ("tokens", "revoke", "t"),
    ("tokens", "add", "t", "--scope", "read"),
    ("notifications", "list"),
    ("notifications", "drop", "--all"),
    ("serve",),
    ("worker", "--once"),
]


@pytest.fixture(autouse=True)
def home(clean_environment, tmp_path):
    """An empty home and working directory with a configuration that names a database not made yet."""
    (tmp_path / "lakefold.toml").write_text(f'[database]\nurl = "sqlite:///{tmp_path}/lakefold.db"\n[http]\nport = 0\n')
    return tmp_path


def test_the_commands_are_those_of_the_contract():
    assert {" ".join(path) for path in every_command()} == {
        "audit",
        "init",
        "serve",
        "worker",
        "status",
        "pause",
        "resume",
        "demo",
        "simulate",
        "clean",
        "verify",
        "tables list",
        "tables databases",
        "tables show",
        "tables explain",
        "report",
        "tables history",
        "tables replay",
        "tables advise",
        "tables rollback",
        "tables repair",
        "tables remove-orphans",
        "tables resolve",
        "tables restore-locations",
        "plans list",
        "plans show",
        "plans request",
        "plans cancel",
        "plans retry",
        "plans watch",
        "plans approve",
        "plans decline",
        "config check",
        "config show",
        "db upgrade",
        "db check",
        "tokens add",
        "tokens list",
        "tokens revoke",
        "notifications list",
        "notifications retry",
        "notifications drop",
        "notifications test",
    }


@pytest.mark.parametrize("path", every_command(), ids=" ".join)
def test_each_commands_help_has_json_and_lists_its_exit_codes(path, run):
    code, out, err = run(*path, "--help")
    assert (code, err) == (0, "")
    assert "--json" in out
    listed = dict(re.findall(r"^ +(\d+)  (.+)$", out.partition("Exit codes:")[2], re.MULTILINE))
    assert {"0", "1", "2", "130"} <= set(listed)
    assert all(EXIT_CODE_MEANING[ExitCode(int(number))] == meaning for number, meaning in listed.items())
    if path[0] not in ("demo", "init") and path not in (("config", "check"), ("notifications", "test")):
        assert "13" in listed


def test_help_is_quick_and_imports_nothing_heavy():
    heavy = ("pyspark", "pyarrow", "sqlalchemy", "pydantic", "hudi", "numpy", "alembic", "apscheduler", "rich.table")
    script = (
        "import sys, resource\nfrom service.cli.main import run\n"
        f"assert run(['--help']) == 0\nprint([name for name in {heavy!r} if name in sys.modules])\n"
        "usage = resource.getrusage(resource.RUSAGE_SELF)\nprint(usage.ru_utime + usage.ru_stime)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    imported, seconds = done.stdout.splitlines()[-2:]
    assert imported == "[]"
    assert float(seconds) < 0.5


def test_version_and_bare_command(run):
    from lake.version import __version__

    assert run("--version") == (0, f"lakefold {__version__}\n", "")
    code, out, _ = run()
    assert code == 0
    assert "Usage: lakefold" in out
    assert all(f"{code.value:>5}  " in out for code in ExitCode)


@pytest.mark.parametrize(
    ("arguments", "says", "hint"),
    [
        (("frob",), "No such command 'frob'", "lakefold"),
        (("plans", "frob"), "No such command 'frob'", "lakefold plans"),
        (("plans", "list", "--bogus"), "No such option: --bogus", "lakefold plans list"),
        (("plans", "show"), "Missing argument 'PLAN'", "lakefold plans show"),
        (("plans", "list", "--limit", "0"), "greater than or equal to 1", "lakefold plans list"),
        (("serve", "--role", "cook"), "cook", "lakefold serve"),
        (("plans", "list", "--state", "faild"), "did you mean 'failed'?", "lakefold plans list"),
        (("plans", "request", "t", "--set", "x"), "--set 'x' is not KEY=VALUE", "lakefold plans request"),
    ],
)
def test_a_usage_error_is_one_line_and_names_the_help(arguments, says, hint, run):
    run("db", "upgrade")
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    line, remedy = err.splitlines()
    assert line.startswith("lakefold: ")
    assert says in line
    assert remedy == f"Try: {hint} --help"
    code, out, err = run(*arguments, "--json")
    assert (code, out) == (2, "")
    problem = json.loads(err)
    assert says in problem["detail"]
    assert problem["type"] == "docs/problems.md#usage"


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_database_without_schema_is_13_from_every_command(command, run):
    code, out, err = run(*command)
    assert (code, out) == (13, "")
    assert "lakefold db upgrade" in err
    assert len(err.splitlines()) == 1
    code, _, err = run(*command, "--json")
    assert code == 13
    assert json.loads(err.splitlines()[-1])["exit_code"] == 13


def test_an_unreachable_database_is_13_and_named_without_its_password(run, monkeypatch):
    monkeypatch.setenv("LAKEFOLD_DATABASE__URL", "postgresql+psycopg://me:secret@127.0.0.1:1/lake")
    for command in (("status",), ("db", "check"), ("db", "upgrade")):
        code, out, err = run(*command)
        assert (code, out) == (13, "")
        assert "127.0.0.1" in err
        assert "database.url" in err
        assert "secret" not in err
    _, out, _ = run("config", "show")
    assert "postgresql+psycopg://me:***@127.0.0.1:1/lake" in out
    assert "env LAKEFOLD_DATABASE__URL" in out


def test_a_bad_configuration_is_1_with_file_and_line_from_every_command(run, home):
    (home / "lakefold.toml").write_text('[daemon]\nclaim_intervall = "1s"\n')
    for command in [*COMMANDS, ("config", "check"), ("config", "show"), ("db", "upgrade")]:
        code, out, err = run(*command)
        assert (code, out) == (1, ""), command
        assert err == (
            "lakefold: lakefold.toml:2: unknown key 'daemon.claim_intervall'; did you mean 'claim_interval'?\n"
        )
    _, _, err = run("status", "--json")
    assert json.loads(err)["type"] == "docs/problems.md#configuration"


def test_config_check_finds_bad_rules_idle_rules_and_missing_sources(run, home):
    file = home / "lakefold.toml"
    base = file.read_text()
    file.write_text(base + '[[sources]]\npath = "gone"\n[[tables]]\nmatch = "x.*"\nmode = "compact"\n')
    code, out, err = run("config", "check")
    assert code == 3
    assert "0 tables" in out
    assert 'lakefold.toml [[tables]] #1 match "x.*" matches no table' in err
    assert "source #1 (gone)" in err
    code, out, _ = run("config", "check", "--json")
    assert json.loads(out)["unmatched_rules"] == ['lakefold.toml [[tables]] #1 match "x.*"']
    file.write_text(base + "[defaults]\nsmall_file_limit = 0\n")
    code, _, err = run("config", "check")
    assert code == 1
    assert "small_file_limit is 0 B but must be above 0" in err
    file.write_text(base)
    assert run("config", "check")[0] == 0


def test_config_check_warns_of_valid_settings_that_are_seldom_meant(run, home):
    with (home / "lakefold.toml").open("a") as file:
        file.write('[defaults]\nretention = "0d"\nsmall_file_limit = "300B"\n')
    code, _, err = run("config", "check")
    assert code == 0
    assert "ms: a replaced file may be deleted while a query" in err
    assert "[defaults]: small_file_limit is 300 B: larger files are left alone" in err
    cautions = json.loads(run("config", "check", "--json")[1])["warnings"]
    assert list(cautions.values()) == [["[defaults]"], ["[defaults]"]]


def test_config_check_refuses_a_database_that_lakefold_does_not_work_with(run, home):
    (home / "lakefold.toml").write_text('[database]\nurl = "mysql://ada:secret@db/lake"\n')
    code, _, err = run("config", "check")
    assert code == 1
    assert "lakefold works with sqlite and postgresql, not with mysql" in err
    assert "secret" not in err


def test_config_show_of_a_table_prints_each_value_with_its_origin(run, home, monkeypatch):
    table = home / "lake/sales/orders/.hoodie"
    table.mkdir(parents=True)
    (table / "hoodie.properties").write_text("hoodie.table.name=orders\nhoodie.table.version=9\n")
    with (home / "lakefold.toml").open("a") as file:
        file.write('[[sources]]\npath = "lake"\n[[tables]]\nmatch = "sales.*"\nsmall_file_limit = "64MiB"\n')
    monkeypatch.setenv("LAKEFOLD_DEFAULTS__RETENTION", "2d")
    run("db", "upgrade")
    code, out, _ = run("config", "show", "orders", "--json")
    assert code == 0
    shown = {row["setting"]: row for row in map(json.loads, out.splitlines())}
    assert shown["small_file_limit"] == {
        "setting": "small_file_limit",
        "value": 64 << 20,
        "text": "64.0 MiB",
        "origin": "lakefold.toml [[tables]] #1 match \"sales.*\" (small_file_limit = '64MiB')",
    }
    assert shown["retention"]["origin"] == "env LAKEFOLD_DEFAULTS__RETENTION (retention = '2d')"
    assert (shown["mode"]["value"], shown["mode"]["origin"]) == ("observe", "default")
    _, out, _ = run("config", "show", "orders")
    assert re.search(r"^small_file_limit +64\.0 MiB +lakefold\.toml \[\[tables\]\] #1", out, re.MULTILINE)


@pytest.mark.slow
def test_an_empty_installation_answers_every_reading_command(run):
    run("db", "upgrade")
    assert run("db", "check")[0] == 0
    for command in (("status",), ("tables", "list"), ("plans", "list"), ("clean", "-n"), ("config", "show")):
        code, _, _ = run(*command)
        assert code == 0, command
        code, out, err = run(*command, "--json")
        assert (code, err) == (0, ""), command
        assert all(isinstance(json.loads(line), dict) for line in out.splitlines())
    code, _, err = run("plans", "request", "orders")
    assert code == 10
    assert "[[sources]] is empty" in err


def test_pause_and_resume_of_everything(run):
    run("db", "upgrade")
    assert run("pause")[1] == "lakefold paused; running plans finish\n"
    assert "· paused" in run("status")[1].splitlines()[0]
    assert json.loads(run("resume", "--json")[1]) == {"table": None, "paused": False}


def test_an_error_shows_its_traceback_only_on_request(run, monkeypatch):
    assert "Traceback" not in run("status")[2]
    monkeypatch.setenv("LAKEFOLD_DEBUG", "1")
    with pytest.raises(SchemaMismatch):
        run("status")


def _stored_plan(home: Path) -> str:
    store = open_store(load_config(home / "lakefold.toml"))
    table = TableRef(name="t", format="hudi", location=str(home / "t"))
    file = FileSlice(partition="p", file_id="f", path="p/f.parquet", bytes=10)
    group = ClusteringGroup(partition="p", slices=(file, file), output_files=1)
    plan = Plan(
        plan_id="01990000-0000-7000-8000-000000000000",
        table=table,
        kind=PlanKind.CLUSTERING,
        groups=(group,),
        options=RewriteOptions(target_file_max_bytes=100),
        snapshot_instant="1",
    )
    store.add_plan(plan, request_id=None, actor="test", estimate={})
    store.close()
    return plan.plan_id


@pytest.mark.slow
def test_ctrl_c_ends_a_watch_with_130_and_no_traceback(run, home):
    run("db", "upgrade")
    plan = _stored_plan(home)
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [*LAKEFOLD, "plans", "watch", plan], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    ) as watching:
        assert watching.stdout is not None
        assert watching.stdout.readline() == f"{plan}  requested\n"
        time.sleep(0.1)
        watching.send_signal(signal.SIGINT)
        _, err = watching.communicate(timeout=30)
    assert watching.returncode == 130
    assert err == (
        f"lakefold: interrupted; plan {plan} continues without this command. "
        f"To follow: lakefold plans watch {plan}; to stop: lakefold plans cancel {plan}\n"
    )


@pytest.mark.slow
def test_a_reader_that_leaves_a_pipe_gets_no_complaint(run):
    run("db", "upgrade")
    script = f"{sys.executable} -m service.cli.main config show --json | head -n 1"
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, env=env)
    assert json.loads(done.stdout)["setting"] == "database.url"
    assert done.stderr == ""


def test_each_error_has_its_exit_code_and_one_line():
    for error, code in (
        (Rejected("r"), 1),
        (Conflict("c"), 1),
        (Transient("t"), 1),
        (Integrity("i"), 1),
        (CommitUnknown("u"), 1),
        (ConfigError("c"), 1),
        (OverrideError("p"), 2),
        (NotFound("n"), 10),
        (PartitionsLocked({"a": "p1"}), 11),
        (AmbiguousId("a", []), 2),
        (WrongState("w"), 1),
        (SchemaMismatch("s"), 13),
        (DatabaseUnreachable("d"), 13),
        (KeyboardInterrupt(), 130),
        (RuntimeError("surprise"), 1),
    ):
        assert classify(error).code == code, error
    assert describe_error(RuntimeError("two\nlines")) == "RuntimeError: two lines"
    assert describe_error(PermissionError(13, "Permission denied", "/lake")) == "Permission denied: /lake"
    assert describe_error(ValueError("what you wrote")) == "what you wrote"
    assert describe_error(Conflict("changed meanwhile", (SkippedGroup(group=0, reason="gone"),))) == "changed meanwhile"
    assert problem_document(PartitionsLocked({"a": "p1"}))["holders"] == {"a": "p1"}


def test_every_problem_type_is_a_heading_of_the_problems_page():
    page = (ROOT / "docs/problems.md").read_text()
    headings = set(re.findall(r"^## (.+)$", page, re.MULTILINE))
    assert {problem.slug for problem in PROBLEMS} == headings
    for problem in PROBLEMS:
        assert problem_document(ProblemError(problem, "x"))["type"] == f"{PROBLEM_BASE}{problem.slug}"


def test_every_exit_code_and_command_is_in_the_scripting_page():
    page = (ROOT / "docs/scripting.md").read_text()
    for code, meaning in EXIT_CODE_MEANING.items():
        assert f"| {code.value} | {meaning}" in page
    for path in every_command():
        assert f"lakefold {' '.join(path)}" in page


def test_the_example_of_the_configuration_page_is_right(home):
    page = (ROOT / "docs/configuration.md").read_text()
    (home / "lakefold.toml").write_text(re.findall(r"```toml\n(.*?)```", page, re.DOTALL)[0])
    from service.control.config.table_settings import check_rules

    check_rules(load_config())


def test_values_become_json_that_anything_can_read():
    moment = datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert json.loads(
        to_json({"at": moment, "span": timedelta(minutes=2), "code": ExitCode.PARTIAL, "x": ("a", None)})
    ) == {
        "at": "2026-01-31T12:00:00+00:00",
        "span": 120.0,
        "code": 3,
        "x": ["a", None],
    }
    assert to_jsonable(RewriteOptions(target_file_max_bytes=5))["target_file_max_bytes"] == 5


def test_a_pipe_gets_aligned_columns_that_are_never_cut(capsys):
    CommandOutput(json=False).table((TableColumn("NAME"), TableColumn("N", True)), [("x" * 300, 7), ("y", None)])
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == "NAME" + " " * 298 + "N"
    assert second == "x" * 300 + "  7"
    assert third == "y"


def test_a_terminal_gets_lines_that_fit_with_both_ends_of_long_values(run, home, monkeypatch, capsys):
    columns = (TableColumn("NAME", is_shortened=True), TableColumn("N", True), TableColumn("WHY"))
    cells = [["the_longest_prefix_of_all.orders", "1,234", "x" * 90], ["a.b", "5", ""]]
    assert fit_columns(columns, cells, 200) == cells
    assert fit_columns(columns, cells, 40) == [["the_…ers", "1,234", "x" * 90], cells[1]]
    assert [len(line[0]) for line in fit_columns(columns, cells, 10)] == [8, 3]
    run("db", "upgrade")
    _stored_plan(home)
    monkeypatch.setattr(CommandOutput, "is_terminal", True)
    monkeypatch.setenv("COLUMNS", "80")
    assert run("plans", "cancel", "01990", "--reason", "its partition is " + "very " * 40 + "new")[0] == 0
    title, first, *more = run("plans", "list")[1].splitlines()
    assert title.split() == ["PLAN", "TABLE", "STATE", "FILES", "BYTES", "AGE", "ERROR"]
    assert re.fullmatch(r"00000000  t      cancelled  2 → 1   20 B  .{1,7}  its partition is (very ?)+ *", first), first
    assert " ".join(" ".join(more).split()).endswith("very new"), "a reason is broken into lines, and never cut"
    assert all(len(line) <= 80 for line in (first, *more))


def test_a_count_that_is_not_zero_is_always_visible_in_a_bar():
    lines = bar_chart([("a", 1), ("bb", 0), ("c", 100_000)], width=10, marks={1: "limit"})
    assert lines == [" a │▏ 1", "bb │  ← limit", " c │██████████ 100,000"]


def test_former_names_of_commands_and_options_work_are_hidden_and_name_the_present_one(run):
    later = "; the next release will not accept the old name\n"
    for words in (("tables", "home", "t"), ("tables", "restore-locations", "t")):
        code, _, err = run(*words)
        expected = f"lakefold tables home was renamed to lakefold tables restore-locations{later}"
        assert (code, expected in err) == (ExitCode.DATABASE, words[1] == "home"), err
    code, _, err = run("tables", "resolve", "t", "--take", "old")
    assert (code, f"--take old was renamed to --keep previous{later}" in err) == (ExitCode.DATABASE, True), err
    code, _, err = run("tables", "resolve", "t", "--take", "old", "--keep", "previous")
    assert (code, "--take is the former name of --keep" in err) == (ExitCode.USAGE, True), err
    code, _, err = run("tables", "resolve", "t")
    assert (code, "--keep is required: previous or current" in err) == (ExitCode.USAGE, True), err
    code, _, err = run("tables", "resolve", "t", "--take", "both")
    assert (code, "is not one of previous, current" in err) == (ExitCode.USAGE, True), err
    assert " home " not in run("tables", "--help")[1]
    assert "--take" not in run("tables", "resolve", "--help")[1]
