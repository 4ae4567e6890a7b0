# SPDX-License-Identifier: Apache-2.0
"""A trivial engine, which reads Parquet files and writes their rows into one file."""

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from io import BytesIO
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
from hdfs_paths import AnyPath, place

from executors.engines.stitch.engine import ParquetStitchEngine
from lake.engines import EngineOutput, RewriteTask
from lake.errors import Conflict
from lake.plan import RewriteOptions, RewriteProgress, SkippedGroup
from toys.files import read


class CopyRows:
    """Rewrites all groups except those with one of the paths in ``refuses``."""

    read = staticmethod(read)
    write = staticmethod(pq.write_table)

    def __init__(self, name: str = "arrow", refuses: Collection[str] = ()) -> None:
        self.name, self.refuses = name, refuses

    def unsupported_reason(self, task: RewriteTask, options: RewriteOptions) -> str | None:
        if options.sort_columns:
            return f"it can't sort by {', '.join(options.sort_columns)}"
        return next((f"{path} is not for it" for path in task.inputs if path.endswith(tuple(self.refuses))), None)

    def rewrite(
        self,
        tasks: Sequence[RewriteTask],
        options: RewriteOptions,
        report: Callable[[RewriteProgress], None],
        cancelled: threading.Event,
    ) -> Iterator[EngineOutput]:
        for task in tasks:
            rows = pa.concat_tables([self._read(task, path) for path in task.inputs])
            for path, part in zip(task.outputs, divided(rows, len(task.outputs)), strict=True):
                self.put(part, place(path))
                size = place(path).stat().st_size
                yield EngineOutput(group=task.group, path=path, bytes=size, rows=part.num_rows)

    def rows_of(self, path: AnyPath) -> pa.Table:
        """The rows of a file."""
        return self.read(BytesIO(path.read_bytes()))

    def put(self, rows: pa.Table, path: AnyPath) -> None:
        """Write a file."""
        sink = BytesIO()
        self.write(rows, sink)
        path.write_bytes(sink.getvalue())

    def _read(self, task: RewriteTask, path: str) -> pa.Table:
        try:
            return self.rows_of(place(path))
        except (pa.ArrowException, OSError) as error:
            bad = SkippedGroup(group=task.group, reason=f"{path}: {error}", quarantine=(path,))
            raise Conflict(f"{path} can't be read", (bad,)) from error


def divided(rows: pa.Table, parts: int) -> list[pa.Table]:
    """Return ``rows`` in parts of about equal size."""
    ends = [rows.num_rows * number // parts for number in range(parts + 1)]
    return [rows.slice(start, end - start) for start, end in pairwise(ends)]


class StitchAny(ParquetStitchEngine):
    """The engine ``stitch`` without a minimum row group, for the small tables of tests."""

    def unsupported_reason(self, task: RewriteTask, options: RewriteOptions) -> str | None:
        return super().unsupported_reason(task, replace(options, min_row_group_bytes=0))

    def unsupported_reasons(self, tasks: Sequence[RewriteTask], options: RewriteOptions) -> Sequence[str | None]:
        return super().unsupported_reasons(tasks, replace(options, min_row_group_bytes=0))
