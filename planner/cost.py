# SPDX-License-Identifier: Apache-2.0
"""What a rewrite costs and what it saves, predicted: CPU seconds, bytes, opens, and money where prices are set.

docs/planning.md has every formula with its source. The constants are round numbers of the right order, not measured on
anybody's hardware; plans that have been completed correct them (``rates``). MiB is 2^20 bytes.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType

import numpy as np

from lake.plan import Plan
from lake.units import GIB, MIB, MONTH
from planner.candidates import Ints, Mask
from planner.groups import Groups
from planner.policy.fields import PlanningSettings

#: CPU seconds of a plan whatever its size: looking again, publishing, the receipt, the commit
FIXED_SECONDS = 5.0
#: bytes per second that one core rewrites, by engine; ``auto`` counts as the slowest that it may choose
BYTES_PER_SECOND: Mapping[str, int] = MappingProxyType(
    {"stitch": 400 * MIB, "arrow": 100 * MIB, "spark": 25 * MIB, "auto": 25 * MIB}
)
#: CPU seconds that each further file costs each reader: listed, opened, its footer read, a task begun
OPEN_SECONDS = 0.02
#: bytes of a footer and its indexes, which a reader needs of every file
FOOTER_BYTES = 64 << 10
#: requests to an object store for each open: the footer and the data
REQUESTS_PER_OPEN = 2
#: bytes of logs per second that one core merges while it reads
MERGED_BYTES_PER_SECOND = 25 * MIB
#: how much the constants weigh against history: as much as one plan
_PRIOR_WEIGHT = 1.0
#: no history makes a plan cheaper than by this factor: one that went wrong must not make work free
_MIN_FACTOR = 0.05
#: days that stand for "never" where a number is wanted
NEVER_DAYS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """How many CPU seconds a plan takes: ``fixed_seconds``, and ``seconds_per_byte`` that it reads.

    ``plans`` is of how many plans of this installation the rates were learned; with 0 they are the constants.
    """

    fixed_seconds: float = FIXED_SECONDS
    seconds_per_byte: float = 1 / BYTES_PER_SECOND["auto"]
    plans: int = 0

    def cpu_seconds(self, size_bytes: int) -> float:
        """CPU seconds of a plan that rewrites so many bytes."""
        return self.fixed_seconds + size_bytes * self.seconds_per_byte

    def max_bytes(self, cpu_seconds: float) -> int:
        """Bytes of the largest plan that takes no longer; 0 where none does."""
        return max(0, math.floor((cpu_seconds - self.fixed_seconds) / self.seconds_per_byte))


def fit_rates(engine: str, history: Iterable[tuple[int, float]]) -> Rates:
    """The rates that agree best with ``history``: bytes and CPU seconds of plans that this engine rewrote.

    The fixed part and the part for each byte are the constants times a factor each. The factors are those of least
    squares of the relative errors, with the constants as one more plan for either: small plans tell of the fixed part,
    large ones of the other, and what history says nothing of stays as it is.
    """
    per_byte = 1 / BYTES_PER_SECOND.get(engine, BYTES_PER_SECOND["auto"])
    fixed_fixed = byte_byte = fixed_seen = byte_seen = _PRIOR_WEIGHT
    fixed_byte, plans = 0.0, 0
    for count, seconds in history:
        guess = FIXED_SECONDS + count * per_byte
        fixed, by_byte, seen = FIXED_SECONDS / guess, count * per_byte / guess, seconds / guess
        fixed_fixed, byte_byte, fixed_byte = (
            fixed_fixed + fixed**2,
            byte_byte + by_byte**2,
            fixed_byte + fixed * by_byte,
        )
        fixed_seen, byte_seen, plans = fixed_seen + fixed * seen, byte_seen + by_byte * seen, plans + 1
    determinant = fixed_fixed * byte_byte - fixed_byte**2
    of_fixed = (fixed_seen * byte_byte - byte_seen * fixed_byte) / determinant
    of_byte = (byte_seen * fixed_fixed - fixed_seen * fixed_byte) / determinant
    return Rates(
        fixed_seconds=FIXED_SECONDS * max(of_fixed, _MIN_FACTOR),
        seconds_per_byte=per_byte * max(of_byte, _MIN_FACTOR),
        plans=plans,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What things cost, in any one ``currency``. Without a price for CPU nothing has a price.

    ``cpu_hour`` is the price of one core for an hour, ``request_1000`` that of 1,000 requests to an object store,
    ``gib_month`` that of 2^30 bytes stored for a month of 365.25 ÷ 12 days.
    """

    cpu_hour: float = 0.0
    request_1000: float = 0.0
    gib_month: float = 0.0
    currency: str = ""

    @property
    def is_set(self) -> bool:
        """Whether plans have a price."""
        return self.cpu_hour > 0

    def total_cost(
        self, cpu_seconds: float, requests: float, stored_bytes: float = 0, stored_for: timedelta = timedelta()
    ) -> float:
        """Money for CPU seconds, requests, and ``stored_bytes`` that are kept for the time ``stored``."""
        months = stored_for / MONTH
        used = cpu_seconds / 3600 * self.cpu_hour + requests / 1000 * self.request_1000
        return used + stored_bytes / GIB * months * self.gib_month


@dataclass(frozen=True, slots=True, kw_only=True)
class CostInputs:
    """What plans of a table are appraised by: rates, prices, and how long replaced files stay stored."""

    rates: Rates = field(default_factory=Rates)
    prices: Prices = field(default_factory=Prices)
    retention: timedelta = timedelta(days=7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Benefit:
    """What a plan is predicted to cost once and to save each day.

    Once: ``cpu_seconds`` of cores, ``bytes`` read, logs included, and ``cost`` in ``currency``; ``files_saved`` are
    base files and slices of logs only before, less files after. Per day: opens of files, bytes and CPU seconds that
    readers are spared, and ``saved_a_day`` in ``currency``. Both sums of money are None without prices; ``cpu_hour`` is
    the price they go by. ``payback_days`` is what it costs by what it saves per day, in money where there are prices,
    else in CPU seconds; None where it saves nothing. ``history`` is how many plans the rates follow from.
    """

    cpu_seconds: float
    bytes: int
    files_saved: int
    opens_saved_a_day: float
    bytes_saved_a_day: float
    cpu_seconds_saved_a_day: float
    payback_days: float | None
    cost: float | None
    saved_a_day: float | None
    currency: str
    cpu_hour: float
    history: int

    @property
    def benefit_cost_ratio(self) -> float:
        """What it saves per day for what it costs; the same in money as in CPU seconds where only CPU counts."""
        return 0.0 if self.payback_days is None else 1 / self.payback_days


def estimate_benefit(plan: Plan, policy: PlanningSettings, cost_inputs: CostInputs) -> Benefit:
    """What ``plan`` is predicted to cost and to save."""
    slices = [s for group in plan.groups for s in group.slices]
    opened = plan.input_files + sum(len(s.log_files) for s in slices)
    logs = sum(s.log_bytes for s in slices)
    outputs = sum(group.output_files for group in plan.groups)
    opens = policy.reads_per_day * max(0, opened - outputs)
    cpu = cost_inputs.rates.cpu_seconds(plan.bytes)
    saved_cpu = opens * OPEN_SECONDS + policy.reads_per_day * logs / MERGED_BYTES_PER_SECOND
    cost, saved = cpu, saved_cpu
    prices = cost_inputs.prices
    if prices.is_set:
        cost = prices.total_cost(cpu, opened * REQUESTS_PER_OPEN + outputs, plan.bytes, cost_inputs.retention)
        saved = prices.total_cost(saved_cpu, opens * REQUESTS_PER_OPEN)
    return Benefit(
        cpu_seconds=cpu,
        bytes=plan.bytes,
        files_saved=plan.input_files - outputs,
        opens_saved_a_day=opens,
        bytes_saved_a_day=opens * FOOTER_BYTES + policy.reads_per_day * logs,
        cpu_seconds_saved_a_day=saved_cpu,
        payback_days=cost / saved if saved > 0 else None,
        cost=cost if prices.is_set else None,
        saved_a_day=saved if prices.is_set else None,
        currency=prices.currency,
        cpu_hour=prices.cpu_hour,
        history=cost_inputs.rates.plans,
    )


def payback_days(groups: Groups, log_bytes: Ints, policy: PlanningSettings, cost_inputs: CostInputs) -> Ints:
    """Whole days after which each group has saved what it costs, the plan's fixed part left out.

    ``logs`` are the bytes of logs in each group. What saves nothing has ``NEVER_DAYS``.
    """
    opens = (groups.files - groups.outputs) * policy.reads_per_day
    cpu = groups.bytes * cost_inputs.rates.seconds_per_byte
    saved_cpu = opens * OPEN_SECONDS + log_bytes * policy.reads_per_day / MERGED_BYTES_PER_SECOND
    cost, saved, prices = cpu, saved_cpu, cost_inputs.prices
    if prices.is_set:
        requests = groups.files * REQUESTS_PER_OPEN + groups.outputs
        hour, thousand = prices.cpu_hour / 3600, prices.request_1000 / 1000
        stored = groups.bytes / GIB * (cost_inputs.retention / MONTH) * prices.gib_month
        cost = cpu * hour + requests * thousand + stored
        saved = saved_cpu * hour + opens * REQUESTS_PER_OPEN * thousand
    with np.errstate(divide="ignore", invalid="ignore"):
        days = np.where(saved > 0, np.ceil(cost / saved), NEVER_DAYS)
    return np.minimum(days, NEVER_DAYS).astype(np.int64)


def is_within_payback(days: Ints, policy: PlanningSettings) -> Mask:
    """Which groups have saved what they cost within the policy's ``payback``; all of them where that is 0."""
    if not policy.payback:
        return np.ones(len(days), dtype=np.bool_)
    return np.asarray(days <= policy.payback / timedelta(days=1), dtype=np.bool_)
