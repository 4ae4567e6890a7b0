# SPDX-License-Identifier: Apache-2.0
"""What planning decided, added up: every slice of a snapshot in exactly one line, so that the sums are the table's."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lake.model import SizeHistogram, Snapshot, base_file_sizes
from planner.candidates import READY, Reason
from planner.planner import Planning
from service.rules import ConfiguredTable
from service.store.layouts import LINE_FIELDS
from service.store.views import ScanRecord

_BATCH = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Slices that share a reason (and a partition, unless ``partition`` is None): how many, their files and bytes.

    ``files`` and ``bytes`` are of base files; ``log_files`` and ``log_bytes`` of the logs on them. ``text`` is the
    reason of the slice with the smallest number, ``varies`` says that others have larger ones.
    """

    partition: str | None
    partitions: int
    reason: Reason
    slices: int
    files: int
    bytes: int
    log_files: int
    log_bytes: int
    text: str
    varies: bool

    @property
    def knob(self) -> str:
        """The setting that decides, or the command that changes it; '' where nothing does."""
        return self.reason.knob

    def document(self) -> dict[str, Any]:
        """For scripts."""
        partition = {"partitions": self.partitions} if self.partition is None else {"partition": self.partition}
        return partition | {
            "reason": self.reason.value, "text": self.text, "varies": self.varies, "knob": self.knob,
            "slices": self.slices, "files": self.files, "bytes": self.bytes, "log_files": self.log_files,
            "log_bytes": self.log_bytes,
        }  # fmt: skip


def account(planning: Planning, snapshot: Snapshot, *, by_partition: bool) -> list[Line]:
    """One line for each reason, or for each partition and reason, sorted; together they are the whole snapshot."""
    decisions = planning.decisions
    rows = pa.table(
        {
            "partition": decisions["partition"].cast(pa.string()),
            "reason": decisions["reason"].cast(pa.string()),
            "path": decisions["path"],
            "bytes": decisions["bytes"],
            "logs": pc.list_value_length(snapshot.slices["log_files"]),
            "log_bytes": decisions["log_bytes"],
            "number": decisions["number"],
            "row": np.arange(decisions.num_rows),
        }
    )
    keys = ["partition", "reason"] if by_partition else ["reason"]
    sums = (
        rows.sort_by("number")
        .group_by(keys, use_threads=False)
        .aggregate(
            [
                ("row", "count"), ("partition", "count_distinct"), ("path", "count"), ("bytes", "sum"),
                ("logs", "sum"), ("log_bytes", "sum"), ("number", "min"), ("number", "max"), ("row", "first"),
            ]
        )
        .sort_by([(key, "ascending") for key in keys])
    )  # fmt: skip
    listed = sums.to_pylist()
    texts = planning.reason_texts(row["row_first"] for row in listed)
    return [
        Line(
            partition=row.get("partition"),
            partitions=row["partition_count_distinct"],
            reason=Reason(row["reason"]),
            slices=row["row_count"],
            files=row["path_count"],
            bytes=row["bytes_sum"],
            log_files=row["logs_sum"],
            log_bytes=row["log_bytes_sum"],
            text=text,
            varies=row["number_min"] != row["number_max"],
        )
        for row, text in zip(listed, texts, strict=True)
    ]


def total(lines: Iterable[Line]) -> dict[str, int]:
    """The sums over all lines."""
    sums = dict.fromkeys(("slices", "files", "bytes", "log_files", "log_bytes"), 0)
    for line in lines:
        for key in sums:
            sums[key] += getattr(line, key)
    return sums


def each_file(planning: Planning, snapshot: Snapshot) -> Iterator[dict[str, Any]]:
    """One entry a slice: partition, path (null for a slice of logs), bytes, logs, reason."""
    table = planning.decisions.append_column("log_files", snapshot.slices["log_files"])
    for start in range(0, table.num_rows, _BATCH):
        rows = table.slice(start, _BATCH).to_pylist()
        texts = planning.reason_texts(range(start, start + len(rows)))
        for row, text in zip(rows, texts, strict=True):
            yield {
                "partition": row["partition"], "path": row["path"], "file_id": row["file_id"], "bytes": row["bytes"],
                "log_files": row["log_files"], "log_bytes": row["log_bytes"], "reason": row["reason"], "text": text,
            }  # fmt: skip


def explanation(table: ConfiguredTable, snapshot: Snapshot, planning: Planning, *, files: bool) -> dict[str, Any]:
    """The account as a document; its items are a line a partition and reason, or with ``files`` a slice each."""
    lines = account(planning, snapshot, by_partition=True)
    return {
        "table": table.name,
        "mode": table.mode,
        "instant": snapshot.instant,
        "taken_at": snapshot.taken_at,
        "notes": table.policy.notes,
        "items": each_file(planning, snapshot) if files else [line.document() for line in lines],
        "total": total(lines),
    }


def partition_layout(planning: Planning, snapshot: Snapshot, *, small_file_limit_bytes: int) -> pa.Table:
    """One row a partition, in their order: the files in it, what plans are to take, and its lines of the account.

    The columns are those of ``service.store.PARTITION_SCHEMA``.
    """
    decisions = planning.decisions
    sizes, reasons = decisions["bytes"], decisions["reason"].cast(pa.string())
    small = pc.and_(pc.is_valid(decisions["path"]), pc.less(sizes, small_file_limit_bytes))
    ready = pc.is_in(reasons, value_set=pa.array([reason.value for reason in READY]))
    rows = pa.table(
        {
            "partition": decisions["partition"].cast(pa.string()),
            "path": decisions["path"],
            "bytes": sizes,
            "small_files": small.cast(pa.int64()),
            "small_bytes": pc.if_else(small, sizes, 0),
            "log_files": pc.list_value_length(snapshot.slices["log_files"]),
            "log_bytes": decisions["log_bytes"],
            "backlog_files": ready.cast(pa.int64()),
            "backlog_bytes": pc.if_else(ready, pc.add(sizes, decisions["log_bytes"]), 0),
        }
    )
    summed = [name for name in rows.column_names if name not in ("partition", "path")]
    found = (
        rows.group_by("partition", use_threads=False)
        .aggregate([("path", "count"), *((name, "sum") for name in summed)])
        .sort_by("partition")
        .rename_columns({"path_count": "files"} | {f"{name}_sum": name for name in summed})
    )
    return found.append_column("lines", _lines_by_partition(account(planning, snapshot, by_partition=True)))


def _lines_by_partition(lines: Sequence[Line]) -> pa.Array:
    """A list of documents for each partition, in the partitions' order."""
    starts = [n for n, line in enumerate(lines) if n == 0 or line.partition != lines[n - 1].partition]
    documents = [line.document() for line in lines]
    fields = [[document[field.name] for document in documents] for field in LINE_FIELDS]
    columns = [pa.array(values, field.type) for values, field in zip(fields, LINE_FIELDS, strict=True)]
    structs = pa.StructArray.from_arrays(columns, fields=LINE_FIELDS)
    return pa.ListArray.from_arrays(pa.array([*starts, len(lines)], pa.int32()), structs)


def scan_record(planning: Planning, snapshot: Snapshot, *, small_file_limit_bytes: int, seconds: float) -> ScanRecord:
    """What the store remembers of a scan: layout, reasons and backlog."""
    lines = account(planning, snapshot, by_partition=False)
    histogram = SizeHistogram.of(base_file_sizes(snapshot.slices), small_file_limit_bytes)
    skipped = [line for line in lines if line.reason is not Reason.CHOSEN]
    return ScanRecord(
        table=snapshot.table.name,
        taken_at=snapshot.taken_at,
        seconds=seconds,
        instant=snapshot.instant,
        files=histogram.files,
        bytes=histogram.bytes,
        small_files=histogram.small_files,
        small_bytes=histogram.small_bytes,
        partitions=len(pc.unique(snapshot.slices["partition"].cast(pa.string()))),
        histogram=histogram.counts,
        log_files=sum(line.log_files for line in lines),
        log_bytes=sum(line.log_bytes for line in lines),
        skipped={line.reason.value: line.slices for line in skipped},
        skipped_bytes={line.reason.value: line.bytes + line.log_bytes for line in skipped},
        backlog_files=planning.backlog_files,
        backlog_bytes=planning.backlog_bytes,
    )
