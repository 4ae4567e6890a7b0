# SPDX-License-Identifier: Apache-2.0
"""The predicted cost and benefit of a rewrite: CPU seconds, bytes, opens, and money if prices are set.

docs/planning.md has every formula with its source. The constants are round numbers of the right order of
magnitude, not measured on particular hardware. MiB is 2^20 bytes.
"""

from dataclasses import dataclass, field, replace
from datetime import timedelta

import numpy as np

from lake.plan import Plan
from lake.units import GIB, MIB, MONTH
from planner.groups import Groups
from planner.policy.fields import PlanningSettings
from planner.rates import Rates
from planner.reasons import REASON_CODES, Reason
from planner.slice_columns import Ints

#: CPU seconds that each file costs each reader: listing, opening, reading the footer, starting a task
OPEN_SECONDS = 0.02
#: bytes of a footer and its indexes, which a reader reads from every file
FOOTER_BYTES = 64 << 10
#: requests to an object store for each open: the footer and the data
REQUESTS_PER_OPEN = 2
#: bytes of logs per second that one core merges while it reads
MERGED_BYTES_PER_SECOND = 25 * MIB
#: the number of days that stands for "never"
NEVER_DAYS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """The prices in one ``currency``. Without a price for CPU the other prices have no effect.

    ``cpu_hour`` is the price of one core for an hour, ``request_1000`` of 1,000 requests to an object store,
    ``gib_month`` of 2^30 bytes stored for a month of 365.25 ÷ 12 days.
    """

    cpu_hour: float = 0.0
    request_1000: float = 0.0
    gib_month: float = 0.0
    currency: str = ""

    @property
    def is_set(self) -> bool:
        """True if plans have a price."""
        return self.cpu_hour > 0

    def total_cost(
        self, cpu_seconds: float, requests: float, stored_bytes: float = 0, stored_for: timedelta = timedelta()
    ) -> float:
        """Return the price of CPU seconds, requests, and ``stored_bytes`` stored for ``stored_for``."""
        months = stored_for / MONTH
        used = cpu_seconds / 3600 * self.cpu_hour + requests / 1000 * self.request_1000
        return used + stored_bytes / GIB * months * self.gib_month


@dataclass(frozen=True, slots=True, kw_only=True)
class CostInputs:
    """The inputs of cost estimates of a table's plans: rates, prices, and how long replaced files stay stored."""

    rates: Rates = field(default_factory=Rates)
    prices: Prices = field(default_factory=Prices)
    retention: timedelta = timedelta(days=7)
    #: the policy has the observed rate of reads, not the configured one
    are_reads_observed: bool = False


DEFAULT_COST_INPUTS = CostInputs()
"""The cost inputs of an installation without history."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Benefit:
    """The predicted one-time cost of a plan and its predicted savings per day.

    The cost is ``cpu_seconds`` of cores, ``bytes`` read, logs included, and ``cost`` in ``currency``. ``files_saved``
    is the number of base files before, minus the number of files after. The savings per day are the opens of files,
    bytes and CPU seconds that readers save, and ``saved_a_day`` in ``currency``. Both sums of money are None if no
    prices are set; ``cpu_hour`` is the price used. ``payback_days`` is the cost divided by the savings per day, in
    money if there are prices, else in CPU seconds; None if the plan saves nothing. ``history`` is the number of plans
    from which the rates were fitted. ``reads_per_day`` is the assumed rate of reads, observed or configured.
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
    reads_per_day: float
    are_reads_observed: bool

    @property
    def benefit_cost_ratio(self) -> float:
        """Savings per day divided by cost; the same in money and in CPU seconds if only CPU has a price."""
        return 0.0 if self.payback_days is None else 1 / self.payback_days


def estimate_benefit(plan: Plan, policy: PlanningSettings, cost_inputs: CostInputs) -> Benefit:
    """Predict the cost and the savings of ``plan``."""
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
        reads_per_day=policy.reads_per_day,
        are_reads_observed=cost_inputs.are_reads_observed,
    )


def require_payback(groups: Groups, policy: PlanningSettings, cost_inputs: CostInputs) -> Groups:
    """Return ``groups`` with the reason ``NO_PAYBACK`` against worthwhile groups that do not save their cost in time.

    If the policy's ``payback`` is 0, no group has to save its cost. A file to split never has to: its benefit,
    that several tasks read it at once, has no estimate.
    """
    if not policy.payback:
        return groups
    days = _payback_days(groups, policy, cost_inputs)
    lost = groups.worthwhile & ~groups.is_split & (days > policy.payback / timedelta(days=1))
    return replace(
        groups,
        worthwhile=groups.worthwhile & ~lost,
        rejection_codes=np.where(lost, REASON_CODES[Reason.NO_PAYBACK], groups.rejection_codes).astype(np.int8),
        rejection_numbers=np.where(lost, days, groups.rejection_numbers),
    )


def _payback_days(groups: Groups, policy: PlanningSettings, cost_inputs: CostInputs) -> Ints:
    """Return the whole days after which each group has saved its cost, without the plan's fixed part.

    Groups that save nothing have ``NEVER_DAYS``.
    """
    opens = (groups.files - groups.outputs) * policy.reads_per_day
    cpu = groups.bytes * cost_inputs.rates.seconds_per_byte
    saved_cpu = opens * OPEN_SECONDS + groups.log_bytes * policy.reads_per_day / MERGED_BYTES_PER_SECOND
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
