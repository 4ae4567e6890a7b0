# SPDX-License-Identifier: Apache-2.0
"""The answer to a plan request as text: the exact plans, and the reasons why other files are left alone."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from service.cli.commands.common import CommandRun
from service.cli.commands.output import TableColumn
from service.text import format_size, partition_name, plural

if TYPE_CHECKING:
    from service.control.planning.plan_request import PlanResponse

_FILES_SHOWN = 5


def print_answer(run: CommandRun, answer: "PlanResponse", *, all_files: bool) -> None:
    """Print an answer for people."""
    out = run.out
    dry = answer.outcome == "dry_run"
    for number, plan in enumerate(answer.plans, 1):
        name = f"Plan {number} of {len(answer.plans)} (not stored)" if dry else f"Plan {plan['plan_id']}"
        if plan["kind"] == "compaction":
            logs = f"{plural(plan['log_files'], 'log file')} of {plural(len(plan['groups']), 'slice')}"
            out.line(f"{name}: {logs} into new base files, {format_size(plan['input_bytes'])}")
        else:
            out.line(
                f"{name}: {plural(plan['input_files'], 'file')}, {format_size(plan['input_bytes'])} in "
                f"{plural(len(plan['groups']), 'group')} → {plural(plan['output_files'], 'file')}"
            )
        if dry:
            for place, group in enumerate(plan["groups"], 1):
                _print_group(run, place, group, all_files=all_files)
    if answer.plans:
        out.line()
    text = answer.text[:1].upper() + answer.text[1:]
    out.line(f"{text}; the table has {plural(answer.files, 'file')}, {format_size(answer.bytes)}.")
    if answer.reasons:
        out.line()
        out.table(
            (TableColumn("LEFT ALONE"), TableColumn("FILES", True), TableColumn("BYTES", True), TableColumn("SETTING")),
            (
                (
                    reason["text"] + (" …" if reason["has_several_values"] else ""),
                    f"{reason['files']:,}",
                    format_size(reason["bytes"] + reason["log_bytes"]),
                    reason["setting"],
                )
                for reason in answer.reasons
            ),
        )
    for partition, plan_id in list(answer.holders.items())[:10]:
        out.note(f"{partition_name(partition)} is held by live plan {plan_id}")
    if dry and answer.plans:
        otherwise = (
            f"without -n the request would be refused: {answer.refused}"
            if answer.refused
            else "run the command without -n to create these plans."
        )
        out.note(f"Nothing was created; {otherwise}")


def _print_group(run: CommandRun, number: int, group: Mapping[str, Any], *, all_files: bool) -> None:
    run.out.line(
        f"  group {number}  {partition_name(group['partition'])}  {plural(group['input_files'], 'file')}, "
        f"{format_size(group['input_bytes'])} → {plural(group['output_files'], 'file')}"
    )
    shown = group["files"] if all_files else group["files"][:_FILES_SHOWN]
    for file in shown:
        logs = f" + {plural(len(file['log_files']), 'log file')}" if file["log_files"] else ""
        run.out.line(f"    {format_size(file['bytes']):>9}  {file['path'] or file['file_id']}{logs}")
    if len(group["files"]) > len(shown):
        run.out.line(f"    {'…':>9}  and {len(group['files']) - len(shown)} more; --files lists all")
