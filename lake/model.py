# SPDX-License-Identifier: Apache-2.0
"""The nouns: tables, snapshots, file slices, and how file sizes are distributed.

Words as in docs/concepts.md: a *file group* is the lineage of one file id in one
partition, a *file slice* a base file with its log files at an instant.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from itertools import accumulate
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
"""One row per latest file slice.

``partition`` is the path relative to the table ('' when unpartitioned), a mere name where its files are elsewhere.
``file_id`` is unique within a partition and stays the same from one slice of a file group to the next.
``path`` is the base file, relative to the table's location or, outside it, absolute (``lake.storage.locations.resolve_path``); null
for a slice of logs only. ``bytes`` is its size, 0 without one. ``rows`` are its rows as they are stored, those that
deltas change or delete included; null where the format does not know them without opening the file.

``log_files`` are the deltas, oldest first: names relative to the partition or, outside it, absolute. One that serves
several slices is named in each of them, absolute in all if these are of several partitions; one without a file of its
own, such as a deletion vector within the table's log, has a name as well. Path and names together tell a slice from
what it was before: whatever changes its rows changes one of them. ``log_bytes`` are the deltas' bytes; of a delta that
serves several slices it is this slice's part, shared out by the format in whole bytes that add up to the file's size,
so that sums over slices are bytes that exist. Nobody works it out from the names. ``oldest_log_at`` is when the first
of them became visible, null without any; ``delta_kind`` what they are (a ``DeltaKind``), null for log files.
``deleted_rows`` are the rows of the base file that they delete, null for log files and where the format can't tell
without opening them.

``modified_at`` is when the slice was last written, in UTC and µs: when its newest file, base file or delta, became
visible or, where no commit tells, was modified by storage's word. ``written_order`` is larger for a base file that was
written later, among those of the table, null without one. ``group_key`` is what slices of one partition must have in
common to be rewritten together (a partition spec, a schema …), null where the partition alone decides. ``busy_reason``
is null for a slice that may be planned, else why not (``pending clustering 2026…``).
"""


class DeltaKind(StrEnum):
    """What stands beside a base file and changes its rows on every read, by the word for one of it."""

    LOG = "log file"
    DELETES = "delete file"
    VECTOR = "deletion vector"  #: a slice has at most one

    @property
    def is_conflicting(self) -> bool:
        """Whether a commit that adds one to a slice makes a rewrite of the slice void; one of a log file does not."""
        return self is not DeltaKind.LOG


class Concurrency(StrEnum):
    """How writers of a table are kept apart, as its owner states it."""

    SINGLE_WRITER = "single_writer"  #: no other writer is active while lakefold runs
    OCC = "occ"  #: every writer uses optimistic concurrency control with the same lock


class OnConflict(StrEnum):
    """Who gives way where a writer changes what a plan is rewriting; no row is lost either way."""

    PLAN_WINS = "plan_wins"  #: the writer is refused and tries again
    WRITER_WINS = "writer_wins"  #: the plan is cancelled and planned anew


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogRef:
    """The catalog that a table is found through, for its format to open; nobody else looks into it.

    ``kind`` says which client opens it, ``name`` is its name or URI as configured, ``table`` what it calls the table.
    """

    kind: str
    name: str
    table: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRef:
    """One table: a unique ``name``, its ``format``, and where it is.

    ``location`` is a path or URI without trailing slash, ``catalog`` null where the location is all there is to it.
    ``identity`` tells the table from another one that is made under its name and at its place later
    (``lake.capabilities.HasIdentity``); null where the format knows nothing of the kind, or nobody has looked yet.
    ``write_options`` are handed verbatim to the format's own writer (lock provider settings and the like).
    ``on_conflict`` matters with ``Concurrency.OCC``; null means what the write options say, else the plan wins.
    ``sessions_refresh`` says that no session goes on with what it has cached of the table; scans alone ask for it.
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
    """A directory or database of a source in which tables could not be looked for, and one line that says why."""

    location: str
    reason: str


def partition_label(partition: str) -> str:
    """What sentences call a partition; '' is all of a table without partitions."""
    return f"partition {partition}" if partition else "the table"


class Fault(StrEnum):
    """In which way a file is not what the commits say."""

    MISSING = "missing"  #: a file of a latest slice is not in storage
    WRONG_SIZE = "wrong_size"  #: it has another size than its commit wrote
    UNLISTED = "unlisted"  #: it is in storage, but readers are not told of it
    RESURRECTED = "resurrected"  #: a commit took it out of the table, and readers see it again
    UNOWNED = "unowned"  #: no commit wrote it, and readers may take it for a part of the table
    UNKNOWN = "unknown"  #: the file that says what the commit wrote can't be read


_RESTORE_FROM_BACKUP = "put it back from a backup"
_REMEDIES = {
    Fault.MISSING: _RESTORE_FROM_BACKUP,
    Fault.WRONG_SIZE: _RESTORE_FROM_BACKUP,
    Fault.UNLISTED: (
        "the table's metadata table or its partition markers are wrong, have its own writer rebuild them; or its "
        "commit was archived after one that a savepoint keeps, delete that savepoint"
    ),
    Fault.RESURRECTED: "its rows are read again; lakefold tables repair takes it out",
    Fault.UNOWNED: "move it out of the table",
    Fault.UNKNOWN: _RESTORE_FROM_BACKUP,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A file of one file group that is not what the commits say; the group is left alone until that is mended.

    ``path`` is as in ``SLICES_SCHEMA``; where the fault is unknown it is the timeline's file that can't be read.
    ``expected_bytes`` is null where no commit wrote such a file or its size is not known, ``found_bytes`` where it is
    not in storage or not the point.
    """

    partition: str
    file_id: str
    fault: Fault
    path: str
    expected_bytes: int | None = None
    found_bytes: int | None = None

    @property
    def text(self) -> str:
        """Which file, what is expected, what is there, and what to do."""
        match self.fault:
            case Fault.MISSING:
                size = "" if self.expected_bytes is None else f", its commit wrote {self.expected_bytes} bytes"
                what = f"is not in storage{size}"
            case Fault.WRONG_SIZE:
                what = f"has {self.found_bytes} bytes, its commit wrote {self.expected_bytes}"
            case Fault.UNLISTED:
                what = "is in storage, but the table's listing leaves it out"
            case Fault.RESURRECTED:
                what = "was taken out of the table by a commit and is listed again"
            case Fault.UNOWNED:
                what = f"was written by no commit, though its name says so ({self.found_bytes} bytes)"
            case Fault.UNKNOWN:
                what = "can't be read, so that nobody can say whether this file group is what its commits wrote"
        return f"damaged: {self.path} {what}; {_REMEDIES[self.fault]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlappingCommit:
    """A commit of another process that was under way while the plan ``plan_id`` of lakefold's was.

    ``instant`` names it on its table, ``action`` is the format's word for what it did.
    """

    instant: str
    action: str
    completed_at: datetime
    plan_id: str

    @property
    def text(self) -> str:
        """Which commit it was, and which plan it met."""
        return f"{self.action} {self.instant} of another process, while plan {self.plan_id} ran"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What a table looked like at one instant.

    ``slices`` has ``SLICES_SCHEMA``; ``instant`` is the newest completed instant seen ('' on an empty table);
    ``taken_at`` is timezone-aware; ``uncompacted_commits`` are the commits that wrote deltas only (log files, delete
    files …) and completed since the table's last compaction. ``damaged`` are the groups whose files are not what the
    commits say, each with its first difference; one of which nothing is listed has a row in ``slices`` all the same, as
    its commits wrote it. ``overlaps`` are commits of others that were under way while a plan of lakefold's was, oldest
    first, as far as the table still tells. ``foreign_files`` are files among the table's data whose names say that they
    are not the table's, as paths relative to it; nothing reads, moves or deletes them.
    """

    table: TableRef
    instant: str
    taken_at: datetime
    slices: pa.Table
    uncompacted_commits: int = 0
    damaged: tuple[Damage, ...] = ()
    overlaps: tuple[OverlappingCommit, ...] = ()
    foreign_files: tuple[str, ...] = ()


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
        """Base and log bytes together: what a rewrite has to read, of shared deltas this slice's part."""
        return self.bytes + self.log_bytes


#: Upper edges of the size histogram in bytes, powers of two from 1 KiB to 16 GiB; a last, open bucket holds the rest.
HISTOGRAM_EDGES_BYTES: tuple[int, ...] = tuple(1 << power for power in range(10, 35))


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeHistogram:
    """Files by size. ``counts`` has one entry for each edge (size ≤ edge, above the edge before) and one for larger."""

    counts: tuple[int, ...]
    files: int
    bytes: int
    small_files: int
    small_bytes: int

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
        )


def median_bytes(counts: Sequence[int]) -> int | None:
    """The median file size that a histogram implies, even on the logarithmic axis within its bucket; None if empty."""
    files = sum(counts)
    if not files:
        return None
    upto, middle = list(accumulate(counts)), files / 2
    index = bisect_left(upto, middle)
    if index >= len(HISTOGRAM_EDGES_BYTES):
        return HISTOGRAM_EDGES_BYTES[-1]
    # Each edge is twice the one before, so half the way up a bucket is a factor of the square root of two.
    way_up = 1 - (upto[index] - middle) / counts[index]
    return round(HISTOGRAM_EDGES_BYTES[index] / 2 * 2**way_up)


def base_file_sizes(slices: pa.Table) -> pa.ChunkedArray:
    """Sizes of the base files of ``slices`` (``SLICES_SCHEMA``); slices of logs only have none."""
    return slices.filter(pc.is_valid(slices["path"]))["bytes"]
