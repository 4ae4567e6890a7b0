# SPDX-License-Identifier: Apache-2.0
"""The slices with enough logs to be worth a new base file.

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
from planner.candidates import Candidates
from planner.groups import sorted_positions
from planner.policy.fields import PlanningSettings
from planner.slice_columns import Ints, Mask

#: the resolution of ratios and the largest distinguished ratio, both far beyond practical values
_RATIO_STEPS, _RATIO_MAX = 1e6, 2.0**52
_NOT_LOGS = (DeltaKind.DELETES, DeltaKind.VECTOR)


def due_slices(candidates: Candidates, policy: PlanningSettings, *, now: datetime) -> tuple[Ints, Ints]:
    """Return the rows of slices that reach a trigger and may be rewritten, best first; locked partitions included.

    The second result has the rows of such slices that are too large for any plan.
    """
    rows = np.flatnonzero(candidates.rewritable & (candidates.log_files > 0))
    if not policy.compaction or not len(rows):
        return rows[:0], rows[:0]
    logs, base = candidates.log_bytes[rows], candidates.bytes[rows]
    due = np.zeros(len(rows), dtype=np.bool_)
    shares = candidates.details.deleted_row_share(rows) if policy.compact_delete_ratio else None
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
    is_too_large = due & (logs + base > policy.max_bytes_per_plan)
    too_large = rows[is_too_large]
    due &= ~is_too_large
    rows, logs, base = rows[due], logs[due], base[due]
    spared = logs / np.maximum(base, 1)
    if shares is not None:
        spared += np.nan_to_num(shares[due])
    ratio = np.minimum(spared * _RATIO_STEPS, _RATIO_MAX).astype(np.int64)
    keys = [-ratio, -logs, candidates.partition[rows].astype(np.int64)]
    return rows[sorted_positions(np.zeros(len(rows), dtype=np.int64), keys, candidates, rows)], too_large


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
