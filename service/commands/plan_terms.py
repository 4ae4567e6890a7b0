# SPDX-License-Identifier: Apache-2.0
"""Options that say which plans a command means."""

from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from service.problems import USAGE, CommandError
from service.text import nearest, point_in_time

if TYPE_CHECKING:
    from service.store import PlanTerms

OfTable = Annotated[str | None, typer.Option("--table", "-t", metavar="TABLE", help="Only this table's.")]
WithName = Annotated[
    str | None, typer.Option("--name", metavar="PART", help="Only of tables whose name contains this.")
]
InState = Annotated[str | None, typer.Option("--state", "-s", help="Only plans in this state.")]
Proposed = Annotated[bool, typer.Option("--proposed", help="Only plans that wait for approval (mode propose).")]
WithError = Annotated[
    str | None,
    typer.Option(
        "--error",
        help="Only with this kind of error: transient, conflict, commit_unknown, rejected or integrity.",
    ),
]
Since = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Only created since this date or time, or this long ago (2d)."),
]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Only plans created before then.")]
Word = TypeVar("Word", bound=StrEnum)


def terms_of(
    *,
    table: str | None,
    name: str | None,
    state: str | None,
    error: str | None,
    proposed: bool = False,
    since: str | None,
    until: str | None,
) -> "PlanTerms":
    """The plans that options mean. Raises CommandError for a word or a time that is none."""
    from lake.plan import PlanState
    from service.store import ErrorClass

    terms: PlanTerms = {}
    if table:
        terms["table"] = table
    if name:
        terms["name"] = name
    if state:
        terms["state"] = _one_of("--state", PlanState, state)
    if proposed:
        terms["proposed"] = True
    if error:
        terms["error_class"] = _one_of("--error", ErrorClass, error)
    if since:
        terms["since"] = _time("--since", since)
    if until:
        terms["until"] = _time("--until", until)
    return terms


def _one_of(option: str, kind: Callable[[str], Word], word: str) -> Word:
    known = [str(value) for value in kind]  # type: ignore[attr-defined]
    if word not in known:
        raise CommandError(USAGE, f"{option} {word!r} is none of {', '.join(known)}{nearest(word, known)}")
    return kind(word)


def _time(option: str, text: str) -> datetime:
    try:
        return point_in_time(text, datetime.now(UTC))
    except ValueError as error:
        raise CommandError(USAGE, f"{option}: {error}") from error
