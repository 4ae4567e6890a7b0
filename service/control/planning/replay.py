# SPDX-License-Identifier: Apache-2.0
"""Replay: a table's own history under its policy and under other policies, and advice for its writers."""

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from lake.capabilities import KeepsHistory
from lake.errors import Rejected
from lake.history import CancellationCheck, ChangeKind, TableHistory, no_check
from planner.advice.writer_advice import Advice, advise
from planner.rates import Rates
from planner.replay.comparison import (
    CONFIGURED,
    NO_COMPACTION,
    PolicyComparison,
    PolicyVariant,
    compare_policies,
    replay_variants,
)
from planner.replay.events import writer_history
from planner.writers.model import MAX_FILES
from planner.writers.simulation import WriterKind
from service.control.config.loader import Config
from service.control.config.table_settings import ConfiguredTable, configure_table
from service.control.planning.observed_reads import describe_reads, with_observed_reads
from service.control.planning.planning_inputs import table_cost_inputs
from service.problems import BAD_SETTING, USAGE, ProblemError

if TYPE_CHECKING:
    from service.control.store import Store

DEFAULT_DAYS = 30
#: maximum number of policies in one comparison, including the configured policy and no compaction
MAX_POLICIES = 24
#: maximum number of commits in one history
MAX_COMMITS = 100_000
MAX_PERIOD = timedelta(days=366)


class ReplayTimeout(ProblemError):
    """A replay, or advice, did not finish within the server's time limit."""


def deadline_check(seconds: float) -> CancellationCheck:
    """Return a check that raises ReplayTimeout once ``seconds`` have passed."""
    began = time.monotonic()

    def check() -> None:
        if time.monotonic() - began > seconds:
            message = f"it took longer than {seconds:g} s"
            raise ReplayTimeout(BAD_SETTING, f"{message}; ask for fewer days or settings, or leave out --url")

    return check


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReplay:
    """A table's history, and the outcome under each policy."""

    table: ConfiguredTable
    history: TableHistory
    comparison: PolicyComparison
    rates: Rates


def replay_table(
    config: Config,
    store: "Store",
    table: ConfiguredTable,
    *,
    days: float = DEFAULT_DAYS,
    grid: Mapping[str, Sequence[str]],
    check: CancellationCheck = no_check,
) -> TableReplay:
    """Replay the last ``days`` of ``table`` under each combination of the settings of ``grid``. Stores nothing.

    Raises ProblemError for too many policies or commits, the errors of ``check``, OverrideError for a bad setting,
    Rejected if there is nothing to replay, and the errors of reading the history.
    """
    table = with_observed_reads(store, table)
    tried = _policy_variants(config, table, grid)
    history = load_history(store, table, days, check)
    script = writer_history(history)
    terms, limit = table_cost_inputs(store, table), table.policy.small_file_limit_bytes
    found = replay_variants(script, tried, terms, small_file_limit_bytes=limit, check=check)
    comparison = compare_policies(script, tried, found, terms.rates)
    return TableReplay(table=table, history=history, comparison=comparison, rates=terms.rates)


def load_history(
    store: "Store", table: ConfiguredTable, days: float, check: CancellationCheck = no_check
) -> TableHistory:
    """Return the history of the last ``days`` of ``table``. Raises the same errors as ``replay_table``."""
    if not 0 < days <= MAX_PERIOD.days:  # this order of the comparison refuses NaN as well
        raise ProblemError(USAGE, f"--days {days:g} is not between 0 and {MAX_PERIOD.days}")
    adapter = table.adapter
    if not isinstance(adapter, KeepsHistory):
        raise Rejected(
            f"{table.name}: {adapter.name} tables keep no history of their commits, so nothing can be replayed"
        )
    until = datetime.now(UTC)
    superseded = [due.version for due in store.awaiting_deletion(table.ref)]
    history = adapter.history(table.ref, until - timedelta(days=days), until, superseded, check)
    if len(history.commits) > MAX_COMMITS:
        many = f"{table.name} had {len(history.commits):,} commits in {days:g} days"
        raise ProblemError(BAD_SETTING, f"{many}, more than the {MAX_COMMITS:,} of one replay; ask for fewer days")
    if table.has_observed_reads:
        history = replace(history, notes=(*history.notes, f"savings count {describe_reads(table)}"))
    if not any(commit.change is ChangeKind.WRITE for commit in history.commits):
        raise Rejected(f"{table.name}: nothing was written in the last {days:g} days, so there is nothing to replay")
    return history


def advise_table(
    store: "Store", table: ConfiguredTable, *, days: float = DEFAULT_DAYS, check: CancellationCheck = no_check
) -> tuple[TableHistory, Advice]:
    """Return the history of the last ``days``, and advice about the writes that made small files. Stores nothing.

    Raises the same errors as ``replay_table``, except the errors about policies.
    """
    table = with_observed_reads(store, table)
    history = load_history(store, table, days, check)
    terms, writer = table_cost_inputs(store, table), WriterKind(history.writer_model)
    return history, advise(history, writer, table.policy, terms, max_files=MAX_FILES, check=check)


def parse_grid(words: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the settings to try, from words such as ``target_file_max=256MiB,1GiB``. Raises ProblemError."""
    grid: dict[str, tuple[str, ...]] = {}
    for word in words:
        key, separator, said = word.partition("=")
        values = tuple(dict.fromkeys(value.strip() for value in said.split(",")))
        if not separator or not key.strip() or not all(values):
            raise ProblemError(USAGE, f"{word!r} is not KEY=VALUE,VALUE, such as target_file_max=256MiB,1GiB")
        grid[key.strip()] = values
    return grid


def _policy_variants(config: Config, table: ConfiguredTable, grid: Mapping[str, Sequence[str]]) -> list[PolicyVariant]:
    """Return no compaction, the configured policy, and each combination of ``grid``."""
    tried = [
        PolicyVariant(name=NO_COMPACTION, settings={}, policy=None),
        PolicyVariant(name=CONFIGURED, settings={}, policy=table.policy),
    ]
    seen = {table.policy}
    for settings in _combinations(grid, MAX_POLICIES - len(tried)):
        policy = configure_table(config, table.ref, settings).policy
        if table.has_observed_reads and "reads_per_day" not in settings:
            policy = replace(policy, reads_per_day=table.policy.reads_per_day)
        if policy not in seen:
            seen.add(policy)
            name = " ".join(f"{key}={value}" for key, value in settings.items())
            tried.append(PolicyVariant(name=name, settings=settings, policy=policy))
    return tried


def _combinations(grid: Mapping[str, Sequence[str]], limit: int) -> Iterator[dict[str, str]]:
    count = 1
    for values in grid.values():
        count *= len(values)
    if count > limit:
        raise ProblemError(BAD_SETTING, f"{count} combinations of settings are more than the {limit} of one replay")
    for values in itertools.product(*grid.values()) if grid else ():
        yield dict(zip(grid, values, strict=True))
