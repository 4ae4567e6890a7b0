# SPDX-License-Identifier: Apache-2.0
"""The options that select the plans of a command."""

from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from service.problems import USAGE, ProblemError
from service.text import did_you_mean, parse_time_or_age

if TYPE_CHECKING:
    from service.control.store import PlanFilter

TableOption = Annotated[str | None, typer.Option("--table", "-t", metavar="TABLE", help="Only this table's.")]
NameOption = Annotated[
    str | None, typer.Option("--name", metavar="PART", help="Only of tables whose name contains this.")
]
StateOption = Annotated[str | None, typer.Option("--state", "-s", help="Only plans in this state.")]
ProposedOption = Annotated[bool, typer.Option("--proposed", help="Only plans that wait for approval (mode propose).")]
ErrorOption = Annotated[
    str | None,
    typer.Option(
        "--error",
        help="Only with this kind of error: transient, conflict, commit_unknown, rejected or integrity.",
    ),
]
SinceOption = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Only created since this date or time, or this long ago (2d)."),
]
UntilOption = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Only plans created before then.")]
EnumValue = TypeVar("EnumValue", bound=StrEnum)


def build_plan_filter(
    *,
    table: str | None,
    name: str | None,
    state: str | None,
    error: str | None,
    proposed: bool = False,
    since: str | None,
    until: str | None,
) -> "PlanFilter":
    """Build the filter from the options. Raises ProblemError for an unknown word or a time that can't be parsed."""
    from lake.plan import PlanState
    from service.control.store import ErrorClass

    plan_filter: PlanFilter = {}
    if table:
        plan_filter["table"] = table
    if name:
        plan_filter["name"] = name
    if state:
        plan_filter["state"] = _parse_choice("--state", PlanState, state)
    if proposed:
        plan_filter["proposed"] = True
    if error:
        plan_filter["error_class"] = _parse_choice("--error", ErrorClass, error)
    if since:
        plan_filter["since"] = _parse_time("--since", since)
    if until:
        plan_filter["until"] = _parse_time("--until", until)
    return plan_filter


def _parse_choice(option: str, kind: Callable[[str], EnumValue], word: str) -> EnumValue:
    known = [str(value) for value in kind]  # type: ignore[attr-defined]
    if word not in known:
        raise ProblemError(USAGE, f"{option} {word!r} is none of {', '.join(known)}{did_you_mean(word, known)}")
    return kind(word)


def _parse_time(option: str, text: str) -> datetime:
    try:
        return parse_time_or_age(text, datetime.now(UTC))
    except ValueError as error:
        raise ProblemError(USAGE, f"{option}: {error}") from error
