# SPDX-License-Identifier: Apache-2.0
"""The page of a replay: a table's own history under other policies, day by day, and the advice for its writer."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from lake.errors import LakefoldError
from lake.units import format_bytes, format_elapsed
from service.control import serializers
from service.control.config.table_settings import ConfiguredTable
from service.control.planning.replay import ReplayTimeout, advise_table, deadline_check, parse_grid, replay_table
from service.problems import describe_error
from service.server.api.context import Context
from service.server.api.replay import REPLAY_SLOT
from service.server.web.charts import Tick, axis_text
from service.server.web.formatting import as_sentence, format_clock, format_count, shell_command
from service.server.web.rendering import PageContent, table_path
from service.server.web.time_axis import MomentBand, TimeAxis, axis_marks, round_ceiling
from service.text import format_percent, join_names, plural

#: width, height and left margin (for texts) of a chart for wide windows, and of one for narrow windows
_SIZES = ((960.0, 260.0, 64.0), (360.0, 220.0, 52.0))
_TOP, _BOTTOM, _RIGHT = 12.0, 26.0, 6.0
#: the time limit of the page; the command has none
_MAX_SECONDS = 15.0
_MAX_DAYS = 90
#: the legend names at most this number of policies that are neither configured nor recommended
_MAX_NAMES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLine:
    """The files at the end of each day under one policy; ``kind`` is none, configured, recommended or other."""

    name: str
    kind: str
    path: str
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayChart:
    """A chart for browser windows of one width, with one line per policy on a common scale from zero.

    A band for each day has the figures of all policies as text.
    """

    width: float
    height: float
    left: float
    right: float
    top: float
    base: float
    lines: tuple[PolicyLine, ...]
    bands: tuple[MomentBand, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]


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

    Result and advice are None if there is an error. Only the advice is None if the time limit ended before the advice.
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
        error=as_sentence(message),
        result=found,
        advice=advice,
        rows=tuple(_policy_row(found, policy) for policy in found["policies"]) if found else (),
        charts=_charts(found) if found else (),
        chart_text=_chart_text(found) if found else "",
        legend=_legend(found) if found else (),
        by_day=_by_day(found["policies"]) if found else (),
        equal_lines=_equal_lines(found["policies"]) if found else "",
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
        f"Recommended is {take['name']}. The table below has the numbers."
    )


def _legend(found: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return the keys of the lines that are drawn, each with the name of its policy."""
    names: dict[str, list[str]] = {}
    for policy in found["policies"]:
        names.setdefault(_kind(found, policy["name"]), []).append(policy["name"])
    keys = {"none": "small", "configured": "ink", "recommended": "large", "other": "before"}
    texts = {kind: join_names(listed) for kind, listed in names.items()}
    if "recommended" in texts:
        texts["recommended"] = f"recommended: {texts['recommended']}"
    if len(names.get("other", ())) > _MAX_NAMES:
        texts["other"] = f"{len(names['other'])} others"
    return tuple((keys[kind], texts[kind]) for kind in keys if kind in texts)


def _by_day(policies: Sequence[Mapping[str, Any]]) -> tuple[tuple[datetime, tuple[int, ...]], ...]:
    """Return the days, newest first, each with the files under each policy."""
    days = zip(*(policy["by_day"] for policy in policies), strict=True)
    return tuple((day[0]["at"], tuple(one["files"] for one in day)) for day in days)[::-1]


def _equal_lines(policies: Sequence[Mapping[str, Any]]) -> str:
    """Return the policies that have the same files on each day, so that their lines cover each other; '' if none do."""
    names_by_line: dict[tuple[int, ...], list[str]] = {}
    for policy in policies:
        names_by_line.setdefault(tuple(day["files"] for day in policy["by_day"]), []).append(policy["name"])
    groups = [join_names(names) for names in names_by_line.values() if len(names) > 1]
    return f"Equal lines: {'; '.join(groups)}." if groups else ""


def _charts(found: Mapping[str, Any]) -> tuple[ReplayChart, ...]:
    """Return a chart for wide and a chart for narrow browser windows; nothing if there is no day."""
    if not found["policies"][0]["by_day"]:
        return ()
    most = max(day["files"] for policy in found["policies"] for day in policy["by_day"])
    marks = axis_marks(max(round_ceiling(most), 2.0), is_whole=True)
    return tuple(_chart(found, marks, size) for size in _SIZES)


def _chart(found: Mapping[str, Any], marks: Sequence[float], size: tuple[float, float, float]) -> ReplayChart:
    policies = found["policies"]
    moments = [day["at"] for day in policies[0]["by_day"]]
    width, height, left = size
    base, right = height - _BOTTOM, width - _RIGHT
    # One day alone is a level line.
    begin = moments[0] if len(moments) > 1 else moments[0] - timedelta(days=1)
    axis = TimeAxis(begin=begin, end=moments[-1], left=left, right=right)

    def y_of(files: float) -> float:
        return base - files / marks[-1] * (base - _TOP)

    lines = []
    for policy in policies:
        placed = [(axis.position(day["at"]), y_of(day["files"])) for day in policy["by_day"]]
        placed = placed if len(placed) > 1 else [(left, placed[0][1]), *placed]
        path = "".join(f"{'L' if index else 'M'}{x:.1f} {y:.1f}" for index, (x, y) in enumerate(placed))
        end = policy["final"]["files"]
        words = f"{policy['name']}: {plural(end, 'file')} at the end, {policy['files']:,.0f} on average"
        lines.append(PolicyLine(name=policy["name"], kind=_kind(found, policy["name"]), path=path, description=words))
    # The widest line comes first, so that an equal line on it leaves its edges visible.
    order = {"recommended": 0, "other": 1, "none": 2, "configured": 3}
    return ReplayChart(
        width=width,
        height=height,
        left=left,
        right=right,
        top=_TOP,
        base=base,
        lines=tuple(sorted(lines, key=lambda line: order[line.kind])),
        bands=_bands(policies, moments, axis),
        x_ticks=axis.ticks(timedelta(days=1)),
        y_ticks=tuple(Tick(at=y_of(value), text=axis_text(format_count(round(value)))) for value in marks),
    )


def _bands(
    policies: Sequence[Mapping[str, Any]], moments: Sequence[datetime], axis: TimeAxis
) -> tuple[MomentBand, ...]:
    """Return a band for each day; bands of neighbouring days meet halfway between them."""
    places = [axis.position(moment) for moment in moments]
    edges = [axis.left, *((a + b) / 2 for a, b in pairwise(places)), axis.right]
    return tuple(
        MomentBand(
            x=edges[index],
            width=edges[index + 1] - edges[index],
            text=f"{format_clock(moment)}: "
            + ", ".join(f"{policy['name']} {plural(policy['by_day'][index]['files'], 'file')}" for policy in policies),
        )
        for index, moment in enumerate(moments)
    )
