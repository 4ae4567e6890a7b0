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

import logging
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from executors.datafiles import collect_statistics
from executors.datafiles.statistics import FileStatistics, LeafStatistics, LeafType, render_bound
from executors.rowhash import Fingerprint
from executors.verified_files import FileReader, Footers, PartitionRewrite, partition_rewrites
from lake.capabilities import ChecksInputs, ReadsMerged
from lake.errors import Integrity, LakefoldError, Rejected, Transient
from lake.plan import OutputFile, Plan, VerificationLevel
from lake.ports import Rewrite, TableWriter
from lake.storage.locations import is_local
from lake.units import format_bytes

log = logging.getLogger(__name__)

#: footers read at once from remote storage, since such a read is mostly waiting
_REMOTE_READS = 8


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
    that is as large. Raises the error of ``ChecksInputs`` instead of Integrity if the table has changed.
    """
    try:
        _verify(rewrite, writer, check, threads, run)
    except Integrity:
        if isinstance(writer, ChecksInputs):
            writer.check_inputs(rewrite.prepared)
        raise


def _verify(
    rewrite: Rewrite, writer: TableWriter, check: Callable[[], None], threads: int | None, run: "RunMany | None"
) -> None:
    plan, volatile = rewrite.prepared.plan, rewrite.prepared.volatile_columns
    _verify_splits(plan, rewrite.outputs)
    parts = list(partition_rewrites(rewrite))
    if run is not None and plan.options.verification is VerificationLevel.FOOTER:
        equal = _footers_equal(parts, plan.table.location, volatile, check, run)
        parts = [part for part in parts if part.name not in equal]
    with ThreadPoolExecutor(threads or min(8, 2 * (os.cpu_count() or 1)), "verification") as pool:
        files = FileReader(plan.table.location, pool, volatile, check)
        for part in parts:
            check()
            read, written = part.sources()
            if not part.has_logs and files.has_copied_stripes(part, read, written):
                continue
            inputs, outputs = files.read_footers(read), files.read_footers(written)
            _compare_counts(part, outputs)
            expected, found = _statistics(part, inputs, outputs, volatile)
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
        function: Callable[["_FooterComparison"], bool],
        items: Sequence["_FooterComparison"],
        *,
        files: int,
        check: Callable[[], None],
    ) -> Sequence[bool]:
        """Return the result for each item. ``files`` is the number of files that the function opens in all.

        ``check`` is called often and may raise to end the work. Raises Transient if the run fails.
        """


@dataclass(frozen=True, slots=True, eq=False)
class _FooterComparison:
    """The comparison of the footers of one partition, with everything that another process needs for it.

    ``location`` is the table's location; columns in ``volatile`` are not compared.
    """

    location: str
    volatile: Collection[str]
    partition: "PartitionRewrite"


def _footers_equal(
    parts: Sequence["PartitionRewrite"],
    location: str,
    volatile: Collection[str],
    check: Callable[[], None],
    run: RunMany,
) -> frozenset[str]:
    """Return the partitions whose footers show that the new files have the rows of the old files."""
    comparisons = [
        _FooterComparison(location, volatile, part.without_payloads()) for part in parts if not part.has_logs
    ]
    files = sum(len(one.partition.slices) + len(one.partition.outputs) for one in comparisons)
    try:
        equal = run(_has_equal_footers, comparisons, files=files, check=check)
    except (Transient, Rejected) as error:
        log.warning("footers can't be compared in other processes, so this process compares them: %s", error)
        return frozenset()
    return frozenset(one.partition.name for one, is_equal in zip(comparisons, equal, strict=True) if is_equal)


def _has_equal_footers(comparison: _FooterComparison) -> bool:
    """True if the footers show that the new files have the rows of the old files; False also after an error."""
    part, volatile = comparison.partition, comparison.volatile
    read, written = part.sources()
    try:
        with ExitStack() as opened:
            # Reading the footer of a local file takes less time than handing it to a thread.
            pool = None if is_local(comparison.location) else opened.enter_context(ThreadPoolExecutor(_REMOTE_READS))
            files = FileReader(comparison.location, pool, volatile, lambda: None)
            if files.has_orc(read[:1] or written[:1]):
                # Copied stripes are compared by their bytes, which is a stronger and faster comparison.
                return False
            inputs, outputs = files.read_footers(read), files.read_footers(written)
        _compare_counts(part, outputs)
        expected, found = _statistics(part, inputs, outputs, volatile)
        if _changed_columns(part, expected, found) or expected.leaves.keys() != found.leaves.keys():
            return False
        _compare_statistics(part, expected, found, ())
    except LakefoldError:
        return False
    return True


def _statistics(
    part: PartitionRewrite, inputs: Footers, outputs: Footers, volatile: Collection[str]
) -> tuple[FileStatistics, FileStatistics]:
    """Return the statistics of the old files and of the new files.

    If a column has UTC timestamps in some files and local ones in others, both before and after the rewrite, each kind
    is a column of its own here: the files of a group had one kind, which their new files have as well. A writer that
    converts one kind into the other leaves only one.
    """
    expected, found = (collect_statistics((footer for _, footer in one), volatile) for one in (inputs, outputs))
    mixed = _columns_of_both_zones(expected) & _columns_of_both_zones(found)
    if not mixed or part.has_logs:
        return expected, found
    return _statistics_by_zone(inputs, volatile, mixed), _statistics_by_zone(outputs, volatile, mixed)


def _statistics_by_zone(footers: Footers, volatile: Collection[str], paths: Collection[str]) -> FileStatistics:
    total = FileStatistics()
    for _, footer in footers:
        one = collect_statistics([footer], volatile)
        leaves = {
            f"{path} ({_zone_of(next(iter(leaf.types)))})" if path in paths else path: leaf
            for path, leaf in one.leaves.items()
        }
        total.merge(FileStatistics(rows=one.rows, leaves=leaves))
    return total


def _columns_of_both_zones(statistics: FileStatistics) -> set[str]:
    return {path for path, leaf in statistics.leaves.items() if len(set(map(_zone_of, leaf.types)) - {None}) > 1}


def _zone_of(kind: LeafType) -> str | None:
    """Return ``utc`` or ``local`` for a type of times or timestamps. None for other types."""
    return str(kind.detail[1]) if kind.family in ("time", "timestamp") else None


def _compare_counts(part: PartitionRewrite, outputs: Footers) -> None:
    if not part.slices:
        raise part.difference("files", "none, as the plan has no group here", len(part.outputs))
    for output, (_, footer) in zip(part.outputs, outputs, strict=True):
        if footer.rows != output.rows:
            raise part.difference(f"rows reported for {output.path}", footer.rows, output.rows)


def _changed_columns(
    part: PartitionRewrite, expected: FileStatistics, found: FileStatistics
) -> Mapping[str, Integrity]:
    """Return columns whose values footers can't compare, with their differences.

    Such a column is missing in the new files, or has another id there, or a type that does not hold every value of its
    old type. Either the table has evolved since the files were written, or the rewrite is wrong. A comparison with the
    rows that a reader of the table sees decides this. Raises Integrity if a column has different types in the new
    files for which the old files are no reason.
    """
    changed = {}
    for path in sorted(expected.leaves.keys() | found.leaves.keys()) if part.outputs else ():
        before, after = expected.leaves.get(path), found.leaves.get(path)
        if after is not None and not _has_types_of_inputs(before, after):
            wanted = "one type in all new files, or types of the old files"
            raise part.difference(f"column {path}", wanted, _type_names(after))
        if before is not None and not _is_type_compatible(before, after):
            changed[path] = part.difference(f"column {path}", _type_names(before), _type_names(after))
        elif before and after and (ids := before.conflicting_field_ids(after)):
            changed[path] = part.difference(f"column {path}, field id", *ids)
    return changed


def _added_columns(
    part: PartitionRewrite, expected: FileStatistics, found: FileStatistics, level: VerificationLevel
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


def _has_types_of_inputs(before: LeafStatistics | None, after: LeafStatistics) -> bool:
    """True if the new files have one type, or else the types of the old files and perhaps one that is wider than all.

    The groups of a partition are written one by one: a group whose files all have a narrower type keeps it, while the
    files of another group are widened.
    """
    widest = _widest_type(after)
    if len(after.types) == 1 or before is None or widest is None:
        return len(after.types) == 1
    narrower = {kind for kind in after.types if kind.family == "int"} if _hides_narrower_ints(before, after) else ()
    return after.types <= before.types.union({widest}, narrower)


def _is_type_compatible(before: LeafStatistics, after: LeafStatistics | None) -> bool:
    widest = None if after is None else _widest_type(after)
    if after is None or widest is None:
        return False
    unsaid = _INT if widest.family == "int" and _hides_narrower_ints(before, after) else None
    return all(kind == unsaid or kind.can_widen_to(widest) for kind in before.types)


def _hides_narrower_ints(before: LeafStatistics, after: LeafStatistics) -> bool:
    """True if a 32-bit integer in ``before`` may be a narrower type, as one in ``after`` is, without a lost value.

    Files of Impala and of old releases of Hive do not record that such an integer is a narrower type. If both sides
    have exact bounds, which are compared, the narrower type has lost no value.
    """
    return _INT in before.types and before.has_exact_bounds and after.has_exact_bounds


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
    part: PartitionRewrite, expected: FileStatistics, found: FileStatistics, changed: Collection[str]
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
                kind = _widest_type(after) or next(iter(after.types))
                raise part.difference(f"column {path}, {what}", render_bound(kind, old), render_bound(kind, new))


def _compare_fingerprints(part: PartitionRewrite, before: Fingerprint, after: Fingerprint) -> None:
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


def _widening_casts(expected: FileStatistics, found: FileStatistics, outputs: Footers) -> Mapping[str, pa.DataType]:
    """Return the types of the new files' columns if integers were widened to floating point, else nothing.

    Of the types that a column has in different new files it is the widest.
    """
    widened = any(
        kind.family == "int" and any(after.family == "float" for after in found.leaves[path].types)
        for path, leaf in expected.leaves.items()
        if path in found.leaves
        for kind in leaf.types
    )
    if not widened:
        return {}
    types: dict[str, set[pa.DataType]] = defaultdict(set)
    for _, footer in outputs:
        for name, kind in zip(footer.schema.names, footer.schema.types, strict=True):
            types[name].add(kind)
    return {name: widest for name, kinds in types.items() if (widest := _widest_column(kinds)) is not None}


def _widest_column(kinds: Collection[pa.DataType]) -> pa.DataType | None:
    """Return the type of a column that has the values of all its types. None if Arrow has no such type."""
    if len(kinds) == 1:
        return next(iter(kinds))
    try:
        schemas = [pa.schema([("column", kind)]) for kind in kinds]
        return pa.unify_schemas(schemas, promote_options="permissive").field("column").type
    except pa.ArrowException:
        return None


def _widest_type(leaf: LeafStatistics) -> LeafType | None:
    """Return the type of the column that has the values of all its types. None if there is none."""
    return next((one for one in leaf.types if all(kind.can_widen_to(one) for kind in leaf.types)), None)


def _type_names(leaf: LeafStatistics | None) -> str:
    return " or ".join(sorted(map(str, leaf.types))) if leaf else "no such column"
