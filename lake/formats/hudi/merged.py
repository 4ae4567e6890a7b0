# SPDX-License-Identifier: Apache-2.0
"""The rows of slices as a reader of the table sees them: hudi-rs reads what it can, Hudi itself the rest.

hudi-rs is another implementation than the one that rewrites, on purpose: a mistake of either shows. It reads no slices
of logs only, and none of whose records it can't run the merger: payload classes and mergers of a table's own, updates
of some columns, and whatever else it says it does not know.

Those are read by Hudi's file group reader from the very files that the plan names. A query of the table would list its
slices again, and commits that came meanwhile would change what it finds; this can't. The reader is the one that the
rewrite uses too: a file lost, doubled or cut short on the way shows, a mistake in Hudi's merging of logs does not.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lake.errors import Transient
from lake.formats.hudi.outcomes import outcomes
from lake.formats.hudi.publish import slice_record
from lake.formats.hudi.records import is_whole
from lake.formats.hudi.storage import Storage
from lake.model import FileSlice
from lake.ports import Prepared

if TYPE_CHECKING:
    from lake.formats.hudi.client import HudiClient

#: slices whose files together are no larger are read at once and handed over whole; larger ones in parts of this size
_PART_BYTES = 64 << 20


class NotMerged(Exception):
    """hudi-rs does not know how to merge a slice, whose files are sound as far as can be told; the message is its."""


class HudiRsReader:
    """Reads slices of one table by hudi-rs."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._reader: Any = None

    def rows(self, base: str, logs: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows of a slice, its base file merged with its logs.

        Raises NotMerged before the first of them, Transient where a file can't be read.
        """
        begun = False
        try:
            if self._reader is None:
                self._reader = self._storage.hudi_rs_table().create_file_group_reader_with_options()
            for batch in self._reader.read_file_slice_from_paths_stream(base, list(logs)):
                begun = True
                yield pa.record_batch(batch)
        except BaseException as error:
            # hudi-rs' errors have no base class of their own, and a panic of Rust code is no Exception.
            if not isinstance(error, Exception) and type(error).__module__ != "pyo3_runtime":
                raise
            complaint = (str(error).strip() or type(error).__name__).splitlines()[0]
            # Hudi's own reader passes over a torn block without a word, and so does the rewrite.
            if logs and not begun and all(self._is_whole(path) for path in logs):
                raise NotMerged(complaint) from error
            raise Transient(f"{self._storage.path(base)}: hudi-rs can't read it ({complaint})") from error

    def _is_whole(self, path: str) -> bool:
        try:
            with self._storage.open(path) as source:
                return is_whole(source, source.size())
        except OSError:
            return False


def slices_of(prepared: Prepared, partition: str) -> list[FileSlice]:
    """The live groups' slices in ``partition``."""
    groups = (prepared.plan.groups[index] for index in prepared.groups)
    return [s for group in groups for s in group.slices if s.partition == partition]


def read_by_hudi(client: "HudiClient", instant: str, slices: Sequence[FileSlice]) -> Iterator[pa.RecordBatch]:
    """The rows of ``slices`` as of ``instant`` in the table's columns of today, deleted ones left out.

    What is read at once passes through the memory of this process: as many slices as there are cores, or a part of one.
    """
    from pyspark.sql import DataFrame

    for together in _portions(slices, client.spark.sparkContext.defaultParallelism):
        with outcomes(client.table, "reading the inputs of a rewrite again"):
            rows = DataFrame(_dataset(client, instant, together), client.spark)
            parts = -(-sum(s.total_bytes for s in together) // _PART_BYTES)
            if parts <= 1:
                yield from rows._collect_as_arrow()
            else:
                yield from _in_parts(rows.repartition(parts))


def _portions(slices: Sequence[FileSlice], most: int) -> Iterator[list[FileSlice]]:
    portion: list[FileSlice] = []
    for slice_ in slices:
        if portion and (len(portion) == most or sum(s.total_bytes for s in (*portion, slice_)) > _PART_BYTES):
            yield portion
            portion = []
        portion.append(slice_)
    if portion:
        yield portion


def _in_parts(rows: Any) -> Iterator[pa.RecordBatch]:
    """The rows a partition at a time: a result as large as a slice would not pass ``spark.driver.maxResultSize``."""
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(rows.schema)
    batches = rows._jdf.toArrowBatchRdd().toLocalIterator()
    while batches.hasNext():
        yield pa.ipc.read_record_batch(pa.py_buffer(batches.next()), schema)


def _dataset(client: "HudiClient", instant: str, slices: Sequence[FileSlice]) -> Any:
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
            "slices": [
                slice_record(client, s, s.path.rsplit("/", 1)[-1] if s.path else None, s.log_files) for s in slices
            ],
        },
    )
    java_context = client.spark.sparkContext._jsc
    return client.call_hidden(strategy, "readRecordsForGroupAsRow", java_context, group, instant, client.reader_schema)
