# SPDX-License-Identifier: Apache-2.0
"""The slices with enough logs to be worth a new base file, and the slices that a compaction plan takes.

A compaction group is one slice: its base file and logs become one new base file of the same file group. *Logs* are
deltas of any kind (``lake.model.DeltaKind``). Any of the policy's triggers suffices: log files, delete files, log
bytes, log bytes per byte of the base file, the share of deleted rows, age of the oldest log, delta commits of the table
since its last compaction. A slice of logs only has no base file and reaches every ratio of bytes. The number of
deletion vectors triggers nothing, since a slice never has a second one.

Slices are ordered by the bytes that a compaction saves readers per byte of the base file, most first. Readers merge
logs and skip deleted rows on every read, so a compaction saves the log bytes and the deleted share of the base file.
Its cost depends on the base file, which it reads and writes. A plan may read a limited number of bytes, so the slices
with the best ratio save readers the most. Among base files of equal size without known deletes, the slice with the most
log bytes is first.

The quiet period does not apply to log files: writers may append while a slice is compacted, and a slice written all day
would never become quiet. It does apply to delete files and deletion vectors, because a new one invalidates a rewrite of
its slice (``planner.candidates.decide_large``). If a slice receives them at shorter intervals than the quiet period, it
is compacted only after its writer pauses.

Why planning ends: a plan leaves each of its slices without logs, and only writers add logs. Clustering adds none, so
the number of slices with logs falls with every compaction and never rises by lakefold's plans (``planner.groups`` shows
why clustering ends).
"""

from datetime import datetime

import numpy as np

from lake.model import DeltaKind
from planner.candidates import Candidates, Ints, Mask, Shares
from planner.groups import Groups, first_fit, sorted_positions
from planner.policy.fields import PlanningSettings
from planner.reasons import REASON_CODES, Reason, reason_mask

#: the resolution of ratios and the largest distinguished ratio, both far beyond practical values
_RATIO_STEPS, _RATIO_MAX = 1e6, 2.0**52
_NOT_LOGS = (DeltaKind.DELETES, DeltaKind.VECTOR)
#: for slices that clustering skips for these reasons, the distance to compaction is reported instead
_SKIPPED_BY_CLUSTERING = reason_mask(
    (Reason.ABOVE_LIMIT, Reason.NOT_CLUSTERED, Reason.OVERSIZED, Reason.ALONE, Reason.FEW_FILES, Reason.NO_GAIN)
)


def due_slices(candidates: Candidates, policy: PlanningSettings, *, now: datetime) -> Ints:
    """Return the rows of slices that reach a trigger and may be rewritten, best first; locked partitions included.

    Decides the slices that are too large for any plan.
    """
    rows = np.flatnonzero(candidates.rewritable & (candidates.log_files > 0))
    if not policy.compaction or not len(rows):
        return rows[:0]
    logs, base = candidates.log_bytes[rows], candidates.bytes[rows]
    due = np.zeros(len(rows), dtype=np.bool_)
    shares = _deleted_row_shares(rows, candidates, policy)
    due |= _has_many_files(rows, candidates, policy)
    if policy.compact_log_bytes:
        due |= logs >= policy.compact_log_bytes
    if policy.compact_log_ratio:
        due |= logs >= policy.compact_log_ratio * base
    if shares is not None:
        due |= shares >= policy.compact_delete_ratio
    if policy.compact_age:
        latest_us = int((now - policy.compact_age).timestamp() * 1_000_000)
        due |= candidates.details.oldest_log_us(rows) <= latest_us
    if policy.compact_delta_commits and candidates.details.uncompacted_commits >= policy.compact_delta_commits:
        due[:] = True
    over = due & (logs + base > policy.max_bytes_per_plan)
    candidates.decide(rows[over], Reason.OVER_PLAN, (logs + base)[over])
    due &= ~over
    rows, logs, base = rows[due], logs[due], base[due]
    spared = logs / np.maximum(base, 1)
    if shares is not None:
        spared += np.nan_to_num(shares[due])
    ratio = np.minimum(spared * _RATIO_STEPS, _RATIO_MAX).astype(np.int64)
    keys = [-ratio, -logs, candidates.partition[rows].astype(np.int64)]
    return rows[sorted_positions(np.zeros(len(rows), dtype=np.int64), keys, candidates, rows)]


def _has_many_files(rows: Ints, candidates: Candidates, policy: PlanningSettings) -> Mask:
    """Return which of ``rows`` have as many log files or delete files as the policy allows."""
    counts = candidates.log_files[rows]
    many = np.zeros(len(rows), dtype=np.bool_)
    others = candidates.details.has_deltas(_NOT_LOGS, rows)
    deletes = candidates.details.has_deltas([DeltaKind.DELETES], rows)
    if policy.compact_log_files:
        many = counts >= policy.compact_log_files
        if others is not None:
            many &= ~others
    if policy.compact_delete_files and deletes is not None:
        many |= deletes & (counts >= policy.compact_delete_files)
    return many


def choose_slices(due: Ints, candidates: Candidates, policy: PlanningSettings, free: Mask) -> Ints:
    """Return the rows of ``due`` for one plan, in their order, and give every row of ``due`` its reason.

    ``free`` marks the partitions that no live plan has locked.
    """
    if not len(due):
        return due
    sizes = candidates.bytes[due] + candidates.log_bytes[due]
    available = free[candidates.partition[due]]
    candidates.decide(due[~available], Reason.HELD)
    wanted = np.flatnonzero(available)
    places, room = first_fit(sizes[wanted], policy.max_slices_per_compaction, policy.max_bytes_per_plan)
    waiting = sizes[wanted]
    full = (len(places) == policy.max_slices_per_compaction) & (waiting <= room)
    candidates.reason_codes[due[wanted]] = np.where(
        full, REASON_CODES[Reason.NEXT_PLAN_SLICES], REASON_CODES[Reason.NEXT_PLAN_BYTES]
    )
    candidates.reason_numbers[due[wanted]] = waiting
    chosen = due[wanted[places]]
    candidates.decide(chosen, Reason.CHOSEN, np.arange(len(chosen)))
    return chosen


def single_slice_groups(rows: Ints, candidates: Candidates) -> Groups:
    """Return a group for each of ``rows``, which becomes one file."""
    positions = np.arange(len(rows), dtype=np.int64)
    ones = np.ones(len(rows), dtype=np.int64)
    return Groups(
        rows=rows,
        start=positions,
        end=positions + 1,
        partition=candidates.partition[rows].astype(np.int64),
        bytes=candidates.bytes[rows] + candidates.log_bytes[rows],
        outputs=ones,
        small_outputs=ones,
        worthwhile=ones.astype(np.bool_),
        rejection_codes=np.zeros(len(rows), dtype=np.int8),
    )


def explain_not_due(due: Ints, candidates: Candidates, policy: PlanningSettings) -> None:
    """Set the reason of slices with logs that no plan takes: too few log files, or too few deleted rows."""
    left = candidates.rewritable & (candidates.log_files > 0) & _SKIPPED_BY_CLUSTERING[candidates.reason_codes]
    left[due] = False
    candidates.decide(left, Reason.FEW_LOGS, candidates.log_files[left])
    rows = np.flatnonzero(left)
    shares = _deleted_row_shares(rows, candidates, policy)
    if shares is not None:
        known = ~np.isnan(shares)
        candidates.decide(rows[known], Reason.FEW_DELETED, np.floor(shares[known] * 1_000).astype(np.int64))


def _deleted_row_shares(rows: Ints, candidates: Candidates, policy: PlanningSettings) -> Shares | None:
    """Return the share of deleted rows of each of ``rows``, NaN if unknown; None if the policy does not use it."""
    return candidates.details.deleted_row_share(rows) if policy.compact_delete_ratio else None
