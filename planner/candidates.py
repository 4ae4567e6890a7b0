# SPDX-License-Identifier: Apache-2.0
"""The candidates for planning among the slices of a snapshot, and the reasons against the other slices."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lake.model import DeltaKind, Snapshot
from lake.plan import DeclinedPlan, FailedPlan, PlanKind
from planner.partition_selection import select_partitions
from planner.policy.fields import PlanningSettings
from planner.reasons import REASON_CODES, UNDECIDED, Reason
from planner.slice_columns import Ints, Mask, SliceColumns, partition_ranges

Codes = npt.NDArray[np.int8]
Shares = npt.NDArray[np.float64]
NEVER_US = np.iinfo(np.int64).max
_CONFLICTING_DELTAS = tuple(kind for kind in DeltaKind if kind.is_conflicting)


class SliceDetails(Protocol):
    """The details that only few slices or policies need; ``rows`` are positions in ``Candidates``."""

    @property
    def uncompacted_commits(self) -> int:
        """The number of commits since the table's last compaction that wrote only deltas."""

    def is_log_only(self, rows: Ints) -> Mask | None:
        """Return which of ``rows`` have logs only; None if the table has no log-only slice."""

    def written_order(self, rows: Ints) -> Ints:
        """Return the order in which base files were written; 0, the first, for slices without a base file."""

    def oldest_log_us(self, rows: Ints) -> Ints:
        """Return when the oldest log of each slice was committed; ``NEVER_US`` without logs."""

    def has_deltas(self, kinds: Collection[DeltaKind], rows: Ints) -> Mask | None:
        """Return which of ``rows`` have deltas of one of ``kinds``; None if the table has no deltas of these kinds."""

    def deleted_row_share(self, rows: Ints) -> Shares | None:
        """Return the share (0 to 1) of each base file's rows that deltas delete: NaN if unknown.

        Returns None if the table has no deltas.
        """

    def sort_by_file_id(self, run: Ints, rows: Ints) -> Ints:
        """Return the positions of ``rows`` sorted by ``run``, then by file id."""


@dataclass(slots=True, kw_only=True)
class Candidates:
    """A snapshot as arrays, and the reasons of the slices that can be decided without their neighbours.

    All arrays but ``partition_order`` have one entry per slice, in the snapshot's order. ``partition`` indexes
    ``partitions``, the sorted distinct partitions in use. ``grouping_key`` numbers the distinct pairs of partition and
    group key, in the order of partitions. ``partition_order`` are the indices of the selected partitions, in the order
    of planning. ``ranges`` are all slices in ranges of whole partitions (``planner.slice_columns``).

    ``bytes`` are sizes of base files, 0 for a slice without a base file. ``log_files`` and ``log_bytes`` are the number
    and the total bytes of a slice's logs. ``modified_us`` are µs since 1970 in UTC. ``reason_codes`` are indices into
    ``REASONS``, or ``UNDECIDED`` for slices that may be planned. ``reason_numbers`` are the numbers of the reasons
    (``reason_text``), 0 for reasons without a number. ``rewritable`` marks the slices that compaction may take: not
    filtered, quarantined or busy, and recent slices only as ``decide_large`` allows. ``details`` computes values that
    are too expensive to compute for all slices. ``can_be_clustered`` is False if the table's slices can only be
    compacted.
    """

    partitions: list[str]
    partition_order: Ints
    partition: npt.NDArray[np.int32]
    grouping_key: npt.NDArray[np.int32]
    bytes: Ints
    log_files: Ints
    log_bytes: Ints
    rewritable: Mask
    modified_us: Ints
    ranges: Sequence[SliceColumns]
    reason_codes: Codes
    reason_numbers: Ints
    details: SliceDetails
    can_be_clustered: bool = True

    def decide(self, rows: Mask | Ints, reason: Reason, reason_numbers: Ints | int = 0) -> None:
        """Set the reason of ``rows`` and the reason's number."""
        self.reason_codes[rows] = REASON_CODES[reason]
        self.reason_numbers[rows] = reason_numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningConstraints:
    """The limits of planning besides the policy: existing plans, unreadable files, and the limits of a request.

    ``locked_partitions`` are the partitions that live plans have locked, with the plans' ids. ``quarantined`` are paths
    of base files. ``partitions`` are the requested partitions, with or without slashes at their ends. They replace the
    policy's partition filter; unknown partitions are ignored. ``kinds`` are the allowed kinds of the plan. Unchanged
    slices of ``failed`` and ``declined`` plans are not planned.
    """

    locked_partitions: Mapping[str, str] = field(default_factory=dict)
    quarantined: Collection[str] = ()
    partitions: Collection[str] | None = None
    kinds: Collection[PlanKind] = tuple(PlanKind)
    failed: Sequence[FailedPlan] = ()
    declined: Sequence[DeclinedPlan] = ()


def find_candidates(
    snapshot: Snapshot,
    policy: PlanningSettings,
    constraints: PlanningConstraints,
    *,
    now: datetime,
    apply_waiting: bool = True,
) -> Candidates:
    """Decide every slice that can be decided without its neighbours; the others stay ``UNDECIDED``.

    The arguments are those of ``read_candidates`` and ``decide_candidates``.
    """
    undecided = read_candidates(snapshot, policy, constraints, now=now)
    return decide_candidates(undecided, snapshot, policy, constraints, now=now, apply_waiting=apply_waiting)


def read_candidates(
    snapshot: Snapshot, policy: PlanningSettings, constraints: PlanningConstraints, *, now: datetime
) -> Candidates:
    """Return all slices of ``snapshot``, undecided, and the selected partitions. ``now`` is timezone-aware."""
    slices = snapshot.slices
    names, partition = _encode_partitions(slices["partition"])
    if constraints.partitions is None:
        selected = select_partitions(names, policy, now=now)
    else:
        selected = sorted(set(names).intersection(path.strip("/") for path in constraints.partitions))
    order = np.arange(len(names), dtype=np.int64)
    if len(selected) < len(names):
        index = {name: position for position, name in enumerate(names)}
        order = np.asarray([index[name] for name in selected], dtype=np.int64)
    columns = SliceColumns(
        rows=np.arange(len(partition), dtype=np.int64),
        grouping_key=_grouping_keys(partition, slices["group_key"]),
        bytes=_to_int64(slices["bytes"]),
        log_bytes=_to_int64(slices["log_bytes"]),
        modified_us=_to_int64(slices["modified_at"].cast(pa.int64())),
    )
    return Candidates(
        partitions=names,
        partition_order=order,
        partition=partition,
        grouping_key=columns.grouping_key,
        bytes=columns.bytes,
        log_files=np.asarray(pc.list_value_length(slices["log_files"]).to_numpy(), dtype=np.int64),
        log_bytes=columns.log_bytes,
        rewritable=np.ones(len(partition), dtype=np.bool_),
        modified_us=columns.modified_us,
        ranges=tuple(partition_ranges(partition, columns)),
        reason_codes=np.full(len(partition), UNDECIDED, dtype=np.int8),
        reason_numbers=np.zeros(len(partition), dtype=np.int64),
        details=_SnapshotDetails(snapshot),
        can_be_clustered=snapshot.clustering_refusal is None,
    )


def decide_candidates(
    undecided: Candidates,
    snapshot: Snapshot,
    policy: PlanningSettings,
    constraints: PlanningConstraints,
    *,
    now: datetime,
    apply_waiting: bool = True,
) -> Candidates:
    """Return the slices of ``undecided`` with the reasons of those that can be decided without their neighbours.

    ``undecided`` are the slices of ``snapshot``, which stay as they are. ``now`` is timezone-aware. Locked partitions
    and kinds are not considered. Without ``apply_waiting`` temporary reasons (``TEMPORARY``) are ignored, and so are
    failed and declined plans. Bounds are strict: a slice is recent while its age is below ``quiet_period``, and small
    while its base file is below ``small_file_limit_bytes``.
    """
    slices = snapshot.slices
    found = replace(
        undecided,
        rewritable=undecided.rewritable.copy(),
        reason_codes=undecided.reason_codes.copy(),
        reason_numbers=np.zeros(len(undecided.reason_numbers), dtype=np.int64),
    )
    # in the reverse order of Reason, since each decision overrides earlier decisions
    if apply_waiting:
        _decide_waiting(snapshot, found, policy, constraints, now=now)
    if constraints.quarantined:
        wanted = pa.array(sorted(constraints.quarantined), type=pa.string())
        found.decide(_to_mask(pc.is_in(slices["path"], value_set=wanted)), Reason.QUARANTINED)
    if len(found.partition_order) < len(found.partitions):
        left_out = np.ones(len(found.partitions), dtype=np.bool_)
        left_out[found.partition_order] = False
        found.decide(left_out[found.partition], Reason.FILTERED)
    decide_large(found, policy)
    if not apply_waiting:  # the pending action on a busy slice will merge its logs
        found.rewritable &= _to_mask(pc.is_null(slices["busy_reason"]))
    _decide_damaged(snapshot, found)
    return found


def decide_recent(candidates: Candidates, policy: PlanningSettings, now_us: int) -> None:
    """Decide the slices whose quiet period is not over; ``now_us`` are µs since 1970 in UTC."""
    if not policy.quiet_period:
        return
    recent = candidates.modified_us > now_us - int(policy.quiet_period.total_seconds() * 1_000_000)
    if recent.any():
        candidates.decide(recent, Reason.RECENT, (now_us - candidates.modified_us[recent]) // 1_000_000)


def decide_large(candidates: Candidates, policy: PlanningSettings) -> None:
    """Decide the slices that aren't small files, and set ``rewritable`` for undecided and recent slices.

    Writers may append to logs while a slice is compacted, so slices with logs need not wait. A new delta of any other
    kind invalidates a rewrite, so slices with deltas of other kinds wait for the quiet period. Files to split are
    neither small nor too large to be planned.
    """
    candidates.rewritable = candidates.reason_codes == UNDECIDED
    young = np.flatnonzero(candidates.reason_codes == REASON_CODES[Reason.RECENT])
    lost = candidates.details.has_deltas(_CONFLICTING_DELTAS, young)
    candidates.rewritable[young] = True if lost is None else ~lost
    is_split = to_split(candidates.bytes, candidates.log_files, policy)
    large = (candidates.bytes >= policy.small_file_limit_bytes) & ~is_split
    if policy.compaction:
        large &= candidates.rewritable | (candidates.log_files == 0)
    candidates.decide(large, Reason.ABOVE_LIMIT, candidates.bytes[large])


def to_split(sizes: Ints, log_files: Ints, policy: PlanningSettings) -> Mask:
    """Return which slices the policy splits: base files from ``split_file_limit_bytes`` on, without logs."""
    if not policy.is_splitting:
        return np.zeros(len(sizes), dtype=np.bool_)
    found: Mask = (sizes >= policy.split_file_limit_bytes) & (log_files == 0)
    return found


def _decide_waiting(
    snapshot: Snapshot,
    candidates: Candidates,
    policy: PlanningSettings,
    constraints: PlanningConstraints,
    *,
    now: datetime,
) -> None:
    """Decide the slices that wait for the quiet period, a pending action, or a person's decision on an earlier plan."""
    decide_recent(candidates, policy, int(now.timestamp() * 1_000_000))
    busy = snapshot.slices["busy_reason"]
    if busy.null_count < len(busy):
        candidates.decide(_to_mask(pc.is_valid(busy)), Reason.BUSY)
    _decide_previously_rejected(snapshot, candidates, constraints.declined, Reason.DECLINED)
    _decide_previously_rejected(snapshot, candidates, constraints.failed, Reason.FAILED)


def _decide_previously_rejected(
    snapshot: Snapshot, candidates: Candidates, plans: Sequence[FailedPlan | DeclinedPlan], reason: Reason
) -> None:
    """Decide the slices of failed or declined plans whose base file and logs have not changed."""
    known = {
        (item.partition, item.file_id, item.path, item.log_files): index
        for index, plan in enumerate(plans)
        for item in plan.slices
    }
    if not known:
        return
    slices = snapshot.slices
    file_ids = pa.array(sorted({file_id for _, file_id, _, _ in known}), type=pa.string())
    for row in np.flatnonzero(_to_mask(pc.is_in(slices["file_id"], value_set=file_ids))).tolist():
        file_id, path, logs = (slices[name][row].as_py() for name in ("file_id", "path", "log_files"))
        index = known.get((candidates.partitions[candidates.partition[row]], file_id, path, tuple(logs)))
        if index is not None:
            candidates.decide(np.asarray([row]), reason, index)


def _decide_damaged(snapshot: Snapshot, candidates: Candidates) -> None:
    """Decide the damaged slices, overriding all other reasons: a rewrite would make the damage permanent."""
    if not snapshot.damaged:
        return
    damaged_index = {(entry.partition, entry.file_id): index for index, entry in enumerate(snapshot.damaged)}
    slices = snapshot.slices
    file_ids = pa.array(sorted({entry.file_id for entry in snapshot.damaged}), type=pa.string())
    for row in np.flatnonzero(_to_mask(pc.is_in(slices["file_id"], value_set=file_ids))).tolist():
        index = damaged_index.get((candidates.partitions[candidates.partition[row]], slices["file_id"][row].as_py()))
        if index is not None:
            candidates.decide(np.asarray([row]), Reason.DAMAGED, index)
            candidates.rewritable[row] = False


@dataclass(frozen=True)
class _SnapshotDetails:
    """The ``SliceDetails`` of a snapshot."""

    snapshot: Snapshot

    @cached_property
    def _without_base_file(self) -> Mask:
        return _to_mask(pc.is_null(self.snapshot.slices["path"]))

    @property
    def uncompacted_commits(self) -> int:
        return self.snapshot.uncompacted_commits

    def is_log_only(self, rows: Ints) -> Mask | None:
        return self._without_base_file[rows] if self.snapshot.slices["path"].null_count else None

    def written_order(self, rows: Ints) -> Ints:
        return _to_int64(self.snapshot.slices["written_order"].take(pa.array(rows)).fill_null(0))

    def oldest_log_us(self, rows: Ints) -> Ints:
        oldest = self.snapshot.slices["oldest_log_at"].take(pa.array(rows))
        return _to_int64(oldest.cast(pa.int64()).fill_null(NEVER_US))

    def has_deltas(self, kinds: Collection[DeltaKind], rows: Ints) -> Mask | None:
        column = self.snapshot.slices["delta_kind"]
        if not any(word in kinds for chunk in column.chunks for word in chunk.dictionary.to_pylist()):
            return None
        return _to_mask(pc.is_in(column.take(pa.array(rows)).cast(pa.string()), value_set=pa.array(kinds, pa.string())))

    def deleted_row_share(self, rows: Ints) -> Shares | None:
        slices = self.snapshot.slices
        if slices["deleted_rows"].null_count == len(slices):
            return None
        deleted, stored = (slices[name].take(pa.array(rows)).cast(pa.float64()) for name in ("deleted_rows", "rows"))
        shares = pc.divide(deleted, pc.if_else(pc.greater(stored, 0), stored, None))
        return np.asarray(shares.fill_null(np.nan).to_numpy(), dtype=np.float64)

    def sort_by_file_id(self, run: Ints, rows: Ints) -> Ints:
        names = pa.table({"run": run, "file_id": self.snapshot.slices["file_id"].take(pa.array(rows))})
        return _to_int64(pc.sort_indices(names, sort_keys=[("run", "ascending"), ("file_id", "ascending")]))


def _encode_partitions(column: Any) -> tuple[list[str], npt.NDArray[np.int32]]:
    """Return the sorted distinct partitions in use, and each row's index among them."""
    encoded = column.chunk(0) if column.num_chunks == 1 else column.unify_dictionaries().combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):  # no chunk at all
        return [], np.empty(0, dtype=np.int32)
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    used = np.bincount(codes, minlength=len(encoded.dictionary)) > 0
    words = encoded.dictionary.filter(pa.array(used)).unique()
    words = words.take(pc.sort_indices(words))
    numbers = pc.index_in(encoded.dictionary, value_set=words).fill_null(-1).to_numpy(zero_copy_only=False)
    return words.to_numpy(zero_copy_only=False).tolist(), numbers[codes] if len(numbers) else codes.astype(np.int32)


def _grouping_keys(partition: npt.NDArray[np.int32], keys: Any) -> npt.NDArray[np.int32]:
    """Return each row's partition and group key as one number; the partition's number if no row has a group key."""
    if keys.null_count == len(keys):
        return partition
    names, key = _encode_partitions(keys.cast(pa.string()).fill_null("").dictionary_encode())
    pairs = partition.astype(np.int64) * len(names) + key
    cells: npt.NDArray[np.int32] = np.unique(pairs, return_inverse=True)[1].astype(np.int32)
    return cells


def _to_int64(column: Any) -> Ints:
    """Return an int64 column without nulls as an array, without a copy if it is one chunk."""
    return np.asarray(column.to_numpy(), dtype=np.int64)


def _to_mask(column: Any) -> Mask:
    return np.asarray(column.to_numpy(), dtype=np.bool_)
