# SPDX-License-Identifier: Apache-2.0
"""Cancel, retry, approve and decline of many plans: which ones first, then a question, then what came of each."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import typer

from service.commands.common import Run, plural
from service.commands.output import Column
from service.problems import USAGE, CommandError, ExitCode
from service.text import short_id, size

if TYPE_CHECKING:
    from service.planning.bulk import Action
    from service.store import PlanTerms

_DONE = {
    "cancel": "cancelled, or asked to stop before the commit",
    "retry": "requested again",
    "approve": "approved",
    "decline": "declined",
}
#: plans listed before the question
_MOST_LISTED = 20


def bulk(run: Run, action: "Action", terms: "PlanTerms", reason: str, *, dry_run: bool, yes: bool) -> int:
    """Do it to all plans that ``terms`` mean; the exit code. Raises CommandError where nobody can be asked."""
    pages = list(_pages(run, action, terms, reason, dry_run=True))
    plans = [plan for page in pages for plan in page["plans"]]
    if dry_run:
        run.out.many(plans, lambda: _table(run, plans))
        run.out.note(f"{plural(len(plans), 'plan')} to {action}; none was changed")
        return ExitCode.OK
    if plans and not yes:
        if not run.out.can_ask:
            what = f"{plural(len(plans), 'plan')} to {action}"
            raise CommandError(USAGE, f"{what}; --yes does it, --dry-run lists them", plans=len(plans))
        _table(run, plans[:_MOST_LISTED])
        more = f" ({len(plans) - _MOST_LISTED:,} more than these)" if len(plans) > _MOST_LISTED else ""
        typer.confirm(f"{action.capitalize()} {plural(len(plans), 'plan')}{more}?", abort=True, err=True)
    # What is made after the look is not meant: nobody has seen it.
    meant: PlanTerms = {**terms, "until": datetime.fromisoformat(pages[0]["until"])}
    done, left = list[Mapping[str, Any]](), list[Mapping[str, Any]]()
    for page in _pages(run, action, meant, reason, dry_run=False) if plans else ():
        done += page["plans"]
        left += page["left"]
    entries = [*({**plan, "done": True} for plan in done), *({**plan, "done": False} for plan in left)]
    run.out.many(entries, lambda: _ended_text(run, action, len(done), left))
    return ExitCode.PARTIAL if left else ExitCode.OK


def _pages(
    run: Run, action: "Action", terms: "PlanTerms", reason: str, *, dry_run: bool
) -> Iterator[Mapping[str, Any]]:
    after: str | None = None
    while True:
        page = run.client.bulk(action, terms, reason=reason, dry_run=dry_run, after=after)
        yield page
        after = page["next"]
        if after is None:
            return


def _table(run: Run, plans: list[Mapping[str, Any]]) -> None:
    columns = (Column("PLAN"), Column("TABLE", cut="amid"), Column("FILES", True), Column("BYTES", True))
    run.out.table(
        columns,
        (
            (
                short_id(plan["plan_id"]),
                plan["table"],
                f"{plan['input_files']:,} → {plan['output_files']:,}",
                size(plan["input_bytes"]),
            )
            for plan in plans
        ),
    )


def _ended_text(run: Run, action: str, done: int, left: list[Mapping[str, Any]]) -> None:
    run.out.line(f"{plural(done, 'plan')} {_DONE[action]}" + (f", {len(left):,} left alone:" if left else ""))
    for plan in left:
        run.out.line(f"  {short_id(plan['plan_id'])}  {plan['table']}: {plan['reason']}")
