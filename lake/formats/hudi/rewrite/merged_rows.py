# SPDX-License-Identifier: Apache-2.0
"""The rows of merge-on-read slices, read again by Hudi because hudi-rs can't read them.

Hudi's file group reader reads exactly the files that the plan names. A query of the table would list its slices again,
so commits made meanwhile would change its result. The rewrite uses the same reader. The comparison therefore detects
lost, doubled or truncated files, but no mistake in Hudi's merging of logs.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from lake.formats.hudi.client.client import HudiClient
from lake.formats.hudi.jvm.errors import translated_errors
from lake.formats.hudi.plans.clustering import clustering_slice_record
from lake.model import FileSlice
from lake.ports import PreparedPlan

#: slices of at most this total size are read at once and returned whole; a larger slice in parts of this size
_PART_BYTES = 64 << 20


def slices_in_partition(prepared: PreparedPlan, partition: str) -> list[FileSlice]:
    """Return the live groups' slices in ``partition``."""
    groups = (prepared.plan.groups[index] for index in prepared.live_groups)
    return [s for group in groups for s in group.slices if s.partition == partition]


def read_merged_rows(client: HudiClient, instant: str, slices: Sequence[FileSlice]) -> Iterator[pa.RecordBatch]:
    """Return the rows of ``slices`` as of ``instant`` in the table's current columns, without deleted rows.

    Each batch passes through the memory of this process: as many slices as there are cores, or a part of one slice.
    """
    from pyspark.sql import DataFrame

    for together in _slice_batches(slices, client.spark.sparkContext.defaultParallelism):
        with translated_errors(client.table, "reading the inputs of a rewrite again"):
            rows = DataFrame(_dataset(client, instant, together), client.spark)
            parts = -(-sum(s.total_bytes for s in together) // _PART_BYTES)
            if parts <= 1:
                yield from rows._collect_as_arrow()
            else:
                yield from _read_in_parts(rows.repartition(parts))


def _slice_batches(slices: Sequence[FileSlice], max_slices: int) -> Iterator[list[FileSlice]]:
    portion: list[FileSlice] = []
    for slice_ in slices:
        if portion and (len(portion) == max_slices or sum(s.total_bytes for s in (*portion, slice_)) > _PART_BYTES):
            yield portion
            portion = []
        portion.append(slice_)
    if portion:
        yield portion


def _read_in_parts(rows: Any) -> Iterator[pa.RecordBatch]:
    """Yield the rows one partition at a time: a whole slice may exceed ``spark.driver.maxResultSize``."""
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(rows.schema)
    batches = rows._jdf.toArrowBatchRdd().toLocalIterator()
    while batches.hasNext():
        yield pa.ipc.read_record_batch(pa.py_buffer(batches.next()), schema)


def _dataset(client: HudiClient, instant: str, slices: Sequence[FileSlice]) -> Any:
    hudi = client.jvm.org.apache.hudi
    table = hudi.table.HoodieSparkTable.create(client.write_config, client.context)
    strategy = hudi.client.clustering.run.strategy.SparkSortAndSizeExecutionStrategy(
        table, client.context, client.write_config
    )
    group = client.avro_object(
        "HoodieClusteringGroup",
        {
            "numOutputFileGroups": 1,
            "metrics": {},
            "extraMetadata": {},
            "version": 1,
            "slices": [
                clustering_slice_record(client, s, s.path.rsplit("/", 1)[-1] if s.path else None, s.log_files)
                for s in slices
            ],
        },
    )
    java_context = client.spark.sparkContext._jsc
    return client.bundle.call_private(
        strategy, "readRecordsForGroupAsRow", java_context, group, instant, client.reader_schema
    )
