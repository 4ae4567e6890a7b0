# SPDX-License-Identifier: Apache-2.0
"""The command ``lakefold status``: the state of the lake, its processes and open problems."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from lake.units import format_until
from service.cli.commands.common import MAX_PARTITIONS_NAMED, CommandRun, ConfigFile, Json, command_run
from service.cli.output.column_widths import TableColumn
from service.control import serializers
from service.problems import ExitCode, exit_codes_help
from service.text import format_age, format_size, join_names, parse_timestamp, plural, process_label, short_id


def add_to(root: typer.Typer) -> None:
    """Register the command."""
    epilog = exit_codes_help(ExitCode.PENDING, ExitCode.DATABASE)
    root.command("status", epilog=epilog, short_help="Show the state of the lake and of its processes.")(status)


def status(
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit 4 if a plan waits or runs.")] = False,
    json: Json = False,
    config: ConfigFile = None,
) -> int:
    """Summarize the lake in one line, then list the processes and everything that needs attention."""
    with command_run(json, config) as run:
        data = run.client.status()
        run.out.result(data, lambda: _print_status(run, data))
    return ExitCode.PENDING if exit_code and data["requested"] + data["inflight"] else ExitCode.OK


def _print_status(run: CommandRun, data: Mapping[str, Any]) -> None:
    out, now = run.out, datetime.now(UTC)
    out.line(serializers.summary_line(data))
    out.line()
    if data["paused"]:
        since = format_age(parse_timestamp(data["paused_at"]), now)
        out.line(f"lakefold was paused {since} {_paused_by(data)}; to continue: lakefold resume")
    _print_processes(run, data, now)
    if data["oldest_proposed_at"]:
        since, plans = format_age(parse_timestamp(data["oldest_proposed_at"]), now), plural(data["proposed"], "plan")
        out.line(f"{plans} to approve or decline, the oldest proposed {since}; lakefold plans list --proposed")
    if data["oldest_waiting_plan"]:
        out.line(serializers.describe_oldest_waiting(data["oldest_waiting_plan"], now))
    if (first := data.get("next_waiting")) is not None:
        more = data["waiting_tables"] - 1
        others = f", as do {plural(more, 'more table')}" if more else ""
        until = format_until(parse_timestamp(first["until"]), now)
        out.line(f"{first['table']} waits until {until} for the quiet_period of its newest files{others}.")
    for line in serializers.describe_held_work(data["work"]):
        out.line(line)
    for stretch, words in serializers.describe_trends(data["trends"]):
        out.line(f"{stretch}: {words}")
    if data["superseded_files"]:
        files = plural(data["superseded_files"], "superseded file")
        out.line(f"{files} ({format_size(data['superseded_bytes'])}) awaiting deletion; lakefold clean -n lists them.")
    if data["notifications_dead"]:
        dead = plural(data["notifications_dead"], "notification")
        out.line(f"{dead} could not be delivered; lakefold notifications list --state dead")
    for one in data["config_problems"]:
        out.line(f"{join_names(one['processes'])}: {one['problem']} (docs/runbook.md#confignotloaded)")
    for one in data["source_problems"]:
        since = f"first seen {format_age(parse_timestamp(one['since']), now)}"
        out.line(f"{one['problem']} ({since}; docs/runbook.md#sourceunreadable)")
    for table in data["attention"]:
        name = table["table"]
        if table["halted_at"]:
            out.line(
                f"{name} was halted {format_age(parse_timestamp(table['halted_at']), now)}: {table['halted_reason']}"
            )
            *checks, resume_it = serializers.commands_before_resume(name, table["halted_reason"])
            out.line(f"  check first: {'; '.join(checks)}; then {resume_it} (docs/runbook.md#tablehalted)")
        _print_halted_partitions(run, table, now)
        if table["damaged_slices"]:
            slices = plural(table["damaged_slices"], "file slice")
            out.line(f"{name}: {slices} left alone, since the files differ from the commits; lakefold verify {name}")
        if table["conflicting_commits"]:
            words = serializers.describe_overlaps(name, table["conflicting_commits"], table["last_conflicting_commit"])
            out.line(f"{name} {words} (docs/runbook.md#singlewritertablewritten)")
        if table["foreign_files"]:
            words = serializers.describe_foreign_files(table["foreign_files"], table["foreign_file"])
            out.line(f"{name} has {words} (docs/runbook.md#tablehasforeignfiles)")
        if table["not_planned_reason"]:
            out.line(f"{name} is not planned: {table['not_planned_reason']}")
        if table["over_budget_reason"]:
            out.line(f"{name}: {table['over_budget_reason']} (docs/runbook.md#filesoverbudget)")
        if table["scan_failure"]:
            out.line(f"{name} {table['scan_failure']} (docs/runbook.md#tablescanfailing)")
        if table["retrying_plans"]:
            plan = short_id(table["retrying_plans"][0]["plan_id"])
            out.line(f"{name}: plan {plan} is retried, {table['retries']}; lakefold plans show {plan}")
        if table["failed_plan"]:
            why = f": {table['failed_reason']}" if table["failed_reason"] else ""
            out.line(f"{name}: its newest plan failed{why}; lakefold plans show {table['failed_plan']}")
        if table["write_conflicts"]:
            out.line(f"{name}: {table['write_conflicts']} (docs/runbook.md#commitconflictshigh)")
        if table["error_budget_problems"]:
            out.line(f"{name}: {table['error_budget_problems']} (docs/runbook.md#layoutbudgetburnsfast)")
        if table["quarantined_files"]:
            files = plural(table["quarantined_files"], "quarantined file")
            what = "unreadable, unfinished or impossible to rewrite"
            out.line(f"{name}: {files} ({what}), left alone; lakefold tables show {name} has the reasons")
        if table["paused_by"]:
            out.line(f"{name} is paused {_paused_by(table)}")


def _print_halted_partitions(run: CommandRun, table: Mapping[str, Any], now: datetime) -> None:
    """Print a table's halted partitions, with the commands that resolve or resume each."""
    out, name, halted = run.out, table["table"], table["halted_partitions"]
    for one in halted[:MAX_PARTITIONS_NAMED]:
        since = format_age(parse_timestamp(one["halted_at"]), now)
        out.line(f"{name}, partition {one['partition']}, was halted {since}: {one['halted_reason']}")
        check, settle, resume_it = serializers.commands_before_partition_resume(name, one["partition"])
        out.line(f"  check first: {check}; then {settle}, or {resume_it} (docs/runbook.md#partitionhalted)")
    if (more := len(halted) - MAX_PARTITIONS_NAMED) > 0:
        out.line(f"{name}: {plural(more, 'more partition')} halted; lakefold tables show {name}")


def _print_processes(run: CommandRun, data: Mapping[str, Any], now: datetime) -> None:
    """Print the processes, and the work for which no process is running."""
    out, known = run.out, {process["name"] for process in data["processes"]}
    columns = (
        TableColumn("PROCESS"),
        TableColumn("ROLE"),
        TableColumn("LEADS"),
        TableColumn("RUNS"),
        TableColumn("SPARK"),
        TableColumn("SEEN"),
        TableColumn("SINCE"),
        TableColumn("VERSION"),
    )
    rows = [
        (
            process_label(process["name"]),
            process["role"],
            ", ".join(process["leads"]),
            _running_plans(process),
            process["spark"],
            format_age(parse_timestamp(process["seen_at"]), now) + ("" if process["live"] else ": silent"),
            format_age(parse_timestamp(process["started_at"]), now),
            process["version"],
        )
        for process in data["processes"]
    ]
    # A command such as clean may hold a leadership while it runs.
    rows += [
        (
            process_label(leader["holder"]),
            "command",
            leader["role"],
            "",
            "",
            "",
            format_age(parse_timestamp(leader["acquired_at"]), now),
            "",
        )
        for leader in data["leaders"]
        if leader["live"] and leader["holder"] not in known
    ]
    if rows:
        out.table(columns, rows)
    for process in data["processes"]:
        if process["live"] and process["problem"]:
            out.line(f"{process_label(process['name'])} can't use Spark: {process['problem']}")
        if process["name"] in data["silent_processes"]:
            seen = format_age(parse_timestamp(process["seen_at"]), now)
            words = serializers.describe_silence(process["role"], seen, runs_plans=process["slots"] > 0)
            out.line(f"{process_label(process['name'])} {words} (docs/runbook.md#processsilent)")
    if not data["has_scheduler"]:
        out.line("No scheduler is running: nothing is scanned and no request is answered; lakefold serve starts one.")
    if data["no_executor_reason"]:
        waiting = f"{plural(data['requested'], 'plan')} wait{'s' if data['requested'] == 1 else ''}"
        out.line(f"{waiting if data['requested'] else 'No plan can run'}: {data['no_executor_reason']}.")
    for group in data["unserved_groups"]:
        out.line(f"{plural(group['plans'], 'plan')} wait{'s' if group['plans'] == 1 else ''}: {group['reason']}.")


def _running_plans(process: Mapping[str, Any]) -> str:
    """Return the plans that a process runs, out of its slots."""
    if not process["slots"]:
        return ""
    tables = ", ".join(dict.fromkeys(plan["table"] for plan in process["runs"]))
    return f"{len(process['runs'])} of {process['slots']}" + (f": {tables}" if tables else "")


def _paused_by(paused: Mapping[str, Any]) -> str:
    """Return the actor of the pause, and the reason if there is one."""
    return f"by {paused['paused_by']}" + (f": {paused['paused_reason']}" if paused["paused_reason"] else "")
