# SPDX-License-Identifier: Apache-2.0
"""The inputs of a plan in the table's current state: which groups can still be rewritten, and why others can't."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lake.engine_choice import ChosenEngine
from lake.engines import FileSchema, RewriteTask, RowColumn
from lake.formats.iceberg.catalog.tables import LoadedTable
from lake.formats.iceberg.files.deletion_vectors import VectorLocation
from lake.formats.iceberg.files.position_deletes import DeletesOfFile, PositionDeletes
from lake.formats.iceberg.read import footers, refusals, sort_orders
from lake.formats.iceberg.read.delete_files import DeleteContent
from lake.formats.iceberg.read.lineage import FIELD_IDS, LAST_UPDATED, ROW_ID, files_without_numbers
from lake.formats.iceberg.read.live_files import DataFile, read_live_files, snapshot_of
from lake.formats.iceberg.read.row_ids import first_row_ids
from lake.plan import ClusteringGroup, Plan, SkippedGroup
from lake.storage.locations import resolve_path


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteInputs:
    """The state of a table at ``prepare``, and the data that the commit needs.

    ``has_lineage`` is True if the format version records the lineage of rows. ``has_row_ids`` is True if the rows of
    the snapshot have ids. After an upgrade to format version 3, the next commit gives them ids. ``first_row_ids`` are
    the ids of the first rows of files by location. ``files`` are the inputs of each live group, and ``sort_order`` is
    the id of the order of the rows of outputs. ``by_iceberg`` are the groups that only Iceberg's own reader and writer
    can rewrite, with the reasons. ``tasks``, ``choices`` and ``locations`` are those of the other groups: ``locations``
    maps the path of each output to the output's name in the metadata.
    """

    snapshot_id: int
    sequence_number: int
    format_version: int
    has_lineage: bool
    has_row_ids: bool
    first_row_ids: Mapping[str, int | None] = field(default_factory=dict)
    identity: str
    columns: footers.Columns
    file_schema: FileSchema
    sort_order: int
    files: Mapping[int, Sequence[DataFile]]
    by_iceberg: Mapping[int, str] = field(default_factory=dict)
    tasks: Sequence[RewriteTask] = ()
    choices: Mapping[int, ChosenEngine] = field(default_factory=dict)
    locations: Mapping[str, str] = field(default_factory=dict)


def read_inputs(table: LoadedTable, plan: Plan) -> tuple[RewriteInputs, tuple[SkippedGroup, ...]]:
    """Return the groups of ``plan`` that can be rewritten, and the others with their reasons.

    Raises Transient or Rejected as ``read_live_files`` does, and Transient if an input can't be read at the moment.
    """
    snapshot = snapshot_of(table)
    live = {file.path: file for file in read_live_files(table, snapshot, plan.partitions)}
    whole, refused = refusals.table_reason(table), refusals.FileRefusals(table)
    groups: dict[int, list[DataFile]] = {}
    skipped: dict[int, SkippedGroup] = {}
    for index, group in enumerate(plan.groups):
        files = [live.get(resolve_path(table.ref.location, str(item.path))) for item in group.slices]
        found = [file for file in files if file is not None]
        reason = whole or _stale_reason(table, group, found, refused)
        if reason is None:
            groups[index] = found
        else:
            skipped[index] = SkippedGroup(group=index, reason=reason)
    columns = footers.table_columns(table)
    inputs_of_groups = [file for files in groups.values() for file in files]
    different = dict(footers.different_files(columns, [file.path for file in inputs_of_groups]))
    has_lineage = refusals.has_lineage(table)
    if has_lineage:
        renumbered = [
            file.path
            for file in inputs_of_groups
            if file.sequence_number != file.file_sequence_number and file.path not in different
        ]
        different |= files_without_numbers(renumbered)
    for index, inputs_of_group in list(groups.items()):
        odd = [file.path for file in inputs_of_group if file.path in different]
        if odd:
            names = {
                resolve_path(table.ref.location, str(item.path)): str(item.path) for item in plan.groups[index].slices
            }
            lasting = tuple(names[path] for path in odd if not different[path].is_gone)
            skipped[index] = SkippedGroup(group=index, reason=different[odd[0]].reason, quarantine=lasting)
            del groups[index]
    firsts = first_row_ids(table, snapshot) if has_lineage else {}
    inputs = RewriteInputs(
        snapshot_id=0 if snapshot is None else snapshot.snapshot_id,
        sequence_number=0 if snapshot is None else int(snapshot.sequence_number or 0),
        format_version=table.metadata.format_version,
        has_lineage=has_lineage,
        has_row_ids=getattr(snapshot, "first_row_id", None) is not None,
        first_row_ids=firsts,
        identity=str(table.metadata.table_uuid),
        columns=columns,
        file_schema=footers.file_schema(table),
        sort_order=sort_orders.written_order(table, plan.options),
        files=groups,
        by_iceberg={
            index: reason
            for index, files in groups.items()
            if (reason := next(filter(None, (refusals.needs_iceberg(table, file, firsts) for file in files)), None))
        },
    )
    return inputs, tuple(skipped[index] for index in sorted(skipped))


def position_deletes(files: Sequence[DataFile]) -> PositionDeletes | None:
    """Return the deletes by position that may apply to ``files``; None without any, or if there are other deletes."""
    deletes = [one for file in files for one in file.deletes]
    if not deletes or any(one.content is DeleteContent.EQUALITY for one in deletes):
        return None
    return PositionDeletes(by_input={file.path: _deletes_of(file) for file in files if file.deletes})


def _deletes_of(file: DataFile) -> DeletesOfFile:
    vectors = [one for one in file.deletes if one.content is DeleteContent.VECTOR]
    if not vectors:
        return DeletesOfFile(location=file.location, delete_paths=file.delete_paths)
    (vector,) = vectors
    offset, size = vector.content_offset or 0, vector.content_bytes or 0
    location = VectorLocation(path=vector.path, offset=offset, bytes=size, rows=vector.rows)
    return DeletesOfFile(location=file.location, vector=location)


def row_columns(files: Sequence[DataFile], first_row_ids: Mapping[str, int | None]) -> tuple[RowColumn, ...]:
    """Return the columns that store the lineage of rows in new files; none if the rows have no lineage.

    If an input stores no sequence number for a row, the row was last updated by the commit that added the row: in the
    specification this is the data sequence number of the input.
    """
    firsts = {file.path: first_row_ids.get(file.location) for file in files}
    known = {path: first for path, first in firsts.items() if first is not None}
    if len(known) < len(firsts):
        return ()
    numbers = {file.path: file.sequence_number for file in files}
    return (
        RowColumn(name=ROW_ID, field_id=FIELD_IDS[ROW_ID], first_values=known, adds_position=True),
        RowColumn(name=LAST_UPDATED, field_id=FIELD_IDS[LAST_UPDATED], first_values=numbers),
    )


def _stale_reason(
    table: LoadedTable, group: ClusteringGroup, found: Sequence[DataFile], refused: refusals.FileRefusals
) -> str | None:
    """Return why a group can't be rewritten in the table's current state; None if it can."""
    if len(found) < len(group.slices):
        here = {file.path for file in found}
        gone = next(
            str(item.path) for item in group.slices if resolve_path(table.ref.location, str(item.path)) not in here
        )
        return f"{gone} is no longer part of the table: a writer was faster"
    for item, file in zip(group.slices, found, strict=True):
        if item.bytes != file.bytes:
            return f"{item.path} has {file.bytes} bytes in the table's metadata, the plan names {item.bytes}"
        if (reason := refused.reason(file)) is not None:
            return f"{item.path}: {reason}"
        if {resolve_path(table.ref.location, path) for path in item.log_files} != set(file.delete_paths):
            return f"the row-level deletes for {item.path} have changed since the plan was made"
    if len({(file.spec_id, file.partition_json) for file in found}) > 1:
        return f"its files are in several partitions that share the path {group.partition}"
    return None
