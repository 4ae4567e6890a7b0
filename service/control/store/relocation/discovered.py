# SPDX-License-Identifier: Apache-2.0
"""Relocations that a table's commit documents show, added to the relocations in this database.

Relocations recorded under another name of the table are transferred to this name: the table was renamed, or the prefix
of its source changed. Unknown relocations are added: this database lost them, or another lakefold made them.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from typing import Any

from sqlalchemy import Connection, Row, delete, func, insert, select, true, update
from sqlalchemy.orm import aliased

from lake.capabilities import RECREATED
from lake.model import FileSlice, TableRef
from lake.plan import (
    LIVE_STATES,
    UNDONE,
    ClusteringGroup,
    Commit,
    LocatedFile,
    PartitionFigures,
    Plan,
    PlanKind,
    PlanState,
    RewriteOptions,
    milliseconds_of,
)
from lake.relocation.model import DiscoveryResult, FoundRelocations, UnrecordedLateCopy
from service.control.store.audit import record_audit
from service.control.store.base import StorePart, in_batches, insert_if_absent, record_event, with_row_locks
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
from service.control.store.other_names import owners_under_other_names, serialize_partition_locks
from service.control.store.plan_completion import complete_without_claim, end_committed_attempt, halt_unknown_attempt
from service.control.store.relocation.journal import (
    has_relocation_of,
    latest_location,
    record_unrecorded_relocations,
    supersede,
)
from service.control.store.relocation.shared_directories import close_deleted_elsewhere
from service.control.store.repeated_replacements import REMOVED_BY_WRITER
from service.control.store.rows import options_document, pack_slices
from service.control.store.tables import table_values


class DiscoveredRelocations(StorePart):
    """See ``lake.relocation_store.RelocationStore``."""

    def known_relocation_tokens(self, table: TableRef) -> Collection[str]:
        """Return the tokens of all relocations that are recorded as applied under the table's name.

        A relocation that was begun may be applied since: the database may have been restored from a backup.
        """
        applied = RelocationRow.table_name == table.name, RelocationRow.made_at_ms.is_not(None)
        tokens = select(RelocationRow.token).where(*applied).distinct()
        with self._database.read() as connection:
            return frozenset(connection.execute(tokens).scalars())

    def add_discovered_relocations(
        self,
        table: TableRef,
        found: Sequence[FoundRelocations],
        figures: Callable[[Plan, Commit], Sequence[PartitionFigures]],
    ) -> DiscoveryResult:
        """Record relocations that the table shows, oldest first. Returns which commits are recorded.

        The run of an inflight plan under this name records its own relocations. The executor of a live plan under
        another name records them too, but only while it renews its lease: the table no longer has the other name, so no
        later executor would find the commit. Later commits of their partitions wait for them, because a run records its
        commit as the last one. If the table's name differs only in the prefix of its source, a commit also waits while
        another plan, or the sweep or the cleaner, has locked one of its partitions under the other name: until then the
        sweep under that name processes late files, and no other sweep can lock the partition. In all other cases, this
        method completes a plan that has not completed, under this name and with the ``figures`` of its commit. The
        exception is an ended plan if this database has a record of the attempt that committed: the sweep checks whether
        a program undid that commit.
        """
        recorded, notes = 0, defaultdict[str, int](int)
        left_to_executors: list[str] = []
        left_to_plans: list[str] = []
        #: by partition with a commit that is left to its run: the list that its later commits are added to
        waiting: dict[str, list[str]] = {}
        #: commits that the sweep records, together with the relocations that undid them
        left_to_sweep: set[str] = set()
        newest_epochs = defaultdict[str, int](int)
        #: by partition, the relocations of the commits that are not processed yet; this database may have recorded them
        #: under another name
        later_tokens = defaultdict[str, set[str]](set)
        for one in found:
            newest_epochs[one.commit.plan_id] = max(newest_epochs[one.commit.plan_id], one.commit.epoch or 0)
            for move in () if one.is_recorded else one.commit.relocations:
                later_tokens[move.partition].add(move.token)
        with self._database.write() as connection:
            # A process must not lock a partition under another name while its records are transferred.
            serialize_partition_locks(connection, table)
            plans_elsewhere, others_elsewhere = owners_under_other_names(connection, table)
            _register_identity(connection, table)
            locked = _lock_names(connection, table, found)
            for one in found:
                commit = one.commit
                if one.is_recorded:
                    _insert_late_copies(connection, table, one, one.late_copies)
                    _close_removed(connection, table, one)
                    continue
                for move in commit.relocations:
                    later_tokens[move.partition].discard(move.token)
                if commit.instant.removeprefix(UNDONE) in left_to_sweep:
                    continue
                partitions = [move.partition for move in commit.relocations]
                row = _lock_plan(connection, table, commit)
                waits_with = next((waiting[partition] for partition in partitions if partition in waiting), None)
                if waits_with is None and any(
                    one in others_elsewhere or plans_elsewhere.get(one, commit.plan_id) != commit.plan_id
                    for one in partitions
                ):
                    waits_with = left_to_executors
                if waits_with is None and row is not None:
                    if row.table_name == table.name:
                        waits_with = left_to_plans if _is_left_to_plan(row, commit) else None
                    elif row.state in LIVE_STATES and _is_held(row, commit):
                        waits_with = left_to_executors
                if waits_with is not None:
                    waits_with.append(commit.instant)
                    waiting |= dict.fromkeys(partitions, waits_with)
                    continue
                if row is None:
                    _insert_discovered_plan(connection, table, commit, newest_epochs[commit.plan_id])
                elif row.table_name == table.name:
                    if _is_recorded_elsewhere(row, commit):
                        left_to_sweep.add(commit.instant)
                        continue
                elif row.state not in LIVE_STATES or commit.epoch is not None:
                    _transfer_plan_records(connection, table, row.id, row.table_name)
                    notes[row.table_name] += 1
                if row is not None and _lacks_commit(row, commit):
                    self._complete(connection, commit, figures)
                elif row is not None and row.state == PlanState.COMPLETED and row.instant != commit.instant:
                    halt_unknown_attempt(connection, self._settings, row, commit)
                if not has_relocation_of(connection, table.name, commit):
                    _insert_relocations(connection, table, one, locked, later_tokens)
                    notes[""] += row is None
                recorded += 1
            for name, count in sorted(notes.items()):
                if name in locked:
                    _transfer_halts(connection, table, name)
                if count:
                    what = f"that were recorded under the name {name}" if name else "that this database lacked"
                    record_audit(
                        connection,
                        "sweep",
                        "moves found",
                        table=table.name,
                        detail=f"{count} commits {what}, found in the table's commit documents",
                    )
        return DiscoveryResult(
            commits=recorded, left_to_executors=tuple(left_to_executors), left_to_plans=tuple(left_to_plans)
        )

    def _complete(
        self, connection: Connection, commit: Commit, figures: Callable[[Plan, Commit], Sequence[PartitionFigures]]
    ) -> None:
        """Complete the plan of ``commit``, which is under this name, so that no executor records it again."""
        row = connection.execute(select(PlanRow.__table__).where(PlanRow.id == commit.plan_id)).one()
        complete_without_claim(connection, self._settings, row, commit, lambda plan: figures(plan, commit))
        end_committed_attempt(connection, self._settings, row, commit)


def _lock_plan(connection: Connection, table: TableRef, commit: Commit) -> Row[Any] | None:
    """Return the row of the commit's plan, locked; None if there is none.

    The row of an inflight plan under this name is not locked: its executor locks it before the row of the table.
    """
    query = _plan_query(commit)
    row = connection.execute(query).one_or_none()
    if row is None or (row.table_name == table.name and row.state == PlanState.INFLIGHT):
        return row
    return connection.execute(with_row_locks(query)).one_or_none()


def _plan_query(commit: Commit) -> Any:
    lease_until = func.coalesce(PlanRow.lease_until_ms, 0)
    is_leased = (lease_until >= db_now()).label("is_leased")
    is_in_grace = (lease_until + PlanRow.grace_ms >= db_now()).label("is_in_grace")
    staged = select(StagedRow.token).where(StagedRow.plan_id == PlanRow.id)
    has_staged = staged.where(StagedRow.epoch == PlanRow.epoch).exists().label("has_staged")
    of_commit = staged.where(StagedRow.token == commit.instant, StagedRow.cleared_at_ms.is_(None))
    has_staged_commit = of_commit.exists().label("has_staged_commit")
    columns = PlanRow.id, PlanRow.table_name, PlanRow.state, PlanRow.epoch, PlanRow.instant
    query = select(*columns, is_leased, is_in_grace, has_staged, has_staged_commit)
    return query.where(PlanRow.id == commit.plan_id)


def _is_left_to_plan(row: Row[Any], commit: Commit) -> bool:
    """True if the plan of ``row``, under this name of the table, is live and a run of it records ``commit``.

    An inflight plan always reaches its end, if necessary after a takeover. But a requested plan may not be claimed for
    days, for example if its table is paused. So only a relocation by the sweep waits for a requested plan: it follows
    the relocation that the plan itself made.
    """
    return row.state == PlanState.INFLIGHT or (row.state == PlanState.REQUESTED and commit.epoch is None)


def _is_recorded_elsewhere(row: Row[Any], commit: Commit) -> bool:
    """True if the plan of ``row`` has ended under this name, and other code records ``commit`` or has recorded it.

    No other code records a relocation by the sweep that followed the plan, or a second commit of a plan if this
    database lacks the staging of that commit.
    """
    if row.state == PlanState.COMPLETED:
        return commit.epoch is not None and (row.instant == commit.instant or bool(row.has_staged_commit))
    return row.state not in LIVE_STATES and not _lacks_commit(row, commit)


def _lacks_commit(row: Row[Any], commit: Commit) -> bool:
    """True if the plan of ``row`` has not completed, and is to be completed with ``commit``.

    If an ended plan has a lower epoch than the commit, the database was restored to a state before that attempt.
    """
    if row.state == PlanState.COMPLETED or commit.epoch is None:
        return False
    return row.state in LIVE_STATES or commit.epoch > row.epoch


def _is_held(row: Row[Any], commit: Commit) -> bool:
    """True if the live plan of ``row``, which made ``commit``, is to be left to its executor.

    The executor that made the commit records it while it has its lease. Any other executor can't find the table by the
    other name. The sweep waits for such an executor only if it has staged files: that executor's own commit may take
    effect until the end of its grace, so the plan must not end before. An executor that took the plan over stages no
    files, and would take the plan over again after each lease.
    """
    if commit.epoch in (None, row.epoch):
        return bool(row.is_leased)
    return bool(row.has_staged and row.is_in_grace)


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
            _transfer_late_copies(connection, table, partition, other_name)


def _transfer_late_copies(connection: Connection, table: TableRef, partition: str, other_name: str) -> None:
    """Transfer the records of a partition's late copies from another name of the table.

    Both names may have a record of the same file: a round of the sweep that had begun under one name recorded the copy
    after the table had got the other name. This name's record stays if it is done, else the other one.
    """
    for kept, deleted, is_deletable in (
        (other_name, table.name, LateCopyRow.done_at_ms.is_(None)),
        (table.name, other_name, true()),
    ):
        row, same = LateCopyRow, aliased(LateCopyRow)
        is_file = (
            same.partition_path == row.partition_path,
            same.source == row.source,
            same.bytes == row.bytes,
            same.modified_at_ms == row.modified_at_ms,
        )
        is_recorded = select(same.id).where(same.table_name == kept, *is_file).exists()
        these = row.table_name == deleted, row.partition_path == partition
        connection.execute(delete(row).where(*these, is_deletable, is_recorded))
    these = LateCopyRow.table_name == other_name, LateCopyRow.partition_path == partition
    connection.execute(update(LateCopyRow).where(*these).values(table_name=table.name))


def _lock_names(connection: Connection, table: TableRef, found: Sequence[FoundRelocations]) -> Collection[str]:
    """Lock the rows of the table's name and of all names under which plans of these commits are; return the names.

    A claim also locks the row of a name before its plan. In the opposite order, the two could deadlock.
    """
    names = {table.name}
    for plans in in_batches(sorted({one.commit.plan_id for one in found})):
        others = select(PlanRow.table_name).where(PlanRow.id.in_(plans)).distinct()
        names.update(connection.execute(others).scalars())
    rows = select(TableRow.name).where(TableRow.name.in_(sorted(names))).order_by(TableRow.name)
    return frozenset(connection.execute(with_row_locks(rows)).scalars())


def _register_identity(connection: Connection, table: TableRef) -> None:
    """Register the table's name if it is unknown, and its identity if no scan has registered one.

    After the next rename, the identity shows that the halts under this name are those of the same table.
    """
    if not insert_if_absent(connection, TableRow, **table_values(table, "observe")):
        this = TableRow.name == table.name, TableRow.identity.is_(None)
        connection.execute(update(TableRow).where(*this).values(identity=table.identity))


def _transfer_halts(connection: Connection, table: TableRef, other_name: str) -> None:
    """Transfer the halts of the table's other name to this name, since a rename does not resume a table or partition.

    A search under a later name would find these halts again after a person has ended them here. If another table may
    have the other name now, the halts stay there as well. The caller has locked both rows.
    """
    columns = (
        TableRow.name,
        TableRow.identity,
        TableRow.halted_at_ms,
        TableRow.halted_reason,
        TableRow.halted_partitions,
    )
    rows = connection.execute(select(*columns).where(TableRow.name.in_((table.name, other_name))))
    found = {row.name: row for row in rows}
    if (other := found.get(other_name)) is None:
        return
    is_table, is_other = TableRow.name == table.name, TableRow.name == other_name
    if other.halted_at_ms is not None:
        values = {"halted_at_ms": other.halted_at_ms, "halted_reason": other.halted_reason}
        connection.execute(update(TableRow).where(is_table, TableRow.halted_at_ms.is_(None)).values(values))
    if other.halted_partitions:
        partitions = {**other.halted_partitions, **found[table.name].halted_partitions}
        connection.execute(update(TableRow).where(is_table).values(halted_partitions=partitions))
    if table.identity is not None and other.identity == table.identity:
        ended = update(TableRow).where(is_other)
        connection.execute(ended.values(halted_at_ms=None, halted_reason=None, halted_partitions={}))


def _insert_discovered_plan(connection: Connection, table: TableRef, commit: Commit, epoch: int) -> None:
    """Insert a completed plan with the facts of its commit, so that the replaced files wait for deletion under it.

    ``epoch`` is the epoch of the newest attempt at the plan that is known to have committed.
    """
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
            epoch=epoch,
            files_before=files,
            bytes_before=before,
            files_after=len(commit.outputs),
            bytes_after=after,
            created_at_ms=db_now(),
            not_before_ms=db_now(),
            rank_ms=db_now(),
        )
    )
    # The transitions of a plan that ended and whose commit was found afterwards; the triggers allow no direct one.
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


def _insert_relocations(
    connection: Connection,
    table: TableRef,
    found: FoundRelocations,
    names: Collection[str],
    later_tokens: Mapping[str, Set[str]],
) -> None:
    """Insert unrecorded relocations before the later ones, which may be recorded under another of the table's names."""
    commit = found.commit
    others = record_unrecorded_relocations(connection, table.name, commit, other_names=names, later_tokens=later_tokens)
    by_partition: dict[tuple[str, str], list[LocatedFile]] = defaultdict(list)
    for one in commit.superseded:
        if one.partition not in others:
            at = 0 if one.modified_at is None else milliseconds_of(one.modified_at)
            by_partition[one.partition, one.instant].append(LocatedFile(path=one.path, bytes=one.bytes, modified_ms=at))
    for (partition, token), files in by_partition.items():
        supersede(connection, table.name, partition, commit.plan_id, token, files)
        close_deleted_elsewhere(connection, table, commit.plan_id, files)
    _insert_late_copies(connection, table, found, [one for one in found.late_copies if one.partition not in others])
    if found.deleted_paths:
        row = SupersededRow
        these = row.table_name == table.name, row.plan_id == commit.plan_id, row.path.in_(sorted(found.deleted_paths))
        connection.execute(update(row).where(*these).values(deleting_at_ms=db_now(), deleted_at_ms=db_now()))
    _close_removed(connection, table, found)


def _close_removed(connection: Connection, table: TableRef, found: FoundRelocations) -> None:
    """Close the records of replaced files that a writer had removed."""
    if found.removed_paths:
        row = SupersededRow
        these = row.table_name == table.name, row.plan_id == found.commit.plan_id, row.deleted_at_ms.is_(None)
        ended = {"deleted_at_ms": db_now(), "closed_reason": REMOVED_BY_WRITER}
        connection.execute(update(row).where(*these, row.path.in_(sorted(found.removed_paths))).values(**ended))


def _insert_late_copies(
    connection: Connection, table: TableRef, found: FoundRelocations, carried: Sequence[UnrecordedLateCopy]
) -> None:
    """Record the files that were copied from a commit's previous locations; records of finished copies stay."""
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
        if is_new or _finish_late_copy(connection, table, one):
            supersede(connection, table.name, one.partition, found.commit.plan_id, one.token, [one.source])


def _finish_late_copy(connection: Connection, table: TableRef, copy: UnrecordedLateCopy) -> bool:
    """Record as done a copy that had begun at the time of the restored backup. Returns False if it recorded nothing.

    A copy in the partition's present location is left to the sweep: it locks the partition, and an overwrite may still
    remove the copy.
    """
    if copy.target.rpartition("/")[0] == latest_location(connection, table.name, copy.partition):
        return False
    row, source = LateCopyRow, copy.source
    this = (
        row.table_name == table.name,
        row.partition_path == copy.partition,
        row.source == source.path,
        row.bytes == source.bytes,
        row.modified_at_ms == source.modified_ms,
        row.done_at_ms.is_(None),
    )
    done = update(row).where(*this).values(target=copy.target, done_at_ms=db_now())
    return bool(connection.execute(done).rowcount)
