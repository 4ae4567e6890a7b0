# SPDX-License-Identifier: Apache-2.0
"""The engine ``spark``: Spark SQL reads files by the table's schema and writes new files, one job for each group.

It rewrites groups that pyarrow can't concatenate: files of different schemas, and ORC. Without the table's whole schema
Spark would silently hide a column that only later files have, so a group without a schema is refused. Columns are read
by name, so a group is refused if one name has more than one field id. Metadata for which Spark has no settings does not
survive: key-value metadata other than Spark's own, and the names and field ids of the parts of lists and maps.
"""

import json
import re
import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
from pyarrow import fs as pafs

from executors.datafiles import open_data_file
from executors.datafiles.orc_tail import read_tail, zone_rules
from executors.datafiles.parquet import footer_statistics, schema_statistics
from executors.engines.group_rewrite import reading_input
from executors.engines.inputs import NotParquet, ParquetInput, UnsupportedInput, read_footers
from executors.engines.spark_columns import find_unsupported_column, instant_unit
from executors.engines.spark_conversions import find_calendar_rebase, find_conversion, find_orc_conversion
from executors.engines.spark_floats import (
    copy_without_dictionary_claims,
    float_column_paths,
    zero_columns_with_dictionary,
    zero_columns_without_dictionary,
)
from executors.engines.spark_schema import (
    find_field_id_conflict,
    find_missing_column,
    has_field_ids,
    has_required_fields,
    is_positional,
    schema_of_files,
)
from executors.engines.stitch.orc import read_tails
from lake.engines import NO_ADDITIONS, EngineOutput, RewriteTask
from lake.errors import CancelRequested, Conflict, LakefoldError, Rejected, Transient, one_line
from lake.plan import RewriteOptions, RewriteProgress, SkippedGroup
from lake.ports import SparkProvider
from lake.spark_jobs import JobCanceller, cancel_jobs, cpu_seconds
from lake.storage.filesystems import filesystem_of
from lake.storage.locations import hadoop_uri

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: the number of groups that are rewritten at once, because the planning and the commit of one job leave cores idle
_MAX_CONCURRENT_GROUPS = 4
_SETTINGS = {
    # Each file is one partition, so that rows keep their order.
    "spark.sql.files.maxPartitionBytes": str(1 << 60),
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.fieldId.write.enabled": "true",
    # Spark would pad values of a column of type ``char`` that other writers have stored without blanks at the end.
    "spark.sql.legacy.charVarcharAsString": "true",
}
_READ_OPTIONS = {
    "recursiveFileLookup": "true",
    "parquet.page.verify-checksum.enabled": "true",
    # A name with brackets is not a pattern, which would match other files.
    "__globPaths__": "false",
}
_MICROSECONDS = "TIMESTAMP_MICROS"
#: the values of ``compression`` for which Spark has no codec
_UNWRITTEN_CODECS = frozenset({"brotli"})
#: the names of codecs in Spark's writers that differ from those of ``compression``
_CODEC_NAMES = {("orc", "gzip"): "zlib", ("parquet", "lz4"): "lz4_raw"}
_UNREAD_FILE = re.compile(r"(?:Encountered error while reading file|cannot be converted in file) (\S+?)\.(?:\s|$)")
#: the exceptions of readers that find other content than a file's footer announces; they do not pass with time
_DECODING_ERRORS = re.compile(
    r"Caused by: (?:java\.io\.EOFException|java\.lang\.UnsupportedOperationException"
    r"|org\.apache\.parquet\.io\.ParquetDecodingException"
    r"|org\.apache\.spark\.sql\.execution\.datasources\.SchemaColumnConvertNotSupportedException).*"
)
#: frames in stack traces of failed connections, whose errors pass with time; Java puts the module's name before a class
_CONNECTION_FRAMES = re.compile(
    r"^\s+at (?:[\w.@-]*/+)*(?:java\.net\.(?!URLClassLoader)|javax\.net\.|sun\.security\.ssl\."
    r"|org\.apache\.hadoop\.(?:hdfs|hdds|ozone|ipc|net|fs\.(?!impl\.)[a-z]\w*)\."
    r"|com\.amazonaws\.|software\.amazon\.|com\.google\.cloud\.|com\.azure\.|com\.microsoft\.azure\."
    r"|com\.aliyun\.|com\.qcloud\.|org\.apache\.http\.|okhttp3\.)",
    re.MULTILINE,
)


class SparkEngine:
    """Rewrites groups of Parquet or ORC files with the session that ``spark`` returns. Keeps the order of rows."""

    name = "spark"

    def __init__(self, spark: SparkProvider) -> None:
        self._spark = spark

    def unsupported_reason(self, task: RewriteTask, options: RewriteOptions) -> str | None:
        """See ``lake.engines.RewriteEngine``."""
        if task.additions is not None:
            return NO_ADDITIONS
        if task.schema is None:
            return "it would hide columns that some files lack, since the table's schema is not known"
        if options.sort_columns:
            return f"it does not sort by {', '.join(options.sort_columns)} yet; unset sort_columns"
        if options.compression in _UNWRITTEN_CODECS:
            return f"Spark does not write {options.compression} without further libraries; set another compression"
        try:
            found = read_footers(task.inputs)
            columns = [(one.path, one.metadata.schema.to_arrow_schema()) for one in found]
            changed = next(filter(None, map(find_unsupported_column, found)), None)
            changed = changed or _missing_column(task.schema, columns) or find_field_id_conflict(task.schema, columns)
            leaves = ((one.path, footer_statistics([one.metadata]).leaves) for one in found)
            changed = changed or next(filter(None, (find_conversion(task.schema, *one) for one in leaves)), None)
            return changed or next(filter(None, map(find_calendar_rebase, found)), None)
        except NotParquet:
            return self._orc_unsupported_reason(task, task.schema)
        except UnsupportedInput as error:
            return str(error)
        except (OSError, pa.ArrowException):
            return None  # the rewrite reports files that can't be read

    def _orc_unsupported_reason(self, task: RewriteTask, schema: str) -> str | None:
        if has_field_ids(schema):
            return "Spark writes no field ids into ORC files, and the table's readers use them"
        columns = list(_orc_schemas(task.inputs))
        if (positional := next((path for path, one in columns if is_positional(one)), None)) is not None:
            return f"{positional} names its columns by position (_col0 and so on), and Spark would rename them"
        if (changed := _missing_column(schema, columns) or find_field_id_conflict(schema, columns)) is not None:
            return changed
        for path, one in columns:
            if (changed := find_conversion(schema, path, schema_statistics(one).leaves, in_orc=True)) is not None:
                return changed
        tails = read_tails(task.inputs)
        return next(
            filter(None, (find_orc_conversion(path, tail, self._jvm_zone) for path, tail in tails.items())), None
        )

    def _jvm_zone(self) -> str:
        """Return the time zone of the session's JVM."""
        jvm: Any = self._spark().sparkContext._jvm
        return str(jvm.java.util.TimeZone.getDefault().getID())

    def rewrite(
        self,
        tasks: Sequence[RewriteTask],
        options: RewriteOptions,
        report: Callable[[RewriteProgress], None],
        cancelled: threading.Event,
    ) -> Iterator[EngineOutput]:
        """See ``lake.engines.RewriteEngine``. Groups with inputs that can't be read are reported together."""
        spark = self._spark().newSession()
        tag = f"lakefold-spark-{uuid.uuid4().hex}"
        left_out: list[SkippedGroup] = []
        total, done, rows = sum(task.bytes for task in tasks), 0, 0
        with ThreadPoolExecutor(_MAX_CONCURRENT_GROUPS, tag) as pool, JobCanceller(spark.sparkContext, tag, cancelled):
            futures = {pool.submit(_rewrite_group, spark, task, options, tag, cancelled): task for task in tasks}
            try:
                for future in as_completed(futures):
                    try:
                        written = future.result()
                    except Conflict as error:
                        left_out += error.args[1]
                        continue
                    done += futures[future].bytes
                    rows += sum(file.rows for file in written)
                    ui = spark.sparkContext.uiWebUrl
                    report(RewriteProgress(bytes_done=done, bytes_total=total, rows_done=rows, spark_ui=ui))
                    yield from written
            finally:
                for future in futures:
                    future.cancel()
                cancel_jobs(spark.sparkContext, tag)
        cpu = cpu_seconds(spark.sparkContext, tag)
        ui = spark.sparkContext.uiWebUrl
        report(RewriteProgress(bytes_done=done, bytes_total=total, rows_done=rows, spark_ui=ui, cpu_seconds=cpu))
        if left_out:
            raise Conflict(left_out[0].reason, tuple(left_out))


def _missing_column(schema: str, columns: Iterable[tuple[str, pa.Schema]]) -> str | None:
    """Return a phrase about the first column of some files that the table's schema lacks, or None."""
    lacking = ((path, find_missing_column(schema, one)) for path, one in columns)
    return next(
        (
            f"{path} has a column {column}, which is not in the table's schema, and Spark would not write it"
            for path, column in lacking
            if column is not None
        ),
        None,
    )


def _orc_schemas(paths: Sequence[str]) -> Iterator[tuple[str, pa.Schema]]:
    """Yield path and columns of the ORC files that can be read."""
    for path in paths:
        filesystem, fs_path = filesystem_of(path)
        with suppress(OSError, pa.ArrowException), filesystem.open_input_file(fs_path) as file:
            yield path, orc.ORCFile(file).schema


def _rewrite_group(
    spark: "SparkSession", task: RewriteTask, options: RewriteOptions, tag: str, cancelled: threading.Event
) -> list[EngineOutput]:
    """Return the outputs of a group. Raises Conflict with the skipped group if an input can't be read."""
    if cancelled.is_set():
        raise CancelRequested("cancelled during the rewrite")
    seen = [_read_properties(task, path) for path in task.inputs]
    filesystem, fs_path = filesystem_of(task.outputs[0])
    folder, _, name = fs_path.rpartition("/")
    scratch = f"{folder}/.{name}.{uuid.uuid4().hex}"
    location = task.outputs[0].removesuffix(fs_path) + scratch
    try:
        spark.sparkContext.addJobTag(tag)
        plain = _columns_without_dictionary(task, seen)
        _write(spark, task, seen, options, location, plain)
        return _in_place(filesystem, scratch, task, sum(one.rows for one in seen), {one.zone for one in seen}, plain)
    except LakefoldError:
        raise
    except Exception as error:
        if cancelled.is_set():
            raise CancelRequested("cancelled during the rewrite") from error
        _raise_for_unreadable(task)
        _raise_for_undecodable(task, str(error))
        raise Transient(f"Spark could not rewrite group {task.group}: {one_line(error)[:300]}") from error
    finally:
        with suppress(Exception):
            spark.sparkContext.removeJobTag(tag)
        with suppress(OSError):
            filesystem.delete_dir(scratch)


@dataclass(frozen=True, slots=True)
class _InputProperties:
    """The properties of an input from which the writer's settings follow."""

    kind: str
    rows: int
    codec: str
    columns: pa.Schema
    #: whether Spark writes its old layout of lists and decimals
    is_legacy: bool = False
    #: how instants are stored, as a value of ``spark.sql.parquet.outputTimestampType``; None if there are none
    instants: str | None = None
    #: the rules of the time zone of its timestamps, if it is an ORC file with timestamps
    zone: bytes | str | None = None
    #: see ``zero_columns_without_dictionary``
    zeros: frozenset[str] = frozenset()


def _read_properties(task: RewriteTask, path: str) -> _InputProperties:
    with reading_input(task, path):
        try:
            metadata = ParquetInput.read(path).metadata
        except NotParquet:
            return _read_orc_properties(path)
        except UnsupportedInput as error:
            raise Rejected(str(error)) from error
        chunks = [
            metadata.row_group(0).column(n) for n in range(metadata.num_columns if metadata.num_row_groups else 0)
        ]
        columns = [metadata.schema.column(index) for index in range(len(metadata.schema))]
        return _InputProperties(
            "parquet",
            metadata.num_rows,
            chunks[0].compression.lower() if chunks else "snappy",
            metadata.schema.to_arrow_schema(),
            is_legacy=any(map(_is_legacy, columns)),
            instants=next(filter(None, map(instant_unit, columns)), None),
            zeros=frozenset(zero_columns_without_dictionary(metadata)),
        )


def _read_orc_properties(path: str) -> _InputProperties:
    filesystem, fs_path = filesystem_of(path)
    with filesystem.open_input_file(fs_path) as file:
        footer = orc.ORCFile(file)
        return _InputProperties("orc", footer.nrows, footer.compression.lower(), footer.schema, zone=_zone_of(file))


def _zone_of(file: pa.NativeFile) -> bytes | str | None:
    return next((zone_rules(zone) for zone in read_tail(file).writer_zones), None)


def _is_legacy(column: pq.ColumnSchema) -> bool:
    """True if a column has Spark's old layout of lists or decimals."""
    return ".bag.array" in column.path or (
        column.logical_type.type == "DECIMAL" and column.physical_type.startswith("FIXED") and column.precision <= 18
    )


def _settings(seen: Sequence[_InputProperties]) -> Mapping[str, str]:
    """Return the settings by which Spark writes timestamps, lists and decimals as they are in the inputs.

    They are those of the first input, or microseconds if milliseconds would lose digits of another input.
    """
    units = [one.instants for one in seen if one.instants is not None]
    unit = units[0] if units else _MICROSECONDS
    if unit == "TIMESTAMP_MILLIS" and set(units) != {unit}:
        unit = _MICROSECONDS
    return {
        "spark.sql.parquet.outputTimestampType": unit,
        "spark.sql.parquet.writeLegacyFormat": str(seen[0].is_legacy).lower(),
    }


def _columns_without_dictionary(task: RewriteTask, seen: Sequence[_InputProperties]) -> list[str]:
    """Return the columns that Spark must write without a dictionary: see ``spark_floats``."""
    zeros = frozenset().union(*(one.zeros for one in seen))
    return [path for path in float_column_paths(str(task.schema)) if path.lower() in zeros]


def _write(
    spark: "SparkSession",
    task: RewriteTask,
    seen: Sequence[_InputProperties],
    options: RewriteOptions,
    location: str,
    plain: Collection[str],
) -> None:
    """Write the rows of a group into files below ``location``, as many as the group has outputs.

    A setting prevents dictionaries of the columns ``plain``. A concurrent write may undo it; ``_in_place`` corrects it.
    """
    first = seen[0]
    own = spark.newSession()  # a session for this group alone, since groups have different settings
    for key, value in (_SETTINGS | dict(_settings(seen))).items():
        own.conf.set(key, value)
    schema = schema_of_files(str(task.schema), [one.columns for one in seen])
    # Directories in a file's path must not become columns. A page that differs from its checksum must not be copied.
    reader = own.read.schema(_struct(schema)).options(**_READ_OPTIONS)
    rows = _union(
        [reader.format(one.kind).load(hadoop_uri(path)) for one, path in zip(seen, task.inputs, strict=True)]
    ).coalesce(1)
    if first.kind == "parquet" and has_required_fields(schema):
        rows = _with_required_fields(own, rows, schema)
    codec = options.compression or first.codec
    written = {"compression": _CODEC_NAMES.get((first.kind, codec), codec)}
    written |= {f"parquet.enable.dictionary#{path}": "false" for path in plain}
    count = sum(one.rows for one in seen)
    most = _rows_per_file(count, task)
    rows.write.format(first.kind).options(**written, maxRecordsPerFile=most).save(hadoop_uri(location))
    for number in range(max(1, -(-count // most)), len(task.outputs)):
        rows.where("false").write.format(first.kind).options(**written).save(
            hadoop_uri(f"{location}/without_rows_{number}")
        )


def _rows_per_file(rows: int, task: RewriteTask) -> int:
    return max(1, -(-rows // len(task.outputs)))


def _struct(text: str) -> Any:
    from pyspark.sql.types import StructType

    return StructType.fromJson(json.loads(text))


def _with_required_fields(spark: "SparkSession", rows: "DataFrame", schema: str) -> "DataFrame":
    """Return ``rows`` with ``schema``, whose required fields Spark reads as optional from any file.

    PySpark's ``createDataFrame`` would convert each row to Python; this method of Spark's does not convert rows.
    """
    from pyspark.sql import DataFrame

    java: Any = spark._jsparkSession
    kind = java.parseDataType(schema)
    return DataFrame(java.internalCreateDataFrame(rows._jdf.queryExecution().toRdd(), kind, False), spark)


def _union(frames: "Sequence[DataFrame]") -> "DataFrame":
    """Return the rows of all frames in their order; a balanced tree keeps the query plan shallow."""
    if len(frames) == 1:
        return frames[0]
    half = len(frames) // 2
    return _union(frames[:half]).union(_union(frames[half:]))


def _in_place(
    filesystem: pafs.FileSystem,
    scratch: str,
    task: RewriteTask,
    rows: int,
    zones: Collection[bytes | str | None],
    plain: Collection[str],
) -> list[EngineOutput]:
    """Move the files that Spark wrote to the paths of the outputs, in the order of their rows.

    A file in which Spark gave one of the columns ``plain`` a dictionary is copied with another footer. Raises Rejected
    if ORC timestamps are not in one of the ``zones`` of the inputs.
    """
    found = sorted(
        (
            info
            for info in filesystem.get_file_info(pafs.FileSelector(scratch, recursive=True))
            if info.base_name.startswith("part-")
        ),
        key=lambda info: str(info.path),
    )
    if len(found) != len(task.outputs):
        raise Transient(f"Spark wrote {len(found)} files of group {task.group} instead of {len(task.outputs)}")
    most, left = _rows_per_file(rows, task), rows
    written = []
    for info, path in zip(found, task.outputs, strict=True):
        if info.base_name.endswith(".orc"):
            with filesystem.open_input_file(info.path) as file:
                written_in = read_tail(file).writer_zones
            if any(zone_rules(zone) not in zones for zone in written_in):
                raise Rejected(
                    f"group {task.group}: a Spark executor wrote ORC timestamps in the time zone "
                    f"{' and '.join(sorted(written_in))}, which is not that of the driver; set the same "
                    "-Duser.timezone in spark.driver.extraJavaOptions and spark.executor.extraJavaOptions of [spark]"
                )
        size = _move_output(filesystem, info, filesystem_of(path)[1], plain)
        written.append(EngineOutput(group=task.group, path=path, bytes=size, rows=min(most, left)))
        left -= min(most, left)
    return written


def _move_output(filesystem: pafs.FileSystem, info: pafs.FileInfo, target: str, plain: Collection[str]) -> int:
    """Move a file that Spark wrote to ``target``; returns its size there."""
    if plain:
        with filesystem.open_input_file(info.path) as file:
            columns = zero_columns_with_dictionary(pq.read_metadata(file), {path.lower() for path in plain})
        if columns:
            return copy_without_dictionary_claims(filesystem, info.path, target, columns)
    filesystem.move(info.path, target)
    return int(info.size)


def _raise_for_undecodable(task: RewriteTask, error: str) -> None:
    """Raise Conflict with the skipped group if Spark's ``error`` shows that it can't decode an input."""
    if (named := _UNREAD_FILE.search(error)) is None or _CONNECTION_FRAMES.search(error, named.end()):
        return
    path, cause = _find_input(task, named[1]), _DECODING_ERRORS.search(error, named.end())
    if path is None or cause is None:
        return
    reason = f"Spark can't read {path}: {cause[0].removeprefix('Caused by: ')[:300]}"
    raise Conflict(reason, (SkippedGroup(group=task.group, reason=reason, quarantine=(path,)),))


def _find_input(task: RewriteTask, named: str) -> str | None:
    """Return the input that Spark's error names; None unless exactly one input matches.

    Some errors name the path percent-encoded. Spark may use another scheme than the input's path.
    """
    names = {_path_within_storage(one) for one in (named, unquote(named))}
    found = [path for path in task.inputs if _path_within_storage(path) in names]
    return found[0] if len(found) == 1 else None


def _path_within_storage(location: str) -> str:
    return re.sub(r"^[A-Za-z][\w+.-]*:(?://[^/]*)?", "", location)


def _raise_for_unreadable(task: RewriteTask) -> None:
    """Raise Conflict with the skipped group if an input can't be read."""
    for path in task.inputs:
        filesystem, fs_path = filesystem_of(path)
        with reading_input(task, path):
            file = open_data_file(filesystem.open_input_file(fs_path), path)
            try:
                for _ in file.read_batches(()):
                    pass
            finally:
                file.close()
