# SPDX-License-Identifier: Apache-2.0
"""Plans, scans and commits that tests of metrics store, and the page as a scrape sees it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from uuid_utils import uuid7

from lake.model import FileSlice, SizeHistogram, TableRef
from lake.plan import (
    ClusteringGroup,
    Commit,
    OutputFile,
    PartitionFigures,
    Plan,
    PlanKind,
    RewriteOptions,
    SupersededVersion,
)
from service.control.lake_cache import read_lake_state
from service.control.store import ProcessFacts, ScanRecord, Store
from service.server.observability.metrics import Metrics

TABLE = TableRef(name="sales.orders", format="hudi", location="/lake/orders")
WHERE = {"table": "sales.orders", "format": "hudi"}
EXECUTOR = ProcessFacts(name="host-1/17/a/b.1", role="executor", host="host-1", version="1", slots=1)
#: (sample name, labels) → value
Page = Mapping[tuple[str, frozenset[tuple[str, str]]], float]
SIZES = [1, 1024, 1025, 4096, 5000, 300 << 20, 20 << 30]


def plan_of(partition: str = "p=1", *, files: int = 3, bytes_each: int = 1000) -> Plan:
    """A plan of one group: so many files of one partition."""
    slices = tuple(
        FileSlice(partition=partition, file_id=f"f{n}", path=f"{partition}/f{n}.parquet", bytes=bytes_each)
        for n in range(files)
    )
    return Plan(
        plan_id=str(uuid7()),
        table=TABLE,
        kind=PlanKind.CLUSTERING,
        groups=(ClusteringGroup(partition=partition, slices=slices, output_files=1),),
        options=RewriteOptions(target_file_max_bytes=1 << 20),
        snapshot_instant="20260101000000000",
    )


def commit_of(plan: Plan) -> Commit:
    """The commit of a whole plan, to one file of 2500 bytes."""
    superseded = tuple(
        SupersededVersion(partition=s.partition, path=s.path, bytes=s.bytes, instant="20260101000001000")
        for group in plan.groups
        for s in group.slices
    )
    partition = plan.partitions[0]
    output = OutputFile(partition=partition, path=f"{partition}/new.parquet", bytes=2500, rows=30)
    return Commit(plan_id=plan.plan_id, instant="20260101000001000", outputs=(output,), superseded=superseded)


def figures_of(plan: Plan) -> tuple[PartitionFigures]:
    """What that commit changed in the plan's partition."""
    return (
        PartitionFigures(
            partition=plan.partitions[0],
            files_before=plan.input_files,
            bytes_before=plan.bytes,
            files_after=1,
            bytes_after=2500,
        ),
    )


def scan_of(sizes: Sequence[int] = SIZES, limit: int = 4096, **changes: object) -> ScanRecord:
    """A scan that found files of these sizes, those below ``limit`` small."""
    histogram = SizeHistogram.of(pa.array(sizes, pa.int64()), limit)
    record = ScanRecord(
        table=TABLE.name,
        taken_at=datetime(2026, 1, 31, 12, tzinfo=UTC),
        files=histogram.files,
        bytes=histogram.bytes,
        small_files=histogram.small_files,
        small_bytes=histogram.small_bytes,
        partitions=2,
        histogram=histogram.counts,
        log_files=4,
        log_bytes=77,
        reducible_files=3,
        reducible_bytes=2050,
    )
    return replace(record, **changes)


def published(metrics: Metrics, store: Store) -> Page:
    """The page after one refresh."""
    lake = read_lake_state(store)
    tables = lake.figures.tables
    metrics.start_table_counters({t.name: t.format for t in tables})
    metrics.stored.publish(lake)
    return page(metrics)


def page(metrics: Metrics) -> Page:
    """What a scrape sees."""
    text = generate_latest(metrics.registry).decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(scraped: Page, name: str, **labels: str) -> float:
    """The sample of the metric ``lakefold_<name>`` that has these labels."""
    return scraped[f"lakefold_{name}", frozenset(labels.items())]


def absent(scraped: Page, name: str) -> bool:
    """Whether the metric has no sample at all."""
    return not any(sample == f"lakefold_{name}" for sample, _ in scraped)
