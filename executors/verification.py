# SPDX-License-Identifier: Apache-2.0
"""Verification before a commit: the written files hold the rows that were read, partition by partition.

First, the files' own statistics are compared: rows, types, and for each leaf column the null count and bounds that are
exact on both sides. This costs next to nothing for Parquet files. The statistics of ORC files are computed from their
values, unless all stripes were copied unchanged. With ``verification = hash`` every value is read again and compared as
an order-free fingerprint. Two kinds of inputs are always fingerprinted, as a reader of the table sees them, because
their footers do not show what a reader sees: slices with logs, and files with a column that the table has since dropped
or given another type. If a format can read the rows of slices with logs in the order of the new files, both are first
compared value by value. This takes less time than two fingerprints and misses no difference.
"""

import itertools
import logging
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Protocol, cast

import pyarrow as pa
import pyarrow.types as pat
from pyarrow import fs

from executors.datafiles import FileFooter, OpenDataFile, collect_statistics, open_data_file
from executors.datafiles.orc import OrcFile
from executors.datafiles.orc_tail import OrcTail
from executors.datafiles.parquet import schema_statistics
from executors.datafiles.statistics import FileStatistics, LeafStatistics, LeafType, render_bound
from executors.rowhash import Fingerprint
from lake.capabilities import ReadsInOrder, ReadsMerged
from lake.errors import Conflict, Integrity, LakefoldError, Rejected, Transient, first_line
from lake.model import FileSlice
from lake.plan import OutputFile, Plan, SkippedGroup, VerificationLevel
from lake.ports import Rewrite, TableWriter
from lake.storage.filesystems import filesystem_of_file
from lake.storage.locations import is_local
from lake.units import format_bytes

log = logging.getLogger(__name__)

#: footers read at once from remote storage, since such a read is mostly waiting
_REMOTE_READS = 8


@dataclass(frozen=True, slots=True, eq=False)
class _PartitionRewrite:
    """One partition of a rewrite: the slices of its live groups, each with its group's index, and the new files."""

    name: str
    slices: Sequence[tuple[int, FileSlice]]
    outputs: Sequence[OutputFile]

    @property
    def has_logs(self) -> bool:
        return any(item.log_files for _, item in self.slices)

    def sources(self) -> tuple[list["_Source"], list["_Source"]]:
        """Return the old files and the new files."""
        read: list[_Source] = [(_InputFile(group), item.path) for group, item in self.slices if item.path]
        return read, [(_OutputFile(self), output.path) for output in self.outputs]

    def without_payloads(self) -> "_PartitionRewrite":
        """Return the partition without the format's own data about its new files."""
        return replace(self, outputs=[replace(output, payload=None) for output in self.outputs])

    def difference(self, subject: str, expected: object, found: object) -> Integrity:
        """Return the error for one difference, as one line."""
        return Integrity(f"partition {self.name!r}, {subject}: expected {expected}, found {found}")


def verify_rewrite(
    rewrite: Rewrite,
    *,
    writer: TableWriter,
    check: Callable[[], None] = lambda: None,
    threads: int | None = None,
    run: "RunMany | None" = None,
) -> None:
    """Compare the outputs of ``rewrite`` with its inputs at the level of its plan.

    ``run`` may compare the footers of many partitions in other processes. A partition for which it finds any difference
    or error is compared again in this process.

    Columns in ``PreparedPlan.volatile_columns`` may differ. ``check`` is called between batches and may raise to end
    the work. Raises Integrity with one line naming partition, column, expected and found. Raises Conflict if an input
    was deleted or its content can't be read; in the second case the error names the group (``SkippedGroup``). Raises
    Transient if storage fails, and Rejected if slices with logs can't be read merged, or if a file to split became one
    that is as large.
    """
    plan, volatile = rewrite.prepared.plan, rewrite.prepared.volatile_columns
    _verify_splits(plan, rewrite.outputs)
    parts = list(_partition_rewrites(rewrite))
    if run is not None and plan.options.verification is VerificationLevel.FOOTER:
        equal = _footers_equal(parts, plan.table.location, volatile, check, run)
        parts = [part for part in parts if part.name not in equal]
    with ThreadPoolExecutor(threads or min(8, 2 * (os.cpu_count() or 1)), "verification") as pool:
        files = _FileReader(plan.table.location, pool, volatile, check)
        for part in parts:
            check()
            read, written = part.sources()
            if not part.has_logs and files.has_copied_stripes(part, read, written):
                continue
            inputs, outputs = files.read_footers(read), files.read_footers(written)
            _compare_counts(part, outputs)
            expected, found = _statistics(inputs, volatile), _statistics(outputs, volatile)
            changed = _changed_columns(part, expected, found)
            added: Mapping[str, Integrity] = {}
            if isinstance(writer, ReadsMerged):
                added = _added_columns(part, expected, found, plan.options.verification)
            elif changed:
                raise next(iter(changed.values()))
            if not part.has_logs:
                changed = {**changed, **added}
                _compare_statistics(part, expected, found, changed)
                if not changed and plan.options.verification is not VerificationLevel.HASH:
                    continue
            files.casts = {} if changed else _widening_casts(expected, found, outputs)
            if not changed and not added and files.has_rows_in_order(writer, rewrite, part, written):
                continue
            if part.has_logs or changed:
                before, columns = files.fingerprint_merged(writer, rewrite, part, evolved=bool(changed))
                if not changed and not added.keys() <= columns.leaves.keys():
                    # Neither base files nor logs have an added column: read the slices again in the table's current
                    # columns, which may include it.
                    changed, files.casts = added, {}
                    before, columns = files.fingerprint_merged(writer, rewrite, part, evolved=True)
                _compare_changed_columns(changed, columns, found)
            else:
                before = files.fingerprint(inputs)
            _compare_fingerprints(part, before, files.fingerprint(outputs))


def _verify_splits(plan: Plan, outputs: Sequence[OutputFile]) -> None:
    """Raise Rejected if a partition's largest new file is as large as a file that was to be split.

    The next plan would split the new file again, and the plan after that. A failed plan's files are not planned again
    until they change.
    """
    if plan.adopted_instant is not None:  # its sizes are those of another planner
        return
    largest: dict[str, int] = {}
    for output in outputs:
        largest[output.partition] = max(output.bytes, largest.get(output.partition, 0))
    for group in plan.groups:
        if group.is_split and largest.get(group.partition, 0) >= group.bytes:
            raise Rejected(
                f"partition {group.partition!r}: {group.slices[0].path} has {format_bytes(group.bytes)} and can't be "
                f"split: a new file has {format_bytes(largest[group.partition])}; raise split_file_limit"
            )


class RunMany(Protocol):
    """Runs a function of this module for many items, perhaps in other processes."""

    def __call__(
        self,
        function: Callable[["_Compared"], bool],
        items: Sequence["_Compared"],
        *,
        files: int,
        check: Callable[[], None],
    ) -> Sequence[bool]:
        """Return the result for each item. ``files`` is the number of files that the function opens in all.

        ``check`` is called often and may raise to end the work. Raises Transient if the run fails.
        """


@dataclass(frozen=True, slots=True, eq=False)
class _Compared:
    """A partition whose footers one call compares, and what the call needs to read them."""

    location: str
    volatile: Collection[str]
    partition: "_PartitionRewrite"


def _footers_equal(
    parts: Sequence["_PartitionRewrite"],
    location: str,
    volatile: Collection[str],
    check: Callable[[], None],
    run: RunMany,
) -> frozenset[str]:
    """Return the partitions whose footers show that the new files have the rows of the old files."""
    compared = [_Compared(location, volatile, part.without_payloads()) for part in parts if not part.has_logs]
    files = sum(len(one.partition.slices) + len(one.partition.outputs) for one in compared)
    try:
        equal = run(_has_equal_footers, compared, files=files, check=check)
    except (Transient, Rejected) as error:
        log.warning("footers can't be compared in other processes, so this process compares them: %s", error)
        return frozenset()
    return frozenset(one.partition.name for one, is_equal in zip(compared, equal, strict=True) if is_equal)


def _has_equal_footers(compared: _Compared) -> bool:
    """True if the footers show that the new files have the rows of the old files; False also after an error."""
    part, volatile = compared.partition, compared.volatile
    read, written = part.sources()
    try:
        with ExitStack() as opened:
            # Reading the footer of a local file takes less time than handing it to a thread.
            pool = None if is_local(compared.location) else opened.enter_context(ThreadPoolExecutor(_REMOTE_READS))
            files = _FileReader(compared.location, pool, volatile, lambda: None)
            if files.has_orc(read[:1] or written[:1]):
                # Copied stripes are compared by their bytes, which is a stronger and faster comparison.
                return False
            inputs, outputs = files.read_footers(read), files.read_footers(written)
        _compare_counts(part, outputs)
        expected, found = _statistics(inputs, volatile), _statistics(outputs, volatile)
        if _changed_columns(part, expected, found) or expected.leaves.keys() != found.leaves.keys():
            return False
        _compare_statistics(part, expected, found, ())
    except LakefoldError:
        return False
    return True


def _partition_rewrites(rewrite: Rewrite) -> Iterator[_PartitionRewrite]:
    slices: dict[str, list[tuple[int, FileSlice]]] = defaultdict(list)
    for index in rewrite.prepared.live_groups:
        group = rewrite.prepared.plan.groups[index]
        slices[group.partition] += [(index, item) for item in group.slices]
    outputs: dict[str, list[OutputFile]] = defaultdict(list)
    for output in rewrite.outputs:
        outputs[output.partition].append(output)
    for name in sorted(slices.keys() | outputs.keys()):
        yield _PartitionRewrite(name, slices.get(name, ()), outputs.get(name, ()))


# An unreadable input and an unreadable output have different consequences.


@dataclass(frozen=True, slots=True)
class _InputFile:
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
    part: _PartitionRewrite

    def unreadable(self, path: str, error: Exception) -> LakefoldError:
        return self.part.difference(f"file {path}", "a readable file", first_line(error))

    def missing(self, path: str) -> LakefoldError:
        return Transient(f"the new file {path} is gone before its commit")


_Source = tuple[_InputFile | _OutputFile, str]
_Footers = Sequence[tuple[_Source, FileFooter]]


class _FileReader:
    """Reads the data files of one table: footers, and fingerprints with bounded memory."""

    def __init__(
        self, location: str, pool: ThreadPoolExecutor | None, volatile: Collection[str], check: Callable[[], None]
    ) -> None:
        """Without a ``pool``, files are read one after the other."""
        self._location, self._volatile, self._check = location, volatile, check
        self._pool, self._map = pool, map if pool is None else pool.map
        #: columns to be read as another type, since a widening changes how values are hashed
        self.casts: Mapping[str, pa.DataType] = {}

    def read_footers(self, sources: Sequence[_Source]) -> _Footers:
        """Return the footers of some files, by file."""

        def read(source: _Source) -> FileFooter:
            with self._open(source) as file:
                return file.read_footer(self._volatile, self._check)

        return list(zip(sources, self._map(read, sources), strict=True))

    def has_orc(self, sources: Sequence[_Source]) -> bool:
        """True if one of the files is an ORC file."""
        for source in sources:
            with self._open(source) as file:
                if isinstance(file, OrcFile):
                    return True
        return False

    def has_copied_stripes(
        self, partition: _PartitionRewrite, read: Sequence[_Source], written: Sequence[_Source]
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

    def _stripe_hashes(self, sources: Sequence[_Source]) -> Counter[bytes]:
        """Return the hashes of all stripes of some ORC files."""

        def read(source: _Source) -> list[bytes]:
            with self._open(source) as file:
                return list(cast(OrcFile, file).stripe_hashes(self._check))

        return Counter(one for found in self._map(read, sources) for one in found)

    def fingerprint(self, footers: _Footers) -> Fingerprint:
        """Return the fingerprint of some files together."""
        total = Fingerprint()
        for one in self._map(self._fingerprint_file, [source for source, _ in footers]):
            total.merge(one)
        return total

    def fingerprint_merged(
        self, writer: TableWriter, rewrite: Rewrite, partition: _PartitionRewrite, *, evolved: bool
    ) -> tuple[Fingerprint, FileStatistics]:
        """Return the fingerprint of a part's slices as the format's reader merges them, and the reader's columns."""
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
        self, writer: TableWriter, rewrite: Rewrite, partition: _PartitionRewrite, written: Sequence[_Source]
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
            return _equal_in_order(before, after, self._check)

    def _without_volatile(self, batches: Iterator[pa.RecordBatch]) -> Generator[pa.RecordBatch, None, None]:
        for batch in batches:
            yield batch.drop_columns([name for name in batch.schema.names if name in self._volatile])

    def _read_rows(self, sources: Sequence[_Source]) -> Generator[pa.RecordBatch, None, None]:
        for source in sources:
            with self._open(source) as file:
                yield from file.read_batches(self._volatile)

    def _fingerprint_file(self, source: _Source) -> Fingerprint:
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

    def _open(self, source: _Source) -> "_OpenedFile":
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


def _equal_in_order(
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
        if not _equal_rows(left.slice(0, rows), right.slice(0, rows)):
            return False
        left, right = left.slice(rows), right.slice(rows)


def _equal_rows(left: pa.RecordBatch, right: pa.RecordBatch) -> bool:
    names = sorted(left.schema.names)
    if names != sorted(right.schema.names) or len(set(names)) < len(names):
        return False
    return all(_equal_columns(left.column(name), right.column(name)) for name in names)


def _equal_columns(left: pa.Array, right: pa.Array) -> bool:
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

    def __init__(self, filesystem: fs.FileSystem, full_path: str, source: _Source) -> None:
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


def _statistics(footers: _Footers, volatile: Collection[str]) -> FileStatistics:
    return collect_statistics((footer for _, footer in footers), volatile)


def _compare_counts(part: _PartitionRewrite, outputs: _Footers) -> None:
    if not part.slices:
        raise part.difference("files", "none, as the plan has no group here", len(part.outputs))
    for output, (_, footer) in zip(part.outputs, outputs, strict=True):
        if footer.rows != output.rows:
            raise part.difference(f"rows reported for {output.path}", footer.rows, output.rows)


def _changed_columns(
    part: _PartitionRewrite, expected: FileStatistics, found: FileStatistics
) -> Mapping[str, Integrity]:
    """Return columns whose values footers can't compare, with their differences.

    Such a column is missing in the new files, or has another id there, or a type that does not hold every value of its
    old type. Either the table has evolved since the files were written, or the rewrite is wrong. A comparison with the
    rows that a reader of the table sees decides this. Raises Integrity if a column has different types in the new
    files.
    """
    changed = {}
    for path in sorted(expected.leaves.keys() | found.leaves.keys()) if part.outputs else ():
        before, after = expected.leaves.get(path), found.leaves.get(path)
        if after is not None and len(after.types) != 1:
            raise part.difference(f"column {path}", "one type in all new files", _type_names(after))
        if before is not None and not _is_type_compatible(before, after):
            changed[path] = part.difference(f"column {path}", _type_names(before), _type_names(after))
        elif before and after and (ids := before.conflicting_field_ids(after)):
            changed[path] = part.difference(f"column {path}, field id", *ids)
    return changed


def _added_columns(
    part: _PartitionRewrite, expected: FileStatistics, found: FileStatistics, level: VerificationLevel
) -> Mapping[str, Integrity]:
    """Return the columns that have values and exist only in the new files, each with the difference.

    Such a column may have been renamed since the inputs were written, or have a default for older rows: only the
    table's reader has the values of these rows. If footers do not show whether a column has values, it is included at
    the level ``hash``.
    """
    return {
        path: part.difference(f"column {path}", "no values", _type_names(after))
        for path, after in sorted(found.leaves.items())
        if path not in expected.leaves
        and (after.is_all_null is False or (after.is_all_null is None and level is VerificationLevel.HASH))
    }


_INT = LeafType("int", (32,))


def _is_type_compatible(before: LeafStatistics, after: LeafStatistics | None) -> bool:
    if after is None:
        return False
    # Files of Impala and of old releases of Hive do not record that a 32-bit integer is a narrower type. If both sides
    # have exact bounds, which are compared, the narrower type has lost no value.
    unsaid = _INT if before.has_exact_bounds and after.has_exact_bounds and _leaf_type(after).family == "int" else None
    return all(kind == unsaid or kind.can_widen_to(_leaf_type(after)) for kind in before.types)


def _compare_changed_columns(changed: Mapping[str, Integrity], columns: FileStatistics, found: FileStatistics) -> None:
    """Raise the difference of a changed column that differs between the new files and the reader's rows."""
    for path, difference in changed.items():
        merged, after = columns.leaves.get(path), found.leaves.get(path)
        # A reader may return instants in a finer unit than they are stored in.
        if merged is not after and not (
            merged and after and (_is_type_compatible(merged, after) or _is_type_compatible(after, merged))
        ):
            raise difference


def _compare_statistics(
    part: _PartitionRewrite, expected: FileStatistics, found: FileStatistics, changed: Collection[str]
) -> None:
    """Raise Integrity if figures differ.

    Bounds of ``changed`` columns are not compared, because the change may round values.
    """
    if expected.rows != found.rows:
        raise part.difference("rows", expected.rows, found.rows)
    for path, after in sorted(found.leaves.items()):
        before = expected.leaves.get(path)
        if path in changed and (before is None or before.conflicting_field_ids(after)):
            continue  # these are figures of another column, or of no column
        if before is None:  # the column was added after the inputs were written: its values there are read as null
            before = LeafStatistics(after.types, after.is_repeated)
            before.add_absent_rows(expected.rows)
        if before.null_count is not None and after.null_count is not None and before.null_count != after.null_count:
            raise part.difference(f"column {path}, nulls", before.null_count, after.null_count)
        if before.hash_sum is not None and after.hash_sum is not None and before.hash_sum != after.hash_sum:
            raise part.difference(
                f"column {path}, hash of its values", f"{before.hash_sum:016x}", f"{after.hash_sum:016x}"
            )
        if path in changed or not (
            before.has_exact_bounds and after.has_exact_bounds and before.has_comparable_bounds(after)
        ):
            continue
        for what, old, new in (("min", before.minimum, after.minimum), ("max", before.maximum, after.maximum)):
            if old != new:
                kind = _leaf_type(after)
                raise part.difference(f"column {path}, {what}", render_bound(kind, old), render_bound(kind, new))


def _compare_fingerprints(part: _PartitionRewrite, before: Fingerprint, after: Fingerprint) -> None:
    if before.rows != after.rows:
        raise part.difference("rows", before.rows, after.rows)
    column = before.differing_column(after)
    if column is not None:
        old, new = before.column_sums.get(column, 0), after.column_sums.get(column, 0)
        raise part.difference(f"column {column}, hash of its values", f"{old:016x}", f"{new:016x}")
    if (before.row_sum, before.second_row_sum) != (after.row_sum, after.second_row_sum):
        raise part.difference(
            "values moved between rows, hash of the rows", f"{before.row_sum:016x}", f"{after.row_sum:016x}"
        )


def _widening_casts(expected: FileStatistics, found: FileStatistics, outputs: _Footers) -> Mapping[str, pa.DataType]:
    """Return the types of the new files' columns if integers were widened to floating point, else nothing."""
    widened = any(
        kind.family == "int" and _leaf_type(found.leaves[path]).family == "float"
        for path, leaf in expected.leaves.items()
        if path in found.leaves
        for kind in leaf.types
    )
    if not widened:
        return {}
    schema = outputs[0][1].schema
    return dict(zip(schema.names, schema.types, strict=True))


def _leaf_type(leaf: LeafStatistics) -> LeafType:
    return next(iter(leaf.types))


def _type_names(leaf: LeafStatistics | None) -> str:
    return " or ".join(sorted(map(str, leaf.types))) if leaf else "no such column"
