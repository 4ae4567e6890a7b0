# SPDX-License-Identifier: Apache-2.0
"""Rows of single row groups, decoded by pyarrow, among row groups that are copied."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import groupby

import pyarrow as pa

from executors.engines.group_rewrite import read_row_groups, reading_input
from executors.engines.inputs import CommonLayout, ParquetInput, adapt_inputs, common_layout
from executors.engines.stitch.parquet import SourceGroup
from executors.engines.stitch.raw_file import RawParquetFile
from lake.engines import RewriteTask


class RowDecoder:
    """Reads rows of a group's ``files``, and of temporary files with the same columns.

    ``check`` is called between batches and may raise to end the work.
    """

    def __init__(self, task: RewriteTask, files: Sequence[RawParquetFile], check: Callable[[], None]) -> None:
        self._task, self._files, self._check = task, files, check

    @cached_property
    def layout(self) -> CommonLayout:
        """The layout that all files have. Raises Conflict with the skipped group if a file can't be read."""
        inputs = [self._input(file) for file in self._files]
        with reading_input(self._task, self._task.inputs[0]):
            return common_layout(adapt_inputs(inputs, self._task.additions))

    def rows(self, groups: Sequence[SourceGroup], columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of ``groups``; see ``executors.engines.group_rewrite.read_row_groups``."""
        for _, part in groupby(groups, key=lambda one: one.file.path):
            of_file = list(part)
            numbers = [one.group.number for one in of_file]
            found = self._input(of_file[0].file)
            yield from read_row_groups(self._task, found, self.layout, numbers, self._check, columns)

    def _input(self, file: RawParquetFile) -> ParquetInput:
        # Not kept: pyarrow's metadata of thousands of files would take more memory than a row group.
        with reading_input(self._task, file.path):
            return ParquetInput.of_footer(file.path, file.filesystem, file.filesystem_path, file.size, file.footer)
