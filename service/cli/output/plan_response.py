# SPDX-License-Identifier: Apache-2.0
"""The text output of a plan request: the exact plans, and the reasons why other files are left alone."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from service.cli.output.column_widths import TableColumn
from service.cli.output.command_output import CommandOutput
from service.text import format_size, partition_name, plural

if TYPE_CHECKING:
    from service.control.planning.plan_request import PlanResponse

_FILES_SHOWN = 5


def print_plan_response(out: CommandOutput, response: "PlanResponse", *, all_files: bool) -> None:
    """Print the response to a plan request for people."""
    dry = response.outcome == "dry_run"
    for number, plan in enumerate(response.plans, 1):
        name = f"Plan {number} of {len(response.plans)} (not stored)" if dry else f"Plan {plan['plan_id']}"
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
                _print_group(out, place, group, all_files=all_files)
    if response.plans:
        out.line()
    text = response.text[:1].upper() + response.text[1:]
    out.line(f"{text}; the table has {plural(response.files, 'file')}, {format_size(response.bytes)}.")
    if response.reasons:
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
                for reason in response.reasons
            ),
        )
    for partition, plan_id in list(response.holders.items())[:10]:
        out.note(f"{partition_name(partition)} is held by live plan {plan_id}")
    if dry and response.plans:
        otherwise = (
            f"without -n the request would be refused: {response.refused}"
            if response.refused
            else "run the command without -n to create these plans."
        )
        out.note(f"Nothing was created; {otherwise}")


def _print_group(out: CommandOutput, number: int, group: Mapping[str, Any], *, all_files: bool) -> None:
    out.line(
        f"  group {number}  {partition_name(group['partition'])}  {plural(group['input_files'], 'file')}, "
        f"{format_size(group['input_bytes'])} → {plural(group['output_files'], 'file')}"
    )
    shown = group["files"] if all_files else group["files"][:_FILES_SHOWN]
    for file in shown:
        logs = f" + {plural(len(file['log_files']), 'log file')}" if file["log_files"] else ""
        out.line(f"    {format_size(file['bytes']):>9}  {file['path'] or file['file_id']}{logs}")
    if len(group["files"]) > len(shown):
        out.line(f"    {'…':>9}  and {len(group['files']) - len(shown)} more; --files lists all")
