# SPDX-License-Identifier: Apache-2.0
"""The rows of merge-on-read slices read again by Hudi, where hudi-rs can't read them.

Hudi's file group reader reads the very files that the plan names. A query of the table would list its slices again, and
commits that came meanwhile would change what it finds; this can't. The reader is the one that the rewrite uses too: a
file lost, doubled or cut short on the way shows, a mistake in Hudi's merging of logs does not.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from lake.formats.hudi.client.client import HudiClient
from lake.formats.hudi.jvm.errors import translated_errors
from lake.formats.hudi.plans.clustering import clustering_slice_record
from lake.model import FileSlice
from lake.ports import PreparedPlan

#: slices whose files together are no larger are read at once and handed over whole; larger ones in parts of this size
_PART_BYTES = 64 << 20


def slices_in_partition(prepared: PreparedPlan, partition: str) -> list[FileSlice]:
    """The live groups' slices in ``partition``."""
    groups = (prepared.plan.groups[index] for index in prepared.live_groups)
    return [s for group in groups for s in group.slices if s.partition == partition]


def read_merged_rows(client: HudiClient, instant: str, slices: Sequence[FileSlice]) -> Iterator[pa.RecordBatch]:
    """The rows of ``slices`` as of ``instant`` in the table's columns of today, deleted ones left out.

    What is read at once passes through the memory of this process: as many slices as there are cores, or a part of one.
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
    """The rows a partition at a time: a result as large as a slice would not pass ``spark.driver.maxResultSize``."""
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
    return client.call_private(strategy, "readRecordsForGroupAsRow", java_context, group, instant, client.reader_schema)
