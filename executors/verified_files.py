# SPDX-License-Identifier: Apache-2.0
"""The old and new files of a rewrite as verification reads them: footers, hashes, and rows in their order.

Every error while a file is read becomes an outcome of the plan: an unreadable input and an unreadable output have
different consequences.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import cast

import pyarrow as pa
import pyarrow.types as pat
from pyarrow import fs

from executors.datafiles import FileFooter, OpenDataFile, open_data_file
from executors.datafiles.orc import OrcFile
from executors.datafiles.orc_tail import OrcTail
from executors.datafiles.parquet import schema_statistics
from executors.datafiles.statistics import FileStatistics
from executors.rowhash import Fingerprint
from lake.capabilities import ReadsInOrder, ReadsMerged
from lake.errors import Conflict, Integrity, LakefoldError, Rejected, Transient, first_line
from lake.model import FileSlice
from lake.plan import OutputFile, SkippedGroup
from lake.ports import Rewrite, TableWriter
from lake.storage.filesystems import filesystem_of_file


@dataclass(frozen=True, slots=True, eq=False)
class PartitionRewrite:
    """One partition of a rewrite: the slices of its live groups, each with its group's index, and the new files."""

    name: str
    slices: Sequence[tuple[int, FileSlice]]
    outputs: Sequence[OutputFile]

    @property
    def has_logs(self) -> bool:
        """True if one of the slices has logs."""
        return any(item.log_files for _, item in self.slices)

    def sources(self) -> tuple[list["Source"], list["Source"]]:
        """Return the old files and the new files."""
        read: list[Source] = [(_InputFile(group), item.path) for group, item in self.slices if item.path]
        return read, [(_OutputFile(self), output.path) for output in self.outputs]

    def without_payloads(self) -> "PartitionRewrite":
        """Return the partition without the format's own data about its new files."""
        return replace(self, outputs=[replace(output, payload=None) for output in self.outputs])

    def difference(self, subject: str, expected: object, found: object) -> Integrity:
        """Return the error for one difference, as one line."""
        return Integrity(f"partition {self.name!r}, {subject}: expected {expected}, found {found}")


def partition_rewrites(rewrite: Rewrite) -> Iterator[PartitionRewrite]:
    """Yield the partitions that have live groups or outputs, in the order of their names."""
    slices: dict[str, list[tuple[int, FileSlice]]] = defaultdict(list)
    for index in rewrite.prepared.live_groups:
        group = rewrite.prepared.plan.groups[index]
        slices[group.partition] += [(index, item) for item in group.slices]
    outputs: dict[str, list[OutputFile]] = defaultdict(list)
    for output in rewrite.outputs:
        outputs[output.partition].append(output)
    for name in sorted(slices.keys() | outputs.keys()):
        yield PartitionRewrite(name, slices.get(name, ()), outputs.get(name, ()))


@dataclass(frozen=True, slots=True)
class _InputFile:
    """An old file. ``group`` is the index of its group; an unreadable file only skips this group."""

    group: int

    def unreadable(self, path: str, error: Exception) -> LakefoldError:
        left_out = SkippedGroup(
            group=self.group, reason=f"{path} can't be read: {first_line(error)}", quarantine=(path,)
        )
        return Conflict(left_out.reason, (left_out,))

    def missing(self, path: str) -> LakefoldError:
        return Conflict(f"{path} was deleted while the plan ran")


@dataclass(frozen=True, slots=True)
class _OutputFile:
    """A new file of ``part``. An unreadable one means that the rewrite is wrong."""

    part: PartitionRewrite

    def unreadable(self, path: str, error: Exception) -> LakefoldError:
        return self.part.difference(f"file {path}", "a readable file", first_line(error))

    def missing(self, path: str) -> LakefoldError:
        return Transient(f"the new file {path} is gone before its commit")


Source = tuple[_InputFile | _OutputFile, str]
"""An old or new file with its path."""

Footers = Sequence[tuple[Source, FileFooter]]
"""Files, each with its footer."""


class FileReader:
    """Reads the data files of one table: footers, and fingerprints with bounded memory."""

    def __init__(
        self, location: str, pool: ThreadPoolExecutor | None, volatile: Collection[str], check: Callable[[], None]
    ) -> None:
        """Read files of the table at ``location``. Without a ``pool``, files are read one after the other.

        Columns in ``volatile`` are not read. ``check`` is called between batches and may raise to end the work.
        """
        self._location, self._volatile, self._check = location, volatile, check
        self._pool, self._map = pool, map if pool is None else pool.map
        #: columns to be read as another type, since a widening changes how values are hashed
        self.casts: Mapping[str, pa.DataType] = {}

    def read_footers(self, sources: Sequence[Source]) -> Footers:
        """Return some files, each with its footer."""

        def read(source: Source) -> FileFooter:
            with self._open(source) as file:
                return file.read_footer(self._volatile, self._check)

        return list(zip(sources, self._map(read, sources), strict=True))

    def has_orc(self, sources: Sequence[Source]) -> bool:
        """True if one of the files is an ORC file."""
        for source in sources:
            with self._open(source) as file:
                if isinstance(file, OrcFile):
                    return True
        return False

    def has_copied_stripes(
        self, partition: PartitionRewrite, read: Sequence[Source], written: Sequence[Source]
    ) -> bool:
        """True if the new files consist of exactly the stripes of the old files, byte by byte, in any order.

        Raises Integrity if a new file has another number of rows than reported.
        """
        tails = []
        for source in (*read, *written):
            with self._open(source) as file:
                if not isinstance(file, OrcFile):
                    return False
                tails.append(file.tail)
        old, new = tails[: len(read)], tails[len(read) :]
        if not all(one.is_encoded_like(other) for one, other in itertools.pairwise(tails)):
            return False
        if _stripe_sizes(old) != _stripe_sizes(new):
            return False
        if self._stripe_hashes(read) != self._stripe_hashes(written):
            return False
        for output, tail in zip(partition.outputs, new, strict=True):
            if output.rows != tail.rows:
                raise partition.difference(f"rows reported for {output.path}", tail.rows, output.rows)
        return True

    def _stripe_hashes(self, sources: Sequence[Source]) -> Counter[bytes]:
        """Return the hashes of all stripes of some ORC files."""

        def read(source: Source) -> list[bytes]:
            with self._open(source) as file:
                return list(cast(OrcFile, file).stripe_hashes(self._check))

        return Counter(one for found in self._map(read, sources) for one in found)

    def fingerprint(self, footers: Footers) -> Fingerprint:
        """Return the fingerprint of some files together."""
        total = Fingerprint()
        for one in self._map(self._fingerprint_file, [source for source, _ in footers]):
            total.merge(one)
        return total

    def fingerprint_merged(
        self, writer: TableWriter, rewrite: Rewrite, partition: PartitionRewrite, *, evolved: bool
    ) -> tuple[Fingerprint, FileStatistics]:
        """Return the fingerprint of the partition's slices, merged by the format's reader, and the reader's columns."""
        if not isinstance(writer, ReadsMerged):
            table = rewrite.prepared.plan.table
            raise Rejected(f"table {table.name}: format {table.format} can't verify a rewrite of slices with logs")
        total, columns = Fingerprint(), FileStatistics()
        schema: pa.Schema | None = None
        for batch in writer.read_inputs(rewrite.prepared, partition.name, evolved=evolved):
            if schema is None or not batch.schema.equals(schema):
                schema = batch.schema
                columns.merge(schema_statistics(schema, self._volatile))
            self._add(total, batch)
        return total, columns

    def has_rows_in_order(
        self, writer: TableWriter, rewrite: Rewrite, partition: PartitionRewrite, written: Sequence[Source]
    ) -> bool:
        """True if the new files have exactly the rows of the partition's slices with logs, in their order.

        False does not mean that rows differ: the order may, or the way in which equal values are stored.
        """
        if not (partition.has_logs and isinstance(writer, ReadsInOrder) and isinstance(writer, ReadsMerged)):
            return False
        merged = writer.read_inputs(rewrite.prepared, partition.name)
        with ExitStack() as opened:
            before = opened.enter_context(closing(_read_ahead(self._pool, self._without_volatile(merged))))
            after = opened.enter_context(closing(_read_ahead(self._pool, self._read_rows(written))))
            return _have_equal_rows_in_order(before, after, self._check)

    def _without_volatile(self, batches: Iterator[pa.RecordBatch]) -> Generator[pa.RecordBatch, None, None]:
        for batch in batches:
            yield batch.drop_columns([name for name in batch.schema.names if name in self._volatile])

    def _read_rows(self, sources: Sequence[Source]) -> Generator[pa.RecordBatch, None, None]:
        for source in sources:
            with self._open(source) as file:
                yield from file.read_batches(self._volatile)

    def _fingerprint_file(self, source: Source) -> Fingerprint:
        total = Fingerprint()
        with self._open(source) as file:
            for batch in file.read_batches(self._volatile):
                self._add(total, batch)
        return total

    def _add(self, total: Fingerprint, batch: pa.RecordBatch) -> None:
        self._check()
        for index, (name, kind) in enumerate(zip(batch.schema.names, batch.schema.types, strict=True)):
            wanted = self.casts.get(name, kind)
            if wanted != kind:
                batch = batch.set_column(index, name, batch.column(index).cast(wanted))
        total.add(batch, self._volatile)

    def _open(self, source: Source) -> "_OpenedFile":
        return _OpenedFile(*filesystem_of_file(self._location, source[1]), source)


def _read_ahead(
    pool: ThreadPoolExecutor | None, batches: Generator[pa.RecordBatch, None, None]
) -> Generator[pa.RecordBatch, None, None]:
    """Yield ``batches``, of which ``pool`` reads the next one meanwhile."""
    if pool is None:
        yield from batches
        return
    pending: Future[pa.RecordBatch | None] = pool.submit(next, batches, None)
    try:
        while (batch := pending.result()) is not None:
            pending = pool.submit(next, batches, None)
            yield batch
    finally:
        # A generator can't be closed while it runs.
        wait([pending])
        batches.close()


def _have_equal_rows_in_order(
    expected: Iterator[pa.RecordBatch], found: Iterator[pa.RecordBatch], check: Callable[[], None]
) -> bool:
    """True if both have the same rows in the same order, whatever the sizes of their batches."""
    left: pa.RecordBatch | None = None
    right: pa.RecordBatch | None = None
    while True:
        check()
        left = left if left is not None and left.num_rows else next((one for one in expected if one.num_rows), None)
        right = right if right is not None and right.num_rows else next((one for one in found if one.num_rows), None)
        if left is None or right is None:
            return left is None and right is None
        rows = min(left.num_rows, right.num_rows)
        if not _have_equal_rows(left.slice(0, rows), right.slice(0, rows)):
            return False
        left, right = left.slice(rows), right.slice(rows)


def _have_equal_rows(left: pa.RecordBatch, right: pa.RecordBatch) -> bool:
    names = sorted(left.schema.names)
    if names != sorted(right.schema.names) or len(set(names)) < len(names):
        return False
    return all(_have_equal_values(left.column(name), right.column(name)) for name in names)


def _have_equal_values(left: pa.Array, right: pa.Array) -> bool:
    left, right = (one.dictionary_decode() if pat.is_dictionary(one.type) else one for one in (left, right))
    for kind, is_kind in ((pa.large_string(), _STRINGS), (pa.large_binary(), _BINARIES)):
        if left.type != right.type and left.type in is_kind and right.type in is_kind:
            left, right = left.cast(kind), right.cast(kind)
    if left.type != right.type:
        return False
    if pat.is_floating(left.type):
        # Bit by bit, since NaN does not equal itself.
        bits = _INTEGERS[left.type.bit_width]
        left, right = left.view(bits), right.view(bits)
    return bool(left.equals(right))


_STRINGS = (pa.string(), pa.large_string())
_BINARIES = (pa.binary(), pa.large_binary())
_INTEGERS = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}


class _OpenedFile:
    """A data file within a ``with`` block that turns its errors into outcomes."""

    def __init__(self, filesystem: fs.FileSystem, full_path: str, source: Source) -> None:
        self._filesystem, self._full_path, self._source = filesystem, full_path, source
        self._file: OpenDataFile | None = None

    def __enter__(self) -> OpenDataFile:
        try:
            handle = self._filesystem.open_input_file(self._full_path)
            self._file = open_data_file(handle, self._source[1])
        except (OSError, pa.ArrowException) as error:
            raise self._to_outcome(error) from error
        return self._file

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._file is not None:
            self._file.close()
        if isinstance(error, (OSError, pa.ArrowException)):
            raise self._to_outcome(error) from error

    def _to_outcome(self, error: Exception) -> LakefoldError:
        role, path = self._source
        if isinstance(error, FileNotFoundError):
            return role.missing(path)
        # Arrow also reports broken pages as OSError without errno; failures of S3 look the same.
        on_s3 = isinstance(self._filesystem, fs.S3FileSystem)
        if isinstance(error, OSError) and (error.errno is not None or on_s3):
            return Transient(f"{path} can't be read now: {first_line(error)}")
        return role.unreadable(path, error)


def _stripe_sizes(tails: Sequence[OrcTail]) -> Counter[tuple[int, int]]:
    return Counter((stripe.bytes, stripe.rows) for tail in tails for stripe in tail.stripes)
