# SPDX-License-Identifier: Apache-2.0
"""Candidates put into groups: neighbours in an order, of one partition and group key, within the policy's bounds.

Both strategies cut an ordered row of slices into runs; they differ in the order, in what counts as a slice's
size, and in where they cut. All partitions are cut at once, a round for each further group of the partition
with the most groups, so that the cost follows the number of slices and not of partitions.

Why planning ends (convergence). A group of ``n`` slices below the small-file limit is rewritten by
``k = ceil(size / target)`` writers and kept only if ``k < n``. A writer that rolls to a further file does so at
the target, which is not below the limit, so that at most its last file is small: ``n`` small files become at
most ``k`` whatever the real sizes are, even or not. Every applied group removes at least one small file and makes
none elsewhere; a table has finitely many, and so plan → apply → plan ends after at most as many groups as it
had small files, each of at most ``max_bytes_per_group``, for every valid policy.

Why nothing is forgotten (``balanced``). No candidate is larger than the target, so that taking one more into a
group never makes ``n - k`` smaller; if any set of a partition's candidates could become fewer files, the smallest
ones that fill a group can. What the cut by time leaves without gain is therefore cut once more, smallest first.

A layout does not change the rule. A snapshot does not say whether a file is laid out already, so a lone file is
never rewritten just to sort it: that would be planned again for ever. What is merged is brought into the layout.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from planner.candidates import Candidates, Codes, Ints, Mask
from planner.choices import BALANCED
from planner.knobs import Sizing
from planner.reasons import CODE, UNDECIDED, Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Groups of all partitions; group ``i`` is ``rows[start[i]:end[i]]``, rows of the snapshot; each follows the last.

    All arrays but ``rows`` have one entry per group. ``partition`` indexes ``Candidates.partitions``; ``bytes`` are
    those a rewrite reads, logs included; ``outputs`` are the files it is asked for, and ``small_after`` how many of
    them are expected below ``small_file_limit_bytes``: all or none, since outputs are taken to be of equal size.
    ``keep`` says which groups are worth a rewrite; ``why_not`` is the code (``candidates.CODE``) of the reason of those
    that are not, without a meaning for those that are.
    """

    rows: Ints
    start: Ints
    end: Ints
    partition: Ints
    bytes: Ints
    outputs: Ints
    small_after: Ints
    keep: Mask
    why_not: Codes

    @property
    def files(self) -> Ints:
        """Slices in each group."""
        return self.end - self.start

    def rows_of(self, picked: Ints) -> Ints:
        """Rows of the snapshot that the ``picked`` groups hold, group by group."""
        spans = [self.rows[self.start[place] : self.end[place]] for place in picked.tolist()]
        return np.concatenate(spans) if spans else np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """Slices sorted by cell and within it: their rows in the snapshot, their sizes as the strategy counts."""

    rows: Ints
    sizes: Ints
    cell: Ints

    def sorted(self, keys: Sequence[Ints], found: Candidates) -> "_Row":
        order = sorted_places(self.cell, keys, found, self.rows)
        return _Row(rows=self.rows[order], sizes=self.sizes[order], cell=self.cell[order])


def form_groups(found: Candidates, policy: Sizing) -> Groups:
    """Groups of everything still undecided in ``found``, held partitions included.

    Decides slices that can be in no group (``oversized``); leaves the decision on the others to the caller.
    """
    if policy.strategy != BALANCED:
        return _as_the_format(found, policy)
    total = found.bytes + found.log_bytes
    over = (found.codes == UNDECIDED) & (total > policy.target_file_max_bytes)
    if over.any():
        found.decide(over, Reason.OVERSIZED, total[over])
    rows = np.flatnonzero(found.codes == UNDECIDED)
    unsorted = _Row(rows=rows, sizes=total[rows], cell=found.cell[rows].astype(np.int64))
    del total
    candidates = np.bincount(unsorted.cell).astype(np.int64)
    by_time = unsorted.sorted([found.modified_us[rows], unsorted.sizes, found.log_bytes[rows]], found)
    groups = _groups(by_time, candidates, found, policy)

    cell = found.cell[groups.rows[groups.start]]
    rejected = np.bincount(cell[~groups.keep], minlength=len(candidates))
    again = ~groups.keep & (rejected[cell] > 1)
    if not again.any():
        return groups
    places = np.flatnonzero(np.repeat(again, groups.files))
    rest = _Row(rows=by_time.rows[places], sizes=by_time.sizes[places], cell=by_time.cell[places])
    by_size = rest.sorted([rest.sizes, found.modified_us[rest.rows], found.log_bytes[rest.rows]], found)
    return _joined(groups, ~again, _groups(by_size, candidates, found, policy, evenly=False))


def _as_the_format(found: Candidates, policy: Sizing) -> Groups:
    """Cut greedily in the order that the policy asks for, counting base files only."""
    rows = np.flatnonzero(found.codes == UNDECIDED)
    sizes = base_sizes(found, rows, policy)
    unsorted = _Row(rows=rows, sizes=sizes, cell=found.cell[rows].astype(np.int64))
    keys = [-sizes if field == "size" else found.details.written_order(rows) for field in policy.file_slices_sort_by]
    # The format's own planner may leave ties in an order that no listing tells; a fixed one makes planning repeatable.
    keys.append(found.modified_us[rows])
    candidates = np.bincount(unsorted.cell).astype(np.int64)
    return _groups(unsorted.sorted(keys, found), candidates, found, policy, evenly=False)


def _groups(row: _Row, candidates: Ints, found: Candidates, policy: Sizing, *, evenly: bool = True) -> Groups:
    """``row`` cut into groups, each judged. ``candidates`` counts those of each cell."""
    total = np.concatenate(([0], np.cumsum(row.sizes, dtype=np.int64)))
    counts = np.bincount(row.cell).astype(np.int64)
    bounds = np.concatenate(([0], np.cumsum(counts)))
    first, last = bounds[:-1][counts > 0], bounds[1:][counts > 0]
    most_files = len(row.rows) + 1 if policy.strategy != BALANCED else policy.max_files_per_group
    cut = cut_evenly if evenly else cut_greedily
    start, end = cut(total, first, last, policy.max_bytes_per_group, most_files)
    size = total[end] - total[start]
    outputs = np.maximum(1, -(-size // policy.target_file_max_bytes))
    read = np.add.reduceat(found.bytes[row.rows] + found.log_bytes[row.rows], start) if len(start) else size
    keep, why_not = _judge(end - start, outputs, read, candidates[row.cell[start]], policy)
    return Groups(
        rows=row.rows,
        start=start,
        end=end,
        partition=found.partition[row.rows[start]].astype(np.int64),
        bytes=read,
        outputs=outputs,
        small_after=np.where(size < outputs * policy.small_file_limit_bytes, outputs, 0),
        keep=keep,
        why_not=why_not,
    )


def _joined(one: Groups, which: Mask, other: Groups) -> Groups:
    """The groups of ``one`` that ``which`` names and all of ``other``, by partition."""
    columns = {
        field.name: np.concatenate([getattr(one, field.name)[which], getattr(other, field.name)])
        for field in fields(Groups)
        if field.name != "rows"
    }
    columns["start"][np.count_nonzero(which) :] += len(one.rows)
    columns["end"][np.count_nonzero(which) :] += len(one.rows)
    order = np.lexsort((columns["start"], columns["partition"]))
    columns = {name: column[order] for name, column in columns.items()}
    files = columns["end"] - columns["start"]
    end = np.cumsum(files)
    # the rows of each group moved next to those of the group before it
    places = np.repeat(columns["start"] - (end - files), files) + np.arange(files.sum())
    rows = np.concatenate([one.rows, other.rows])[places]
    return Groups(**{**columns, "rows": rows, "start": end - files, "end": end})


def _judge(files: Ints, outputs: Ints, read: Ints, neighbours: Ints, policy: Sizing) -> tuple[Mask, Codes]:
    """Which groups are worth a rewrite, and the reason's code of those that are not."""
    why_not = np.full(len(files), UNDECIDED, dtype=np.int8)
    for reason, holds in (  # the last that holds is the group's reason
        (Reason.NO_GAIN, outputs >= files),
        (Reason.FEW_FILES, (files < policy.min_input_files) & (files > 1)),
        (Reason.ALONE, neighbours == 1),
        (Reason.OVER_PLAN, read > policy.max_bytes_per_plan),
    ):
        why_not[holds] = CODE[reason]
    return why_not == UNDECIDED, why_not


def least_files(policy: Sizing) -> int:
    """The files that a group needs at least to be kept."""
    return max(2, policy.min_input_files)


def base_sizes(found: Candidates, rows: Ints, policy: Sizing) -> Ints:
    """The base file of each slice alone, or the configured size where there is none."""
    missing = found.details.without_base(rows)
    return found.bytes[rows] if missing is None else np.where(missing, policy.missing_base_bytes, found.bytes[rows])


def cut_greedily(total: Ints, start: Ints, end: Ints, most: int, most_files: int) -> tuple[Ints, Ints]:
    """Runs of each row [start, end), each as long as ``most`` bytes and ``most_files`` allow.

    ``total[i]`` is the size of all slices before ``i``. A run has at least one slice, whatever its size.
    """
    starts, ends = [], []
    while len(start):
        stop = np.searchsorted(total, total[start] + most, side="right") - 1
        stop = np.minimum(np.maximum(stop, start + 1), np.minimum(start + most_files, end))
        starts.append(start)
        ends.append(stop)
        more = stop < end
        start, end = stop[more], end[more]
    return _in_order(starts, ends)


def cut_evenly(total: Ints, start: Ints, end: Ints, most: int, most_files: int) -> tuple[Ints, Ints]:
    """Runs of each row [start, end) of about equal size, as few as ``most`` bytes and ``most_files`` allow.

    Every slice must fit into ``most``. Each run aims at an equal share of what is left, and so no small rest
    remains at the end of a row.
    """
    starts, ends = [], []
    while len(start):
        left = total[end] - total[start]
        runs = np.maximum(1, np.maximum(-(-left // most), -(-(end - start) // most_files)))
        if (runs == 1).all():
            starts.append(start)
            ends.append(end)
            break
        aim = total[start] + left // runs
        stop = np.minimum(np.searchsorted(total, aim, side="right") - 1, end)
        # one more slice where that comes nearer to the aim and still fits
        further = np.minimum(stop + 1, end)
        nearer = (total[further] - aim < aim - total[stop]) & (total[further] - total[start] <= most)
        stop = np.where(nearer, further, stop)
        stop = np.maximum(np.minimum(stop, start + most_files), start + 1)
        stop = np.where(runs == 1, end, stop)
        starts.append(start)
        ends.append(stop)
        more = stop < end
        start, end = stop[more], end[more]
    return _in_order(starts, ends)


def _in_order(starts: Sequence[Ints], ends: Sequence[Ints]) -> tuple[Ints, Ints]:
    if not starts:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    start, end = np.concatenate(starts), np.concatenate(ends)
    order = np.argsort(start)
    return start[order], end[order]


def first_that_fit(sizes: Ints, most: int, room: int) -> tuple[Ints, int]:
    """Places of at most ``most`` of ``sizes`` that together fit into ``room``, first come first served; the rest of it.

    What does not fit any more is passed over for what does.
    """
    taken: list[Ints] = []
    place = count = 0
    while count < most and place < len(sizes):
        reach = np.cumsum(sizes[place : place + most - count])
        fit = int(np.searchsorted(reach, room, side="right"))
        if fit:
            taken.append(np.arange(place, place + fit))
            room -= int(reach[fit - 1])
            place, count = place + fit, count + fit
            continue
        fits = sizes[place:] <= room
        step = int(fits.argmax())
        if not fits[step]:
            break
        place += step
    return (np.concatenate(taken) if taken else np.empty(0, dtype=np.int64)), room


def sorted_places(cell: Ints, keys: Sequence[Ints], found: Candidates, rows: Ints) -> Ints:
    """Places of ``rows`` sorted by cell, then ``keys``, then file id: a total order, whatever came first.

    One pass sorts by a packed number; only ties go on to the next key, and only full ties to the file id.
    """
    run = cell
    order = np.arange(len(rows), dtype=np.int64)
    places = order.copy()  # those of ``order`` that are still to be told apart, in runs of equal keys so far
    for key in keys:
        subset = order[places]
        arranged, tied, run = _refine(run, key[subset])
        order[places] = subset[arranged]
        places, run = places[tied], run[tied]
        if not len(places):
            return order
    subset = order[places]
    order[places] = subset[found.details.by_file_id(run, rows[subset])]
    return order


def _refine(run: Ints, key: Ints) -> tuple[Ints, Mask, Ints]:
    """Sort by (run, key): the arrangement, which places of it are still tied, and each place's new run."""
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
