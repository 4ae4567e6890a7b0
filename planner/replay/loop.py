# SPDX-License-Identifier: Apache-2.0
"""One policy over a script: writers write, and at the ticks of its scan interval the planner plans.

Planning is that of ``planner.selection``, on the files of those partitions only of which it may say something new: one
is looked at when a file in it has become as old as planning asks for, when a file in it was taken away, and as long as
it has something that no plan had room for. What a plan rewrites is done at its tick.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np
import numpy.typing as npt

from lake.history import Check, go_on
from lake.plan import PlanKind
from lake.units import DAY_US
from planner.candidates import Candidates, Ints, decide_large, decide_recent
from planner.choices import PartitionFilter
from planner.cost import Terms
from planner.groups import least_files
from planner.partitions import select_partitions
from planner.policy import SizingPolicy
from planner.reasons import CODE, UNDECIDED, Reason
from planner.replay.layout import Layout, Sums
from planner.replay.script import Act, Grown, Logged, Merged, Removed, Script, Strand, moment_of
from planner.selection import CONSTANTS, Selection, select


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """The table at the end of a day of the replay, and what plans had done until then."""

    at_us: int
    files: int
    small_files: int
    bytes: int
    plans: int
    rewritten_bytes: int


@dataclass(slots=True, kw_only=True)
class Work:
    """What plans did, and what writers wrote meanwhile; their base files and logs."""

    plans: int = 0
    groups: int = 0
    input_files: int = 0
    output_files: int = 0
    rewritten_bytes: int = 0
    writer_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What came of a policy; None is a table that nobody compacts.

    ``file_days`` and ``small_file_days`` are files by the time that they were there; small is what is below one limit,
    the same for all policies that are compared.
    """

    policy: SizingPolicy | None
    work: Work
    end: Sums
    days: tuple[Day, ...]
    file_days: float
    small_file_days: float
    layout: Layout = field(repr=False)


def replay(
    script: Script,
    policy: SizingPolicy | None,
    terms: Terms = CONSTANTS,
    *,
    small_file_limit_bytes: int,
    check: Check = go_on,
) -> Replayed:
    """``script`` under ``policy``. Files below the limit are counted as small, whatever the policy's own is.

    ``check`` is called at each commit and each scan; what it raises ends the replay.
    """
    return _Replay(script, policy, terms, small_file_limit_bytes, check).run()


class _Replay:
    def __init__(self, script: Script, policy: SizingPolicy | None, terms: Terms, limit: int, check: Check) -> None:
        self._script, self._policy, self._terms, self._check = script, policy, terms, check
        self.layout = Layout(script, limit)
        self.work = Work()
        self._sums = self.layout.sums
        self._days: list[Day] = []
        self._clock_us = script.since_us
        self._file_us = self._small_us = 0
        #: partitions that are to be looked at, and when others will be
        self._waiting: set[int] = set()
        self._due: list[tuple[int, int]] = []
        self._selected: frozenset[int] = frozenset()
        self._selected_for: tuple[int, int] = (-1, -1)
        if policy is not None:
            self._quiet_us = int(policy.quiet_period.total_seconds() * 1_000_000)
            self._age_us = int(policy.compact_age.total_seconds() * 1_000_000)
            self._interval_us = max(1, int(policy.scan_interval.total_seconds() * 1_000_000))
            self._rounds = policy.max_inflight_per_table + 1
            self._least = least_files(policy)
            self._next_tick_us = script.since_us

    def run(self) -> Replayed:
        for strand in self._script.there:
            self._changed(self.layout.add(strand), strand.at_us, logs=strand.log_files > 0)
        for act in self._script.acts:
            self._check()
            self._tick_until(act.at_us)
            self._pass(act.at_us)
            self._do(act)
        self._tick_until(self._script.until_us + 1)
        self._pass(self._script.until_us)
        self._end_day(self._script.until_us)
        return Replayed(
            policy=self._policy,
            work=self.work,
            end=self._sums,
            days=tuple(self._days),
            file_days=self._file_us / DAY_US,
            small_file_days=self._small_us / DAY_US,
            layout=self.layout,
        )

    def _pass(self, now_us: int) -> None:
        """Let time go by until ``now_us``."""
        while (end := self._script.since_us + (len(self._days) + 1) * DAY_US) <= now_us:
            self._weigh(end)
            self._end_day(end)
        self._weigh(now_us)

    def _weigh(self, now_us: int) -> None:
        spent = now_us - self._clock_us
        if spent > 0:
            self._file_us += spent * self._sums.files
            self._small_us += spent * self._sums.small_files
            self._clock_us = now_us

    def _end_day(self, at_us: int) -> None:
        if self._days and self._days[-1].at_us >= at_us:
            return
        sums, work = self._sums, self.work
        self._days.append(
            Day(
                at_us=at_us,
                files=sums.files,
                small_files=sums.small_files,
                bytes=sums.bytes,
                plans=work.plans,
                rewritten_bytes=work.rewritten_bytes,
            )
        )

    def _do(self, act: Act) -> None:
        """What a writer did, on the files that have its rows here."""
        layout, at_us = self.layout, act.at_us
        for step in act.steps:
            match step:
                case Strand():
                    self._changed(layout.add(step), at_us, logs=step.log_files > 0)
                    self.work.writer_bytes += step.bytes + step.log_bytes
                case Grown():
                    files, written = layout.grow(step, at_us)
                    self._touched(files, at_us, taken=True)
                    self.work.writer_bytes += written
                case Logged():
                    self._touched(layout.log(step, at_us), at_us, logs=True)
                    self.work.writer_bytes += step.bytes
                case Removed():
                    self._touched(layout.remove(step), at_us, taken=True)
                case Merged():
                    self._touched(layout.merge(step, at_us), at_us, taken=True)
        if act.only_logs:
            self._logged_once_more()

    def _logged_once_more(self) -> None:
        self.layout.uncompacted_commits += 1
        policy = self._policy
        if policy is not None and 0 < policy.compact_delta_commits <= self.layout.uncompacted_commits:
            self._waiting.update(self._there())

    def _touched(self, files: Iterable[int], at_us: int, *, taken: bool = False, logs: bool = False) -> None:
        for partition in {self.layout.partition_of(file) for file in files}:
            self._changed(partition, at_us, logs=logs)
            if taken:
                self._waiting.add(partition)

    def _changed(self, partition: int, at_us: int, *, logs: bool = False) -> None:
        """A file of ``partition`` is as of ``at_us``: look when it has its age; at logs, which wait for none, now."""
        if self._policy is None:
            return
        heapq.heappush(self._due, (at_us + self._quiet_us, partition))
        if logs:
            self._waiting.add(partition)
            if self._age_us:
                heapq.heappush(self._due, (at_us + self._age_us, partition))

    def _tick_until(self, before_us: int) -> None:
        """Every scan before ``before_us`` that has something to look at."""
        if self._policy is None:
            return
        while True:
            at_us = self._next_tick_us
            if not (self._waiting or self._reordered()):
                at_us = self._tick_from(self._due[0][0] if self._due else before_us)
            if at_us >= before_us:
                self._next_tick_us = self._tick_from(before_us)
                return
            while self._due and self._due[0][0] <= at_us:
                self._waiting.add(heapq.heappop(self._due)[1])
            self._check()
            self._pass(at_us)
            self._next_tick_us = at_us + self._interval_us
            self._scan(self._policy, at_us)

    def _tick_from(self, moment_us: int) -> int:
        """The first tick at ``moment_us`` or later that has not been."""
        wait = moment_us - self._next_tick_us
        return self._next_tick_us + max(0, -(-wait // self._interval_us)) * self._interval_us

    def _scan(self, policy: SizingPolicy, at_us: int) -> None:
        """Plan what waits, as often as there is room for a plan."""
        now = moment_of(at_us)
        chosen = self._selection(policy, now)
        looked = sorted(self._waiting & chosen)
        if policy.partition_filter is PartitionFilter.DAY_ROLLING:
            self._waiting -= chosen  # the turn of others comes without anything happening to them
        else:
            self._waiting.clear()
        where = [partition for partition in looked if self._worth_a_look(partition)]
        if not where:
            return
        files, partition = self._files(where)
        found = self.layout.candidates([self._script.partitions[place] for place in where], files, partition)
        decide_recent(found, policy, at_us)
        decide_large(found, policy)
        self._settle(found, files, where)
        undecided, rewritable = found.codes.copy(), found.rewritable
        if np.count_nonzero(undecided == UNDECIDED) < self._least and not found.log_files.any():
            return
        free, left = np.ones(len(where), dtype=np.bool_), np.zeros(len(files), dtype=np.bool_)
        for turn in range(self._rounds):
            found.codes[:], found.rewritable = undecided, rewritable
            taken = select(found, policy, self._terms, now=now, free=free)
            if not len(taken.picked):
                break
            if turn == 0:
                left[taken.clustered] = left[taken.due] = True
            left[taken.groups.rows_of(taken.picked)] = False
            self._execute(taken, files, at_us)
            free[taken.groups.partition[taken.picked]] = False
            if not free[found.partition[left]].any():
                break
        if left.any():
            self._waiting.update(where[place] for place in set(found.partition[left].tolist()))

    def _worth_a_look(self, partition: int) -> bool:
        """Whether planning could find anything there: fewer files than the least are no group, without logs."""
        files = self.layout.open[partition]
        return len(files) >= self._least or any(self.layout.log_files[file] for file in files)

    def _files(self, where: Sequence[int]) -> tuple[npt.NDArray[np.int64], Ints]:
        """The files of these partitions that planning has to look at, and the place of the partition of each."""
        parts = [np.fromiter(self.layout.open[partition], dtype=np.int64) for partition in where]
        for part in parts:
            part.sort()
        files = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return files, np.repeat(np.arange(len(parts)), [len(part) for part in parts])

    def _settle(self, found: Candidates, files: npt.NDArray[np.int64], where: Sequence[int]) -> None:
        """Files that are large and have no logs stay as they are until a writer changes them."""
        large = (found.codes == CODE[Reason.ABOVE_LIMIT]) & (found.log_files == 0)
        if large.any():
            for place in set(found.partition[large].tolist()):
                self.layout.settle(files[large & (found.partition == place)].tolist(), where[place])

    def _execute(self, taken: Selection, files: npt.NDArray[np.int64], at_us: int) -> None:
        groups, work = taken.groups, self.work
        work.plans += 1
        work.groups += len(taken.picked)
        work.rewritten_bytes += int(groups.bytes[taken.picked].sum())
        if taken.kind is PlanKind.COMPACTION:
            done = files[groups.rows_of(taken.picked)].tolist()
            self.layout.compact(done, at_us)
            self._touched(done, at_us)
            return
        for place in taken.picked.tolist():
            inputs = files[groups.rows[groups.start[place] : groups.end[place]]].tolist()
            made = self.layout.rewrite(inputs, int(groups.outputs[place]), at_us)
            work.input_files += len(inputs)
            work.output_files += len(made)
            self._touched(made, at_us)

    def _selection(self, policy: SizingPolicy, now: datetime) -> frozenset[int]:
        """The partitions that the policy's filter selects of those that are there; newly selected ones are waiting."""
        stamp = self.layout.turns, now.hour
        if stamp != self._selected_for:
            number = {self._script.partitions[place]: place for place in self._there()}
            paths = select_partitions(number, policy, now=now)
            before, self._selected = self._selected, frozenset(number[path] for path in paths)
            self._waiting |= self._selected - before
            self._selected_for = stamp
        return self._selected

    def _reordered(self) -> bool:
        """Whether a partition appeared or vanished of which the choice of others depends."""
        policy = self._policy
        return policy is not None and policy.compares_partitions and self.layout.turns != self._selected_for[0]

    def _there(self) -> list[int]:
        """The partitions that have files."""
        return [place for place, files in enumerate(self.layout.files_in) if files]
