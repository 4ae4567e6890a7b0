# SPDX-License-Identifier: Apache-2.0
"""Copies the large row groups of a group's files, and merges consecutive small ones.

pyarrow writes each run of small row groups to a temporary file, under the footer of the inputs. Its row groups are then
copied like row groups of an input. So one output holds copied and merged row groups, in the order of the rows.
If the table's format adds columns to its files, these are replaced in all row groups.
"""

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path

import pyarrow as pa

from executors.engines.group_rewrite import attempt_path, reading_input, skipping_changed, write_rows, writing_output
from executors.engines.inputs import CommonLayout, UnsupportedInput
from executors.engines.outputs import ParquetWriteSettings
from executors.engines.stitch.additions import add_to_file, verify_replaceable
from executors.engines.stitch.compatibility import adapt_files, footer_difference, verify_compatible
from executors.engines.stitch.decoding import RowDecoder
from executors.engines.stitch.parquet import SourceGroup, plan_outputs, read_inputs, source_groups, write_output
from executors.engines.stitch.raw_file import RawParquetFile
from executors.engines.temporary_directory import temporary_directory
from lake.engines import EngineOutput, FileAdditions, RewriteTask
from lake.plan import MIN_ROW_GROUP_BYTES, RewriteOptions
from lake.storage.filesystems import filesystem_of

#: number of row groups of a file, which readers can read in parallel; fewer if the row groups would be small
_ROW_GROUPS = 10


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive row groups, to be merged or to be copied."""

    groups: Sequence[SourceGroup]
    is_merged: bool

    @property
    def bytes(self) -> int:
        """The size of its column chunks and Bloom filters."""
        return sum(one.group.bytes for one in self.groups)

    @property
    def rows(self) -> int:
        """The number of its rows."""
        return sum(one.group.rows for one in self.groups)


def divide_runs(groups: Sequence[SourceGroup], min_bytes: int) -> list[Run]:
    """Return ``groups`` in their order as runs.

    A run of two or more row groups, each smaller than ``min_bytes``, is merged.
    """
    found = []
    for is_small, part in groupby(groups, key=lambda one: one.group.bytes < min_bytes):
        run = list(part)
        found.append(Run(run, is_small and len(run) > 1))
    return found


def merged_row_group_rows(run: Run, outputs: int, total_bytes: int) -> int:
    """Return the rows of each row group into which ``run`` is merged.

    Readers read about ten row groups of a file in parallel, and a row group is in memory until it is complete. No row
    group is larger than one of ``outputs`` should be, if these have ``total_bytes`` together.
    """
    files = max(1, -(-run.bytes * outputs // max(1, total_bytes)))
    count = max(files, min(files * _ROW_GROUPS, run.bytes // MIN_ROW_GROUP_BYTES))
    return -(-run.rows // count)


def estimated_sizes(runs: Sequence[Run], outputs: int) -> list[int]:
    """Return the bytes of the outputs' row groups, on the assumption that a merge saves no bytes."""
    total, sizes = sum(run.bytes for run in runs), list[int]()
    for run in runs:
        if run.is_merged:
            count = -(-run.rows // merged_row_group_rows(run, outputs, total))
            sizes += [run.bytes // count] * count
        else:
            sizes += [one.group.bytes for one in run.groups]
    return sizes


def verify_mergeable(layout: CommonLayout, first: RawParquetFile, additions: FileAdditions | None) -> None:
    """Raise UnsupportedInput if merged row groups, or replaced columns, can't be under the footer of ``first``.

    ``layout`` is that of all files. Raises ``pa.ArrowInvalid`` if a footer is broken, Transient if the local disk can't
    be written.
    """
    settings = ParquetWriteSettings(layout, None, 1)
    if additions is not None:
        verify_replaceable(layout, additions)
    with temporary_directory("lakefold-footer-") as folder:
        path = str(folder / "merged.parquet")
        write_rows(path, settings, iter(()), 1)
        with writing_output(path):
            written = RawParquetFile.read(path)
    if (difference := footer_difference(written, first)) is not None:
        raise UnsupportedInput(f"row groups that pyarrow writes and those of {first.path} {difference}")


def hybrid_task(task: RewriteTask, options: RewriteOptions, check: Callable[[], None]) -> list[EngineOutput]:
    """Write the outputs of a group; see ``stitch_task``. Raises Rejected if a value can't be written."""
    with skipping_changed(task), ExitStack() as temporary:
        found = read_inputs(task, options.min_row_group_bytes)
        with reading_input(task, task.inputs[0]):
            files = adapt_files(found, task.additions)
            verify_compatible(files)
        runs = divide_runs(source_groups(files), options.min_row_group_bytes)
        decoder, folder = RowDecoder(task, files, check), _TemporaryFiles(task, temporary)
        if task.additions is not None:
            with reading_input(task, task.inputs[0]):
                verify_mergeable(decoder.layout, files[0], task.additions)
        merging = _RowGroupMerger(task, files[0], sum(run.bytes for run in runs), options, decoder, folder)
        groups = [one for run in runs for one in merging.merged(run)]
        # The engine was chosen by the sizes before the merge.
        parts = plan_outputs(groups, len(task.outputs), max(options.target_file_max_bytes, task.bytes))
        if task.additions is None:
            planned = zip(parts, task.outputs, strict=True)
            return [write_output(task, files[0], part, path, check) for part, path in planned]
        outputs = []
        for part, path in zip(parts, task.outputs, strict=True):
            if part:
                added = add_to_file(task.additions, path, part, decoder, options.compression, folder.path)
                outputs.append(write_output(task, files[0], part, path, check, added))
        return outputs


class _TemporaryFiles:
    """The temporary files of one task, which last as long as ``temporary``.

    They are beside the outputs, where the files of a failed attempt are found and removed. A format with additions
    finds only the files that it announces, so its tasks have a local directory.
    """

    def __init__(self, task: RewriteTask, temporary: ExitStack) -> None:
        self._task, self._temporary = task, temporary

    @cached_property
    def path(self) -> str:
        """A local directory. Raises Transient if it can't be created."""
        return str(self._temporary.enter_context(temporary_directory("lakefold-hybrid-")))

    def new_file(self) -> str:
        """Return the path of a new file."""
        if self._task.additions is not None:
            return str(Path(self.path) / uuid.uuid4().hex)
        path = attempt_path(self._task.outputs[0])
        self._temporary.callback(_remove, path)
        return path


class _RowGroupMerger:
    """Merges runs of small row groups of a group's files, under the footer of ``first``."""

    def __init__(
        self,
        task: RewriteTask,
        first: RawParquetFile,
        total_bytes: int,
        options: RewriteOptions,
        decoder: RowDecoder,
        folder: _TemporaryFiles,
    ) -> None:
        self._task, self._first, self._total_bytes, self._options = task, first, total_bytes, options
        self._decoder, self._folder = decoder, folder

    def merged(self, run: Run) -> Sequence[SourceGroup]:
        """Return the row groups that replace ``run`` in the outputs."""
        if not run.is_merged:
            return [_with_positions(one) for one in run.groups]
        most_rows = merged_row_group_rows(run, len(self._task.outputs), self._total_bytes)
        settings = ParquetWriteSettings(self._decoder.layout, self._options.compression, most_rows)
        path = self._folder.new_file()
        written = write_rows(path, settings, _cut(self._decoder.rows(run.groups), most_rows), most_rows)
        merged = RawParquetFile.read(path)
        if written.rows != run.rows:
            raise pa.ArrowInvalid(f"{written.rows} of {run.rows} rows were merged")
        verify_compatible([self._first, merged])
        return source_groups([merged])


def _with_positions(row_group: SourceGroup) -> SourceGroup:
    """Return a row group that can be copied."""
    if row_group.group.chunks:
        return row_group
    file = row_group.file.with_positions()
    return SourceGroup(file, next(group for group in file.row_groups if group.number == row_group.group.number))


def _cut(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows in batches that end at each multiple of ``rows``, so that row groups end there as well."""
    left = rows
    for batch in batches:
        rest = batch
        while rest.num_rows > left:
            yield rest.slice(0, left)
            rest, left = rest.slice(left), rows
        yield rest
        left = left - rest.num_rows or rows


def _remove(path: str) -> None:
    filesystem, fs_path = filesystem_of(path)
    with suppress(OSError):
        filesystem.delete_file(fs_path)
