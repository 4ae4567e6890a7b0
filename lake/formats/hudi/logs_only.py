# SPDX-License-Identifier: Apache-2.0
"""Merged rows of slices of logs only, for the receipt; hudi-rs, which reads all other slices for it, skips them.

Read by Hudi's file group reader from the very files that the plan names. A query of the table would list its slices
again, and commits that came meanwhile would change what it finds; this can't. The reader is the one that the rewrite
uses too: a file lost, doubled or cut short on the way shows, a mistake in Hudi's merging of logs does not.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from lake.formats.hudi.client import HudiClient
from lake.formats.hudi.outcomes import outcomes
from lake.formats.hudi.publish import slice_record
from lake.model import FileSlice
from lake.ports import Prepared


def slices_of_logs_only(prepared: Prepared, partition: str) -> list[FileSlice]:
    """Slices without a base file among the live groups' slices in ``partition``."""
    groups = (prepared.plan.groups[index] for index in prepared.groups)
    return [s for group in groups for s in group.slices if s.partition == partition and s.path is None]


def read_logs_only(client: HudiClient, instant: str, slices: Sequence[FileSlice]) -> Iterator[pa.RecordBatch]:
    """The rows of ``slices`` as of ``instant``, deleted ones left out, a task a slice.

    As many slices at once as there are cores: what they hold passes through the memory of this process.
    """
    from pyspark.sql import DataFrame

    at_once = client.spark.sparkContext.defaultParallelism
    for start in range(0, len(slices), at_once):
        with outcomes(client.table, "reading slices of logs only"):
            rows = DataFrame(_dataset(client, instant, slices[start : start + at_once]), client.spark)
            batches = rows._collect_as_arrow()
        yield from batches


def _dataset(client: HudiClient, instant: str, slices: Sequence[FileSlice]) -> Any:
    hudi = client.jvm.org.apache.hudi
    table = hudi.table.HoodieSparkTable.create(client.worker_config, client.context)
    strategy = hudi.client.clustering.run.strategy.SparkSortAndSizeExecutionStrategy(
        table, client.context, client.worker_config
    )
    group = client.avro(
        "HoodieClusteringGroup",
        {
            "numOutputFileGroups": 1,
            "metrics": {},
            "extraMetadata": {},
            "version": 1,
            "slices": [slice_record(client, s, None, s.log_files) for s in slices],
        },
    )
    java_context = client.spark.sparkContext._jsc
    return client.call_hidden(strategy, "readRecordsForGroupAsRow", java_context, group, instant, client.reader_schema)
