# SPDX-License-Identifier: Apache-2.0
"""The text output of tables: a list, one table with its file sizes, and the reason for each file."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from service.cli.output.column_widths import TableColumn
from service.cli.output.command_output import CommandOutput, bar_chart
from service.control import serializers
from service.modes import PLANNED_MODES
from service.text import (
    cause_first,
    format_age,
    format_percent,
    format_size,
    parse_timestamp,
    partition_name,
    plural,
    share_of,
)


def print_tables(out: CommandOutput, tables: Sequence[Mapping[str, Any]], *, filtered: bool) -> None:
    """Print a list of tables; ``filtered`` is True if options selected them."""
    now = datetime.now(UTC)
    columns = (
        TableColumn("TABLE", is_shortened=True),
        TableColumn("STATE"),
        TableColumn("FILES", True),
        TableColumn("BYTES", True),
        TableColumn("REDUCIBLE", True),
        TableColumn("TO REWRITE", True),
        TableColumn("SCANNED"),
        TableColumn("LOCATION", is_shortened=True),
    )
    rows: list[tuple[str, ...]] = []
    for table in tables:
        scan = table["scan"]
        cells = ("", "", "", "")
        if scan is None:
            scanned = "never"
        elif scan["outcome"] != "ok":
            scanned = f"{format_age(parse_timestamp(scan['taken_at']), now)}: {cause_first(scan['error'])}"
        else:
            scanned = format_age(parse_timestamp(scan["taken_at"]), now)
            share = format_share(scan["reducible_files"], scan["files"])
            cells = (f"{scan['files']:,}", format_size(scan["bytes"]), share, format_size(scan["reducible_bytes"]))
        rows.append((table["table"], table["state"], *cells, scanned, table["location"]))
    if rows:
        out.table(columns, rows)
    elif filtered:
        out.note("No tables match")
    else:
        out.note('No tables; add [[sources]] path = "/path/to/tables" to lakefold.toml')


def format_share(part: int | None, whole: int) -> str:
    """Format a share as a percentage; a dash if ``part`` is None."""
    return format_percent(None if part is None else share_of(part, whole))


def print_table(out: CommandOutput, table: Mapping[str, Any]) -> None:
    """Print one table in full."""
    from lake.units import parse_bytes

    now = datetime.now(UTC)
    scan, last_good = table["scan"], table["last_good_scan"]
    out.line(f"{table['table']}  {table['state']}  {table['location']}")
    for label, words in (("owner", table["owner"]), ("tags", ", ".join(table["tags"]))):
        if words:
            out.line(f"  {label:<18} {words}")
    if table["halted_at"]:
        out.line(f"  halted {format_age(parse_timestamp(table['halted_at']), now)}: {table['halted_reason']}")
    for one in table["halted_partitions"]:
        since = format_age(parse_timestamp(one["halted_at"]), now)
        out.line(f"  partition {one['partition']} halted {since}: {one['halted_reason']}")
    for path, reason in table["quarantined"].items():
        out.line(f"  quarantined {path}: {reason}")
    for key, value in table["facts"].items():
        out.line(f"  {key:<18} {value}")
    for note in table["notes"]:
        out.note(note)
    out.line()
    if scan is not None and scan["outcome"] != "ok":
        out.line(f"The last scan, {format_age(parse_timestamp(scan['taken_at']), now)}, failed: {scan['error']}")
    if last_good is None:
        out.line(f"Not scanned yet; lakefold tables explain {table['table']} scans it now.")
        return
    logs = (
        f", {plural(last_good['log_files'], 'log file')} of {format_size(last_good['log_bytes'])}"
        if last_good["log_files"]
        else ""
    )
    scanned = (
        f"Scanned {format_age(parse_timestamp(last_good['taken_at']), now)} at instant {last_good['instant'] or '–'}"
    )
    middle = f", median {format_size(last_good['median_bytes'])}" if last_good["median_bytes"] is not None else ""
    out.line(
        f"{scanned}: {plural(last_good['files'], 'file')}, {format_size(last_good['bytes'])} in "
        f"{plural(last_good['partitions'], 'partition')}{middle}{logs}"
    )
    out.line(
        f"Small files: {last_good['small_files']:,} ({format_share(last_good['small_files'], last_good['files'])}), "
        f"{format_size(last_good['small_bytes'])}{_small_files_text(last_good)}"
    )
    if table["mode"] in PLANNED_MODES and (waiting := _waiting_text(last_good, table["policy"], now)):
        out.line(f"Waiting: {waiting}")
    if damaged := last_good["skipped"].get("damaged"):
        slices = plural(damaged, "file slice")
        out.line(f"Damaged: {slices} differ from the commits and are not planned; run lakefold verify {table['table']}")
    if last_good["foreign_files"]:
        out.line(
            f"Foreign: {serializers.describe_foreign_files(last_good['foreign_files'], last_good['foreign_file'])}"
        )
    for objective in table["objectives"]:
        out.line(f"Objective: {serializers.describe_objective(objective)}")
    for period, trend in serializers.describe_trends(table["trends"]):
        out.line(f"{period}: {trend}")
    out.line()
    limits = {name: parse_bytes(table["policy"][name]) for name in ("small_file_limit", "target_file_max")}
    for line in histogram_lines(last_good["histogram"], limits):
        out.line(line)


def _small_files_text(scan: Mapping[str, Any]) -> str:
    """Describe how many small files are reducible, and the bytes that plans would read."""
    reducible = scan["reducible_files"]
    if reducible is None:
        return "; the next scan shows how many are reducible"
    words = f": {reducible:,} reducible, {scan['small_files'] - reducible:,} residual (not worth rewriting)"
    return words + (f"; {format_size(scan['reducible_bytes'])} to rewrite" if scan["reducible_bytes"] else "")


def _waiting_text(scan: Mapping[str, Any], policy: Mapping[str, str], now: datetime) -> str:
    """Describe how long the quiet period keeps the table from being planned; '' if it does not."""
    from lake.units import parse_duration

    if (seconds := scan.get("waiting_seconds")) is None:
        return ""
    until = parse_timestamp(scan["taken_at"]) + timedelta(seconds=seconds)
    files, quiet_period = scan["skipped"].get("recent", 0), parse_duration(policy["quiet_period"])
    return serializers.describe_waiting(files, until, quiet_period, now)


def histogram_lines(counts: Sequence[int], limits: dict[str, int]) -> list[str]:
    """Return a size histogram as bars; marks buckets that contain a limit, omits empty buckets at the ends."""
    from lake.model import HISTOGRAM_EDGES_BYTES
    from lake.units import format_bytes

    edges = HISTOGRAM_EDGES_BYTES
    used = [index for index, count in enumerate(counts) if count]
    if not used:
        return []
    positions = {
        name: next((i for i, edge in enumerate(edges) if limit <= edge), len(edges)) for name, limit in limits.items()
    }
    first, last = min(used), max(*used, min(max(used) + 2, max(positions.values())))
    rows, marks = [], {}
    for index in range(first, last + 1):
        label = f"≤ {format_bytes(edges[index])}" if index < len(edges) else f"> {format_bytes(edges[-1])}"
        rows.append((label, counts[index]))
        named = [f"{name} {format_bytes(limits[name])}" for name, position in positions.items() if position == index]
        if named:
            marks[len(rows) - 1] = ", ".join(named)
    return bar_chart(rows, marks=marks)


def print_reasons(out: CommandOutput, lines: Iterable[Mapping[str, Any]], sums: Mapping[str, int]) -> None:
    """Print the reasons why files are planned or not, one line for each partition and reason."""
    logs = bool(sums["log_files"])
    columns = [
        TableColumn("PARTITION"),
        TableColumn("FILES", True),
        TableColumn("BYTES", True),
        *([TableColumn("LOGS", True), TableColumn("LOG BYTES", True)] if logs else []),
        TableColumn("REASON"),
        TableColumn("SETTING"),
    ]
    rows: list[tuple[Any, ...]] = []
    before = None
    for line in lines:
        partition = partition_name(line["partition"]) if line["partition"] != before else ""
        before = line["partition"]
        log_cells = (f"{line['log_files']:,}", format_size(line["log_bytes"])) if logs else ()
        text = line["text"] + (" …" if line["has_several_values"] else "")
        rows.append((partition, f"{line['files']:,}", format_size(line["bytes"]), *log_cells, text, line["setting"]))
    log_cells = (f"{sums['log_files']:,}", format_size(sums["log_bytes"])) if logs else ()
    rows.append(("total", f"{sums['files']:,}", format_size(sums["bytes"]), *log_cells, f"{sums['bytes']} bytes", ""))
    out.table(columns, rows)


def print_files(out: CommandOutput, entries: Iterable[Mapping[str, Any]], sums: Mapping[str, int]) -> None:
    """Print every file with its reason."""
    rows: list[tuple[Any, ...]] = [
        (
            entry["path"] or f"{entry['partition']}/{entry['file_id']} (logs only)",
            format_size(entry["bytes"]),
            len(entry["log_files"]) or "",
            entry["text"],
        )
        for entry in entries
    ]
    rows.append((f"total: {plural(sums['files'], 'file')}", format_size(sums["bytes"]), sums["log_files"] or "", ""))
    out.table((TableColumn("FILE"), TableColumn("BYTES", True), TableColumn("LOGS", True), TableColumn("REASON")), rows)
