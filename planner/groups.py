# SPDX-License-Identifier: Apache-2.0
"""Candidates put into groups: neighbours in an order, within one partition, within the policy's bounds.

Both strategies cut an ordered row of slices into runs; they differ in the order, in what counts as a slice's
size, and in where they cut. All partitions are cut at once, a round for each further group of the partition
with the most groups, so that the cost follows the number of slices and not of partitions.

Why planning ends (convergence). A group of ``n`` slices below the small-file limit is rewritten by
``k = ceil(size / target)`` writers and kept only if ``k < n``. A writer that rolls to a further file does so at
the target, which is not below the limit, so that at most its last file is small: ``n`` small files become at
most ``k`` whatever the real sizes are, even or not. Every applied group removes at least one small file and makes
none elsewhere; a table has finitely many, and so plan → apply → plan ends after at most as many groups as it
had small files, each of at most ``max_bytes_per_group``, for every valid policy.

A layout does not change the rule. A snapshot does not say whether a file is laid out already, so a lone file is
never rewritten just to sort it: that would be planned again for ever. What is merged is brought into the layout.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lake.model import Snapshot
from planner.candidates import CODE, UNDECIDED, Candidates, Codes, Ints, Mask, Reason
from planner.policy import SizingPolicy, Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Groups of all partitions; group ``i`` is ``rows[start[i]:end[i]]`` of the snapshot, in its order.

    ``bytes`` are those a rewrite reads, logs included; ``outputs`` the files it is asked for; ``small_after`` how
    many of those are expected below the limit; ``keep`` which groups are worth it; ``why_not`` the reason's code of
    the others.
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


def form_groups(snapshot: Snapshot, found: Candidates, policy: SizingPolicy) -> Groups:
    """Groups of everything still undecided in ``found``, held partitions included, in the order of partitions.

    Decides slices that can be in no group (``oversized``); leaves the decision on the others to the caller.
    """
    hudi = policy.strategy == Strategy.HUDI
    if not hudi:
        over = (found.codes == UNDECIDED) & (found.bytes + found.log_bytes > policy.max_bytes_per_group)
        if over.any():
            found.decide(over, Reason.OVERSIZED, (found.bytes + found.log_bytes)[over])
    rows = np.flatnonzero(found.codes == UNDECIDED)
    if hudi:
        sizes = hudi_sizes(snapshot, found, rows, policy)
        keys = [-sizes if field == "size" else found.modified_us[rows] for field in policy.file_slices_sort_by]
        # Hudi keeps ties as its view lists them; a fixed order makes planning repeatable
        keys += [found.modified_us[rows], found.log_bytes[rows]]
    else:
        sizes = found.bytes[rows] + found.log_bytes[rows]
        keys = [found.modified_us[rows], sizes, found.log_bytes[rows]]
    partition = found.partition[rows].astype(np.int64)
    order = _sorted_places(partition, keys, snapshot, rows)
    rows, sizes, partition = rows[order], sizes[order], partition[order]

    total = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
    counts = np.bincount(partition, minlength=len(found.partitions)).astype(np.int64)
    first = np.concatenate(([0], np.cumsum(counts)))
    bounds = first[:-1][counts > 0], first[1:][counts > 0]
    start, end = (
        cut_like_hudi(total, *bounds, policy.max_bytes_per_group)
        if hudi
        else cut_evenly(total, *bounds, policy.max_bytes_per_group, policy.max_files_per_group)
    )
    size = total[end] - total[start]
    outputs = np.maximum(1, -(-size // policy.target_file_max_bytes))
    read = np.add.reduceat(found.bytes[rows] + found.log_bytes[rows], start) if len(start) else size
    group_partition = partition[start]
    small = size < outputs * policy.small_file_limit_bytes
    keep, why_not = _judge(end - start, outputs, read, counts[group_partition], policy)
    return Groups(
        rows=rows,
        start=start,
        end=end,
        partition=group_partition,
        bytes=read,
        outputs=outputs,
        small_after=np.where(small, outputs, 0),
        keep=keep,
        why_not=why_not,
    )


def _judge(files: Ints, outputs: Ints, read: Ints, neighbours: Ints, policy: SizingPolicy) -> tuple[Mask, Codes]:
    """Which groups are worth a rewrite, and the reason's code of those that are not."""
    why_not = np.full(len(files), UNDECIDED, dtype=np.int8)
    for reason, holds in (  # the last that holds is the group's reason
        (Reason.NO_GAIN, outputs >= files),
        (Reason.FEW_FILES, (files < policy.min_input_files) & (files > 1)),
        (Reason.ALONE, neighbours == 1),
        (Reason.OVERSIZED, read > policy.max_bytes_per_plan),
    ):
        why_not[holds] = CODE[reason]
    return why_not == UNDECIDED, why_not


def hudi_sizes(snapshot: Snapshot, found: Candidates, rows: Ints, policy: SizingPolicy) -> Ints:
    """What Hudi counts for each slice: its base file alone, or the configured size where there is none."""
    sizes = found.bytes[rows]
    path = snapshot.slices["path"]
    if path.null_count:
        missing = np.asarray(pc.is_null(path).to_numpy(), dtype=np.bool_)[rows]
        sizes = np.where(missing, policy.missing_base_bytes, sizes)
    return sizes


def cut_like_hudi(total: Ints, start: Ints, end: Ints, most: int) -> tuple[Ints, Ints]:
    """Runs of each row [start, end) as Hudi cuts them: a slice that would exceed ``most`` opens the next run.

    ``total[i]`` is the size of all slices before ``i``. A run has at least one slice, whatever its size.
    """
    starts, ends = [], []
    while len(start):
        stop = np.searchsorted(total, total[start] + most, side="right") - 1
        stop = np.minimum(np.maximum(stop, start + 1), end)
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


def _sorted_places(partition: Ints, keys: Sequence[Ints], snapshot: Snapshot, rows: Ints) -> Ints:
    """Places of ``rows`` sorted by partition, then ``keys``, then file id: a total order, whatever came first.

    One pass sorts by a packed number; only ties go on to the next key, and only full ties to the file id.
    """
    run = partition
    order = np.arange(len(rows), dtype=np.int64)
    places = order  # those of ``order`` that are still to be told apart, in runs of equal keys so far
    for key in keys:
        subset = order[places]
        arranged, tied, run = _refine(run, key[subset])
        order[places] = subset[arranged]
        places, run = places[tied], run[tied]
        if not len(places):
            return order
    subset = order[places]
    names = pa.table({"run": run, "file_id": snapshot.slices["file_id"].take(pa.array(rows[subset]))})
    arranged = pc.sort_indices(names, sort_keys=[("run", "ascending"), ("file_id", "ascending")]).to_numpy()
    order[places] = subset[arranged]
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
