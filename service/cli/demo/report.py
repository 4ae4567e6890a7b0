# SPDX-License-Identifier: Apache-2.0
"""The demo's output: a live view on a terminal, plain lines in a pipe, JSON lines for a script."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lake.units import format_bytes, format_duration
from service.cli.output.command_output import CommandOutput
from service.cli.output.tables import histogram_lines
from service.text import plural, to_json

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

    from lake.model import SizeHistogram
    from service.cli.demo.measure import QueryTiming
    from service.cli.demo.writer_events import WriterEvents
    from service.control.store import PlanView, ScanRecord

_COLOURS = {"requested": "yellow", "inflight": "cyan", "completed": "green", "failed": "red", "cancelled": "magenta"}
_TITLES = ("PLAN", "STATE", "FILES", "BYTES", "PROGRESS", "STEP")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedState:
    """One observation of the service: plans oldest first, the newest successful scan, the writer's new events."""

    plans: "Sequence[PlanView]"
    scan: "ScanRecord | None"
    writer: "WriterEvents"
    writer_events: Sequence[Mapping[str, Any]] = ()


class DemoReport:
    """The printer of the demo. Every method only prints."""

    def __init__(self, out: CommandOutput) -> None:
        self._out = out
        self._started_at = time.monotonic()
        self._reported_states: set[tuple[str, str, bool]] = set()
        self._live: Live | None = None

    @property
    def seconds(self) -> float:
        """The seconds since the demo began."""
        return time.monotonic() - self._started_at

    def line(self, text: str = "") -> None:
        """Print a line of text; nothing with ``--json``."""
        if self._out.json:
            return
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False)
        else:
            self._out.line(text)

    def chapter(self, number: int, title: str) -> None:
        """Print the title of a new part."""
        self._emit("chapter", number=number, title=title)
        self.line()
        if self._out.is_terminal:
            from rich.console import Console
            from rich.text import Text

            Console(highlight=False).print(Text(f"{number} · {title}", style="bold"))
        else:
            self.line(f"{number} · {title}")

    def event(self, text: str, event: str, **facts: Any) -> None:
        """Print an event with the current time."""
        self._emit(event, **facts)
        self.line(f"  {self.seconds:6.1f} s  {text}")

    def layout(self, figures: "SizeHistogram", limits: dict[str, int], when: str) -> None:
        """Print the size histogram of the table's live files."""
        self._emit(
            "layout",
            when=when,
            files=figures.files,
            bytes=figures.bytes,
            small_files=figures.small_files,
            median_bytes=figures.median_bytes,
            histogram=figures.counts,
        )
        self.line()
        self.line(
            f"  demo.trips {when}: {plural(figures.files, 'file')}, {format_bytes(figures.bytes)}, "
            f"median {format_bytes(figures.median_bytes or 0)}, {figures.small_files:,} small"
        )
        for bar in histogram_lines(figures.counts, limits):
            self.line(f"  {bar}")

    def query(self, timing: "QueryTiming", what: str, before: "QueryTiming | None" = None) -> None:
        """Print the duration of the query, compared with ``before`` if given."""
        self._emit("query", query=what, seconds=timing.seconds, runs=timing.runs)
        against = ""
        if before is not None:
            against = f", {format_duration(before.seconds)} before: {before.seconds / timing.seconds:.1f} × as fast"
        self.line(f"  query ({what}), best of {timing.runs}: {format_duration(timing.seconds)}{against}")

    @contextmanager
    def live_view(self) -> "Iterator[None]":
        """Inside this context ``show_state`` updates a live view if the output is a terminal."""
        if not self._out.is_terminal:
            yield
            return
        from rich.live import Live

        with Live(auto_refresh=False, vertical_overflow="crop") as live:
            self._live = live
            try:
                yield
            finally:
                self._live = None

    def show_state(self, observed: ObservedState) -> None:
        """Show one observation: the live view on a terminal, otherwise the changes since the previous observation."""
        if self._live is not None:
            self._live.update(render_state(observed, self.seconds), refresh=True)
            return
        for event in observed.writer_events:
            self.show_writer_event(event)
        for plan in observed.plans:
            # One line for each state. Repeated waits are one line, although their errors name different instants.
            waits = bool(plan.error) and plan.state.value == "requested"
            key = (plan.plan_id, plan.state.value, waits)
            if key not in self._reported_states:
                self._reported_states.add(key)
                facts = {"plan_id": plan.plan_id, "state": plan.state, "error": plan.error}
                self.event(f"plan {plan.plan_id[-8:]}  {_plan_line(plan)}", "plan", **facts)

    def show_writer_event(self, event: Mapping[str, Any]) -> None:
        """Print one event of the writer."""
        kind, batch = event["event"], event.get("batch", "")
        if kind == "commit":
            text = f"committed {batch}, {event['rows']:,} rows in {event['seconds']:.1f} s"
        elif kind == "conflict":
            text = f"conflict of {batch} with a plan ({event['error']}), retrying"
        elif kind == "unknown":
            text = f"{batch} failed ({event['error']}); {'committed' if event['committed'] else 'not committed'}"
        else:
            return
        self._emit("writer", said=dict(event))
        self.line(f"  {self.seconds:6.1f} s  writer         {text}")

    def finished(self, **facts: Any) -> None:
        """Print the last line for scripts."""
        self._emit("finished", **facts)

    def _emit(self, event: str, **facts: Any) -> None:
        if self._out.json:
            self._out.line(to_json({"event": event, "at_seconds": round(self.seconds, 3), **facts}))


def _plan_line(plan: "PlanView") -> str:
    state = plan.state.value
    if state == "requested" and not plan.error:
        return (
            f"requested  {plural(plan.input_files, 'file')}, {format_bytes(plan.input_bytes)} in "
            f"{plural(plan.partition_count, 'partition')} → {plural(plan.output_files, 'file')}"
        )
    if state == "completed":
        took = format_duration((plan.took_milliseconds or 0) / 1000)
        return (
            f"completed  {plan.files_before:,} → {plural(plan.files_after, 'file')}, {format_bytes(plan.bytes_before)} "
            f"→ {format_bytes(plan.bytes_after)} in {took}"
        )
    reason = _short_reason(plan.cancel_reason or plan.error or "")
    return f"{state}  {reason}" if reason and state != "inflight" else state


def _short_reason(reason: str) -> str:
    """Return the first clause of a reason, without the leading table name."""
    return reason.removeprefix("demo.trips: ").split("; ")[0].split(" (")[0]


def render_state(observed: ObservedState, seconds: float) -> "Table":
    """Render plans, table and writer as a rich table."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    plans = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2))
    for title in _TITLES:
        plans.add_column(title)
    for plan in observed.plans:
        state = plan.state.value
        done = plan.progress_bytes_done if state == "inflight" else plan.input_bytes * (state == "completed")
        plans.add_row(
            plan.plan_id[-8:],
            Text(state, style=_COLOURS[state]),
            f"{plan.files_before or plan.input_files:,} → {plan.files_after or plan.output_files:,}",
            format_bytes(plan.input_bytes),
            ProgressBar(total=max(1, plan.progress_bytes_total or plan.input_bytes), completed=done, width=24),
            Text(_step(plan), overflow="ellipsis", no_wrap=True, style="dim"),
        )
    writer, last = observed.writer, observed.writer.last_commit
    outer = Table.grid()
    outer.add_row(Text(f"  {seconds:6.1f} s", style="dim"))
    outer.add_row(plans)
    table = "not scanned yet"
    if observed.scan is not None:
        table = f"{plural(observed.scan.files, 'file')}, {observed.scan.small_files:,} small"
    outer.add_row(Text(f"table   {table}", style="bold"))
    outer.add_row(
        Text(
            f"writer  {plural(writer.commits, 'commit')}, {plural(writer.conflicts, 'conflict')}"
            + (f"; last {last['batch']} in {last['seconds']:.1f} s" if last else "")
        )
    )
    return outer


def _step(plan: "PlanView") -> str:
    if plan.state.value == "inflight":
        return f"{plan.step} done" if plan.step else "claimed"
    if plan.state.value == "completed":
        return f"in {format_duration((plan.took_milliseconds or 0) / 1000)}"
    return _short_reason(plan.cancel_reason or plan.error or "")
