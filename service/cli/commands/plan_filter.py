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

TableOption = Annotated[str | None, typer.Option("--table", "-t", metavar="TABLE", help="Only plans of this table.")]
NameOption = Annotated[
    str | None, typer.Option("--name", metavar="PART", help="Only plans of tables whose name contains this.")
]
StateOption = Annotated[str | None, typer.Option("--state", "-s", help="Only plans in this state.")]
ProposedOption = Annotated[bool, typer.Option("--proposed", help="Only plans that wait for approval (mode propose).")]
ErrorOption = Annotated[
    str | None,
    typer.Option(
        "--error",
        help="Only plans with this error: transient, conflict, commit_unknown, rejected or integrity.",
    ),
]
SinceOption = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Only plans created since this date, time or age (2d)."),
]
UntilOption = Annotated[
    str | None, typer.Option("--until", metavar="TIME", help="Only plans created before this date, time or age.")
]
EnumValue = TypeVar("EnumValue", bound=StrEnum)


def plan_filter_of_options(
    *,
    state: str | None = None,
    error: str | None = None,
    since: str | None,
    until: str | None,
    **fields: str | bool | None,
) -> "PlanFilter":
    """Build the filter from the options. Raises ProblemError for an unknown value or a time that can't be parsed."""
    from lake.plan import PlanState
    from service.control.store import ErrorClass, build_plan_filter

    return build_plan_filter(
        state=_parse_choice("--state", PlanState, state) if state else None,
        error=_parse_choice("--error", ErrorClass, error) if error else None,
        since=_parse_time("--since", since) if since else None,
        until=_parse_time("--until", until) if until else None,
        **fields,
    )


def _parse_choice(option: str, kind: Callable[[str], EnumValue], word: str) -> EnumValue:
    known = [str(value) for value in kind]  # type: ignore[attr-defined]
    if word not in known:
        raise ProblemError(USAGE, f"{option} {word!r} is not one of {', '.join(known)}{did_you_mean(word, known)}")
    return kind(word)


def _parse_time(option: str, text: str) -> datetime:
    try:
        return parse_time_or_age(text, datetime.now(UTC))
    except ValueError as error:
        raise ProblemError(USAGE, f"{option}: {error}") from error
