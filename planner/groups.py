# SPDX-License-Identifier: Apache-2.0
"""Puts candidates into groups: neighbours in an order, of one partition and group key, within the policy's bounds.

Both strategies cut an ordered row of slices into runs; they differ in the order, in the size that counts for a slice,
and in where they cut. All partitions of a range (``planner.slice_columns``) are cut at once, with one round for each
group of the partition with the most groups, so the cost depends on the number of slices, not of partitions.

Why planning ends (convergence). A group of ``n`` slices below the small-file limit is rewritten by
``k = ceil(size / target)`` writers and kept only if ``k < n``. A writer starts a further file only at the target, which
is not below the limit, so at most its last file is small: ``n`` small files become at most ``k``, whatever the real
sizes are. Every applied group removes at least one small file and creates none elsewhere. A table has finitely many
small files, so plan → apply → plan ends for every valid policy. The plans have at most as many groups as the table had
small files, each of at most ``max_bytes_per_group``.

Why no gain is missed (``balanced``). No candidate is larger than the target, so one more candidate in a group never
makes ``n - k`` smaller. If some set of a partition's candidates could become fewer files, so could the smallest
candidates that fill a group. Groups that have no gain after the cut by time are therefore cut once more, with the
smallest slices first.

Files to split (``split_file_limit_bytes``) are groups of one file. They are at least twice as large as the target, and
no new file is nearly as large, so each of them is split once and planning still ends.

A sort order (``layout``) does not change the rule. A snapshot does not show whether a file is sorted already. So a lone
file is never rewritten just to sort it, since planning would repeat that rewrite for ever. Merged files are sorted.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from planner.candidates import Candidates, Codes, to_split
from planner.policy.enums import BALANCED
from planner.policy.fields import PlanningSettings
from planner.reasons import REASON_CODES, UNDECIDED, Reason
from planner.slice_columns import Ints, Mask, SliceColumns


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The groups of all partitions. Group ``i`` is ``rows[start[i]:end[i]]``, rows of the snapshot, without gaps.

    All arrays but ``rows`` have one entry per group. ``partition`` indexes ``Candidates.partitions``. ``bytes`` are the
    bytes that a rewrite reads, logs included, and ``log_bytes`` the logs' part of them. ``outputs`` are the files to
    write, and ``small_outputs`` how many of them are expected below ``small_file_limit_bytes``: all or none, since
    outputs are assumed to be of equal size. ``worthwhile`` marks the groups worth a rewrite. ``rejection_codes`` are
    the reasons against the others (``reasons.REASON_CODES``), and ``rejection_numbers`` the numbers in the texts of
    these reasons (``reasons.reason_text``); both are without meaning for worthwhile groups.
    """

    rows: Ints
    start: Ints
    end: Ints
    partition: Ints
    bytes: Ints
    log_bytes: Ints
    outputs: Ints
    small_outputs: Ints
    worthwhile: Mask
    rejection_codes: Codes
    rejection_numbers: Ints

    @property
    def files(self) -> Ints:
        """The number of slices in each group."""
        return self.end - self.start

    @property
    def is_split(self) -> Mask:
        """Which groups split a file."""
        return self.outputs > self.files

    def rows_of(self, picked: Ints) -> Ints:
        """Return the snapshot rows of the ``picked`` groups, group by group."""
        spans = [self.rows[self.start[group] : self.end[group]] for group in picked.tolist()]
        return np.concatenate(spans) if spans else np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class _SliceRow:
    """Slices sorted by grouping key, then by other keys, and the sizes that the strategy uses.

    ``grouping_key`` are the differences to the range's least key.
    """

    columns: SliceColumns
    sizes: Ints
    grouping_key: Ints

    @classmethod
    def unsorted(cls, columns: SliceColumns, sizes: Ints) -> "_SliceRow":
        key = columns.grouping_key.astype(np.int64)
        return cls(columns=columns, sizes=sizes, grouping_key=key - key.min(initial=key[0] if len(key) else 0))

    def take(self, positions: Ints) -> "_SliceRow":
        return _SliceRow(
            columns=self.columns.take(positions),
            sizes=self.sizes.take(positions),
            grouping_key=self.grouping_key.take(positions),
        )

    def sorted(self, keys: Sequence[Ints], candidates: Candidates) -> "_SliceRow":
        return self.take(sorted_positions(self.grouping_key, keys, candidates, self.columns.rows))


def form_groups_by_range(candidates: Candidates, policy: PlanningSettings, wanted: Mask) -> Iterator[Groups]:
    """Yield the groups of the ``wanted`` slices, locked partitions included, for one range of partitions at a time.

    Except for a file to split, which is a group of its own, a group has no slice that is larger with its logs than a
    new file may be.
    """
    for columns in candidates.ranges:
        wanted_here = wanted[columns.rows]
        if policy.strategy != BALANCED:
            yield _form_native_groups(candidates, policy, columns, wanted_here)
            continue
        merging = _form_balanced_groups(candidates, policy, columns, wanted_here)
        if not policy.is_splitting:
            yield merging
            continue
        splitting = _form_split_groups(candidates, policy, columns, wanted_here)
        yield _merge_groups(merging, np.ones(len(merging.start), dtype=np.bool_), splitting)


def concatenate_groups(parts: Iterable[Groups], most_slices: int) -> Groups:
    """Return the groups of all ``parts``, in their order. Together they have no more than ``most_slices`` slices."""
    rows, count = np.empty(most_slices, dtype=np.int64), 0
    columns: dict[str, list[npt.NDArray[Any]]] = {field.name: [] for field in fields(Groups) if field.name != "rows"}
    for part in parts:
        for name, values in columns.items():
            values.append(getattr(part, name))
        rows[count : count + len(part.rows)] = part.rows
        count += len(part.rows)
    joined = {name: np.concatenate(values) for name, values in columns.items()}
    files = joined["end"] - joined["start"]
    end = np.cumsum(files)
    return Groups(**{**joined, "rows": rows[:count], "start": end - files, "end": end})


def _form_balanced_groups(
    candidates: Candidates, policy: PlanningSettings, columns: SliceColumns, wanted: Mask
) -> Groups:
    """Cut the ``wanted`` slices of ``columns`` in the order of time, and those without gain once more by size."""
    total = columns.bytes + columns.log_bytes
    positions = np.flatnonzero(wanted & (total <= policy.target_file_max_bytes))
    unsorted = _SliceRow.unsorted(columns.take(positions), total[positions])
    counts_by_key = np.bincount(unsorted.grouping_key).astype(np.int64)
    by_time = unsorted.sorted([unsorted.columns.modified_us, unsorted.sizes, unsorted.columns.log_bytes], candidates)
    groups = _cut_into_groups(by_time, counts_by_key, candidates, policy)

    cell = by_time.grouping_key[groups.start]
    rejected = np.bincount(cell[~groups.worthwhile], minlength=len(counts_by_key))
    to_cut_again = ~groups.worthwhile & (rejected[cell] > 1)
    if not to_cut_again.any():
        return groups
    rest = by_time.take(np.flatnonzero(np.repeat(to_cut_again, groups.files)))
    by_size = rest.sorted([rest.sizes, rest.columns.modified_us, rest.columns.log_bytes], candidates)
    return _merge_groups(
        groups, ~to_cut_again, _cut_into_groups(by_size, counts_by_key, candidates, policy, evenly=False)
    )


def _form_split_groups(candidates: Candidates, policy: PlanningSettings, columns: SliceColumns, wanted: Mask) -> Groups:
    """Return one group for each of the ``wanted`` slices of ``columns`` that is to be split."""
    large = to_split(columns.bytes, candidates.log_files[columns.rows], policy)
    columns = columns.take(np.flatnonzero(wanted & large))
    row = _SliceRow.unsorted(columns, columns.bytes).sorted([columns.modified_us, columns.bytes], candidates)
    rows, size, positions = row.columns.rows, row.sizes, np.arange(len(columns.rows), dtype=np.int64)
    outputs = -(-size // policy.target_file_max_bytes)
    return Groups(
        rows=rows,
        start=positions,
        end=positions + 1,
        partition=candidates.partition[rows].astype(np.int64),
        bytes=size,
        log_bytes=np.zeros(len(rows), dtype=np.int64),
        outputs=outputs,
        small_outputs=np.where(size < outputs * policy.small_file_limit_bytes, outputs, 0),
        worthwhile=size <= policy.max_bytes_per_plan,
        rejection_codes=np.full(len(rows), REASON_CODES[Reason.OVER_PLAN], dtype=np.int8),
        rejection_numbers=size,
    )


def _form_native_groups(
    candidates: Candidates, policy: PlanningSettings, columns: SliceColumns, wanted: Mask
) -> Groups:
    """Cut greedily in the order of the policy's ``file_slices_sort_by``, counting base files only."""
    columns = columns.take(np.flatnonzero(wanted))
    sizes = base_sizes(candidates, columns.rows, policy)
    unsorted = _SliceRow.unsorted(columns, sizes)
    keys = [
        -sizes if field == "size" else candidates.details.written_order(columns.rows)
        for field in policy.file_slices_sort_by
    ]
    # The format's own planner may break ties in an order that no listing shows; a fixed order keeps plans repeatable.
    keys.append(columns.modified_us)
    counts_by_key = np.bincount(unsorted.grouping_key).astype(np.int64)
    return _cut_into_groups(unsorted.sorted(keys, candidates), counts_by_key, candidates, policy, evenly=False)


def _cut_into_groups(
    row: _SliceRow, counts_by_key: Ints, candidates: Candidates, policy: PlanningSettings, *, evenly: bool = True
) -> Groups:
    """Cut ``row`` into groups and evaluate them. ``counts_by_key`` are the candidates of each grouping key."""
    rows = row.columns.rows
    total = np.concatenate(([0], np.cumsum(row.sizes, dtype=np.int64)))
    counts = np.bincount(row.grouping_key).astype(np.int64)
    bounds = np.concatenate(([0], np.cumsum(counts)))
    first, last = bounds[:-1][counts > 0], bounds[1:][counts > 0]
    most_files = len(rows) + 1 if policy.strategy != BALANCED else policy.max_files_per_group
    cut = cut_evenly if evenly else cut_greedily
    start, end = cut(total, first, last, policy.max_bytes_per_group, most_files)
    size = total[end] - total[start]
    outputs = np.maximum(1, -(-size // policy.target_file_max_bytes))
    base, logs = (
        np.add.reduceat(column, start) if len(start) else size for column in (row.columns.bytes, row.columns.log_bytes)
    )
    read = base + logs
    why_not, numbers = _evaluate_groups(end - start, outputs, read, counts_by_key[row.grouping_key[start]], policy)
    return Groups(
        rows=rows,
        start=start,
        end=end,
        partition=candidates.partition[rows[start]].astype(np.int64),
        bytes=read,
        log_bytes=logs,
        outputs=outputs,
        small_outputs=np.where(size < outputs * policy.small_file_limit_bytes, outputs, 0),
        worthwhile=why_not == UNDECIDED,
        rejection_codes=why_not,
        rejection_numbers=numbers,
    )


def _merge_groups(first: Groups, selected: Mask, second: Groups) -> Groups:
    """Return the ``selected`` groups of ``first`` and all groups of ``second``, sorted by partition."""
    columns = {
        field.name: np.concatenate([getattr(first, field.name)[selected], getattr(second, field.name)])
        for field in fields(Groups)
        if field.name != "rows"
    }
    columns["start"][np.count_nonzero(selected) :] += len(first.rows)
    columns["end"][np.count_nonzero(selected) :] += len(first.rows)
    order = np.lexsort((columns["start"], columns["partition"]))
    columns = {name: column[order] for name, column in columns.items()}
    files = columns["end"] - columns["start"]
    end = np.cumsum(files)
    # put the rows of each group right after the rows of the previous group
    row_positions = np.repeat(columns["start"] - (end - files), files) + np.arange(files.sum())
    rows = np.concatenate([first.rows, second.rows])[row_positions]
    return Groups(**{**columns, "rows": rows, "start": end - files, "end": end})


def _evaluate_groups(
    files: Ints, outputs: Ints, read: Ints, candidate_counts: Ints, policy: PlanningSettings
) -> tuple[Codes, Ints]:
    """Return the reason code against each group, ``UNDECIDED`` for groups worth a rewrite, and the reason's number."""
    why_not, numbers = np.full(len(files), UNDECIDED, dtype=np.int8), files.copy()
    for reason, holds, its_numbers in (  # the last reason that holds is the group's reason
        (Reason.NO_GAIN, outputs >= files, outputs),
        (Reason.FEW_FILES, (files < policy.min_input_files) & (files > 1), files),
        (Reason.ALONE, candidate_counts == 1, files),
        (Reason.OVER_PLAN, read > policy.max_bytes_per_plan, read),
    ):
        why_not[holds], numbers[holds] = REASON_CODES[reason], its_numbers[holds]
    return why_not, numbers


def min_group_files(policy: PlanningSettings) -> int:
    """Return the least number of files of a worthwhile group."""
    return max(2, policy.min_input_files)


def base_sizes(candidates: Candidates, rows: Ints, policy: PlanningSettings) -> Ints:
    """Return the size of each slice's base file, or the configured size for log-only slices."""
    missing = candidates.details.is_log_only(rows)
    return (
        candidates.bytes[rows]
        if missing is None
        else np.where(missing, policy.log_only_slice_size_bytes, candidates.bytes[rows])
    )


def cut_greedily(total: Ints, start: Ints, end: Ints, max_bytes: int, max_files: int) -> tuple[Ints, Ints]:
    """Cut each row [start, end) into runs, each as long as ``max_bytes`` and ``max_files`` allow.

    ``total[i]`` is the size of all slices before ``i``. A run has at least one slice, whatever its size.
    """
    starts, ends = [], []
    while len(start):
        stop = np.searchsorted(total, total[start] + max_bytes, side="right") - 1
        stop = np.minimum(np.maximum(stop, start + 1), np.minimum(start + max_files, end))
        starts.append(start)
        ends.append(stop)
        more = stop < end
        start, end = stop[more], end[more]
    return _concatenate_in_order(starts, ends)


def cut_evenly(total: Ints, start: Ints, end: Ints, max_bytes: int, max_files: int) -> tuple[Ints, Ints]:
    """Cut each row [start, end) into runs of about equal size, as few as ``max_bytes`` and ``max_files`` allow.

    Every slice must fit into ``max_bytes``. Each run aims at an equal share of the remaining slices, so no small run
    remains at the end of a row.
    """
    starts, ends = [], []
    while len(start):
        left = total[end] - total[start]
        runs = np.maximum(1, np.maximum(-(-left // max_bytes), -(-(end - start) // max_files)))
        if (runs == 1).all():
            starts.append(start)
            ends.append(end)
            break
        aim = total[start] + left // runs
        stop = np.minimum(np.searchsorted(total, aim, side="right") - 1, end)
        # add a slice if that is nearer to the aim and still fits
        further = np.minimum(stop + 1, end)
        nearer = (total[further] - aim < aim - total[stop]) & (total[further] - total[start] <= max_bytes)
        stop = np.where(nearer, further, stop)
        stop = np.maximum(np.minimum(stop, start + max_files), start + 1)
        stop = np.where(runs == 1, end, stop)
        starts.append(start)
        ends.append(stop)
        more = stop < end
        start, end = stop[more], end[more]
    return _concatenate_in_order(starts, ends)


def _concatenate_in_order(starts: Sequence[Ints], ends: Sequence[Ints]) -> tuple[Ints, Ints]:
    if not starts:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    start, end = np.concatenate(starts), np.concatenate(ends)
    order = np.argsort(start)
    return start[order], end[order]


def sorted_positions(grouping_key: Ints, keys: Sequence[Ints], candidates: Candidates, rows: Ints) -> Ints:
    """Return the positions of ``rows`` sorted by grouping key, then ``keys``, then file id: a total order.

    Each pass sorts by a packed number. Only ties are sorted by the next key, and only full ties by the file id.
    """
    run = grouping_key
    order = np.arange(len(rows), dtype=np.int64)
    places = order.copy()  # positions in ``order`` that are still tied, in runs of equal keys so far
    for key in keys:
        subset = order[places]
        arranged, tied, run = _sort_within_runs(run, key[subset])
        order[places] = subset[arranged]
        places, run = places[tied], run[tied]
        if not len(places):
            return order
    subset = order[places]
    order[places] = subset[candidates.details.sort_by_file_id(run, rows[subset])]
    return order


def _sort_within_runs(run: Ints, key: Ints) -> tuple[Ints, Mask, Ints]:
    """Sort by (run, key). Returns the arrangement, which of its positions are still tied, and the new run of each."""
    if not len(run):
        return run, np.empty(0, dtype=np.bool_), run
    key = key - key.min()
    bits = int(key.max()).bit_length()
    if int(run.max()).bit_length() + bits <= 63:
        packed = (run << bits) | key
        arranged = np.argsort(packed)
        packed = packed[arranged]
        changed = packed[1:] != packed[:-1]
    else:
        arranged = np.lexsort((key, run))
        run, key = run[arranged], key[arranged]
        changed = (run[1:] != run[:-1]) | (key[1:] != key[:-1])
    edges = np.concatenate(([True], changed, [True]))
    return arranged, ~(edges[1:] & edges[:-1]), np.cumsum(edges[:-1]) - 1
