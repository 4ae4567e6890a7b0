# SPDX-License-Identifier: Apache-2.0
"""Policies compared over the same history: what each would have left and cost, and which one to take."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lake.history import Check, go_on
from lake.units import DAY_US, format_bytes
from planner.cost import Rates, Terms
from planner.policy import SizingPolicy
from planner.replay.loop import Replayed, Work, replay
from planner.replay.script import Script

CONFIGURED = "configured"
NOBODY = "no compaction"
#: a policy that takes away so much of what the best one takes away is as good as that
_AS_GOOD = 0.9
#: what is less of all files is not worth a policy
_WORTH = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A policy and what it is called; ``settings`` are those in which it differs from the configured one."""

    name: str
    settings: Mapping[str, str]
    policy: SizingPolicy | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a policy would have left and cost.

    ``files`` and ``small_files`` are how many there were on average over the time, ``write_amplification`` is all that
    plans and writers wrote, by what writers would have written had nobody compacted. Of ``best`` no other one is as
    good or better in files, bytes rewritten and CPU time.
    """

    tried: Tried
    replayed: Replayed
    files: float
    small_files: float
    rewritten_bytes_a_day: float
    cpu_seconds_a_day: float
    write_amplification: float | None
    best: bool = False

    @property
    def small_share(self) -> float:
        """Small files of all files, over the time."""
        return self.small_files / self.files if self.files else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All outcomes in the order in which they were asked for, and the policy to take with the reason, in words."""

    days: float
    outcomes: tuple[Outcome, ...]
    recommended: str
    reason: str


def replays(
    script: Script, tried: Sequence[Tried], terms: Terms, *, small_file_limit_bytes: int, check: Check = go_on
) -> list[Replayed]:
    """Each policy over the script; ``check`` may end it as it ends ``replay``."""
    return [
        replay(script, one.policy, terms, small_file_limit_bytes=small_file_limit_bytes, check=check) for one in tried
    ]


def compare(script: Script, tried: Sequence[Tried], replayed: Sequence[Replayed], rates: Rates) -> Comparison:
    """What the replays of ``tried`` say together; ``NOBODY`` and ``CONFIGURED`` are among them."""
    days = (script.until_us - script.since_us) / DAY_US
    nobody = next(found for one, found in zip(tried, replayed, strict=True) if one.name == NOBODY)
    outcomes = [_outcome(one, found, nobody, days, rates) for one, found in zip(tried, replayed, strict=True)]
    outcomes = [replace(one, best=not any(_beats(other, one) for other in outcomes)) for one in outcomes]
    recommended, reason = _recommended(outcomes)
    return Comparison(days=days, outcomes=tuple(outcomes), recommended=recommended, reason=reason)


def _outcome(tried: Tried, found: Replayed, nobody: Replayed, days: float, rates: Rates) -> Outcome:
    work = found.work
    written, alone = work.writer_bytes + work.rewritten_bytes, nobody.work.writer_bytes
    return Outcome(
        tried=tried,
        replayed=found,
        files=found.file_days / days,
        small_files=found.small_file_days / days,
        rewritten_bytes_a_day=work.rewritten_bytes / days,
        cpu_seconds_a_day=predicted_seconds(work, rates) / days,
        write_amplification=written / alone if alone else None,
    )


def predicted_seconds(work: Work, rates: Rates) -> float:
    """CPU seconds of all plans of a replay."""
    return work.plans * rates.fixed_seconds + work.rewritten_bytes * rates.seconds_per_byte


def _costs(outcome: Outcome) -> tuple[float, float, float]:
    return outcome.files, outcome.rewritten_bytes_a_day, outcome.cpu_seconds_a_day


def _beats(one: Outcome, other: Outcome) -> bool:
    """Whether ``one`` is as good as ``other`` in everything, and better in something."""
    return _costs(one) != _costs(other) and all(a <= b for a, b in zip(_costs(one), _costs(other), strict=True))


def _recommended(outcomes: Sequence[Outcome]) -> tuple[str, str]:
    """The policy that rewrites least of those that take away nearly as many files as the best one does, and why."""
    nobody = _named(outcomes, NOBODY)
    fewest = min(outcome.files for outcome in outcomes)
    if nobody.files - fewest < max(1.0, _WORTH * nobody.files):
        return NOBODY, f"no policy here keeps noticeably fewer files than the {nobody.files:,.0f} that writers leave"
    enough = nobody.files - _AS_GOOD * (nobody.files - fewest)
    good = [outcome for outcome in outcomes if outcome.files <= enough]
    least = min(good, key=lambda outcome: (outcome.rewritten_bytes_a_day, outcome.files))
    in_use = _named(outcomes, CONFIGURED)
    if in_use in good and least.rewritten_bytes_a_day > _AS_GOOD * in_use.rewritten_bytes_a_day:
        least = in_use
    fewer = 100 * (1 - least.files / nobody.files)
    reason = (
        f"keeps {fewer:.0f} % fewer files than without compaction ({least.files:,.0f} instead of {nobody.files:,.0f} "
        f"on average) and rewrites {format_bytes(round(least.rewritten_bytes_a_day))} per day"
    )
    if least is not in_use:
        return least.tried.name, reason + _against(in_use)
    return CONFIGURED, f"{reason}; none of the others does as well for noticeably less"


def _against(in_use: Outcome) -> str:
    said = f"; the configured policy keeps {in_use.files:,.0f} files and rewrites "
    return said + f"{format_bytes(round(in_use.rewritten_bytes_a_day))} per day"


def _named(outcomes: Sequence[Outcome], name: str) -> Outcome:
    return next(outcome for outcome in outcomes if outcome.tried.name == name)
