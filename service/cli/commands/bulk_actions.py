# SPDX-License-Identifier: Apache-2.0
"""Cancel, retry, approve or decline many plans: list them, ask for confirmation, and report the result of each."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import typer

from service.cli.commands.common import CommandRun
from service.cli.output.column_widths import TableColumn
from service.problems import USAGE, ExitCode, ProblemError
from service.text import format_size, plural, short_id

if TYPE_CHECKING:
    from service.control.planning.bulk_actions import BulkActionName
    from service.control.store import PlanFilter

_RESULT_TEXT = {
    "cancel": "cancelled, or asked to stop before the commit",
    "retry": "to be tried again",
    "approve": "approved",
    "decline": "declined",
}
#: the maximum number of plans listed before the confirmation
_MAX_LISTED = 20


def run_bulk_action(
    run: CommandRun, action: "BulkActionName", plan_filter: "PlanFilter", reason: str, *, dry_run: bool, yes: bool
) -> int:
    """Apply ``action`` to all plans that match ``plan_filter`` and return the exit code.

    Raises ProblemError if a confirmation is needed and the command has no terminal.
    """
    pages = list(_bulk_pages(run, action, plan_filter, reason, dry_run=True))
    plans = [plan for page in pages for plan in page["plans"]]
    if dry_run:
        run.out.results(plans, lambda: _print_plans(run, plans))
        run.out.note(f"Would {action} {plural(len(plans), 'plan')}; no plan was changed")
        return ExitCode.OK
    if plans and not yes:
        if not run.out.can_prompt:
            what = f"{plural(len(plans), 'plan')} to {action}"
            raise ProblemError(USAGE, f"{what}; add --yes to confirm, or --dry-run to list them", plans=len(plans))
        _print_plans(run, plans[:_MAX_LISTED])
        more = f" ({len(plans) - _MAX_LISTED:,} are not listed above)" if len(plans) > _MAX_LISTED else ""
        typer.confirm(f"{action.capitalize()} {plural(len(plans), 'plan')}{more}?", abort=True, err=True)
    # Plans created after the listing are excluded, because the user has not confirmed them.
    meant: PlanFilter = {**plan_filter, "until": datetime.fromisoformat(pages[0]["until"])}
    done, left = list[Mapping[str, Any]](), list[Mapping[str, Any]]()
    for page in _bulk_pages(run, action, meant, reason, dry_run=False) if plans else ():
        done += page["plans"]
        left += page["skipped"]
    entries = [*({**plan, "done": True} for plan in done), *({**plan, "done": False} for plan in left)]
    run.out.results(entries, lambda: _print_result(run, action, len(done), left))
    return ExitCode.PARTIAL if left else ExitCode.OK


def _bulk_pages(
    run: CommandRun, action: "BulkActionName", plan_filter: "PlanFilter", reason: str, *, dry_run: bool
) -> Iterator[Mapping[str, Any]]:
    after: str | None = None
    while True:
        page = run.client.bulk(action, plan_filter, reason=reason, dry_run=dry_run, after=after)
        yield page
        after = page["next"]
        if after is None:
            return


def _print_plans(run: CommandRun, plans: list[Mapping[str, Any]]) -> None:
    columns = (
        TableColumn("PLAN"),
        TableColumn("TABLE", is_shortened=True),
        TableColumn("FILES", True),
        TableColumn("BYTES", True),
    )
    run.out.table(
        columns,
        (
            (
                short_id(plan["plan_id"]),
                plan["table"],
                f"{plan['input_files']:,} → {plan['output_files']:,}",
                format_size(plan["input_bytes"]),
            )
            for plan in plans
        ),
    )


def _print_result(run: CommandRun, action: str, done: int, left: list[Mapping[str, Any]]) -> None:
    run.out.line(f"{plural(done, 'plan')} {_RESULT_TEXT[action]}" + (f", {len(left):,} not changed:" if left else ""))
    for plan in left:
        run.out.line(f"  {short_id(plan['plan_id'])}  {plan['table']}: {plan['reason']}")
