# SPDX-License-Identifier: Apache-2.0
"""A summary of planning's decisions: each slice of a snapshot is in one line, so the lines add up to the table."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lake.capabilities import LikelyWriter
from lake.model import Concurrency, OverlappingCommit, SizeHistogram, Snapshot, base_file_sizes
from planner.reasons import Reason
from planner.result import PlanningResult
from planner.slo.evaluate import evaluate_objectives
from service.control.config.table_settings import ConfiguredTable
from service.control.planning.likely_writers import writer_document
from service.control.store.partition_layouts import LINE_FIELDS, PARTITION_SCHEMA
from service.control.store.views import ScanRecord
from service.former_names import both_names

_BATCH = 10_000
#: how long an overlapping commit is reported
_OVERLAP_REPORT_AGE = timedelta(days=1)
_SUMMED = (
    "slices",
    "files",
    "bytes",
    "small_files",
    "small_bytes",
    "reducible_files",
    "reducible_bytes",
    "log_files",
    "log_bytes",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionLine:
    """Slices that share a reason (and a partition, unless ``partition`` is None): their number, files and bytes.

    ``files`` and ``bytes`` are of base files; ``log_files`` and ``log_bytes`` of the logs on them. A reason has a
    figure, for example the size or age of the slice (see ``reason_texts``). ``text`` has the smallest figure among the
    slices; ``varies`` is True if others are larger.
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
    #: the setting that decides, or the command that changes the decision; '' if there is none
    setting: str

    def document(self) -> dict[str, Any]:
        """Return the line as JSON."""
        partition = {"partitions": self.partitions} if self.partition is None else {"partition": self.partition}
        fields = partition | {
            "reason": self.reason.value,
            "text": self.text,
            "has_several_values": self.varies,
            "setting": self.setting,
            "slices": self.slices,
            "files": self.files,
            "bytes": self.bytes,
            "log_files": self.log_files,
            "log_bytes": self.log_bytes,
        }
        return both_names("decision", fields)


class DecisionSummary:
    """The decisions of one planning, summed once for all callers."""

    def __init__(self, planning: PlanningResult) -> None:
        self.planning = planning

    @cached_property
    def _cells(self) -> pa.Table:
        return _sums_by_partition_and_reason(self.planning)

    @property
    def partition_count(self) -> int:
        """Partitions with at least one slice."""
        return int(pc.count_distinct(self._cells["partition"]).as_py())

    @cached_property
    def by_reason(self) -> list[DecisionLine]:
        """One line for each reason, sorted; together they cover the whole snapshot."""
        sums = [(name, "sum") for name in _SUMMED]
        found = (
            self._cells.group_by("reason", use_threads=False)
            .aggregate([("partition", "count"), *sums, ("least", "min"), ("most", "max"), ("row", "min")])
            .rename_columns({f"{name}_sum": name for name in _SUMMED})
            .rename_columns({"least_min": "least", "most_max": "most", "row_min": "row"})
            .sort_by("reason")
        )
        return self._lines(found, [None] * found.num_rows, found["partition_count"].to_pylist())

    @property
    def by_partition(self) -> list[DecisionLine]:
        """One line for each partition and reason, sorted; together they cover the whole snapshot."""
        return self._lines(self._cells, self._cells["partition"].to_pylist(), [1] * self._cells.num_rows)

    @property
    def partition_table(self) -> pa.Table:
        """One row for each partition, sorted: its files, its reducible files, and its lines of the summary.

        The columns are those of ``service.control.store.PARTITION_SCHEMA``.
        """
        cells = self._cells  # sorted by partition, so that each partition's lines are adjacent
        summed = [field.name for field in PARTITION_SCHEMA if field.type == pa.int64()]
        found = (
            cells.group_by("partition")
            .aggregate([([], "count_all"), *((name, "sum") for name in summed)])
            .rename_columns({f"{name}_sum": name for name in summed})
            .sort_by("partition")  # group_by does not keep the order
        )
        ends = np.cumsum(found["count_all"].to_numpy(), dtype=np.int32)
        lines = pa.ListArray.from_arrays(pa.array(np.concatenate(([0], ends)), pa.int32()), self._line_structs())
        return found.append_column("lines", lines).select(PARTITION_SCHEMA.names)

    def _line_structs(self) -> pa.StructArray:
        """Return a document for each partition and reason."""
        cells, settings = self._cells, {reason.value: self.planning.setting(reason) for reason in Reason}
        columns = {name: cells[name] for name in ("reason", "slices", "files", "bytes", "log_files", "log_bytes")}
        columns |= {
            "text": pa.array(self._texts(cells), pa.string()),
            "varies": pc.not_equal(cells["least"], cells["most"]),
            "knob": pa.array(map(settings.__getitem__, cells["reason"].to_pylist()), pa.string()),
        }
        table = pa.table([columns[field.name] for field in LINE_FIELDS], schema=pa.schema(LINE_FIELDS))
        return table.to_struct_array().combine_chunks()

    def _texts(self, cells: pa.Table) -> list[str]:
        return self.planning.reason_texts(cells["row"].to_pylist(), cells["least"].to_pylist())

    def _lines(self, cells: pa.Table, names: Sequence[str | None], partitions: Sequence[int]) -> list[DecisionLine]:
        varies = pc.not_equal(cells["least"], cells["most"]).to_pylist()
        rows = zip(cells.to_pylist(), self._texts(cells), varies, names, partitions, strict=True)
        return [
            DecisionLine(
                partition=name,
                partitions=count,
                reason=Reason(row["reason"]),
                slices=row["slices"],
                files=row["files"],
                bytes=row["bytes"],
                log_files=row["log_files"],
                log_bytes=row["log_bytes"],
                text=text,
                varies=varied,
                setting=self.planning.setting(Reason(row["reason"])),
            )
            for row, text, varied, name, count in rows
        ]


def _sums_by_partition_and_reason(planning: PlanningResult) -> pa.Table:
    """Return a row for each partition and reason, sorted by both.

    A row has sums, and the smallest and the largest figure in the reasons of its slices. ``row`` is the index of the
    first of these slices in ``planning.decisions``.
    """
    decisions, limit = planning.decisions, planning.policy.small_file_limit_bytes
    is_file, sizes = pc.is_valid(decisions["path"]), decisions["bytes"]
    small, reducible = pc.and_(is_file, pc.less(sizes, limit)), decisions["reducible"]
    rows = pa.table(
        {
            "partition": decisions["partition"].cast(pa.string()),
            "reason": decisions["reason"].cast(pa.string()),
            "files": is_file.cast(pa.int64()),
            "bytes": sizes,
            "small_files": small.cast(pa.int64()),
            "small_bytes": pc.if_else(small, sizes, 0),
            "reducible_files": pc.and_(small, reducible).cast(pa.int64()),
            "reducible_bytes": pc.if_else(reducible, pc.add(sizes, decisions["log_bytes"]), 0),
            "log_files": pc.list_value_length(planning.snapshot.slices["log_files"]).cast(pa.int64()),
            "log_bytes": decisions["log_bytes"],
            "number": decisions["number"],
            "row": np.arange(decisions.num_rows),
        }
    )
    summed = [name for name in _SUMMED if name != "slices"]
    return (
        rows.group_by(["partition", "reason"])
        .aggregate(
            [
                ([], "count_all"),
                *((name, "sum") for name in summed),
                ("number", "min"),
                ("number", "max"),
                ("row", "min"),
            ]
        )
        .rename_columns({"count_all": "slices", "number_min": "least", "number_max": "most", "row_min": "row"})
        .rename_columns({f"{name}_sum": name for name in summed})
        .sort_by([("partition", "ascending"), ("reason", "ascending")])
    )


def sum_lines(lines: Iterable[DecisionLine]) -> dict[str, int]:
    """Return the sums over all lines."""
    sums = dict.fromkeys(("slices", "files", "bytes", "log_files", "log_bytes"), 0)
    for line in lines:
        for key in sums:
            sums[key] += getattr(line, key)
    return sums


def slice_documents(planning: PlanningResult) -> Iterator[dict[str, Any]]:
    """Yield one entry for each slice: partition, path (null for a slice of logs), bytes, logs, reason."""
    table = planning.decisions.append_column("log_files", planning.snapshot.slices["log_files"])
    for start in range(0, table.num_rows, _BATCH):
        rows = table.slice(start, _BATCH).to_pylist()
        texts = planning.reason_texts(range(start, start + len(rows)))
        for row, text in zip(rows, texts, strict=True):
            yield {
                "partition": row["partition"],
                "path": row["path"],
                "file_id": row["file_id"],
                "bytes": row["bytes"],
                "log_files": row["log_files"],
                "log_bytes": row["log_bytes"],
                "reason": row["reason"],
                "text": text,
            }


def explanation_document(
    table: ConfiguredTable,
    planning: PlanningResult,
    *,
    files: bool,
    is_partial: bool = False,
    writers: Sequence[LikelyWriter] = (),
) -> dict[str, Any]:
    """Return the summary as a document, with an item for each partition and reason.

    If ``files`` is True, it has an item for each slice instead. Objectives concern a whole table, so the document has
    none if ``is_partial``. ``writers`` are the tools whose traces are at the table; most of them write it, some only
    read it.
    """
    account, snapshot = DecisionSummary(planning), planning.snapshot
    return {
        "table": table.name,
        "mode": table.mode,
        "instant": snapshot.instant,
        "taken_at": snapshot.taken_at,
        "notes": table.policy.notes,
        "reads_per_day": table.policy.reads_per_day,
        "reads_source": table.origins["reads_per_day"].source if table.has_observed_reads else "configured",
        "writers": [writer_document(writer, table) for writer in writers],
        "objectives": [
            both_names(
                "objective",
                {
                    "objective": one.objective,
                    "met": one.is_met,
                    "value": one.value,
                    "limit": one.bound,
                    "text": one.text,
                },
            )
            for one in (() if is_partial else evaluate_objectives(planning, table.policy))
        ],
        "items": slice_documents(planning) if files else [line.document() for line in account.by_partition],
        "total": sum_lines(account.by_reason),
    }


def make_scan_record(summary: DecisionSummary, seconds: float) -> ScanRecord:
    """Return the record of a scan that took ``seconds``: layout, reasons, and reducible files."""
    planning, lines = summary.planning, summary.by_reason
    snapshot = planning.snapshot
    histogram = SizeHistogram.of(base_file_sizes(snapshot.slices), planning.policy.small_file_limit_bytes)
    skipped = [line for line in lines if line.reason is not Reason.CHOSEN]
    overlaps = _forbidden_overlaps(snapshot)
    return ScanRecord(
        table=snapshot.table.name,
        taken_at=snapshot.taken_at,
        seconds=seconds,
        instant=snapshot.instant,
        files=histogram.files,
        bytes=histogram.bytes,
        small_files=histogram.small_files,
        small_bytes=histogram.small_bytes,
        partitions=summary.partition_count,
        median_bytes=histogram.median_bytes,
        histogram=histogram.counts,
        log_files=sum(line.log_files for line in lines),
        log_bytes=sum(line.log_bytes for line in lines),
        skipped={line.reason.value: line.slices for line in skipped},
        skipped_bytes={line.reason.value: line.bytes + line.log_bytes for line in skipped},
        reducible_files=planning.reducible_files,
        reducible_bytes=planning.reducible_bytes,
        waiting_seconds=planning.waiting_seconds,
        overlaps=len(overlaps),
        overlap=overlaps[-1].text if overlaps else None,
        foreign_files=len(snapshot.foreign_files),
        foreign_file=next(iter(snapshot.foreign_files), None),
    )


def _forbidden_overlaps(snapshot: Snapshot) -> list[OverlappingCommit]:
    """Return the commits of other programs of the last day that overlapped with a plan on a ``single_writer`` table."""
    if snapshot.table.concurrency is not Concurrency.SINGLE_WRITER:
        return []
    return [overlap for overlap in snapshot.overlaps if snapshot.taken_at - overlap.completed_at < _OVERLAP_REPORT_AGE]
