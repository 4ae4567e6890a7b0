# SPDX-License-Identifier: Apache-2.0
"""The text output of plans: a list, and one plan with its partitions and events."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from service.cli.output.column_widths import TableColumn
from service.cli.output.command_output import CommandOutput
from service.control import serializers
from service.text import cause_first, format_age, format_size, parse_timestamp, partition_name, plural, short_id


def print_plans(out: CommandOutput, plans: Sequence[Mapping[str, Any]], limit: int) -> None:
    """Print a list of plans, one per line."""
    now = datetime.now(UTC)
    # The column is left out if all plans are of one kind.
    kinds = len({plan["kind"] for plan in plans}) > 1
    columns = (
        TableColumn("PLAN"),
        TableColumn("TABLE", is_shortened=True),
        *([TableColumn("KIND")] if kinds else ()),
        TableColumn("STATE"),
        TableColumn("FILES", True),
        TableColumn("BYTES", True),
        TableColumn("AGE", True),
        TableColumn("ERROR"),
    )
    out.table(
        columns,
        (
            (
                short_id(plan["plan_id"]),
                plan["table"],
                *([plan["kind"]] if kinds else ()),
                _state_text(plan),
                f"{plan['files_before'] or plan['input_files']:,} → {plan['files_after'] or plan['output_files']:,}",
                format_size(plan["input_bytes"]),
                format_age(parse_timestamp(plan["created_at"]), now).removesuffix(" ago"),
                cause_first(plan["error"] or plan["cancel_reason"] or ""),
            )
            for plan in plans
        ),
    )
    if len(plans) == limit:
        out.note(f"More may follow: --after {short_id(plans[-1]['plan_id'])}")


def _state_text(plan: Mapping[str, Any]) -> str:
    if plan["waits_for_approval"]:
        return "requested, waits for approval"
    return f"{plan['state']} {_progress_percent(plan)}".rstrip()


def _progress_percent(plan: Mapping[str, Any]) -> str:
    if plan["state"] != "inflight" or not plan["progress_bytes_total"]:
        return ""
    return f"{100 * plan['progress_bytes_done'] / plan['progress_bytes_total']:.0f} %"


def print_plan(out: CommandOutput, plan: Mapping[str, Any]) -> None:
    """Print one plan in full."""
    from lake.plan import Step
    from lake.units import format_elapsed

    now, created = datetime.now(UTC), parse_timestamp(plan["created_at"])
    out.line(f"Plan {plan['plan_id']}  {plan['state']}  {plan['kind']} of {plan['table']}")
    facts = [
        ("location", plan["location"]),
        ("created", f"{created.isoformat(timespec='seconds')} ({format_age(created, now)}) by {plan['actor']}"),
        ("request", plan["request_id"]),
        ("adopted", plan["adopted_instant"] and f"instant {plan['adopted_instant']}, scheduled by another process"),
        (
            "input",
            f"{plural(plan['input_files'], 'file')}, {format_size(plan['input_bytes'])} in "
            f"{plural(plan['groups'], 'group')} of {plural(plan['partitions'], 'partition')}; "
            f"{plural(plan['output_files'], 'file')} expected",
        ),
        ("approval", _approval_text(plan)),
        ("executor", plan["executor"] and f"{plan['executor']}, epoch {plan['epoch']}, attempt {plan['attempts']}"),
        ("instant", plan["instant"] or ", ".join(plan["instants"])),
        (plan["state"] if plan["end_reason"] else "error", plan["end_reason"] or plan["error"]),
    ]
    for label, value in facts:
        if value:
            out.line(f"  {label:<10} {value}")
    if plan["state"] == "inflight" and plan["progress_bytes_total"]:
        done = (
            f"{format_size(plan['progress_bytes_done'])} of {format_size(plan['progress_bytes_total'])}, "
            f"{_progress_percent(plan)}"
        )
        speed = plan["bytes_per_second"]
        left = f"; {format_size(speed)}/s, about {format_elapsed(plan['seconds_left'])} left" if speed else ""
        out.line(f"  {'progress':<10} {done}{left}")
    for label, words in serializers.describe_cost(plan["cost_benefit"]):
        out.line(f"  {label:<10} {words}")
    if plan["state"] == "inflight" and plan["heartbeat_at"]:
        out.line(f"  {'heartbeat':<10} {format_age(parse_timestamp(plan['heartbeat_at']), now)}")
    if plan["no_executor_reason"]:
        out.line(f"  {'waits':<10} {plan['no_executor_reason']}")
    if plan["wait_reason"]:
        out.line(f"  {'held':<10} {plan['wait_reason']}")
    if plan["spark_ui"]:
        out.line(f"  {'Spark UI':<10} {plan['spark_ui']}")
    spent = plan["milliseconds"]
    if spent:
        # In the order of execution, because the database does not preserve the order of JSON keys.
        times = {step: spent[step] for step in (*Step, *spent) if step in spent}
        if plan["other_milliseconds"]:
            times["other"] = plan["other_milliseconds"]
        took = "  ".join(f"{step} {format_elapsed(time / 1000)}" for step, time in times.items())
        out.line(f"  {'steps':<10} {took}; together {format_elapsed(plan['took_milliseconds'] / 1000)}")
    out.line()
    _print_partitions(out, plan)
    left_out = [group for group in plan["group_details"] if group["left_out"] is not None]
    if left_out:
        out.line()
        out.line("Left out")
        for group in left_out:
            out.line(f"  group {group['number']} of {partition_name(group['partition'])}: {group['left_out']}")
    out.line()
    out.table(
        (
            TableColumn("AT (UTC)"),
            TableColumn("AFTER", True),
            TableColumn("STATE"),
            TableColumn("EPOCH", True),
            TableColumn("ACTOR"),
            TableColumn("REASON"),
        ),
        (
            (
                f"{parse_timestamp(event['at']).astimezone(UTC):%Y-%m-%d %H:%M:%S}",
                format_elapsed(after) if after else "",
                event["to_state"],
                event["epoch"],
                event["actor"],
                event["reason"],
            )
            for event, after in _with_intervals(plan["events"])
        ),
    )


def _approval_text(plan: Mapping[str, Any]) -> str:
    """Return the decision on a proposal, or the commands that decide it; '' if the plan was never proposed."""
    if plan["waits_for_approval"]:
        waits = format_age(parse_timestamp(plan["proposed_at"]), datetime.now(UTC)).removesuffix(" ago")
        return f"waiting for {waits}; lakefold plans approve or decline {short_id(plan['plan_id'])}"
    if plan["decision"] is None:
        return ""
    decided_at = parse_timestamp(plan["decided_at"]).isoformat(timespec="seconds")
    return f"{plan['decision']} by {plan['decided_by']} at {decided_at}"


def _with_intervals(
    events: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[Mapping[str, Any], timedelta | None]]:
    """Yield each event with the time since the previous event; None for the first."""
    before: datetime | None = None
    for event in events:
        at = parse_timestamp(event["at"])
        yield event, None if before is None else at - before
        before = at


def _print_partitions(out: CommandOutput, plan: Mapping[str, Any]) -> None:
    before = [TableColumn("PARTITION"), TableColumn("FILES", True), TableColumn("BYTES", True)]
    if plan["figures"]:
        names = ("files_before", "bytes_before", "files_after", "bytes_after")
        figures = [
            (partition_name(entry["partition"]), *(entry[name] for name in names), entry["milliseconds"])
            for entry in plan["figures"]
        ]
        figures.append(("total", *(plan[name] for name in names), plan["took_milliseconds"] or 0))
        out.table(
            (*before, TableColumn("AFTER", True), TableColumn("BYTES", True), TableColumn("TOOK", True)),
            (
                (name, files, format_size(old), after, format_size(new), f"{took} ms")
                for name, files, old, after, new, took in figures
            ),
        )
        return
    sums: dict[str, list[int]] = {}
    for group in plan["group_details"]:
        entry = sums.setdefault(group["partition"], [0, 0, 0])
        for index, name in enumerate(("input_files", "input_bytes", "output_files")):
            entry[index] += group[name]
    rows = (
        (partition_name(name), files, format_size(bytes_), after, _average_sizes(bytes_, files, after))
        for name, (files, bytes_, after) in sorted(sums.items())
    )
    out.table((*before, TableColumn("EXPECTED", True), TableColumn("EACH", True)), rows)


def _average_sizes(bytes_: int, before: int, after: int) -> str:
    """Return the average file size before and after the plan."""
    return f"{format_size(bytes_ // max(before, 1))} → {format_size(bytes_ // max(after, 1))}"
