# SPDX-License-Identifier: Apache-2.0
"""The engine ``stitch`` for Parquet files: row groups copied as bytes under one new footer."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from executors.engines.backends import RewriteBackend
from executors.engines.inputs import UnsupportedInput
from executors.engines.stitch.compatibility import verify_compatible
from executors.engines.stitch.parquet import plan_outputs, stitch_task
from executors.engines.stitch.raw_file import RawParquetFile
from executors.engines.task_engine import TaskEngine
from lake.engines import RewriteTask
from lake.plan import AUTO, RewriteOptions
from lake.units import format_bytes

#: Measured with 2,000 files of 1 MB that become larger files: row groups of 10 MB give Spark and DuckDB the whole gain
#: in reading. The files' own row groups, stitched, give Spark most of it and DuckDB a part of it.
HEALTHY_ROW_GROUP_BYTES = 8 << 20
_FOOTERS_AT_ONCE = 8
_CODECS = ("uncompressed", "snappy", "gzip", "lzo", "brotli", "lz4", "zstd", "lz4_raw")


class ParquetStitchEngine(TaskEngine):
    """Rewrites groups of Parquet files with one schema and equal metadata, and keeps the order of rows.

    ``backend`` runs the work. If the engine is chosen automatically, it refuses a group whose row groups average less
    than ``min_row_group_bytes``.
    """

    name = "stitch"

    def __init__(self, backend: RewriteBackend, min_row_group_bytes: int = HEALTHY_ROW_GROUP_BYTES) -> None:
        super().__init__(backend, stitch_task)
        self._min_row_group_bytes = min_row_group_bytes

    def unsupported_reason(self, task: RewriteTask, options: RewriteOptions) -> str | None:
        """See ``lake.engines.RewriteEngine``. Skips inputs that can't be read.

        If the engine is chosen automatically, row groups must be large enough for readers.
        """
        if options.sort_columns:
            return f"it copies row groups and can't sort by {', '.join(options.sort_columns)}; unset sort_columns"
        average = task.bytes // len(task.inputs)
        least = self._min_row_group_bytes if options.engine == AUTO else 0
        if average < least:
            return _too_small("files", average, least)
        try:
            files = _read_files(task.inputs)
            if files:
                verify_compatible(files)
                plan_outputs(files, len(task.outputs), options.target_file_max_bytes)
        except UnsupportedInput as error:
            return str(error)
        except pa.ArrowException:
            return None
        groups = [group for file in files for group in file.row_groups]
        average = sum(group.bytes for group in groups) // max(1, len(groups))
        if average < least:
            return _too_small("row groups", average, least)
        if options.compression is not None:
            codecs = {chunk.codec for group in groups for chunk in group.chunks}
            if codecs - {_CODECS.index(options.compression)}:
                return f"it copies row groups and can't compress them with {options.compression}; unset compression"
        return None


def _too_small(what: str, average: int, least: int) -> str:
    return (
        f"{what} average {format_bytes(average)}, so a copy would keep row groups too small "
        f"(needs {format_bytes(least)})"
    )


def _read_files(paths: Sequence[str]) -> list[RawParquetFile]:
    """Return the files among ``paths`` that can be read, in their order. Raises UnsupportedInput."""

    def read(path: str) -> RawParquetFile | None:
        try:
            return RawParquetFile.read(path)
        except (OSError, pa.ArrowException):
            return None

    with ThreadPoolExecutor(_FOOTERS_AT_ONCE, "footers") as pool:
        return [file for file in pool.map(read, paths) if file is not None]
