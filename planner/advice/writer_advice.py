# SPDX-License-Identifier: Apache-2.0
"""The sources of a table's small files, and the one writer setting whose change would have prevented most of them.

Each setting that may help is tried: the model of the writer creates a counterfactual history, which is replayed under
the table's policy. The savings are the difference between the two replays, minus the additional bytes that the writer
itself would have written.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, timedelta

from lake.history import CancellationCheck, ChangeKind, TableHistory, no_check
from lake.units import MONTH
from planner.advice.counterfactual import FileGroupSizes, counterfactual_history
from planner.advice.remedies import Remedy, WritePattern, candidate_remedies
from planner.cost import CostInputs
from planner.policy.policy import SizingPolicy
from planner.replay.comparison import MIN_RATE_DAYS, predicted_seconds
from planner.replay.events import writer_history
from planner.replay.policy_replay import ReplayResult, replay_policy
from planner.writers.model import Operation, SimulationError
from planner.writers.simulation import WriterKind

#: a setting is worth the change if it prevents this share of the small files and saves this share of the work
_MIN_FILE_SHARE, _MIN_WORK_SHARE = 0.2, 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallFileSource:
    """The output of one kind of write: commits, new files, and the small files among them.

    ``by_hour`` counts small files by the hour of the day in UTC.
    """

    operation: str
    application: str | None
    commits: int
    files: int
    small_files: int
    bytes: int
    by_hour: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterSavings:
    """The savings of a setting in the whole history.

    ``writer_bytes`` are the bytes that the writer writes in addition; they are negative if it writes fewer.
    """

    files: float
    small_files: float
    rewritten_bytes: float
    writer_bytes: float
    cpu_hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A tried setting and its savings."""

    remedy: Remedy
    savings: WriterSavings
    is_worthwhile: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The sources of small files, most first, the tried settings, and the best one, None if no change is worth it."""

    days: float
    sources: tuple[SmallFileSource, ...]
    trials: tuple[Trial, ...]
    best: Trial | None
    #: the bytes that plans rewrite in the whole history without a change, and the CPU time
    rewritten_bytes: float
    cpu_hours: float

    @property
    def has_rates(self) -> bool:
        """True if the history is long enough for figures per month."""
        return self.days >= MIN_RATE_DAYS

    def per_month(self, amount: float) -> float:
        """Return an amount of the whole history per month; see ``has_rates``."""
        return amount / self.days * (MONTH / timedelta(days=1))


def advise(
    history: TableHistory,
    kind: WriterKind,
    policy: SizingPolicy,
    cost_inputs: CostInputs,
    *,
    max_files: int,
    check: CancellationCheck = no_check,
) -> Advice:
    """Advise on the writer of a table with this history; counterfactuals with more than ``max_files`` are not tried.

    ``check`` is called before each trial and within its replay; its exception ends the advice.
    """
    limit = policy.small_file_limit_bytes
    found = tuple(sorted(_small_file_sources(history, limit), key=lambda source: -source.small_files))
    present_cost = _HistoryCost.from_history(history, policy, cost_inputs, limit, check)
    trials = []
    for remedy in candidate_remedies(kind, _write_pattern(history, found)):
        check()
        try:
            changed_history = counterfactual_history(history, kind, remedy)
        except SimulationError:
            continue
        if sum(len(commit.written) for commit in changed_history.commits) <= max_files:
            saving = present_cost.savings_with(
                _HistoryCost.from_history(changed_history, policy, cost_inputs, limit, check), cost_inputs
            )
            trials.append(Trial(remedy=remedy, savings=saving, is_worthwhile=present_cost.is_worthwhile(saving)))
    good = [trial for trial in trials if trial.is_worthwhile]
    return Advice(
        days=present_cost.days,
        sources=found,
        trials=tuple(trials),
        best=max(good, key=lambda trial: trial.savings.cpu_hours, default=None),
        rewritten_bytes=present_cost.result.work.rewritten_bytes,
        cpu_hours=present_cost.cpu_seconds / 3600,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _HistoryCost:
    """A history under the table's policy: the files of its writers, and the work of plans."""

    days: float
    files: int
    small_files: int
    result: ReplayResult
    cpu_seconds: float

    @classmethod
    def from_history(
        cls, history: TableHistory, policy: SizingPolicy, cost_inputs: CostInputs, limit: int, check: CancellationCheck
    ) -> "_HistoryCost":
        sources = list(_small_file_sources(history, limit))
        replayed = replay_policy(
            writer_history(history), policy, cost_inputs, small_file_limit_bytes=limit, check=check
        )
        return cls(
            days=(history.until - history.since) / timedelta(days=1),
            files=sum(source.files for source in sources),
            small_files=sum(source.small_files for source in sources),
            result=replayed,
            cpu_seconds=predicted_seconds(replayed.work, cost_inputs.rates),
        )

    def savings_with(self, other: "_HistoryCost", cost_inputs: CostInputs) -> WriterSavings:
        more = other.result.work.writer_bytes - self.result.work.writer_bytes
        seconds = self.cpu_seconds - other.cpu_seconds - more * cost_inputs.rates.seconds_per_byte
        return WriterSavings(
            files=self.files - other.files,
            small_files=self.small_files - other.small_files,
            rewritten_bytes=self.result.work.rewritten_bytes - other.result.work.rewritten_bytes,
            writer_bytes=more,
            cpu_hours=seconds / 3600,
        )

    def is_worthwhile(self, savings: WriterSavings) -> bool:
        fewer = savings.small_files >= _MIN_FILE_SHARE * self.small_files > 0
        return fewer and savings.cpu_hours > _MIN_WORK_SHARE * self.cpu_seconds / 3600


def _small_file_sources(history: TableHistory, limit: int) -> Iterator[SmallFileSource]:
    """Yield the writers' new files by operation and application."""
    known = FileGroupSizes({file.group: (file.bytes, file.rows) for file in history.files})
    found: dict[tuple[str, str | None], list[tuple[int, int, int, int]]] = {}
    for commit in history.commits:
        new = [wrote for wrote in commit.written if wrote.bytes and wrote.group not in known.sizes]
        known.apply_commit(commit)
        if commit.change is ChangeKind.WRITE:
            small, size = sum(wrote.bytes < limit for wrote in new), sum(wrote.bytes for wrote in new)
            entry = len(new), small, size, commit.at.astimezone(UTC).hour
            found.setdefault((commit.operation, commit.application), []).append(entry)
    for (operation, application), entries in found.items():
        hours = [0] * 24
        for _, small, _, hour in entries:
            hours[hour] += small
        yield SmallFileSource(
            operation=operation,
            application=application,
            commits=len(entries),
            files=sum(entry[0] for entry in entries),
            small_files=sum(entry[1] for entry in entries),
            bytes=sum(entry[2] for entry in entries),
            by_hour=tuple(hours),
        )


def _write_pattern(history: TableHistory, sources: Sequence[SmallFileSource]) -> WritePattern:
    """Return the pattern of the commits that create new files."""
    known = FileGroupSizes({file.group: (file.bytes, file.rows) for file in history.files})
    parts = files = size = 0
    for commit in history.commits:
        for partition_write in known.apply_commit(commit).values():
            if commit.change is ChangeKind.WRITE and partition_write.new_files:
                parts, files, size = parts + 1, files + partition_write.new_files, size + partition_write.bytes
    bulk = sum(source.small_files for source in sources if source.operation == Operation.BULK_INSERT)
    whole = sum(source.small_files for source in sources)
    return WritePattern(bytes=size / max(1, parts), files=files / max(1, parts), is_bulk=2 * bulk > whole)


def busiest_hours(by_hour: Sequence[int], limit: int = 3) -> Mapping[int, int]:
    """Return the hours of the day with the most small files, most first, or none without small files."""
    ranked = sorted(range(len(by_hour)), key=lambda hour: (-by_hour[hour], hour))
    return {hour: by_hour[hour] for hour in ranked[:limit] if by_hour[hour]}
