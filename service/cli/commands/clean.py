# SPDX-License-Identifier: Apache-2.0
"""The command ``lakefold clean``, which deletes superseded files."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from lake.units import format_duration
from service.cli.commands.common import CommandRun, ConfigFile, Json, OptionalTable, command_run, current_actor
from service.cli.output.column_widths import TableColumn
from service.control.leadership import CLEAN_ROLE, leader_lease
from service.former_names import both_names
from service.problems import TRANSIENT, ExitCode, ProblemError, exit_codes_help
from service.text import format_size, plural

if TYPE_CHECKING:
    from executors.cleaner import CleanJob, CleanReport


def add_to(root: typer.Typer) -> None:
    """Register the command."""
    epilog = exit_codes_help(ExitCode.PARTIAL, ExitCode.NOT_FOUND, ExitCode.DATABASE)
    root.command("clean", epilog=epilog, short_help="Delete superseded files whose retention has passed.")(clean)


def clean(
    table: OptionalTable = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="List the superseded files and when each is due; delete nothing.")
    ] = False,
    json: Json = False,
    config: ConfigFile = None,
) -> int:
    """Delete superseded files whose retention has passed, of one table or of all. Exits 3 if some of them are kept."""
    with command_run(json, config) as run:
        found = [run.table(table)] if table is not None else run.catalog.tables()
        for problem in run.catalog.problems:
            run.out.note(problem)
        jobs = {job.table.name: job for job in _clean_jobs(run, [entry.name for entry in found])}
        if dry_run:
            waiting = [entry for name in sorted(jobs) for entry in _superseded_entries(run, jobs[name])]
            run.out.results(waiting, lambda: _print_superseded(run, waiting))
            return ExitCode.OK
        reports = _delete_superseded(run, list(jobs.values()))
        run.out.results((_report_document(report) for report in reports), lambda: _print_reports(run, reports))
    stayed = any(report.error or report.kept or report.skip_reason for report in reports)
    return ExitCode.PARTIAL if stayed else ExitCode.OK


def _clean_jobs(run: CommandRun, names: list[str]) -> "list[CleanJob]":
    from service.server.daemon.maintenance import clean_jobs

    return list(clean_jobs(lambda: run.config, run.store, names))


def _delete_superseded(run: CommandRun, jobs: "list[CleanJob]") -> "list[CleanReport]":
    from executors.cleaner import clean_tables
    from executors.context import RunContext
    from service.control.wiring import start_spark

    with leader_lease(run.store, CLEAN_ROLE, f"{current_actor()} clean") as held_by_us:
        if not held_by_us:
            raise _cleaner_busy_error(run)
        return clean_tables(
            jobs, RunContext(store=run.store, spark=lambda: start_spark(run.config, *(job.table for job in jobs)))
        )


def _cleaner_busy_error(run: CommandRun) -> ProblemError:
    live = next((leader.holder for leader in run.store.leaders() if leader.role == CLEAN_ROLE), "another process")
    every = format_duration(run.config.daemon.clean_interval)
    return ProblemError(
        TRANSIENT,
        f"{live} is the cleaner and cleans every {every} (daemon.clean_interval); lakefold clean -n lists the files",
    )


def _superseded_entries(run: CommandRun, job: "CleanJob") -> list[dict[str, Any]]:
    """Return the superseded files of a table, each with the end of its retention and any other reason to keep it.

    A dry run of the cleaner decides on the files whose retention has passed, because a round may have to keep such a
    file only for an older one whose retention has not.
    """
    from executors.cleaner import clean_table
    from executors.context import RunContext
    from lake.formats import load_format
    from service.control.wiring import start_spark

    now = run.store.figures().taken_at
    found = run.store.awaiting_deletion(job.table)
    versions = [due.version for due in found]
    table_format = load_format(job.table.format)
    reasons = table_format.deletion_blockers(job.table, versions, job.retention)
    context = RunContext(store=run.store, spark=lambda: start_spark(run.config, job.table))
    report = clean_table(job, context, format=table_format, dry_run=True)
    stays = {kept.version: kept.reason for kept in (*report.kept, *report.no_longer_awaiting)}
    deleted = set(report.deleted)
    entries = []
    for due in found:
        at = due.superseded_at + job.retention
        kept = job.skip_reason or stays.get(due.version)
        if kept is None and due.version not in deleted:
            kept = reasons.get(due.version.path)
        entries.append(
            both_names(
                "superseded file",
                {
                    "table": job.table.name,
                    "path": due.version.path,
                    "bytes": due.version.bytes,
                    "plan_id": due.plan_id,
                    "instant": due.version.instant,
                    "superseded_at": due.superseded_at,
                    "deletable_at": at,
                    "is_due": due.version in deleted,
                    "retained_reason": kept,
                    "in_seconds": max(0.0, (at - now).total_seconds()),
                },
            )
        )
    return entries


def _print_superseded(run: CommandRun, waiting: list[dict[str, Any]]) -> None:
    def when(entry: dict[str, Any]) -> str:
        if entry["retained_reason"]:
            return f"kept: {entry['retained_reason']}"
        return "now" if entry["is_due"] else f"in {format_duration(entry['in_seconds'])}"

    if waiting:
        rows = [(e["table"], e["path"], format_size(e["bytes"]), when(e)) for e in waiting]
        run.out.table(
            (TableColumn("TABLE"), TableColumn("FILE"), TableColumn("BYTES", True), TableColumn("DELETED")), rows
        )
    now = [entry for entry in waiting if entry["is_due"]]
    run.out.note(
        f"{plural(len(waiting), 'superseded file')}, {format_size(sum(e['bytes'] for e in waiting))}; "
        f"due now: {len(now):,}, {format_size(sum(e['bytes'] for e in now))}"
    )


def _report_document(report: "CleanReport") -> dict[str, Any]:
    document = {
        "table": report.table,
        "deleted_files": report.deleted_files,
        "deleted_bytes": report.bytes_freed,
        "retained": report.kept,
        "closed_entries": report.no_longer_awaiting,
        "skip_reason": report.skip_reason,
        "error": report.error,
    }
    return both_names("clean", document)


def _print_reports(run: CommandRun, reports: "list[CleanReport]") -> None:
    if not reports:
        run.out.note("No superseded files are awaiting deletion.")
    for report in reports:
        run.out.line(
            f"{report.table}: deleted {plural(report.deleted_files, 'file')}, {format_size(report.bytes_freed)}"
        )
        if report.skip_reason:
            run.out.line(f"  not cleaned: {report.skip_reason}")
        if report.error:
            run.out.line(f"  ended early: {report.error}")
        for kept in report.kept:
            run.out.line(f"  kept {kept.version.path}: {kept.reason}")
        for closed in report.no_longer_awaiting:
            run.out.line(f"  no longer awaiting deletion: {closed.version.path}: {closed.reason}")
