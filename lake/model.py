# SPDX-License-Identifier: Apache-2.0
"""The nouns: tables, snapshots, file slices, and size histograms.

Words as in docs/concepts.md: a *file group* is the lineage of one file id in one
partition, a *file slice* a base file with its log files at an instant.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

SLICES_SCHEMA = pa.schema(
    [
        pa.field("partition", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("file_id", pa.string(), nullable=False),
        pa.field("path", pa.string()),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("rows", pa.int64()),
        pa.field("log_files", pa.list_(pa.string()), nullable=False),
        pa.field("log_bytes", pa.int64(), nullable=False),
        pa.field("oldest_log_at", pa.timestamp("us", tz="UTC")),
        pa.field("delta_kind", pa.dictionary(pa.int32(), pa.string())),
        pa.field("deleted_rows", pa.int64()),
        pa.field("modified_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("written_order", pa.int64()),
        pa.field("group_key", pa.dictionary(pa.int32(), pa.string())),
        pa.field("busy_reason", pa.dictionary(pa.int32(), pa.string())),
    ]
)
"""The columns of slices, with one row per latest file slice.

``partition`` is the path relative to the table ('' when unpartitioned), or only a name if the partition's files are
elsewhere. ``file_id`` is unique within a partition and is the same in all slices of a file group. ``path`` is the base
file, relative to the table's location or, outside it, absolute (``lake.storage.locations.resolve_path``); null for a
slice of logs only. ``bytes`` is the base file's size, 0 without a base file. ``rows`` is the number of rows stored in
the base file, rows that deltas change or delete included; null if the number is recorded only in the file itself.

``log_files`` are the deltas, oldest first: names relative to the partition or, outside it, absolute. A delta that
serves several slices is named in each of them, in absolute form if they are in several partitions. A delta without a
file of its own, such as a deletion vector within the table's log, has a name as well. ``path`` and ``log_files``
together identify a state of the slice: every change of its rows changes one of them. ``log_bytes`` are the deltas'
bytes. If a delta serves several slices, the format divides the delta's size among them, in whole bytes, so that the
sum over all slices equals the bytes in storage. No other code derives ``log_bytes`` from the names.
``oldest_log_at`` is the time at which the first delta became visible, null without deltas; ``delta_kind`` is their kind
(a ``DeltaKind``), null for log files. ``deleted_rows`` are the rows of the base file that the deltas delete; null for
log files, and if the number is recorded only in the deltas themselves.

``modified_at`` is the time of the slice's last write, in UTC and µs: when its newest file, base file or delta, became
visible; if no commit records that, the storage's modification time. ``written_order`` orders the base files of the
table by the time when they were written (later is larger), null without a base file. ``group_key`` must be equal for
slices of one partition that are rewritten together (a partition spec, a schema …), null if the partition alone decides.
``busy_reason`` is null for a slice that may be planned, else the reason why not (``pending clustering 2026…``).
"""


class DeltaKind(StrEnum):
    """A kind of data beside a base file that changes its rows on every read; the value is its name in the singular."""

    LOG = "log file"
    DELETES = "delete file"
    VECTOR = "deletion vector"  #: a slice has at most one

    @property
    def is_conflicting(self) -> bool:
        """True if a commit that adds such a delta to a slice invalidates a rewrite of it; False for log files."""
        return self is not DeltaKind.LOG


class Concurrency(StrEnum):
    """How writers of a table are isolated from each other, as its owner states it."""

    SINGLE_WRITER = "single_writer"  #: no other writer is active while lakefold runs
    OCC = "occ"  #: every writer uses optimistic concurrency control with the same lock


class OnConflict(StrEnum):
    """Which side gives way if a writer changes the inputs of a plan; no row is lost either way."""

    PLAN_WINS = "plan_wins"  #: the writer is refused and tries again
    WRITER_WINS = "writer_wins"  #: the plan is cancelled; the next scan plans again


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogRef:
    """The catalog in which a table was found, for its format to open; no other code reads it.

    ``kind`` determines the client, ``name`` is its name or URI as configured, ``table`` is the table's name in it.
    """

    kind: str
    name: str
    table: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRef:
    """One table: a unique ``name``, its ``format``, and where it is.

    ``location`` is a path or URI without trailing slash; ``catalog`` is null if the table was found by its location.
    ``identity`` distinguishes the table from one that is created later under its name and at its location
    (``lake.capabilities.HasIdentity``). It is null if the format has no identities, or if it has not been read yet.
    ``write_options`` are passed verbatim to the format's own writer (lock provider settings and the like).
    ``on_conflict`` matters with ``Concurrency.OCC``; null means the value in the write options, else ``PLAN_WINS``.
    ``sessions_refresh``: the table's owner states that every session refreshes its cached data about the table.
    """

    name: str
    format: str
    location: str
    catalog: CatalogRef | None = None
    identity: str | None = None
    concurrency: Concurrency = Concurrency.SINGLE_WRITER
    on_conflict: OnConflict | None = None
    sessions_refresh: bool = False
    #: not shown by ``repr``: it may hold the keys of a lock or of a store
    write_options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchFailure:
    """A directory or database of a source that could not be searched for tables, and the reason in one line."""

    location: str
    reason: str


def partition_label(partition: str) -> str:
    """Return a partition's name for use in a sentence; '' stands for a whole table without partitions."""
    return f"partition {partition}" if partition else "the table"


class Fault(StrEnum):
    """The kinds of difference between a file and its commits."""

    MISSING = "missing"  #: a file of a latest slice is not in storage
    WRONG_SIZE = "wrong_size"  #: the file has another size than its commit wrote
    UNLISTED = "unlisted"  #: the file is in storage, but not in the table's listing
    RESURRECTED = "resurrected"  #: a commit removed the file from the table, and readers see it again
    UNOWNED = "unowned"  #: no commit wrote the file, and readers may treat it as a part of the table
    UNKNOWN = "unknown"  #: the file that lists the commit's files can't be read


_RESTORE_FROM_BACKUP = "put it back from a backup"
_REMEDIES = {
    Fault.MISSING: _RESTORE_FROM_BACKUP,
    Fault.WRONG_SIZE: _RESTORE_FROM_BACKUP,
    Fault.UNLISTED: (
        "if its commit was archived after a commit that a savepoint keeps, delete that savepoint; otherwise the "
        "table's metadata table or its partition markers are wrong: have the table's own writer rebuild them"
    ),
    Fault.RESURRECTED: "its rows are read again; lakefold tables repair removes it",
    Fault.UNOWNED: "move it out of the table",
    Fault.UNKNOWN: _RESTORE_FROM_BACKUP,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A file of one file group that differs from its commits. The group is not planned until the file is repaired.

    ``path`` is as in ``SLICES_SCHEMA``; for ``Fault.UNKNOWN`` it is the timeline's file that can't be read.
    ``expected_bytes`` is null if no commit wrote such a file or its size is unknown; ``found_bytes`` is null if the
    file is not in storage, or if its size does not matter.
    """

    partition: str
    file_id: str
    fault: Fault
    path: str
    expected_bytes: int | None = None
    found_bytes: int | None = None

    @property
    def text(self) -> str:
        """The file, the expected state, the found state, and the remedy."""
        match self.fault:
            case Fault.MISSING:
                size = "" if self.expected_bytes is None else f", its commit wrote {self.expected_bytes} bytes"
                what = f"is not in storage{size}"
            case Fault.WRONG_SIZE:
                what = f"has {self.found_bytes} bytes, its commit wrote {self.expected_bytes}"
            case Fault.UNLISTED:
                what = "is in storage, but the table's listing leaves it out"
            case Fault.RESURRECTED:
                what = "was removed from the table by a commit and is listed again"
            case Fault.UNOWNED:
                what = f"was written by no commit, though its name claims one ({self.found_bytes} bytes)"
            case Fault.UNKNOWN:
                what = "can't be read, so it is unknown whether this file group is as its commits wrote it"
        return f"damaged: {self.path} {what}; {_REMEDIES[self.fault]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlappingCommit:
    """A commit of another process that was in progress at the same time as the lakefold plan ``plan_id``.

    ``instant`` names it on its table, ``action`` is the format's word for its action.
    """

    instant: str
    action: str
    completed_at: datetime
    plan_id: str

    @property
    def text(self) -> str:
        """The commit, and the plan that it overlapped."""
        return f"{self.action} {self.instant} of another process, while plan {self.plan_id} ran"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The state of a table at one instant.

    ``slices`` has ``SLICES_SCHEMA``; ``instant`` is the newest completed instant seen ('' on an empty table);
    ``taken_at`` is timezone-aware; ``uncompacted_commits`` are the commits that wrote deltas only (log files, delete
    files …) and completed since the table's last compaction. ``damaged`` are the groups whose files differ from their
    commits, each with its first difference. A damaged group without listed files still has a row in ``slices``, as its
    commits wrote it. ``overlaps`` are commits of other processes that overlapped a lakefold plan, oldest first, as far
    as the table still records them. ``foreign_files`` are files among the table's data whose names show that they are
    not the table's, as paths relative to it; lakefold does not read, move or delete them. ``clustering_refusal`` is the
    reason why no slice of the table can be clustered, with the remedy; None if slices can be. Slices with logs are
    compacted nevertheless.
    """

    table: TableRef
    instant: str
    taken_at: datetime
    slices: pa.Table
    uncompacted_commits: int = 0
    damaged: tuple[Damage, ...] = ()
    overlaps: tuple[OverlappingCommit, ...] = ()
    foreign_files: tuple[str, ...] = ()
    clustering_refusal: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSlice:
    """One chosen slice of a plan: the same meaning as a row of ``SLICES_SCHEMA``."""

    partition: str
    file_id: str
    path: str | None
    bytes: int
    rows: int | None = None
    log_files: tuple[str, ...] = ()
    log_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """Base and log bytes together: the bytes that a rewrite reads; for shared deltas only this slice's part."""
        return self.bytes + self.log_bytes


#: Upper edges of the size histogram in bytes, powers of two from 1 KiB to 16 GiB; a last, open bucket holds the rest.
HISTOGRAM_EDGES_BYTES: tuple[int, ...] = tuple(1 << power for power in range(10, 35))


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeHistogram:
    """Files by size. ``counts`` has an entry for each edge (≤ it, above the one before), and one for larger files.

    ``median_bytes`` is the median size, for an even number of files the mean of the two sizes in the middle; None if
    there are no files.
    """

    counts: tuple[int, ...]
    files: int
    bytes: int
    small_files: int
    small_bytes: int
    median_bytes: int | None

    @classmethod
    def of(cls, sizes: pa.ChunkedArray | pa.Array, small_file_limit_bytes: int) -> "SizeHistogram":
        """Histogram of ``sizes`` (int64 bytes); a file is small when strictly below the limit."""
        values = np.asarray(sizes.to_numpy(), dtype=np.int64)
        buckets = np.searchsorted(np.asarray(HISTOGRAM_EDGES_BYTES, dtype=np.int64), values, side="left")
        small = values[values < small_file_limit_bytes]
        return cls(
            counts=tuple(np.bincount(buckets, minlength=len(HISTOGRAM_EDGES_BYTES) + 1).tolist()),
            files=int(values.size),
            bytes=int(values.sum()),
            small_files=int(small.size),
            small_bytes=int(small.sum()),
            median_bytes=int(np.median(values)) if values.size else None,
        )


def base_file_sizes(slices: pa.Table) -> pa.ChunkedArray:
    """Return the sizes of the base files of ``slices`` (``SLICES_SCHEMA``); slices of logs only have none."""
    return slices.filter(pc.is_valid(slices["path"]))["bytes"]
