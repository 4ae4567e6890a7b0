# SPDX-License-Identifier: Apache-2.0
"""Which writes made a table's small files, and the one setting of its writer whose change would have prevented most.

Each setting that may help is tried: the model of the writer tells the history anew, and that is replayed under the
policy that the table has. What it saves is the difference between the two replays, less what the writer itself would
have written more.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, timedelta

from lake.history import Change, Check, History, go_on
from lake.units import MONTH
from planner.cost import Terms
from planner.policy import SizingPolicy
from planner.replay.comparison import predicted_seconds
from planner.replay.loop import Replayed, replay
from planner.replay.rewritten import Ledger, told_anew
from planner.replay.script import script_of
from planner.writers.model import Operation, SimulationError
from planner.writers.remedies import Habit, Remedy, remedies
from planner.writers.simulation import WriterKind

#: a setting that prevents a smaller share of small files is not worth the change, nor one that saves less of the work
_LEAST_FILES, _LEAST_WORK = 0.2, 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What one kind of writes made: its commits, their new files, the small ones among them, and when these came.

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
class Saving:
    """What a setting saves in a month. ``writer_bytes`` are written by the writer beyond what it wrote, or less."""

    files: float
    small_files: float
    rewritten_bytes: float
    writer_bytes: float
    cpu_hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A setting and what it would have saved."""

    remedy: Remedy
    saving: Saving
    worth: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The sources of small files, most first, what was tried, and what to change; None where nothing is worth it."""

    days: float
    sources: tuple[Source, ...]
    trials: tuple[Trial, ...]
    best: Trial | None
    #: what plans would rewrite per month as it is, and how long that takes
    rewritten_bytes: float
    cpu_hours: float


def advise(
    history: History,
    kind: WriterKind,
    policy: SizingPolicy,
    terms: Terms,
    *,
    most_files: int,
    check: Check = go_on,
) -> Advice:
    """What to change at the writer of a table with this history; models stop at ``most_files`` of one history.

    ``check`` is called before each trial and within its replay; what it raises ends all.
    """
    limit = policy.small_file_limit_bytes
    found = tuple(sorted(_sources(history, limit), key=lambda source: -source.small_files))
    as_it_is = _Cost.of(history, policy, terms, limit, check)
    trials = []
    for remedy in remedies(kind, _habit(history, found)):
        check()
        try:
            anew = told_anew(history, kind, remedy)
        except SimulationError:
            continue
        if sum(len(commit.wrote) for commit in anew.commits) <= most_files:
            saving = as_it_is.less(_Cost.of(anew, policy, terms, limit, check), terms)
            trials.append(Trial(remedy=remedy, saving=saving, worth=as_it_is.is_worth(saving)))
    good = [trial for trial in trials if trial.worth]
    return Advice(
        days=as_it_is.days,
        sources=found,
        trials=tuple(trials),
        best=max(good, key=lambda trial: trial.saving.cpu_hours, default=None),
        rewritten_bytes=as_it_is.a_month(as_it_is.replayed.work.rewritten_bytes),
        cpu_hours=as_it_is.a_month(as_it_is.cpu_seconds) / 3600,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cost:
    """A history under the table's policy: what its writers made, and what plans did about it."""

    days: float
    files: int
    small_files: int
    replayed: Replayed
    cpu_seconds: float

    @classmethod
    def of(cls, history: History, policy: SizingPolicy, terms: Terms, limit: int, check: Check) -> "_Cost":
        sources = list(_sources(history, limit))
        replayed = replay(script_of(history), policy, terms, small_file_limit_bytes=limit, check=check)
        return cls(
            days=(history.until - history.since) / timedelta(days=1),
            files=sum(source.files for source in sources),
            small_files=sum(source.small_files for source in sources),
            replayed=replayed,
            cpu_seconds=predicted_seconds(replayed.work, terms.rates),
        )

    def a_month(self, amount: float) -> float:
        return amount / self.days * (MONTH / timedelta(days=1))

    def less(self, other: "_Cost", terms: Terms) -> Saving:
        more = other.replayed.work.writer_bytes - self.replayed.work.writer_bytes
        seconds = self.cpu_seconds - other.cpu_seconds - more * terms.rates.seconds_per_byte
        return Saving(
            files=self.a_month(self.files - other.files),
            small_files=self.a_month(self.small_files - other.small_files),
            rewritten_bytes=self.a_month(self.replayed.work.rewritten_bytes - other.replayed.work.rewritten_bytes),
            writer_bytes=self.a_month(more),
            cpu_hours=self.a_month(seconds) / 3600,
        )

    def is_worth(self, saving: Saving) -> bool:
        fewer = saving.small_files >= _LEAST_FILES * self.a_month(self.small_files) > 0
        return fewer and saving.cpu_hours > _LEAST_WORK * self.a_month(self.cpu_seconds) / 3600


def _sources(history: History, limit: int) -> Iterator[Source]:
    """New files of writers by operation and application."""
    known = Ledger({file.group: (file.bytes, file.rows) for file in history.files})
    found: dict[tuple[str, str | None], list[tuple[int, int, int, int]]] = {}
    for commit in history.commits:
        new = [wrote for wrote in commit.wrote if wrote.bytes and wrote.group not in known.sizes]
        known.read(commit)
        if commit.change is Change.WRITE:
            small, size = sum(wrote.bytes < limit for wrote in new), sum(wrote.bytes for wrote in new)
            entry = len(new), small, size, commit.at.astimezone(UTC).hour
            found.setdefault((commit.operation, commit.application), []).append(entry)
    for (operation, application), entries in found.items():
        hours = [0] * 24
        for _, small, _, hour in entries:
            hours[hour] += small
        yield Source(
            operation=operation,
            application=application,
            commits=len(entries),
            files=sum(entry[0] for entry in entries),
            small_files=sum(entry[1] for entry in entries),
            bytes=sum(entry[2] for entry in entries),
            by_hour=tuple(hours),
        )


def _habit(history: History, sources: Sequence[Source]) -> Habit:
    """How the table is written by those commits that made new files."""
    known = Ledger({file.group: (file.bytes, file.rows) for file in history.files})
    parts = files = size = 0
    for commit in history.commits:
        for brought in known.read(commit).values():
            if commit.change is Change.WRITE and brought.files:
                parts, files, size = parts + 1, files + brought.files, size + brought.bytes
    bulk = sum(source.small_files for source in sources if source.operation == Operation.BULK_INSERT)
    whole = sum(source.small_files for source in sources)
    return Habit(bytes=size / max(1, parts), files=files / max(1, parts), bulk=2 * bulk > whole)


def busiest(by_hour: Sequence[int], most: int = 3) -> Mapping[int, int]:
    """The hours of the day with most small files, most first; none without any."""
    ranked = sorted(range(len(by_hour)), key=lambda hour: (-by_hour[hour], hour))
    return {hour: by_hour[hour] for hour in ranked[:most] if by_hour[hour]}
