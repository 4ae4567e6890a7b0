# SPDX-License-Identifier: Apache-2.0
"""Relocations that a table's commit documents show, added to the relocations in this database.

Relocations recorded under another name of the table are transferred to this name: the table was renamed, or the prefix
of its source changed. Unknown relocations are added: this database lost them, or another lakefold made them.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Connection, func, insert, select, update

from lake.capabilities import RECREATED
from lake.model import FileSlice, TableRef
from lake.plan import (
    LIVE_STATES,
    ClusteringGroup,
    Commit,
    LocatedFile,
    PlanKind,
    PlanState,
    RewriteOptions,
    milliseconds_of,
)
from lake.relocation.model import DiscoveryResult, FoundRelocations, UnrecordedLateCopy
from service.control.store.audit import record_audit
from service.control.store.base import StorePart, insert_if_absent, record_event, with_row_locks
from service.control.store.database import db_now
from service.control.store.models import (
    GroupRow,
    LateCopyRow,
    PlanRow,
    RelocationRow,
    StagedRow,
    SupersededRow,
    TableRow,
)
from service.control.store.relocation.journal import has_relocation_of, record_unrecorded_relocations, supersede
from service.control.store.rows import options_document, pack_slices
from service.control.store.tables import table_values


class DiscoveredRelocations(StorePart):
    """See ``lake.relocation_store.RelocationStore``."""

    def known_relocation_tokens(self, table: TableRef) -> Collection[str]:
        """Return the tokens of all relocations that are recorded under the table's name."""
        tokens = select(RelocationRow.token).where(RelocationRow.table_name == table.name).distinct()
        with self._database.read() as connection:
            return frozenset(connection.execute(tokens).scalars())

    def add_discovered_relocations(self, table: TableRef, found: Sequence[FoundRelocations]) -> DiscoveryResult:
        """Record relocations that the table shows, oldest first. Returns which commits are recorded.

        Relocations of a plan under this name are left to its executor and to the sweep, which record them. Relocations
        of a plan under another name are left to its executor only while the executor renews its lease. After that they
        are recorded here, because the table no longer has the other name.
        """
        recorded, notes = 0, defaultdict[str, int](int)
        left: list[str] = []
        with self._database.write() as connection:
            insert_if_absent(connection, TableRow, **table_values(table, "observe"))
            for one in found:
                if one.is_recorded:
                    _insert_late_copies(connection, table, one, one.late_copies)
                    continue
                row = connection.execute(with_row_locks(_plan_query(one.commit.plan_id))).one_or_none()
                if row is None:
                    _insert_discovered_plan(connection, table, one.commit)
                elif row.table_name == table.name:
                    # No other code records that the sweep relocated a partition after the plan.
                    is_back = row.state == PlanState.COMPLETED and one.commit.epoch is None
                    if not is_back:
                        continue
                elif row.state in LIVE_STATES and not row.is_silent:
                    left.append(one.commit.instant)
                    continue
                elif row.state not in LIVE_STATES:
                    _transfer_plan_records(connection, table, row.id, row.table_name)
                    notes[row.table_name] += 1
                if not has_relocation_of(connection, table.name, one.commit):
                    _insert_relocations(connection, table, one)
                    notes[""] += row is None
                recorded += 1
            for name, count in sorted(notes.items()):
                if name:
                    _copy_halts(connection, table, name)
                if count:
                    what = f"that were recorded under the name {name}" if name else "that this database lacked"
                    record_audit(
                        connection,
                        "sweep",
                        "moves found",
                        table=table.name,
                        detail=f"{count} commits {what}, found in the table's commit documents",
                    )
        return DiscoveryResult(commits=recorded, left_to_executors=tuple(left))


def _plan_query(plan_id: str) -> Any:
    is_silent = (func.coalesce(PlanRow.lease_until_ms, 0) < db_now()).label("is_silent")
    return select(PlanRow.id, PlanRow.table_name, PlanRow.state, is_silent).where(PlanRow.id == plan_id)


def _transfer_plan_records(connection: Connection, table: TableRef, plan_id: str, other_name: str) -> None:
    """Transfer the records of a plan, and of the partitions that it relocated, from another name of the table."""
    moves = select(RelocationRow.partition_path).where(
        RelocationRow.table_name == other_name, RelocationRow.plan_id == plan_id
    )
    partitions = sorted(set(connection.execute(moves).scalars()))
    # A cleaner that found another table under that name may have closed these records.
    ended = (
        SupersededRow.table_name == other_name,
        SupersededRow.plan_id == plan_id,
        SupersededRow.closed_reason.contains(RECREATED),
    )
    connection.execute(update(SupersededRow).where(*ended).values(deleted_at_ms=None, closed_reason=None))
    for row in (SupersededRow, StagedRow, RelocationRow):
        these = row.table_name == other_name, row.plan_id == plan_id
        connection.execute(update(row).where(*these).values(table_name=table.name))
    this = {"table_name": table.name, "identity": table.identity, "location": table.location}
    connection.execute(update(PlanRow).where(PlanRow.id == plan_id).values(this))
    for partition in partitions:
        # Another table may have that name now, with late copies of its own: in that case it has relocations of its own.
        others = select(RelocationRow.id).where(
            RelocationRow.table_name == other_name, RelocationRow.partition_path == partition
        )
        if connection.execute(others.limit(1)).one_or_none() is None:
            late_copies = LateCopyRow.table_name == other_name, LateCopyRow.partition_path == partition
            connection.execute(update(LateCopyRow).where(*late_copies).values(table_name=table.name))


def _copy_halts(connection: Connection, table: TableRef, other_name: str) -> None:
    """Halt the partitions that are halted under the table's other name: a rename does not resume them.

    The other name keeps its halts, since another table may have it now.
    """
    columns = TableRow.halted_at_ms, TableRow.halted_reason, TableRow.halted_partitions
    other = connection.execute(select(*columns).where(TableRow.name == other_name)).one_or_none()
    if other is None:
        return
    is_table = TableRow.name == table.name
    if other.halted_at_ms is not None:
        values = {"halted_at_ms": other.halted_at_ms, "halted_reason": other.halted_reason}
        connection.execute(update(TableRow).where(is_table, TableRow.halted_at_ms.is_(None)).values(values))
    if other.halted_partitions:
        here = connection.execute(with_row_locks(select(TableRow.halted_partitions).where(is_table))).scalar_one()
        partitions = {**other.halted_partitions, **here}
        connection.execute(update(TableRow).where(is_table).values(halted_partitions=partitions))


def _insert_discovered_plan(connection: Connection, table: TableRef, commit: Commit) -> None:
    """Insert a completed plan with the facts of its commit, so that the replaced files wait for deletion under it."""
    groups = _groups_of_commit(commit)
    before, after = sum(one.bytes for one in groups), sum(one.bytes for one in commit.outputs)
    files = sum(len(one.slices) for one in groups)
    connection.execute(
        insert(PlanRow).values(
            id=commit.plan_id,
            table_name=table.name,
            format=table.format,
            location=table.location,
            identity=table.identity,
            kind=PlanKind.CLUSTERING.value,
            state=PlanState.REQUESTED,
            snapshot_instant="",
            options=options_document(RewriteOptions(target_file_max_bytes=max(after, 1))),
            estimate={},
            actor="sweep",
            group_count=len(groups),
            partition_count=len({one.partition for one in groups}),
            input_files=files,
            input_bytes=before,
            output_files=len(commit.outputs),
            epoch=commit.epoch or 0,
            files_before=files,
            bytes_before=before,
            files_after=len(commit.outputs),
            bytes_after=after,
            created_at_ms=db_now(),
            not_before_ms=db_now(),
            rank_ms=db_now(),
        )
    )
    # The transitions of a plan that ended and whose commit was found afterwards: triggers allow no shorter path.
    this = PlanRow.id == commit.plan_id
    ended = {"state": PlanState.CANCELLED, "finalized_at_ms": db_now()}
    connection.execute(update(PlanRow).where(this).values(ended))
    connection.execute(update(PlanRow).where(this).values(state=PlanState.COMPLETED, instant=commit.instant))
    rows = [
        {
            "plan_id": commit.plan_id,
            "number": number,
            "partition_path": group.partition,
            "slices": len(group.slices),
            "input_files": len(group.slices),
            "input_bytes": group.bytes,
            "output_files": group.output_files,
            "files": pack_slices(group.slices),
        }
        for number, group in enumerate(groups)
    ]
    if rows:
        connection.execute(insert(GroupRow), rows)
    reason = "this database lacked the plan: found in the table's commit documents"
    record_event(
        connection, commit.plan_id, None, PlanState.COMPLETED, epoch=commit.epoch or 0, actor="sweep", reason=reason
    )


def _groups_of_commit(commit: Commit) -> Sequence[ClusteringGroup]:
    by_partition: dict[str, list[FileSlice]] = defaultdict(list)
    for one in commit.superseded:
        item = FileSlice(partition=one.partition, file_id=one.path, path=one.path, bytes=one.bytes)
        by_partition[one.partition].append(item)
    made = defaultdict[str, int](int)
    for output in commit.outputs:
        made[output.partition] += 1
    return [
        ClusteringGroup(partition=name, slices=tuple(slices), output_files=made[name])
        for name, slices in sorted(by_partition.items())
    ]


def _insert_relocations(connection: Connection, table: TableRef, found: FoundRelocations) -> None:
    commit = found.commit
    others = record_unrecorded_relocations(connection, table.name, commit)
    by_partition: dict[tuple[str, str], list[LocatedFile]] = defaultdict(list)
    for one in commit.superseded:
        if one.partition not in others:
            at = 0 if one.modified_at is None else milliseconds_of(one.modified_at)
            by_partition[one.partition, one.instant].append(LocatedFile(path=one.path, bytes=one.bytes, modified_ms=at))
    for (partition, token), files in by_partition.items():
        supersede(connection, table.name, partition, commit.plan_id, token, files)
    _insert_late_copies(connection, table, found, [one for one in found.late_copies if one.partition not in others])
    if found.deleted_paths:
        row = SupersededRow
        these = row.table_name == table.name, row.plan_id == commit.plan_id, row.path.in_(sorted(found.deleted_paths))
        connection.execute(update(row).where(*these).values(deleting_at_ms=db_now(), deleted_at_ms=db_now()))


def _insert_late_copies(
    connection: Connection, table: TableRef, found: FoundRelocations, carried: Sequence[UnrecordedLateCopy]
) -> None:
    """Record the files that were copied from a commit's previous locations; known records stay as they are."""
    for one in carried:
        is_new = insert_if_absent(
            connection,
            LateCopyRow,
            table_name=table.name,
            partition_path=one.partition,
            source=one.source.path,
            bytes=one.source.bytes,
            modified_at_ms=one.source.modified_ms,
            target=one.target,
            begun_at_ms=db_now(),
            done_at_ms=db_now(),
        )
        if is_new:
            supersede(connection, table.name, one.partition, found.commit.plan_id, one.token, [one.source])
