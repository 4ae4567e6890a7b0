# SPDX-License-Identifier: Apache-2.0
"""Proof before a commit: what was written holds the rows that were read, partition by partition.

What files say about their rows comes first, which costs next to nothing where their kind keeps it in a footer: rows,
types, and per leaf column null count and bounds, compared where exact on both sides. With ``receipt = hash`` every
value is read again and compared as an order-free fingerprint. Files tell neither the rows of slices with logs nor the
values of a column that the table has since dropped or given another type: such inputs are always fingerprinted, as a
reader of the table sees them.
"""

import itertools
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import cast

import pyarrow as pa
from pyarrow import fs

from executors.datafiles import DataFile, Footer, facts_of, open_data_file
from executors.datafiles.facts import Facts, Leaf, LeafType, render
from executors.datafiles.orc import OrcFile
from executors.datafiles.orc_tail import OrcTail
from executors.datafiles.parquet import columns_of
from executors.rowhash import Fingerprint
from lake.errors import Conflict, Integrity, LakefoldError, Rejected, Transient, first_line
from lake.filesystems import file_of
from lake.model import FileSlice
from lake.optional import MergedReads
from lake.plan import LeftOut, OutputFile, ReceiptLevel
from lake.ports import Rewrite, TableWriter


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """One partition of a rewrite: the slices of its live groups, each with its group's index, and the new files."""

    name: str
    slices: Sequence[tuple[int, FileSlice]]
    outputs: Sequence[OutputFile]

    @property
    def has_logs(self) -> bool:
        return any(item.log_files for _, item in self.slices)

    def differ(self, what: str, expected: object, found: object) -> Integrity:
        """The error for one difference, as one line."""
        return Integrity(f"partition {self.name!r}, {what}: expected {expected}, found {found}")


def prove(
    rewrite: Rewrite,
    *,
    writer: TableWriter,
    check: Callable[[], None] = lambda: None,
    threads: int | None = None,
) -> None:
    """Compare the outputs of ``rewrite`` with its inputs at the level its plan asks for.

    ``Prepared.volatile`` columns may differ. ``check`` is called between batches and may raise to end the work. Raises
    Integrity with one line naming partition, column, expected and found; Conflict where an input is gone, with
    ``LeftOut`` groups where its content can't be read; Transient where storage fails; Rejected where slices
    with logs can't be read merged.
    """
    plan, volatile = rewrite.prepared.plan, rewrite.prepared.volatile
    with ThreadPoolExecutor(threads or min(8, 2 * (os.cpu_count() or 1)), "receipt") as pool:
        files = _Files(plan.table.location, pool, volatile, check)
        for part in _parts(rewrite):
            check()
            read: list[_Source] = [(_Input(group), item.path) for group, item in part.slices if item.path]
            written: list[_Source] = [(_Output(part), output.path) for output in part.outputs]
            if not part.has_logs and files.are_copies(part, read, written):
                continue
            inputs, outputs = files.footers(read), files.footers(written)
            _compare_counts(part, outputs)
            expected, found = _facts(inputs, volatile), _facts(outputs, volatile)
            changed = _changed(part, expected, found)
            added: Mapping[str, Integrity] = {}
            if isinstance(writer, MergedReads):
                added = _added(part, expected, found, plan.options.receipt)
            elif changed:
                raise next(iter(changed.values()))
            if not part.has_logs:
                changed = {**changed, **added}
                _compare_facts(part, expected, found, changed)
                if not changed and plan.options.receipt is not ReceiptLevel.HASH:
                    continue
            files.casts = {} if changed else _casts(expected, found, outputs)
            if part.has_logs or changed:
                before, columns = files.fingerprint_as_read(writer, rewrite, part, evolved=bool(changed))
                if not changed and not added.keys() <= columns.leaves.keys():
                    # Logs do not have them either: the columns of today may.
                    changed, files.casts = added, {}
                    before, columns = files.fingerprint_as_read(writer, rewrite, part, evolved=True)
                _compare_changed(changed, columns, found)
            else:
                before = files.fingerprint(inputs)
            _compare_fingerprints(part, before, files.fingerprint(outputs))


def _parts(rewrite: Rewrite) -> Iterator[_Part]:
    slices: dict[str, list[tuple[int, FileSlice]]] = defaultdict(list)
    for index in rewrite.prepared.groups:
        group = rewrite.prepared.plan.groups[index]
        slices[group.partition] += [(index, item) for item in group.slices]
    outputs: dict[str, list[OutputFile]] = defaultdict(list)
    for output in rewrite.outputs:
        outputs[output.partition].append(output)
    for name in sorted(slices.keys() | outputs.keys()):
        yield _Part(name, slices.get(name, ()), outputs.get(name, ()))


# What a file that can't be read means depends on whose it is.


@dataclass(frozen=True, slots=True)
class _Input:
    group: int

    def unreadable(self, path: str, error: Exception) -> LakefoldError:
        left_out = LeftOut(group=self.group, reason=f"{path} can't be read: {first_line(error)}", quarantine=(path,))
        return Conflict(left_out.reason, (left_out,))

    def gone(self, path: str) -> LakefoldError:
        return Conflict(f"{path} was deleted while the plan ran")


@dataclass(frozen=True, slots=True)
class _Output:
    part: _Part

    def unreadable(self, path: str, error: Exception) -> LakefoldError:
        return self.part.differ(f"file {path}", "a readable file", first_line(error))

    def gone(self, path: str) -> LakefoldError:
        return Transient(f"the new file {path} is gone before its commit")


_Source = tuple[_Input | _Output, str]
_Footers = Sequence[tuple[_Source, Footer]]


class _Files:
    """Reads the data files of one table: footers, and fingerprints with bounded memory."""

    def __init__(
        self, location: str, pool: ThreadPoolExecutor, volatile: Collection[str], check: Callable[[], None]
    ) -> None:
        self._location = location
        self._pool, self._volatile, self._check = pool, volatile, check
        #: columns to be read as another type, where a widening changes how values are hashed
        self.casts: Mapping[str, pa.DataType] = {}

    def footers(self, sources: Sequence[_Source]) -> _Footers:
        """The footers of some files, by file."""

        def read(source: _Source) -> Footer:
            with self._opened(source) as file:
                return file.footer(self._volatile, self._check)

        return list(zip(sources, self._pool.map(read, sources), strict=True))

    def are_copies(self, part: _Part, read: Sequence[_Source], written: Sequence[_Source]) -> bool:
        """Whether the new files have the stripes of the old ones, byte by byte, and say the same of them.

        Raises Integrity where a new file has other rows than were reported.
        """
        tails = []
        for source in (*read, *written):
            with self._opened(source) as file:
                if not isinstance(file, OrcFile):
                    return False
                tails.append(file.tail)
        old, new = tails[: len(read)], tails[len(read) :]
        if not all(one.says_as(other) for one, other in itertools.pairwise(tails)):
            return False
        if _lengths(old) != _lengths(new):
            return False
        if self._stripes(read) != self._stripes(written):
            return False
        for output, tail in zip(part.outputs, new, strict=True):
            if output.rows != tail.rows:
                raise part.differ(f"rows reported for {output.path}", tail.rows, output.rows)
        return True

    def _stripes(self, sources: Sequence[_Source]) -> Counter[bytes]:
        """The hashes of all stripes of some ORC files."""

        def read(source: _Source) -> list[bytes]:
            with self._opened(source) as file:
                return list(cast(OrcFile, file).stripes(self._check))

        return Counter(one for found in self._pool.map(read, sources) for one in found)

    def fingerprint(self, footers: _Footers) -> Fingerprint:
        """The rows of some files together."""
        total = Fingerprint()
        for one in self._pool.map(self._fingerprint_file, [source for source, _ in footers]):
            total.merge(one)
        return total

    def fingerprint_as_read(
        self, writer: TableWriter, rewrite: Rewrite, part: _Part, *, evolved: bool
    ) -> tuple[Fingerprint, Facts]:
        """The rows of a part's slices as the format's reader gives them, and the columns in which it does."""
        if not isinstance(writer, MergedReads):
            table = rewrite.prepared.plan.table
            raise Rejected(f"table {table.name}: format {table.format} can't prove a rewrite of slices with logs")
        total, columns = Fingerprint(), Facts()
        schema: pa.Schema | None = None
        for batch in writer.read_inputs(rewrite.prepared, part.name, evolved=evolved):
            if schema is None or not batch.schema.equals(schema):
                schema = batch.schema
                columns.merge(columns_of(schema, self._volatile))
            self._add(total, batch)
        return total, columns

    def _fingerprint_file(self, source: _Source) -> Fingerprint:
        total = Fingerprint()
        with self._opened(source) as file:
            for batch in file.batches(self._volatile):
                self._add(total, batch)
        return total

    def _add(self, total: Fingerprint, batch: pa.RecordBatch) -> None:
        self._check()
        for index, (name, kind) in enumerate(zip(batch.schema.names, batch.schema.types, strict=True)):
            wanted = self.casts.get(name, kind)
            if wanted != kind:
                batch = batch.set_column(index, name, batch.column(index).cast(wanted))
        total.add(batch, self._volatile)

    def _opened(self, source: _Source) -> "_Opened":
        return _Opened(*file_of(self._location, source[1]), source)


class _Opened:
    """A data file within a ``with`` block that turns its errors into outcomes."""

    def __init__(self, filesystem: fs.FileSystem, full_path: str, source: _Source) -> None:
        self._filesystem, self._full_path, self._source = filesystem, full_path, source
        self._file: DataFile | None = None

    def __enter__(self) -> DataFile:
        try:
            handle = self._filesystem.open_input_file(self._full_path)
            self._file = open_data_file(handle, self._source[1])
        except (OSError, pa.ArrowException) as error:
            raise self._outcome(error) from error
        return self._file

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._file is not None:
            self._file.close()
        if isinstance(error, (OSError, pa.ArrowException)):
            raise self._outcome(error) from error

    def _outcome(self, error: Exception) -> LakefoldError:
        role, path = self._source
        if isinstance(error, FileNotFoundError):
            return role.gone(path)
        # Arrow reports broken pages as OSError too, without a number; failures of S3 look the same.
        on_s3 = isinstance(self._filesystem, fs.S3FileSystem)
        if isinstance(error, OSError) and (error.errno is not None or on_s3):
            return Transient(f"{path} can't be read now: {first_line(error)}")
        return role.unreadable(path, error)


def _lengths(tails: Sequence[OrcTail]) -> Counter[tuple[int, int]]:
    return Counter((stripe.bytes, stripe.rows) for tail in tails for stripe in tail.stripes)


def _facts(footers: _Footers, volatile: Collection[str]) -> Facts:
    return facts_of((footer for _, footer in footers), volatile)


def _compare_counts(part: _Part, outputs: _Footers) -> None:
    if not part.slices:
        raise part.differ("files", "none, as the plan has no group here", len(part.outputs))
    for output, (_, footer) in zip(part.outputs, outputs, strict=True):
        if footer.rows != output.rows:
            raise part.differ(f"rows reported for {output.path}", footer.rows, output.rows)


def _changed(part: _Part, expected: Facts, found: Facts) -> Mapping[str, Integrity]:
    """Columns whose values footers can't compare, each with the difference: it is not in the new files, or has a type
    there that does not hold every value of its old one, or another id. Raises Integrity where the new files disagree.

    That is either an evolution of the table since its files were written, or a mistake; the rows as a reader of the
    table sees them tell which.
    """
    changed = {}
    for path in sorted(expected.leaves.keys() | found.leaves.keys()) if part.outputs else ():
        before, after = expected.leaves.get(path), found.leaves.get(path)
        if after is not None and len(after.kinds) != 1:
            raise part.differ(f"column {path}", "one type in all new files", _kinds(after))
        if before is not None and not _fits(before, after):
            changed[path] = part.differ(f"column {path}", _kinds(before), _kinds(after))
        elif before and after and (ids := before.other_ids(after)):
            changed[path] = part.differ(f"column {path}, field id", *ids)
    return changed


def _added(part: _Part, expected: Facts, found: Facts, level: ReceiptLevel) -> Mapping[str, Integrity]:
    """Columns that only the new files have, and with values, each with the difference.

    They may have been renamed since the inputs were written, or have a default for rows that are older: how these rows
    read in the table knows only its reader. Where footers do not say whether there are values, and all are compared,
    there may be some.
    """
    return {
        path: part.differ(f"column {path}", "no values", _kinds(after))
        for path, after in sorted(found.leaves.items())
        if path not in expected.leaves
        and (after.is_null is False or (after.is_null is None and level is ReceiptLevel.HASH))
    }


_INT = LeafType("int", (32,))


def _fits(before: Leaf, after: Leaf | None) -> bool:
    if after is None:
        return False
    # Files of Impala and of old releases of Hive do not say that an integer of 32 bits is a narrower one. Where both
    # sides have exact bounds, which are compared, the narrower one has lost no value.
    unsaid = _INT if before.bounded and after.bounded and _kind(after).family == "int" else None
    return all(kind == unsaid or kind.widens_to(_kind(after)) for kind in before.kinds)


def _compare_changed(changed: Mapping[str, Integrity], columns: Facts, found: Facts) -> None:
    """Raise the difference of a changed column that is not in the new files as a reader of the table sees it."""
    for path, difference in changed.items():
        seen, after = columns.leaves.get(path), found.leaves.get(path)
        # A reader may give instants in a finer unit than they are stored in.
        if seen is not after and not (seen and after and (_fits(seen, after) or _fits(after, seen))):
            raise difference


def _compare_facts(part: _Part, expected: Facts, found: Facts, changed: Collection[str]) -> None:
    """Raise Integrity where figures differ; no bounds of ``changed`` columns, whose values the change may round."""
    if expected.rows != found.rows:
        raise part.differ("rows", expected.rows, found.rows)
    for path, after in sorted(found.leaves.items()):
        before = expected.leaves.get(path)
        if path in changed and (before is None or before.other_ids(after)):
            continue  # these are figures of another column, or of none
        if before is None:  # added to the table since the inputs were written: they read as nulls
            before = Leaf(after.kinds, after.repeated)
            before.absent_in(expected.rows)
        if before.nulls is not None and after.nulls is not None and before.nulls != after.nulls:
            raise part.differ(f"column {path}, nulls", before.nulls, after.nulls)
        if before.values is not None and after.values is not None and before.values != after.values:
            raise part.differ(f"column {path}, hash of its values", f"{before.values:016x}", f"{after.values:016x}")
        if path in changed or not (before.bounded and after.bounded and before.bounds_compare_with(after)):
            continue
        for what, old, new in (("min", before.low, after.low), ("max", before.high, after.high)):
            if old != new:
                kind = _kind(after)
                raise part.differ(f"column {path}, {what}", render(kind, old), render(kind, new))


def _compare_fingerprints(part: _Part, before: Fingerprint, after: Fingerprint) -> None:
    if before.rows != after.rows:
        raise part.differ("rows", before.rows, after.rows)
    column = before.differing_column(after)
    if column is not None:
        old, new = before.columns.get(column, 0), after.columns.get(column, 0)
        raise part.differ(f"column {column}, hash of its values", f"{old:016x}", f"{new:016x}")
    if (before.first, before.second) != (after.first, after.second):
        raise part.differ("values moved between rows, hash of the rows", f"{before.first:016x}", f"{after.first:016x}")


def _casts(expected: Facts, found: Facts, outputs: _Footers) -> Mapping[str, pa.DataType]:
    """Types of the new files' columns where integers were widened to floating point, else nothing."""
    widened = any(
        kind.family == "int" and _kind(found.leaves[path]).family == "float"
        for path, leaf in expected.leaves.items()
        if path in found.leaves
        for kind in leaf.kinds
    )
    if not widened:
        return {}
    schema = outputs[0][1].schema
    return dict(zip(schema.names, schema.types, strict=True))


def _kind(leaf: Leaf) -> LeafType:
    return next(iter(leaf.kinds))


def _kinds(leaf: Leaf | None) -> str:
    return " or ".join(sorted(map(str, leaf.kinds))) if leaf else "no such column"
