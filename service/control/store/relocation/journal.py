# SPDX-License-Identifier: Apache-2.0
"""The journal of relocations: previous locations of partitions, their expected files, and copies of late files.

A relocation is pruned only once nothing depends on it and its previous location no longer exists
(``executors.relocation.pruning``), because a session that has cached a location writes there until the session ends.
Records of late copies are never pruned, because a file must not be copied twice.
"""

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Self

from sqlalchemy import ColumnElement, Connection, Row, delete, func, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from lake.errors import Integrity, LeaseLost
from lake.model import TableRef, partition_label
from lake.plan import UNDONE, Commit, LocatedFile, LockOwner, Relocation
from lake.relocation.model import LateCopy, ModifiedFile, PreviousLocation, RelocatedPartition, UnreadyReason
from service.control.store.audit import record_audit
from service.control.store.base import StorePart, insert_if_absent, with_row_locks
from service.control.store.database import db_now, timedelta_to_ms
from service.control.store.models import LateCopyRow, PlanRow, RelocationRow, StagedRow, SupersededRow, TableRow
from service.control.store.partition_locks import renew_locks
from service.control.store.relocation.relocated_partitions import file_from_json, load_relocated
from service.control.store.relocation.tokens import DISCARDED_PREFIX, RECREATED_PREFIX, RELEASED_PREFIX
from service.control.store.repeated_replacements import (
    REMOVED_BY_WRITER,
    REPLACED_AGAIN,
    close_earlier_replacements,
    close_in_other_tables,
)

#: maximum number of partitions that one statement reads
_CHUNK = 500


class RelocationJournal(StorePart):
    """The journal of relocations and late copies; a part of ``lake.relocation_store.RelocationStore``."""

    _required_lock: tuple[str, str, LockOwner] | None = None

    def under_partition_lock(self, table: TableRef, partition: str, owner: LockOwner) -> Self:
        """Return this store for the owner of a partition lock.

        Its writes keep the lock; if the owner has lost it, they raise LeaseLost and change nothing.
        """
        fenced = copy.copy(self)
        fenced._required_lock = table.name, partition, owner
        return fenced

    @contextmanager
    def _locked_write(self) -> Iterator[Connection]:
        with self._database.write() as connection:
            if self._required_lock is not None:
                table, partition, owner = self._required_lock
                if not renew_locks(connection, table, [partition], owner):
                    raise LeaseLost(f"another owner may hold {partition_label(partition)} of {table} now")
            yield connection

    def relocated_partitions(
        self, table: TableRef, partitions: Collection[str] | None = None
    ) -> Sequence[RelocatedPartition]:
        """Return the table's relocated partitions, all of them or those among ``partitions``."""
        row = RelocationRow
        with self._database.read() as connection:
            chosen = sorted(partitions) if partitions is not None else None
            if chosen is None:
                names = select(row.partition_path).where(row.table_name == table.name).distinct()
                chosen = sorted(connection.execute(names).scalars())
            found: list[RelocatedPartition] = []
            for start in range(0, len(chosen), _CHUNK):
                found += load_relocated(connection, table.name, chosen[start : start + _CHUNK])
            return found

    def relocated_tables(self, within: timedelta | None = None) -> Collection[str]:
        """Return the tables with a relocated partition. With ``within``, only relocations of this last period count."""
        row = RelocationRow
        tables = select(row.table_name).distinct()
        if within is not None:
            tables = tables.where(row.begun_at_ms > db_now() - timedelta_to_ms(within))
        with self._database.read() as connection:
            return frozenset(connection.execute(tables).scalars())

    def unfinished_partitions(self, table: TableRef) -> Collection[str]:
        """Return the partitions with an unfinished relocation or late copy, or whose files the sweep waits for."""
        row, late_copy = RelocationRow, LateCopyRow
        is_open = row.made_at_ms.is_(None) | row.unsettled_since_ms.is_not(None)
        relocations = select(row.partition_path).where(row.table_name == table.name, is_open)
        late_copies = select(late_copy.partition_path).where(
            late_copy.table_name == table.name, late_copy.done_at_ms.is_(None)
        )
        with self._database.read() as connection:
            return frozenset(connection.execute(relocations.union(late_copies)).scalars())

    def next_relocated_partitions(self, table: TableRef, partition: str, count: int) -> Sequence[str]:
        """Return the next ``count`` relocated partitions after ``partition`` in sorted order; fewer at the end."""
        row = RelocationRow
        names = select(row.partition_path).where(row.table_name == table.name, row.partition_path > partition)
        with self._database.read() as connection:
            return list(connection.execute(names.distinct().order_by(row.partition_path).limit(count)).scalars())

    def outside_locations(
        self, table: TableRef, partitions: Collection[str] | None = None
    ) -> Mapping[str, Collection[str]]:
        """Return the previous locations outside of the table's directory, by partition: all, or of ``partitions``."""
        row, found = RelocationRow, dict[str, set[str]]()
        # Paths of locations are relative in the table's directory, see ``resolve_path``.
        is_outside = row.left_place.startswith("/") | row.left_place.contains("://")
        locations = select(row.partition_path, row.left_place).where(row.table_name == table.name, is_outside)
        if partitions is not None:
            locations = locations.where(row.partition_path.in_(sorted(partitions)))
        with self._database.read() as connection:
            for partition, location in connection.execute(locations):
                found.setdefault(partition, set()).add(location)
        return found

    def begin_late_copies(
        self,
        table: TableRef,
        partition: str,
        targets: Sequence[tuple[LocatedFile, str]],
        arrived_ms: Mapping[LocatedFile, int],
        former_names: Collection[str] = (),
    ) -> None:
        """Record the copies that are about to begin, each as a source and its target.

        A copy to the recorded target keeps its state. A copy to another target begins again. ``arrived_ms`` has the
        arrival time of each source; if a time was recorded before, that time is kept.

        A source may be copied for several partitions that left the same directory, once for each. Raises Integrity if
        it is recorded under one of ``former_names`` of the partition, which would then have its rows twice.
        """
        row, label = LateCopyRow, partition_label(partition)
        names = sorted(set(former_names) - {partition})
        with self._locked_write() as connection:
            dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
            for source, target in targets:
                new = dialect.insert(row).values(
                    table_name=table.name,
                    partition_path=partition,
                    source=source.path,
                    bytes=source.bytes,
                    modified_at_ms=source.modified_ms,
                    came_at_ms=arrived_ms.get(source),
                    target=target,
                    begun_at_ms=db_now(),
                )
                upsert = new.on_conflict_do_update(
                    index_elements=("table_name", "partition_path", "source", "bytes", "modified_at_ms"),
                    set_={"target": target, "begun_at_ms": db_now(), "done_at_ms": None},
                    where=row.target != target,
                )
                if not names:
                    connection.execute(upsert)
                    continue
                of_names = *_is_source(table.name, source), row.partition_path.in_(names)
                owner = connection.execute(select(row.partition_path).where(*of_names).limit(1)).scalar_one_or_none()
                if owner is not None:
                    raise Integrity(
                        f"{source.path} is a late file of {partition_label(owner)} and of {label}, which both left its "
                        f"directory, and it is copied for {partition_label(owner)} only: if its rows should be read in "
                        f"{label} too, copy it there"
                    )
                connection.execute(upsert)

    def end_late_copies(self, table: TableRef, copies: Sequence[tuple[LateCopy, PreviousLocation | None]]) -> None:
        """Record that these copies are done.

        With each copy, pass the previous location that contains its source, or None if the source needs no copy. The
        source is recorded as a file that the last relocation from that location replaced.
        """
        with self._locked_write() as connection:
            for late_copy, previous in copies:
                done = update(LateCopyRow).where(LateCopyRow.id == late_copy.row_id, LateCopyRow.done_at_ms.is_(None))
                if connection.execute(done.values(done_at_ms=db_now())).rowcount and previous is not None:
                    supersede(
                        connection,
                        table.name,
                        late_copy.partition,
                        previous.plan_id,
                        previous.token,
                        [late_copy.source],
                    )

    def discard_late_copies(self, table: TableRef, copies: Sequence[LateCopy]) -> None:
        """See ``RelocationStore``."""
        with self._locked_write() as connection:
            for late_copy in copies:
                row = LateCopyRow.id == late_copy.row_id, LateCopyRow.target == late_copy.target
                connection.execute(delete(LateCopyRow).where(*row, LateCopyRow.done_at_ms.is_(None)))

    def begin_relocation(
        self, table: TableRef, relocation: Relocation, plan_id: str, previous_files: Sequence[LocatedFile]
    ) -> None:
        """Record a relocation and the files in the previous location. Call it before the catalog is changed."""
        with self._locked_write() as connection:
            insert_if_absent(
                connection, RelocationRow, **_relocation_values(table.name, relocation, plan_id, previous_files)
            )

    def end_relocation(self, table: TableRef, relocation: Relocation) -> None:
        """Record that a relocation was applied; the files of its previous location wait for deletion under its plan."""
        with self._locked_write() as connection:
            _end_begun_relocation(connection, table.name, relocation)

    def discard_relocations(self, table: TableRef, relocations: Sequence[Relocation]) -> None:
        """Record that relocations were begun and will not be applied; see ``RelocationStore``."""
        row = RelocationRow
        with self._locked_write() as connection:
            for relocation in relocations:
                key = (
                    row.table_name == table.name,
                    row.partition_path == relocation.partition,
                    row.token == relocation.token,
                )
                discarded = {
                    "token": f"{DISCARDED_PREFIX}{relocation.token}",
                    "left_place": relocation.location,
                    "place": relocation.previous_location,
                    "files": [],
                    "left_files": [],
                    "made_at_ms": db_now(),
                }
                connection.execute(update(row).where(*key, row.made_at_ms.is_(None)).values(discarded))

    def record_modified_files(
        self, table: TableRef, latest: Relocation, files: Sequence[tuple[ModifiedFile, PreviousLocation, LocatedFile]]
    ) -> None:
        """Record late files that a writer has extended after they were copied, each with its location and its copy.

        Such a file is recorded, with its new size, as a file that the last relocation from its location replaced.
        """
        row, relocation_row = LateCopyRow, RelocationRow
        with self._locked_write() as connection:
            latest_key = (
                relocation_row.table_name == table.name,
                relocation_row.partition_path == latest.partition,
                relocation_row.token == latest.token,
            )
            entries = connection.execute(with_row_locks(select(relocation_row.files).where(*latest_key))).scalar_one()
            published = {entry[0]: entry for entry in entries}
            for modified, previous, copy in files:
                key = (*_is_source(table.name, modified.recorded), row.partition_path == latest.partition)
                values = {"bytes": modified.current.bytes, "modified_at_ms": modified.current.modified_ms}
                connection.execute(update(row).where(*key).values(**values))
                supersede(
                    connection, table.name, latest.partition, previous.plan_id, previous.token, [modified.current]
                )
                if copy.path in published:
                    published[copy.path] = _file_to_json(copy)
            connection.execute(update(relocation_row).where(*latest_key).values(files=list(published.values())))

    def supersede_files(
        self, table: TableRef, partition: str, previous: PreviousLocation, files: Sequence[LocatedFile]
    ) -> None:
        """Record that files of a previous location wait for deletion; a later overwrite has removed their rows."""
        with self._locked_write() as connection:
            supersede(connection, table.name, partition, previous.plan_id, previous.token, files)

    def record_removed_files(self, table: TableRef, previous: PreviousLocation, files: Sequence[LocatedFile]) -> None:
        """Close the records of files that a writer has removed from a previous location."""
        row = SupersededRow
        with self._locked_write() as connection:
            for file in files:
                # A later file of this path may wait for deletion.
                modified_ms = func.coalesce(row.modified_at_ms, 0)
                this_file = row.path == file.path, row.bytes == file.bytes, modified_ms == file.modified_ms
                key = row.table_name == table.name, row.plan_id == previous.plan_id, *this_file
                # A file that another partition replaced again counts until this partition's sweep has seen it removed.
                counts = row.deleted_at_ms.is_(None) | row.closed_reason.startswith(REPLACED_AGAIN)
                ended = {"deleted_at_ms": db_now(), "closed_reason": REMOVED_BY_WRITER}
                connection.execute(update(row).where(*key, counts).values(**ended))

    def release_locations(self, table: TableRef, partition: str, locations: Sequence[PreviousLocation]) -> None:
        """Record that the late files in these locations are not the partition's; see ``PreviousLocation``."""
        with self._locked_write() as connection:
            for previous in locations:
                insert_if_absent(
                    connection,
                    RelocationRow,
                    table_name=table.name,
                    partition_path=partition,
                    token=f"{RELEASED_PREFIX}{previous.token}",
                    plan_id=previous.plan_id,
                    left_place=previous.location,
                    place=previous.location,
                    files=[],
                    left_files=[],
                    partition_made_at=previous.partition_created_at or 0,
                    begun_at_ms=db_now(),
                    made_at_ms=db_now(),
                )

    def record_archived_files(self, table: TableRef, partition: str, paths: Mapping[LocatedFile, str]) -> None:
        """Record, also in the audit trail, that files waiting for deletion were moved to other paths."""
        row = SupersededRow
        with self._locked_write() as connection:
            for file, path in paths.items():
                # If two sweeps recorded a late file at once, two rows of it wait.
                key = row.table_name == table.name, row.path == file.path
                connection.execute(update(row).where(*key, row.deleted_at_ms.is_(None)).values(path=path))
            if paths:
                detail = f"partition {partition} was dropped: {len(paths)} replaced files await deletion elsewhere"
                record_audit(connection, "sweep", "files moved aside", table=table.name, detail=detail)

    def quarantine_stalled_files(
        self, table: TableRef, files: Collection[LocatedFile], locations: Collection[str]
    ) -> None:
        """Quarantine ``files``, which writers have not finished, and end this quarantine for other files there."""
        this_table = TableRow.name == table.name
        columns = select(TableRow.quarantined, TableRow.quarantined_bytes).where(this_table)
        reason, found = f"it {UnreadyReason.STALLED}", {file.path: file.bytes for file in files}

        def stalled_paths(quarantined: Mapping[str, str]) -> set[str]:
            return {path for path, why in quarantined.items() if why == reason and path.rpartition("/")[0] in locations}

        with self._database.read() as connection:
            before = connection.execute(columns).one_or_none()
        if before is None or stalled_paths(before.quarantined) == found.keys():
            return
        with self._database.write() as connection:
            known, sizes = connection.execute(with_row_locks(columns)).one()
            ended = stalled_paths(known) - found.keys()
            values = {
                "quarantined": {path: why for path, why in known.items() if path not in ended}
                | dict.fromkeys(found, reason),
                "quarantined_bytes": {path: size for path, size in sizes.items() if path not in ended} | found,
            }
            connection.execute(update(TableRow).where(this_table).values(values))

    def update_waiting(self, table: TableRef, relocated: RelocatedPartition, is_waiting: bool) -> timedelta:
        """Record whether the sweep waits for files in the previous locations. Returns how long it has waited."""
        row = RelocationRow
        key = (
            row.table_name == table.name,
            row.partition_path == relocated.partition,
            row.token == relocated.latest.token,
        )
        with self._locked_write() as connection:
            if not is_waiting:
                waiting_row = update(row).where(*key, row.unsettled_since_ms.is_not(None))
                connection.execute(waiting_row.values(unsettled_since_ms=None))
                return timedelta()
            since = func.coalesce(row.unsettled_since_ms, db_now())
            connection.execute(update(row).where(*key).values(unsettled_since_ms=since))
            waited = connection.execute(select(db_now() - row.unsettled_since_ms).where(*key)).scalar_one()
            return timedelta(milliseconds=max(0, waited))


def _is_source(table: str, file: LocatedFile) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions of the record of a late copy whose source is ``file``."""
    row = LateCopyRow
    is_file = row.source == file.path, row.bytes == file.bytes, row.modified_at_ms == file.modified_ms
    return row.table_name == table, *is_file


def record_relocations(connection: Connection, table: str, commit: Commit) -> None:
    """Record the relocations of a plan's commit, in the transaction that completes the plan."""
    for relocation in commit.relocations:
        values = _relocation_values(table, relocation, commit.plan_id, ())
        if insert_if_absent(connection, RelocationRow, **values, made_at_ms=db_now()):
            _clear_earlier_files(connection, table, relocation)


def has_relocation_of(connection: Connection, table: str, commit: Commit) -> bool:
    """Return True if any relocation of ``commit`` is recorded as applied."""
    row = RelocationRow
    applied = row.table_name == table, row.token == commit.instant, row.made_at_ms.is_not(None)
    return connection.execute(select(row.id).where(*applied).limit(1)).one_or_none() is not None


def latest_location(connection: Connection, table: str, partition: str) -> str | None:
    """Return the location to which the latest relocation of a partition led. None if the partition has none."""
    row = RelocationRow
    applied = row.table_name == table, row.partition_path == partition, row.made_at_ms.is_not(None)
    last = select(row.place).where(*applied, ~row.token.startswith(RECREATED_PREFIX)).order_by(row.id.desc())
    return connection.execute(last.limit(1)).scalar_one_or_none()


def record_unrecorded_relocations(
    connection: Connection,
    table: str,
    commit: Commit,
    *,
    other_names: Collection[str] = (),
    later_tokens: Mapping[str, Set[str]] = MappingProxyType({}),
) -> frozenset[str]:
    """Record the relocations of a commit that the database had not recorded.

    Returns the partitions whose replaced files the caller must not record, because they are already recorded or wait
    for deletion under a later relocation.

    A new relocation is inserted before all recorded relocations that were applied after it. If the first of these did
    not begin at the location where the new relocation ended, the new relocation was undone in between. Then the files
    that its commit wrote wait for deletion, and other files in that location are late. The first later relocation
    already has the replaced files. A relocation that is already recorded as applied does not change.

    ``later_tokens`` are the tokens of relocations that are known to be later, by partition. They may still be recorded
    under one of the table's ``other_names``.
    """
    row, deleted_by_others = RelocationRow, set()
    staged = select(StagedRow.staged_at_ms).where(
        StagedRow.plan_id == commit.plan_id, StagedRow.token == commit.instant
    )
    staged_at = connection.execute(staged).scalar_one_or_none()
    for move in commit.relocations:
        rows_of_partition = select(row.__table__).where(
            row.table_name.in_(sorted({table, *other_names})),
            row.partition_path == move.partition,
            ~row.token.startswith(RECREATED_PREFIX),
        )
        tokens = later_tokens.get(move.partition, frozenset())
        known = [
            known_row
            for known_row in connection.execute(rows_of_partition.order_by(row.id))
            if known_row.table_name == table or known_row.token in tokens
        ]
        if any(known_row.token == move.token for known_row in known):
            moved = _end_begun_relocation(connection, table, move)
            _end_copies_of(connection, table, move, moved)
            deleted_by_others.add(move.partition)
            continue
        later = _later_relocations(known, move, staged_at, tokens, is_restored=commit.epoch is None)
        # Relocations are ordered by their numbers, so the later ones are inserted again with new numbers.
        connection.execute(delete(row).where(row.id.in_([known_row.id for known_row in later])))
        values = _relocation_values(table, move, commit.plan_id, ())
        insert_if_absent(connection, row, **values, made_at_ms=db_now())
        if not later:
            _clear_earlier_files(connection, table, move)
        elif later[0].left_place != move.location:
            next_start = later[0].left_place
            undo = replace(
                move, token=f"{UNDONE}{move.token}", previous_location=move.location, location=next_start, files=()
            )
            insert_if_absent(
                connection, row, **_relocation_values(table, undo, commit.plan_id, ()), made_at_ms=db_now()
            )
            supersede(connection, table, move.partition, commit.plan_id, undo.token, move.files)
            deleted_by_others.add(move.partition)
        for known_row in later:
            copied_values = {name: value for name, value in known_row._mapping.items() if name != "id"}
            connection.execute(insert(row).values(**copied_values))
    return frozenset(deleted_by_others)


def _later_relocations(
    known: Sequence[Row[Any]], move: Relocation, staged_at: int | None, later_tokens: Set[str], *, is_restored: bool
) -> Sequence[Row[Any]]:
    """Return the relocations of ``known`` that were applied after the new relocation ``move``.

    Those of ``later_tokens`` and all that follow one of them were.
    If the move ``is_restored``, the sweep made it, and it may end in a location that an earlier relocation had left.
    Then a recorded relocation can be later only if it follows the last arrival at the location where the move began.
    """
    applied = [index for index, one in enumerate(known) if one.made_at_ms is not None]
    if is_restored and (arrivals := [index for index in applied if known[index].place == move.previous_location]):
        applied = [index for index in applied if index > arrivals[-1]]
    departures = [index for index in applied if known[index].left_place == move.location]
    begun_later = [index for index in applied if staged_at is not None and known[index].begun_at_ms >= staged_at]
    known_later = [index for index, one in enumerate(known) if one.token in later_tokens]
    return known[min([*(departures or begun_later)[:1], *known_later[:1]], default=len(known)) :]


def _end_begun_relocation(connection: Connection, table: str, relocation: Relocation) -> Sequence[LocatedFile]:
    """Record that a relocation was applied, if it is recorded as begun. Returns the files that it then has replaced."""
    row = RelocationRow
    begun = (
        row.table_name == table,
        row.partition_path == relocation.partition,
        row.token == relocation.token,
        row.made_at_ms.is_(None),
    )
    applied = update(row).where(*begun).values(made_at_ms=db_now()).returning(row.plan_id, row.left_files)
    ended = connection.execute(applied).one_or_none()
    if ended is None:
        return ()
    previous_files = [file_from_json(entry) for entry in ended.left_files]
    supersede(connection, table, relocation.partition, ended.plan_id, relocation.token, previous_files)
    _clear_earlier_files(connection, table, relocation)
    return previous_files


def _end_copies_of(connection: Connection, table: str, relocation: Relocation, files: Sequence[LocatedFile]) -> None:
    """Record as done the copies of ``files`` in the location of an applied relocation, which was begun after them."""
    row, sources = LateCopyRow, {file.path for file in files}
    begun = row.table_name == table, row.partition_path == relocation.partition, row.done_at_ms.is_(None)
    copies = connection.execute(select(row.id, row.source, row.target).where(*begun)).all() if files else ()
    ids = [
        number
        for number, source, target in copies
        if source in sources and target.rpartition("/")[0] == relocation.location
    ]
    connection.execute(update(row).where(row.id.in_(ids)).values(done_at_ms=db_now()))


def _clear_earlier_files(connection: Connection, table: str, move: Relocation) -> None:
    """Clear the files of the relocations before ``move``. Files that wait for deletion have rows of their own."""
    row = RelocationRow
    of_partition = row.table_name == table, row.partition_path == move.partition
    this = select(row.id).where(*of_partition, row.token == move.token).scalar_subquery()
    connection.execute(update(row).where(*of_partition, row.id < this).values(files=[], left_files=[]))


def _relocation_values(
    table: str, move: Relocation, plan_id: str, previous_files: Sequence[LocatedFile]
) -> dict[str, Any]:
    return {
        "table_name": table,
        "partition_path": move.partition,
        "token": move.token,
        "plan_id": plan_id,
        "left_place": move.previous_location,
        "place": move.location,
        "partition_made_at": move.partition_created_at,
        "begun_at_ms": db_now(),
        "files": [_file_to_json(file) for file in move.files],
        "left_files": [_file_to_json(file) for file in previous_files],
    }


def _file_to_json(file: LocatedFile) -> list[Any]:
    return [file.path, file.bytes, file.modified_ms]


def supersede(
    connection: Connection, table: str, partition: str, plan_id: str, token: str, files: Sequence[LocatedFile]
) -> None:
    """Record that files wait for deletion. A file replaces the row of an earlier file of the same path.

    Closes the rows of these files under other plans, also in other tables. Does nothing if the plan was pruned, because
    lakefold deletes no file without a recorded reason.
    """
    if connection.execute(select(PlanRow.id).where(PlanRow.id == plan_id)).one_or_none() is None:
        return
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    for file in files:
        values = {
            "partition_path": partition,
            "bytes": file.bytes,
            "instant": token,
            "modified_at_ms": file.modified_ms,
            "superseded_at_ms": db_now(),
            "deleting_at_ms": None,
            "deleted_at_ms": None,
            "closed_reason": None,
        }
        row = dialect.insert(SupersededRow).values(plan_id=plan_id, table_name=table, path=file.path, **values)
        connection.execute(row.on_conflict_do_update(index_elements=("plan_id", "path"), set_=values))
    paths = [file.path for file in files]
    close_earlier_replacements(connection, table, plan_id, token, paths)
    location = connection.execute(select(TableRow.location).where(TableRow.name == table)).scalar_one()
    close_in_other_tables(connection, table, location, plan_id, token, paths)
