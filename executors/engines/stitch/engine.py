# SPDX-License-Identifier: Apache-2.0
"""The engines ``stitch`` and ``hybrid`` for Parquet files: row groups copied as bytes under one new footer."""

from collections.abc import Sequence

import pyarrow as pa

from executors.engines.backends import RewriteBackend
from executors.engines.inputs import UnsupportedInput, adapt_inputs, common_layout, map_files, read_footers
from executors.engines.stitch.compatibility import adapt_files, verify_compatible
from executors.engines.stitch.hybrid import (
    Run,
    divide_runs,
    estimated_sizes,
    hybrid_task,
    verify_mergeable,
)
from executors.engines.stitch.parquet import SourceGroup, divide_sizes, plan_outputs, source_groups, stitch_task
from executors.engines.stitch.raw_file import RawParquetFile
from executors.engines.task_engine import TaskEngine
from lake.engines import NO_ADDITIONS, RewriteTask
from lake.plan import AUTO, RewriteOptions
from lake.units import format_bytes

_CODECS = ("uncompressed", "snappy", "gzip", "lzo", "brotli", "lz4", "zstd", "lz4_raw")


class ParquetStitchEngine(TaskEngine):
    """Rewrites groups of Parquet files with one schema and equal metadata, and keeps the order of rows.

    ``backend`` runs the work. If the engine is chosen automatically, it refuses a group whose row groups average less
    than ``min_row_group``, or with two consecutive row groups that are smaller.
    """

    name = "stitch"

    def __init__(self, backend: RewriteBackend) -> None:
        super().__init__(backend, stitch_task, _stitch_obstacle)

    def obstacle_by_size(self, task: RewriteTask, options: RewriteOptions) -> str | None:
        """See ``TaskEngine``."""
        if task.additions is not None:
            return NO_ADDITIONS
        if options.sort_columns:
            return _cant_sort(options)
        average, least = task.bytes // len(task.inputs), _min_row_group_bytes(options)
        return _describe_small_row_groups("files", average, least) if average < least else None


class HybridEngine(TaskEngine):
    """Rewrites groups as ``stitch`` does, but merges consecutive row groups of less than ``min_row_group``.

    If the engine is chosen automatically, it refuses a group of which it could copy less than half of the bytes:
    ``arrow`` rewrites such a group as fast. It also refuses a group without row groups to merge, which ``stitch``
    copies. It accepts such a group if the table's format adds data to its files, since ``stitch`` then refuses it.
    """

    name = "hybrid"

    def __init__(self, backend: RewriteBackend) -> None:
        super().__init__(backend, hybrid_task, _hybrid_obstacle)

    def obstacle_by_size(self, task: RewriteTask, options: RewriteOptions) -> str | None:
        """See ``TaskEngine``."""
        if options.sort_columns:
            return _cant_sort(options)
        if options.engine == AUTO and task.additions is None and task.bytes < options.min_row_group_bytes:
            # No row group can be large enough, and reading the footers of many tiny groups would take long.
            return _describe_small_share(0, task.bytes, options.min_row_group_bytes)
        return None


def _min_row_group_bytes(options: RewriteOptions) -> int:
    return options.min_row_group_bytes if options.engine == AUTO else 0


def _stitch_obstacle(options: RewriteOptions, task: RewriteTask) -> str | None:
    least = _min_row_group_bytes(options)
    try:
        groups = source_groups(_compatible_files(task))
        plan_outputs(groups, len(task.outputs), options.target_file_max_bytes)
    except UnsupportedInput as error:
        return str(error)
    except pa.ArrowException:
        return None
    average = sum(one.group.bytes for one in groups) // max(1, len(groups))
    if average < least:
        return _describe_small_row_groups("row groups", average, least)
    small = sum(len(run.groups) for run in divide_runs(groups, least) if run.is_merged)
    if small:
        return f"{small} row groups have less than {format_bytes(least)} (min_row_group) and can be merged"
    return _codec_obstacle(groups, options)


def _hybrid_obstacle(options: RewriteOptions, task: RewriteTask) -> str | None:
    try:
        files = _compatible_files(task)
        runs = divide_runs(source_groups(files), options.min_row_group_bytes)
        divide_sizes(estimated_sizes(runs, len(task.outputs)), len(task.outputs), options.target_file_max_bytes)
        copied = [one for run in runs if not run.is_merged for one in run.groups]
        if options.engine == AUTO and (reason := _copy_saves_little_reason(task, runs, options.min_row_group_bytes)):
            return reason
        if files and (inputs := adapt_inputs(read_footers(task.inputs), task.additions)):
            verify_mergeable(common_layout(inputs), files[0], task.additions)
    except UnsupportedInput as error:
        return str(error)
    except (OSError, pa.ArrowException):
        return None
    return _codec_obstacle(copied, options)


def _cant_sort(options: RewriteOptions) -> str:
    return f"it copies row groups and can't sort by {', '.join(options.sort_columns)}; unset sort_columns"


def _copy_saves_little_reason(task: RewriteTask, runs: Sequence[Run], min_bytes: int) -> str | None:
    total, large = sum(run.bytes for run in runs), sum(run.bytes for run in runs if not run.is_merged)
    if 2 * large < total:
        return _describe_small_share(large, total, min_bytes)
    if task.additions is not None or any(run.is_merged for run in runs):
        return None
    return f"no row groups of less than {format_bytes(min_bytes)} (min_row_group) follow another"


def _describe_small_share(large: int, total: int, min_bytes: int) -> str:
    return (
        f"{format_bytes(large)} of {format_bytes(total)} are in row groups of {format_bytes(min_bytes)} "
        "(min_row_group) or more, so a copy would save little"
    )


def _compatible_files(task: RewriteTask) -> Sequence[RawParquetFile]:
    """Return the inputs that can be read. Raises UnsupportedInput if they can't be one file."""
    files = adapt_files(_read_files(task.inputs), task.additions)
    if files:
        verify_compatible(files)
    return files


def _codec_obstacle(copied: Sequence[SourceGroup], options: RewriteOptions) -> str | None:
    if options.compression is not None:
        codecs = {chunk.codec for one in copied for chunk in one.group.chunks}
        if codecs - {_CODECS.index(options.compression)}:
            return f"it copies row groups and can't compress them with {options.compression}; unset compression"
    return None


def _describe_small_row_groups(row_groups: str, average_bytes: int, min_bytes: int) -> str:
    return (
        f"{row_groups} average {format_bytes(average_bytes)}, so a copy would keep row groups too small "
        f"(needs {format_bytes(min_bytes)}, min_row_group)"
    )


def _read_files(paths: Sequence[str]) -> list[RawParquetFile]:
    """Return the files among ``paths`` that can be read, in their order. Raises UnsupportedInput."""

    def read(path: str) -> RawParquetFile | None:
        try:
            return RawParquetFile.read(path)
        except (OSError, pa.ArrowException):
            return None

    return [file for file in map_files(read, paths) if file is not None]
