# SPDX-License-Identifier: Apache-2.0
"""The page of a replay: a table's own history under other policies, day by day, and the advice for its writer."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from lake.errors import LakefoldError
from lake.units import format_bytes, format_elapsed
from service.control import serializers
from service.control.config.tables import ConfiguredTable
from service.control.planning.replay import ReplayTimeout, advise_table, deadline_check, parse_grid, replay_table
from service.problems import describe_error
from service.server.api.context import Context
from service.server.api.replay import REPLAY_SLOT
from service.server.web.formatting import shell_command
from service.server.web.rendering import PageContent, table_path
from service.text import format_percent, plural

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 960.0, 260.0, 56.0, 16.0, 24.0
#: the time limit of the page; the command has none
_MAX_SECONDS = 15.0
_MAX_DAYS = 90


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLine:
    """The files at the end of each day under one policy; ``kind`` is none, configured, recommended or other."""

    name: str
    kind: str
    path: str
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class YAxisMark:
    """A mark on the vertical axis."""

    y: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayChart:
    """A chart with one line per policy, on a common scale from zero."""

    width: float
    height: float
    left: float
    base: float
    marks: tuple[YAxisMark, ...]
    lines: tuple[PolicyLine, ...]
    #: the first day and the last one
    first: str
    last: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRow:
    """A row of the table of policies."""

    policy: Mapping[str, Any]
    kind: str
    small: str
    rewritten: str
    cpu_seconds: float
    write_amplification: str


def replay_page(context: Context, table: ConfiguredTable, days: float, settings: Sequence[str]) -> PageContent:
    """Replay the last ``days`` of ``table`` under each combination of ``settings``.

    Result and advice are None if there is an error; only the advice is None if the time limit was reached before it.
    """
    given = tuple(word.strip() for word in settings if word.strip())
    found: Mapping[str, Any] | None = None
    advice, message = None, ""
    try:
        with REPLAY_SLOT.taken():
            check, days_shown = deadline_check(_MAX_SECONDS), min(days, _MAX_DAYS)
            done = replay_table(
                context.config, context.store, table, days=days_shown, grid=parse_grid(given), check=check
            )
            found = serializers.replay(done.table, done.history, done.comparison, done.rates)
            with suppress(ReplayTimeout):  # the page shows the command, which has no time limit
                advice = serializers.advice(
                    table.name, *advise_table(context.store, table, days=days_shown, check=check)
                )
    except (LakefoldError, OSError) as error:
        message, found = describe_error(error), None
    options = [part for word in given for part in ("--set", word)]
    return PageContent(
        table=table.name,
        path=table_path(table.name),
        days=days,
        known=_known_period(found) if found else "",
        has_rates=bool(found and found["policies"][0]["rewritten_bytes_per_day"] is not None),
        settings=given,
        error=message,
        result=found,
        advice=advice,
        rows=tuple(_policy_row(found, policy) for policy in found["policies"]) if found else (),
        chart=_chart(found) if found else None,
        chart_text=_chart_text(found) if found else "",
        commands=(
            shell_command("lakefold", "tables", "replay", table.name, "--days", f"{days:g}", *options),
            shell_command("lakefold", "tables", "advise", table.name, "--days", f"{days:g}"),
        ),
    )


def _kind(found: Mapping[str, Any], name: str) -> str:
    if name == found["recommended"]["name"]:
        return "recommended"
    return {"no compaction": "none", "configured": "configured"}.get(name, "other")


def _policy_row(found: Mapping[str, Any], policy: Mapping[str, Any]) -> PolicyRow:
    amplification, a_day = policy["write_amplification"], policy["rewritten_bytes_per_day"]
    return PolicyRow(
        policy=policy,
        kind=_kind(found, policy["name"]),
        small=format_percent(policy["small_share"]),
        rewritten=format_bytes(policy["rewritten_bytes"] if a_day is None else round(a_day)),
        cpu_seconds=policy["cpu_seconds"] if a_day is None else policy["cpu_seconds_per_day"],
        write_amplification="–" if amplification is None else f"{amplification:.2f}×",
    )


def _known_period(found: Mapping[str, Any]) -> str:
    """Return the length of the history; it is shorter than requested if the table has no older commit."""
    return f"{found['days']:.1f} days" if found["days"] >= 1 else format_elapsed(timedelta(days=found["days"]))


def _chart_text(found: Mapping[str, Any]) -> str:
    take = found["recommended"]
    return (
        f"Files at the end of each day under {plural(len(found['policies']), 'setting')} of the policy. "
        f"Recommended is {take['name']}. The numbers are in the table."
    )


def _chart(found: Mapping[str, Any]) -> ReplayChart:
    policies = found["policies"]
    days = policies[0]["by_day"]
    most = max((day["files"] for policy in policies for day in policy["by_day"]), default=0) or 1
    base = _HEIGHT - _BOTTOM

    def y_of(files: float) -> float:
        return base - files / most * (base - _TOP)

    lines = []
    for policy in policies:
        points = policy["by_day"]
        step = (_WIDTH - _LEFT) / max(1, len(points) - 1)
        path = "".join(
            f"{'L' if index else 'M'}{_LEFT + index * step:.1f} {y_of(day['files']):.1f}"
            for index, day in enumerate(points)
        )
        path += f"H{_WIDTH:.1f}" if len(points) == 1 else ""
        end = policy["final"]["files"]
        words = f"{policy['name']}: {plural(end, 'file')} at the end, {policy['files']:,.0f} on average"
        lines.append(PolicyLine(name=policy["name"], kind=_kind(found, policy["name"]), path=path, description=words))
    order = {"other": 0, "none": 1, "configured": 2, "recommended": 3}
    return ReplayChart(
        width=_WIDTH,
        height=_HEIGHT,
        left=_LEFT,
        base=base,
        marks=tuple(YAxisMark(y=y_of(value), text=f"{value:,}") for value in sorted({most, most // 2} - {0})),
        lines=tuple(sorted(lines, key=lambda line: order[line.kind])),
        first=f"{days[0]['at']:%Y-%m-%d}" if days else "",
        last=f"{days[-1]['at']:%Y-%m-%d}" if len(days) > 1 else "",
    )
