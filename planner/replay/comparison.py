# SPDX-License-Identifier: Apache-2.0
"""The comparison of policies over the same history: the files and costs of each, and the recommended policy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lake.history import CancellationCheck, no_check
from lake.units import DAY_US, format_bytes
from planner.cost import CostInputs
from planner.policy.policy import SizingPolicy
from planner.rates import Rates
from planner.replay.events import WriterHistory
from planner.replay.policy_replay import ReplayResult, WorkTotals, replay_policy

CONFIGURED = "configured"
NO_COMPACTION = "no compaction"
#: a policy is nearly as good if it removes this share of the files that the best one removes
_NEARLY_AS_GOOD = 0.9
#: a policy that removes a smaller share of all files is not worth it
_MIN_REDUCTION = 0.02
#: rates per day or month need a history of at least this length; figures of a shorter history are totals
MIN_RATE_DAYS = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyVariant:
    """A named policy; ``settings`` are its differences from the configured policy."""

    name: str
    settings: Mapping[str, str]
    policy: SizingPolicy | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOutcome:
    """The files and the costs that a policy would have had.

    ``files`` and ``small_files`` are averages over the time. ``write_amplification`` is all bytes that plans and
    writers wrote, divided by the writers' bytes without compaction. A policy is Pareto-optimal if no other policy is at
    least as good in files, bytes rewritten and CPU time and better in one of the three.
    """

    variant: PolicyVariant
    result: ReplayResult
    files: float
    small_files: float
    rewritten_bytes_a_day: float
    cpu_seconds_a_day: float
    write_amplification: float | None
    is_pareto_optimal: bool = False

    @property
    def small_share(self) -> float:
        """The share of small files among all files, over the time."""
        return self.small_files / self.files if self.files else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyComparison:
    """All outcomes in the order of the variants, and the recommended policy with the reason as text.

    The history lasts ``days``; below ``MIN_RATE_DAYS``, the reason has totals instead of figures per day.
    """

    days: float
    outcomes: tuple[PolicyOutcome, ...]
    recommended: str
    reason: str


def replay_variants(
    history: WriterHistory,
    variants: Sequence[PolicyVariant],
    cost_inputs: CostInputs,
    *,
    small_file_limit_bytes: int,
    check: CancellationCheck = no_check,
) -> list[ReplayResult]:
    """Replay each policy over the history; ``check`` is passed to ``replay_policy``."""
    return [
        replay_policy(history, one.policy, cost_inputs, small_file_limit_bytes=small_file_limit_bytes, check=check)
        for one in variants
    ]


def compare_policies(
    history: WriterHistory, variants: Sequence[PolicyVariant], results: Sequence[ReplayResult], rates: Rates
) -> PolicyComparison:
    """Compare the ``results`` of ``variants``; ``NO_COMPACTION`` and ``CONFIGURED`` must be among them."""
    days = (history.until_us - history.since_us) / DAY_US
    baseline = next(found for one, found in zip(variants, results, strict=True) if one.name == NO_COMPACTION)
    outcomes = [_outcome(one, found, baseline, days, rates) for one, found in zip(variants, results, strict=True)]
    outcomes = [
        replace(one, is_pareto_optimal=not any(_dominates(other, one) for other in outcomes)) for one in outcomes
    ]
    recommended, reason = _recommend(outcomes, days)
    return PolicyComparison(days=days, outcomes=tuple(outcomes), recommended=recommended, reason=reason)


def _outcome(
    variant: PolicyVariant, result: ReplayResult, baseline: ReplayResult, days: float, rates: Rates
) -> PolicyOutcome:
    work = result.work
    written, alone = work.writer_bytes + work.rewritten_bytes, baseline.work.writer_bytes
    return PolicyOutcome(
        variant=variant,
        result=result,
        files=result.file_days / days,
        small_files=result.small_file_days / days,
        rewritten_bytes_a_day=work.rewritten_bytes / days,
        cpu_seconds_a_day=predicted_seconds(work, rates) / days,
        write_amplification=written / alone if alone else None,
    )


def predicted_seconds(work: WorkTotals, rates: Rates) -> float:
    """Return the predicted CPU seconds of all plans of a replay."""
    return work.plans * rates.fixed_seconds + work.rewritten_bytes * rates.seconds_per_byte


def _costs(outcome: PolicyOutcome) -> tuple[float, float, float]:
    return outcome.files, outcome.rewritten_bytes_a_day, outcome.cpu_seconds_a_day


def _dominates(one: PolicyOutcome, other: PolicyOutcome) -> bool:
    """True if ``one`` is at least as good as ``other`` in every cost and better in one."""
    return _costs(one) != _costs(other) and all(a <= b for a, b in zip(_costs(one), _costs(other), strict=True))


def _recommend(outcomes: Sequence[PolicyOutcome], days: float) -> tuple[str, str]:
    """Return the policy that rewrites least among the policies with nearly the fewest files, and the reason."""
    baseline = _outcome_named(outcomes, NO_COMPACTION)
    fewest = min(outcome.files for outcome in outcomes)
    if baseline.files - fewest < max(1.0, _MIN_REDUCTION * baseline.files):
        return (
            NO_COMPACTION,
            f"no policy here keeps noticeably fewer files than the {baseline.files:,.0f} that writers leave",
        )
    enough = baseline.files - _NEARLY_AS_GOOD * (baseline.files - fewest)
    good = [outcome for outcome in outcomes if outcome.files <= enough]
    least = min(good, key=lambda outcome: (outcome.rewritten_bytes_a_day, outcome.files))
    in_use = _outcome_named(outcomes, CONFIGURED)
    if in_use in good and least.rewritten_bytes_a_day > _NEARLY_AS_GOOD * in_use.rewritten_bytes_a_day:
        least = in_use
    fewer = 100 * (1 - least.files / baseline.files)
    reason = (
        f"keeps {fewer:.0f} % fewer files than without compaction ({least.files:,.0f} instead of {baseline.files:,.0f} "
        f"on average) and rewrites {_rewritten_text(least, days)}"
    )
    if least is not in_use:
        instead = (
            f"; the configured policy keeps {in_use.files:,.0f} files and rewrites {_rewritten_text(in_use, days)}"
        )
        return least.variant.name, reason + instead
    return CONFIGURED, f"{reason}; no policy with nearly as few files rewrites a tenth less"


def _rewritten_text(outcome: PolicyOutcome, days: float) -> str:
    if days < MIN_RATE_DAYS:
        return f"{format_bytes(outcome.result.work.rewritten_bytes)} in all"
    return f"{format_bytes(round(outcome.rewritten_bytes_a_day))} per day"


def _outcome_named(outcomes: Sequence[PolicyOutcome], name: str) -> PolicyOutcome:
    return next(outcome for outcome in outcomes if outcome.variant.name == name)
