# SPDX-License-Identifier: Apache-2.0
"""The engine ``stitch``: the stripes of ORC files copied as bytes, one file after the other, under one new footer.

ORC's own library does this in Spark's driver (``OrcFile.mergeFiles``), as it does for Hive's CONCATENATE. No value is
decoded, so everything that depends on a writer stays: time zone and calendar of timestamps, nanoseconds, padding,
positional names, types that Spark does not know. Small stripes stay small, so this engine is the last choice.
"""

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from executors.datafiles.orc_tail import OrcTail, read_tail
from executors.engines.group_rewrite import reading_input
from lake.engines import NO_ADDITIONS, EngineOutput, RewriteTask
from lake.errors import CancelRequested, Conflict, Transient, one_line
from lake.plan import RewriteOptions, RewriteProgress, SkippedGroup
from lake.ports import SparkProvider
from lake.storage.filesystems import filesystem_of
from lake.storage.locations import hadoop_uri

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MOST_TAILS_AT_ONCE = 8


class OrcStitchEngine:
    """Rewrites groups of ORC files of one schema in the JVM of the session that ``spark`` gives; keeps row order."""

    name = "stitch"

    def __init__(self, spark: SparkProvider) -> None:
        self._spark = spark

    def unsupported_reason(self, task: RewriteTask, options: RewriteOptions) -> str | None:
        """See ``lake.engines.RewriteEngine``."""
        if task.additions is not None:
            return NO_ADDITIONS
        if options.sort_columns:
            return f"it copies stripes and can't sort by {', '.join(options.sort_columns)}; unset sort_columns"
        if options.compression is not None:
            return f"it copies stripes and can't compress them with {options.compression}; unset compression"
        if len(task.outputs) > len(task.inputs):
            return "it can't write more files than it reads"
        tails = read_tails(task.inputs)
        if len(tails) == len(task.inputs):
            return stitching_obstacle(tails)
        return "only ORC files have stripes that it can copy"

    def rewrite(
        self,
        tasks: Sequence[RewriteTask],
        options: RewriteOptions,
        report: Callable[[RewriteProgress], None],
        cancelled: threading.Event,
    ) -> Iterator[EngineOutput]:
        """See ``lake.engines.RewriteEngine``. Groups with inputs that can't be read are reported together."""
        spark = self._spark()
        left_out: list[SkippedGroup] = []
        total, done, rows = sum(task.bytes for task in tasks), 0, 0
        for task in tasks:
            try:
                written = [_stitch(spark, task, *one, cancelled) for one in _inputs_per_output(task)]
            except Conflict as error:
                left_out += error.args[1]
                continue
            done += task.bytes
            rows += sum(file.rows for file in written)
            report(RewriteProgress(bytes_done=done, bytes_total=total, rows_done=rows))
            yield from written
        if left_out:
            raise Conflict(left_out[0].reason, tuple(left_out))


def read_tails(paths: Sequence[str]) -> Mapping[str, OrcTail]:
    """Return the tails of the readable ORC files among ``paths``, in the order of ``paths``."""

    def read(path: str) -> OrcTail | None:
        filesystem, fs_path = filesystem_of(path)
        with suppress(OSError, pa.ArrowException), filesystem.open_input_file(fs_path) as file:
            return read_tail(file)
        return None

    with ThreadPoolExecutor(_MOST_TAILS_AT_ONCE, "tails") as pool:
        return {path: tail for path, tail in zip(paths, pool.map(read, paths), strict=True) if tail is not None}


def stitching_obstacle(tails: Mapping[str, OrcTail]) -> str | None:
    """Return the reason why stripes of these files can't be in one file. Returns None if they can."""
    (first, one), *others = tails.items()
    if one.is_encrypted:
        return f"{first} is encrypted"
    for path, other in others:
        if other.columns != one.columns:
            return f"{path} has another schema than {first}"
        if (other.encoding, other.writer) != (one.encoding, one.writer) or other.is_proleptic != one.is_proleptic:
            return f"{path} and {first} differ in compression, calendar, version or index of the format"
        if other.writer_zones != one.writer_zones and "" in other.writer_zones | one.writer_zones:
            return f"only one of {path} and {first} names the time zone of its timestamps"
        key = next((key for key, value in other.metadata.items() if one.metadata.get(key, value) != value), None)
        if key is not None:
            return f"{path} and {first} differ in metadata {key}"
    return None


def _inputs_per_output(task: RewriteTask) -> Iterator[tuple[Sequence[str], str]]:
    """Yield each output with its consecutive inputs; outputs are as equal in bytes as whole inputs allow."""
    sizes = []
    for path in task.inputs:
        filesystem, fs_path = filesystem_of(path)
        sizes.append(max(1, filesystem.get_file_info(fs_path).size or 1))
    total, outputs, at, before = sum(sizes), len(task.outputs), 0, 0
    for number, output in enumerate(task.outputs):
        most = len(task.inputs) - (outputs - number - 1)
        begun = at
        while at < most and (at == begun or (before + sizes[at] / 2) * outputs < (number + 1) * total):
            before += sizes[at]
            at += 1
        if number == outputs - 1:
            at = len(task.inputs)
        yield task.inputs[begun:at], output


def _stitch(
    spark: "SparkSession", task: RewriteTask, inputs: Sequence[str], output: str, cancelled: threading.Event
) -> EngineOutput:
    """Write one output. Raises Conflict with the skipped group if an input can't be read or has changed."""
    if cancelled.is_set():
        raise CancelRequested("cancelled during the rewrite")
    for path in inputs:
        filesystem, fs_path = filesystem_of(path)
        with reading_input(task, path), filesystem.open_input_file(fs_path) as file:
            tail = read_tail(file)
    filesystem, fs_path = filesystem_of(output)
    folder, _, name = fs_path.rpartition("/")
    # Each call has a path of its own, since an abandoned call may still be writing.
    hidden = f"{folder}/.{name}.{uuid.uuid4().hex}"
    location = output.removesuffix(fs_path) + hidden
    try:
        merged = _merge(spark, inputs, location, is_proleptic=tail.is_proleptic)
        if merged != len(inputs):
            changed = SkippedGroup(
                group=task.group, reason=f"{len(inputs) - merged} of its ORC files can't be stitched"
            )
            raise Conflict(changed.reason, (changed,))
        filesystem.move(hidden, fs_path)
        with filesystem.open_input_file(fs_path) as file:
            rows = read_tail(file).rows
        return EngineOutput(group=task.group, path=output, bytes=int(filesystem.get_file_info(fs_path).size), rows=rows)
    except Conflict:
        raise
    except Exception as error:
        raise Transient(f"ORC files of group {task.group} could not be stitched: {one_line(error)[:300]}") from error
    finally:
        with suppress(OSError):
            filesystem.delete_file(hidden)


def _merge(spark: "SparkSession", inputs: Sequence[str], output: str, *, is_proleptic: bool) -> int:
    """Merge ``inputs`` into the new file ``output``. Returns how many of them it contains."""
    context: Any = spark.sparkContext
    jvm = context._jvm
    path = jvm.org.apache.hadoop.fs.Path
    library = jvm.org.apache.orc.OrcFile
    options = library.writerOptions(context._jsc.hadoopConfiguration()).setProlepticGregorian(is_proleptic)
    return len(library.mergeFiles(path(hadoop_uri(output)), options, [path(hadoop_uri(one)) for one in inputs]))
