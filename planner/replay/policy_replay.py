# SPDX-License-Identifier: Apache-2.0
"""The replay of one policy over a history: writers write, and the planner plans at each tick of the scan interval.

Planning uses ``planner.worthwhile`` and ``planner.plan_selection`` on the files of partitions whose result may have
changed. A partition is planned in three cases: its existing files have changed, one of its files has reached the age
that planning requires, or some of its worthwhile files exceeded the limits of the previous plan. A plan is executed at
its tick.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np
import numpy.typing as npt

from lake.history import CancellationCheck, no_check
from lake.plan import PlanKind
from lake.units import DAY_US
from planner.candidates import Candidates, decide_large, decide_recent
from planner.cost import DEFAULT_COST_INPUTS, CostInputs
from planner.groups import min_group_files
from planner.partition_selection import select_partitions
from planner.plan_selection import Selection, select_next_plan
from planner.policy.enums import PartitionFilter
from planner.policy.policy import SizingPolicy
from planner.reasons import REASON_CODES, UNDECIDED, Reason
from planner.replay.events import (
    FileCreated,
    FilesGrown,
    FilesMerged,
    FilesRemoved,
    LogsAppended,
    WriterCommit,
    WriterHistory,
    from_microseconds,
)
from planner.replay.layout import LayoutTotals, ReplayLayout
from planner.slice_columns import Ints
from planner.worthwhile import find_worthwhile


@dataclass(frozen=True, slots=True, kw_only=True)
class DailyTotals:
    """The table at the end of a day of the replay, and the work of plans until then."""

    at_us: int
    files: int
    small_files: int
    bytes: int
    plans: int
    rewritten_bytes: int


@dataclass(slots=True, kw_only=True)
class WorkTotals:
    """The work of plans, and the bytes that writers wrote meanwhile: base files and logs."""

    plans: int = 0
    groups: int = 0
    input_files: int = 0
    output_files: int = 0
    rewritten_bytes: int = 0
    writer_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """The result of a policy; ``policy`` is None for a table without compaction.

    ``file_days`` and ``small_file_days`` are numbers of files times the days of their existence. Files are small below
    one limit, which is the same for all compared policies.
    """

    policy: SizingPolicy | None
    work: WorkTotals
    final_totals: LayoutTotals
    daily_totals: tuple[DailyTotals, ...]
    file_days: float
    small_file_days: float
    layout: ReplayLayout = field(repr=False)


def replay_policy(
    history: WriterHistory,
    policy: SizingPolicy | None,
    cost_inputs: CostInputs = DEFAULT_COST_INPUTS,
    *,
    small_file_limit_bytes: int,
    check: CancellationCheck = no_check,
) -> ReplayResult:
    """Replay ``history`` under ``policy``. ``small_file_limit_bytes``, not the policy, defines small files.

    ``check`` is called at each commit and each scan; its exception ends the replay.
    """
    return _PolicyReplay(history, policy, cost_inputs, small_file_limit_bytes, check).run()


class _PolicyReplay:
    def __init__(
        self,
        history: WriterHistory,
        policy: SizingPolicy | None,
        cost_inputs: CostInputs,
        limit: int,
        check: CancellationCheck,
    ) -> None:
        self._history, self._policy, self._cost_inputs, self._check = history, policy, cost_inputs, check
        self.layout = ReplayLayout(history, limit)
        self.work = WorkTotals()
        self._totals = self.layout.totals
        self._days: list[DailyTotals] = []
        self._clock_us = history.since_us
        self._file_us = self._small_us = 0
        #: the partitions to plan at the next scan, and the moments at which partitions become due
        self._partitions_to_plan: set[int] = set()
        self._scheduled: list[tuple[int, int]] = []
        self._selected: frozenset[int] = frozenset()
        self._selected_for: tuple[int, int] = (-1, -1)
        if policy is not None:
            self._quiet_us = int(policy.quiet_period.total_seconds() * 1_000_000)
            self._age_us = int(policy.compact_age.total_seconds() * 1_000_000)
            self._interval_us = max(1, int(policy.scan_interval.total_seconds() * 1_000_000))
            self._plans_per_scan = policy.max_inflight_per_table + 1
            self._min_group_files = min_group_files(policy)
            self._next_tick_us = history.since_us

    def run(self) -> ReplayResult:
        for created in self._history.initial_files:
            self._schedule_partition(self.layout.create_file(created), created.at_us, has_logs=created.log_files > 0)
        for act in self._history.commits:
            self._check()
            self._scan_until(act.at_us)
            self._advance_to(act.at_us)
            self._apply_commit(act)
        self._scan_until(self._history.until_us + 1)
        self._advance_to(self._history.until_us)
        self._record_day(self._history.until_us)
        return ReplayResult(
            policy=self._policy,
            work=self.work,
            final_totals=self._totals,
            daily_totals=tuple(self._days),
            file_days=self._file_us / DAY_US,
            small_file_days=self._small_us / DAY_US,
            layout=self.layout,
        )

    def _advance_to(self, now_us: int) -> None:
        """Advance the clock to ``now_us``."""
        while (end := self._history.since_us + (len(self._days) + 1) * DAY_US) <= now_us:
            self._accumulate_file_time(end)
            self._record_day(end)
        self._accumulate_file_time(now_us)

    def _accumulate_file_time(self, now_us: int) -> None:
        spent = now_us - self._clock_us
        if spent > 0:
            self._file_us += spent * self._totals.files
            self._small_us += spent * self._totals.small_files
            self._clock_us = now_us

    def _record_day(self, at_us: int) -> None:
        if self._days and self._days[-1].at_us >= at_us:
            return
        sums, work = self._totals, self.work
        self._days.append(
            DailyTotals(
                at_us=at_us,
                files=sums.files,
                small_files=sums.small_files,
                bytes=sums.bytes,
                plans=work.plans,
                rewritten_bytes=work.rewritten_bytes,
            )
        )

    def _apply_commit(self, commit: WriterCommit) -> None:
        """Apply a writer's commit to the files that hold its rows in this replay."""
        layout, at_us = self.layout, commit.at_us
        for step in commit.events:
            match step:
                case FileCreated():
                    self._schedule_partition(layout.create_file(step), at_us, has_logs=step.log_files > 0)
                    self.work.writer_bytes += step.bytes + step.log_bytes
                case FilesGrown():
                    files, written = layout.grow_files(step, at_us)
                    self._schedule_partitions_of(files, at_us, is_taken=True)
                    self.work.writer_bytes += written
                case LogsAppended():
                    self._schedule_partitions_of(layout.append_logs(step, at_us), at_us, has_logs=True)
                    self.work.writer_bytes += step.bytes
                case FilesRemoved():
                    self._schedule_partitions_of(layout.remove_files(step), at_us, is_taken=True)
                case FilesMerged():
                    self._schedule_partitions_of(layout.merge_files(step, at_us), at_us, is_taken=True)
        if commit.is_log_only:
            self._count_delta_commit()

    def _count_delta_commit(self) -> None:
        self.layout.uncompacted_commits += 1
        policy = self._policy
        if policy is not None and 0 < policy.compact_delta_commits <= self.layout.uncompacted_commits:
            self._partitions_to_plan.update(self._partitions_with_files())

    def _schedule_partitions_of(
        self, files: Iterable[int], at_us: int, *, is_taken: bool = False, has_logs: bool = False
    ) -> None:
        for partition in {self.layout.partition_of(file) for file in files}:
            self._schedule_partition(partition, at_us, has_logs=has_logs)
            if is_taken:
                self._partitions_to_plan.add(partition)

    def _schedule_partition(self, partition: int, at_us: int, *, has_logs: bool = False) -> None:
        """Schedule ``partition`` for ``at_us`` plus the quiet period; with ``has_logs``, also for the next scan."""
        if self._policy is None:
            return
        heapq.heappush(self._scheduled, (at_us + self._quiet_us, partition))
        if has_logs:
            self._partitions_to_plan.add(partition)
            if self._age_us:
                heapq.heappush(self._scheduled, (at_us + self._age_us, partition))

    def _scan_until(self, before_us: int) -> None:
        """Run every scan before ``before_us`` that has partitions to plan."""
        if self._policy is None:
            return
        while True:
            at_us = self._next_tick_us
            if not (self._partitions_to_plan or self._is_selection_outdated()):
                at_us = self._next_tick_from(self._scheduled[0][0] if self._scheduled else before_us)
            if at_us >= before_us:
                self._next_tick_us = self._next_tick_from(before_us)
                return
            while self._scheduled and self._scheduled[0][0] <= at_us:
                self._partitions_to_plan.add(heapq.heappop(self._scheduled)[1])
            self._check()
            self._advance_to(at_us)
            self._next_tick_us = at_us + self._interval_us
            self._scan(self._policy, at_us)

    def _next_tick_from(self, moment_us: int) -> int:
        """Return the first tick at ``moment_us`` or later that has not passed."""
        wait = moment_us - self._next_tick_us
        return self._next_tick_us + max(0, -(-wait // self._interval_us)) * self._interval_us

    def _scan(self, policy: SizingPolicy, at_us: int) -> None:
        """Plan the waiting partitions, up to the number of plans per scan."""
        now = from_microseconds(at_us)
        chosen = self._selected_partitions(policy, now)
        scanned = sorted(self._partitions_to_plan & chosen)
        if policy.partition_filter is PartitionFilter.DAY_ROLLING:
            self._partitions_to_plan -= chosen  # the others are due at another hour, even if unchanged
        else:
            self._partitions_to_plan.clear()
        where = [partition for partition in scanned if self._can_be_planned(partition)]
        if not where:
            return
        files, partition = self._files_of(where)
        found = self.layout.candidates([self._history.partitions[number] for number in where], files, partition)
        decide_recent(found, policy, at_us)
        decide_large(found, policy)
        self._mark_large_stable(found, files, where)
        if np.count_nonzero(found.reason_codes == UNDECIDED) < self._min_group_files and not found.log_files.any():
            return
        work = find_worthwhile(found, policy, self._cost_inputs, now=now)
        free, left = np.ones(len(where), dtype=np.bool_), np.zeros(len(files), dtype=np.bool_)
        for turn in range(self._plans_per_scan):
            taken = select_next_plan(work, found, policy, free=free)
            if not len(taken.picked):
                break
            if turn == 0:
                left = work.mask.copy()
            left[taken.groups.rows_of(taken.picked)] = False
            self._execute(taken, files, at_us)
            free[taken.groups.partition[taken.picked]] = False
            if not free[found.partition[left]].any():
                break
        if left.any():
            self._partitions_to_plan.update(where[number] for number in set(found.partition[left].tolist()))

    def _can_be_planned(self, partition: int) -> bool:
        """True if planning may find anything: enough files for a group, or a file with logs."""
        files = self.layout.files_to_plan[partition]
        return len(files) >= self._min_group_files or any(self.layout.log_files[file] for file in files)

    def _files_of(self, partitions: Sequence[int]) -> tuple[npt.NDArray[np.int64], Ints]:
        """Return the files of ``partitions`` that planning has to consider, and the index of each file's partition."""
        parts = [np.fromiter(self.layout.files_to_plan[partition], dtype=np.int64) for partition in partitions]
        for part in parts:
            part.sort()
        files = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return files, np.repeat(np.arange(len(parts)), [len(part) for part in parts])

    def _mark_large_stable(
        self, candidates: Candidates, files: npt.NDArray[np.int64], partitions: Sequence[int]
    ) -> None:
        """Exclude large files without logs from planning until a writer changes them."""
        large = (candidates.reason_codes == REASON_CODES[Reason.ABOVE_LIMIT]) & (candidates.log_files == 0)
        if large.any():
            for number in set(candidates.partition[large].tolist()):
                self.layout.mark_stable(files[large & (candidates.partition == number)].tolist(), partitions[number])

    def _execute(self, selection: Selection, files: npt.NDArray[np.int64], at_us: int) -> None:
        groups, work = selection.groups, self.work
        work.plans += 1
        work.groups += len(selection.picked)
        work.rewritten_bytes += int(groups.bytes[selection.picked].sum())
        if selection.kind is PlanKind.COMPACTION:
            done = files[groups.rows_of(selection.picked)].tolist()
            self.layout.compact(done, at_us)
            self._schedule_partitions_of(done, at_us)
            return
        for index in selection.picked.tolist():
            inputs = files[groups.rows[groups.start[index] : groups.end[index]]].tolist()
            made = self.layout.rewrite(inputs, int(groups.outputs[index]), at_us)
            work.input_files += len(inputs)
            work.output_files += len(made)
            self._schedule_partitions_of(made, at_us)

    def _selected_partitions(self, policy: SizingPolicy, now: datetime) -> frozenset[int]:
        """Return the existing partitions that the policy selects; newly selected partitions are planned next."""
        stamp = self.layout.partition_changes, now.hour
        if stamp != self._selected_for:
            number = {self._history.partitions[index]: index for index in self._partitions_with_files()}
            paths = select_partitions(number, policy, now=now)
            before, self._selected = self._selected, frozenset(number[path] for path in paths)
            self._partitions_to_plan |= self._selected - before
            self._selected_for = stamp
        return self._selected

    def _is_selection_outdated(self) -> bool:
        """True if the selection depends on all partitions, and a partition has appeared or vanished."""
        policy = self._policy
        return (
            policy is not None
            and policy.needs_all_partitions
            and self.layout.partition_changes != self._selected_for[0]
        )

    def _partitions_with_files(self) -> list[int]:
        """Return the partitions that have files."""
        return [index for index, files in enumerate(self.layout.files_per_partition) if files]
