# SPDX-License-Identifier: Apache-2.0
"""The page of one plan: its state, the duration of each step, its events and possible actions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from lake.plan import LIVE_STATES, PlanState, Step
from lake.units import format_duration, format_elapsed
from service.control.serializers import describe_cost, end_reason, plan_cost, progress_rate
from service.control.store import PlanEvent, PlanView
from service.server.web.charts import HistogramChart, Span, histogram_chart, spans
from service.server.web.formatting import browsable_url
from service.server.web.rendering import PageContent
from service.text import partition_name, plural

#: the maximum number of listed partitions of a plan; the command line lists all
_MAX_PARTITIONS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSizes:
    """The files by size that a plan rewrites and that it is expected to write (``serializers.load_plan_sizes``)."""

    document: Mapping[str, Any]
    #: the small-file limit and the target of the table
    limits: Mapping[str, int]

    def chart(self, width: float, height: float) -> HistogramChart | None:
        """Return the chart; None if the plan rewrites no base file."""
        after, before = self.document["after"], self.document["before"]
        return histogram_chart(after, before, self.limits, width=width, height=height) if any(before) else None

    @property
    def text(self) -> str:
        """The chart as text."""
        before, after = self.document["files_before"], self.document["files_after"]
        return f"Files by size: {plural(before, 'file')} before, {after:,} expected. The table below has the numbers."


STEP_DESCRIPTIONS: dict[str, str] = {
    "waiting": "waiting for an executor",
    Step.FIND_COMMIT: "did it commit already?",
    Step.START: "starts Spark, unless it is running",
    Step.PREPARE: "are the inputs unchanged?",
    Step.REWRITE: "new files written, invisible",
    Step.VERIFY: "does the output equal the input?",
    Step.COMMIT: "the new files replace the inputs",
    Step.RECORD: "figures recorded in the database",
    "other": "between the steps, and until the end was recorded",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLine:
    """A step on the plan's timeline; ``seconds`` is None if the duration is not known yet."""

    name: str
    description: str
    seconds: float | None
    span: Span | None
    #: True if the executor is in this step now
    is_current: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalCost:
    """The predicted cost of a plan, its savings per day and its payback, as text; prices are '' if none are set."""

    costs: str
    price: str
    saves: str
    price_saved: str
    payback: str


def proposal_cost(plan: PlanView) -> ProposalCost | None:
    """Return what ``plan`` costs and saves; None for a plan of a release without predictions."""
    predicted = plan_cost(plan)["predicted"]
    if predicted is None:
        return None
    days = predicted["payback_days"]
    price, saved = (
        "" if predicted[name] is None else f"{predicted[name]:.3g} {predicted['currency']}".rstrip()
        for name in ("cost", "savings_per_day")
    )
    return ProposalCost(
        costs=format_elapsed(predicted["cpu_seconds"]),
        price=price,
        saves=format_elapsed(predicted["cpu_seconds_saved_per_day"]),
        price_saved=price and saved,
        payback="never" if days is None else f"after {format_duration(days * 86_400)}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLine:
    """The files and bytes of a partition before and after a plan; expected values until the plan has completed."""

    name: str
    files_before: int
    bytes_before: int
    files_after: int
    bytes_after: int | None


def plan_page(
    plan: PlanView,
    events: Sequence[PlanEvent],
    no_executor: str | None,
    held_reason: str | None,
    sizes: PlanSizes | None,
    now: datetime,
) -> PageContent:
    """Return the page of a plan. ``no_executor`` and ``held_reason`` are reasons why it waits.

    ``sizes`` are those of the files of a live plan; None for other plans.
    """
    live = plan.state in LIVE_STATES
    lines = partition_lines(plan)
    own = f" {plan.plan_id}"
    commands = [f"lakefold plans {'watch' if live else 'show'}{own}"]
    if plan.waits_for_approval:
        commands += [f"lakefold plans approve{own}", f"lakefold plans decline{own} --reason WHY"]
    if live:
        commands.append(f"lakefold plans cancel{own}")
    if plan.state is PlanState.FAILED:
        commands.append(f"lakefold plans retry{own}")
    return PageContent(
        plan=plan,
        # the newest first, each with the time since the previous event
        events=tuple(reversed([*zip(events, _intervals(events), strict=True)])),
        **progress_rate(plan, no_executor),
        steps=tuple(step_lines(plan, now)),
        partitions=tuple(lines[:_MAX_PARTITIONS]),
        more_partitions=max(0, len(lines) - _MAX_PARTITIONS),
        is_live=live,
        no_executor=no_executor,
        held_reason=held_reason,
        end_reason=end_reason(plan),
        cost_lines=tuple(describe_cost(plan_cost(plan))),
        proposal_cost=proposal_cost(plan) if plan.waits_for_approval else None,
        size_chart=sizes.chart(960, 280) if sizes else None,
        narrow_size_chart=sizes.chart(360, 240) if sizes else None,
        size_text=sizes.text if sizes else "",
        can_retry=plan.state is PlanState.FAILED,
        # "" if there is no UI, or if a browser should not open it
        spark_ui=browsable_url(plan.spark_ui),
        commands=tuple(commands),
    )


def _intervals(events: Sequence[PlanEvent]) -> Iterator[timedelta | None]:
    """Yield the time between each event and the previous one; None for the first."""
    return (None if number == 0 else event.at - events[number - 1].at for number, event in enumerate(events))


def step_lines(plan: PlanView, now: datetime) -> list[StepLine]:
    """Return the wait and the steps of the last attempt, in order, and last the time outside of its steps."""
    known = {step: milliseconds / 1000 for step, milliseconds in plan.milliseconds.items()}
    waited = ((plan.claimed_at or plan.finalized_at or now) - plan.created_at) / timedelta(seconds=1)
    lengths: list[tuple[str, float]] = [("waiting", max(waited, 0.0))] if plan.attempts <= 1 else []
    lengths += [(step.value, known[step.value]) for step in Step if step.value in known]
    current = _current_step(plan)
    if current is not None and plan.claimed_at is not None and current not in known:
        spent = (now - plan.claimed_at) / timedelta(seconds=1) - sum(known.values())
        lengths.append((current, max(spent, 0.0)))
    if plan.other_milliseconds:
        lengths.append(("other", plan.other_milliseconds / 1000))
    drawn = {span.name: span for span in spans(lengths)}
    seconds = dict(lengths)
    live = plan.state in LIVE_STATES
    words = STEP_DESCRIPTIONS | ({"waiting": "waiting for approval"} if plan.waits_for_approval else {})
    names = ["waiting"] * ("waiting" in seconds) + [step.value for step in Step if live or step.value in seconds]
    names += ["other"] * ("other" in seconds)
    return [
        StepLine(
            name=name,
            description=words[name],
            seconds=seconds.get(name),
            span=drawn.get(name),
            is_current=name == current,
        )
        for name in names
    ]


def _current_step(plan: PlanView) -> str | None:
    """Return the current step of an inflight plan, which follows the last finished step; else None."""
    if plan.state is not PlanState.INFLIGHT:
        return None
    order = [step.value for step in Step]
    if plan.step not in order:
        return order[0]
    return order[order.index(plan.step) + 1] if plan.step != order[-1] else None


def partition_lines(plan: PlanView) -> list[PartitionLine]:
    """Return the partitions after the commit, or as the plan expects them, by name."""
    if plan.figures:
        return [
            PartitionLine(
                name=partition_name(f.partition),
                files_before=f.files_before,
                bytes_before=f.bytes_before,
                files_after=f.files_after,
                bytes_after=f.bytes_after,
            )
            for f in plan.figures
        ]
    sums: dict[str, list[int]] = {}
    for group in plan.groups:
        entry = sums.setdefault(group.partition, [0, 0, 0])
        for index, number in enumerate((group.input_files, group.input_bytes, group.output_files)):
            entry[index] += number
    return [
        PartitionLine(
            name=partition_name(name), files_before=files, bytes_before=size, files_after=after, bytes_after=None
        )
        for name, (files, size, after) in sorted(sums.items())
    ]
