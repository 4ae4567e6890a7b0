# SPDX-License-Identifier: Apache-2.0
"""The time machine: a table's own history under the policy that it has and under others."""

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from lake.errors import Rejected
from lake.formats import load_format
from lake.history import Change, Check, History, go_on
from lake.optional import KeepsHistory
from planner.cost import Rates
from planner.replay.advice import Advice, advise
from planner.replay.comparison import CONFIGURED, NOBODY, Comparison, Tried, compare, replays
from planner.replay.script import script_of
from planner.writers.model import MOST_FILES
from planner.writers.simulation import WriterKind
from service.config.loader import Config
from service.config.tables import ConfiguredTable, configure
from service.planning.terms import terms_of
from service.problems import SETTING, USAGE, CommandError

if TYPE_CHECKING:
    from service.store import Store

DAYS = 30
#: policies of one comparison, the one in use and none at all included
MOST_POLICIES = 24
#: commits of one history
MOST_COMMITS = 100_000
LONGEST = timedelta(days=366)


class TookTooLong(CommandError):
    """A replay, or advice, was not done in the time that whoever serves it gives it."""


def at_most(seconds: float) -> Check:
    """A check that raises TookTooLong from ``seconds`` from now on."""
    began = time.monotonic()

    def check() -> None:
        if time.monotonic() - began > seconds:
            said = f"it took longer than {seconds:g} s"
            raise TookTooLong(SETTING, f"{said}; ask for fewer days or settings, or leave out --url")

    return check


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A table's history, and what came of it under each policy."""

    table: ConfiguredTable
    history: History
    comparison: Comparison
    rates: Rates


def replay_table(
    config: Config,
    store: "Store",
    table: ConfiguredTable,
    *,
    days: float = DAYS,
    grid: Mapping[str, Sequence[str]],
    check: Check = go_on,
) -> Replay:
    """The last ``days`` of ``table`` under each combination of the settings of ``grid``. Stores nothing.

    Raises CommandError for too many policies or commits, and what ``check`` raises; OverrideError for a setting that is
    none; Rejected for a format whose tables do not tell their history; and what reading it raises.
    """
    tried = _tried(config, table, grid)
    history = history_of(store, table, days, check)
    script = script_of(history)
    terms, limit = terms_of(store, table), table.policy.small_file_limit_bytes
    found = replays(script, tried, terms, small_file_limit_bytes=limit, check=check)
    comparison = compare(script, tried, found, terms.rates)
    return Replay(table=table, history=history, comparison=comparison, rates=terms.rates)


def history_of(store: "Store", table: ConfiguredTable, days: float, check: Check = go_on) -> History:
    """The last ``days`` of ``table``. Raises as ``replay_table`` does."""
    if not 0 < days <= LONGEST.days:  # so that what is no number is not, either
        raise CommandError(USAGE, f"--days {days:g} is not between 0 and {LONGEST.days}")
    adapter = load_format(table.ref.format)
    if not isinstance(adapter, KeepsHistory):
        raise Rejected(
            f"{table.name}: {adapter.name} tables do not tell what was done to them, nothing can be replayed"
        )
    until = datetime.now(UTC)
    superseded = [due.version for due in store.superseded(table.ref)]
    history = adapter.history(table.ref, until - timedelta(days=days), until, superseded, check)
    if len(history.commits) > MOST_COMMITS:
        many = f"{table.name} had {len(history.commits):,} commits in {days:g} days"
        raise CommandError(SETTING, f"{many}, more than the {MOST_COMMITS:,} of one replay; ask for fewer days")
    if not any(commit.change is Change.WRITE for commit in history.commits):
        raise Rejected(f"{table.name}: nothing was written in the last {days:g} days, so there is nothing to replay")
    return history


def advise_table(
    store: "Store", table: ConfiguredTable, *, days: float = DAYS, check: Check = go_on
) -> tuple[History, Advice]:
    """Which writes of the last ``days`` made small files, and what to change at the writer. Stores nothing.

    Raises as ``replay_table`` does, but for policies.
    """
    history = history_of(store, table, days, check)
    terms, writer = terms_of(store, table), WriterKind(history.writer)
    return history, advise(history, writer, table.policy, terms, most_files=MOST_FILES, check=check)


def grid_of(words: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Settings to try, from words such as ``target_file_max=256MiB,1GiB``. Raises CommandError."""
    grid: dict[str, tuple[str, ...]] = {}
    for word in words:
        key, separator, said = word.partition("=")
        values = tuple(dict.fromkeys(value.strip() for value in said.split(",")))
        if not separator or not key.strip() or not all(values):
            raise CommandError(USAGE, f"{word!r} is not KEY=VALUE,VALUE, such as target_file_max=256MiB,1GiB")
        grid[key.strip()] = values
    return grid


def _tried(config: Config, table: ConfiguredTable, grid: Mapping[str, Sequence[str]]) -> list[Tried]:
    """No compaction, the policy as configured, and each combination of ``grid``."""
    tried = [
        Tried(name=NOBODY, settings={}, policy=None),
        Tried(name=CONFIGURED, settings={}, policy=table.policy),
    ]
    seen = {table.policy}
    for settings in _combinations(grid, MOST_POLICIES - len(tried)):
        policy = configure(config, table.ref, settings).policy
        if policy not in seen:
            seen.add(policy)
            name = " ".join(f"{key}={value}" for key, value in settings.items())
            tried.append(Tried(name=name, settings=settings, policy=policy))
    return tried


def _combinations(grid: Mapping[str, Sequence[str]], most: int) -> Iterator[dict[str, str]]:
    count = 1
    for values in grid.values():
        count *= len(values)
    if count > most:
        raise CommandError(SETTING, f"{count} combinations of settings are more than the {most} of one replay")
    for values in itertools.product(*grid.values()) if grid else ():
        yield dict(zip(grid, values, strict=True))
