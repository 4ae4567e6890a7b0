# SPDX-License-Identifier: Apache-2.0
"""The relocations that a table's own records show, for a database that lacks them.

A database identifies a table by its name. It lacks the relocations if the table was renamed, if its source
now has another prefix, if the database was lost or restored from a backup, or if another lakefold was there before.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache, partial
from itertools import pairwise
from posixpath import basename

from lake.formats.hive.catalog.tables import list_partitions
from lake.formats.hive.commit import commit_record, version_names
from lake.formats.hive.commit.commit_lookup import has_foreign_files
from lake.formats.hive.commit.commit_record import CommitRecord
from lake.formats.hive.commit.preconditions import MAX_CHECK_AGE
from lake.formats.hive.files.listing import is_hidden, to_located_file
from lake.formats.hive.relocation.arrival_times import recorded_arrivals, source_digest
from lake.formats.hive.relocation.late_files import digest_in_copy_name
from lake.metastore import MetastoreClient, MetastoreTable
from lake.model import TableRef
from lake.plan import UNDONE, Commit, LocatedFile, Relocation, SupersededVersion, milliseconds_of
from lake.relocation.model import FoundRelocations, UnrecordedLateCopy
from lake.relocation.owner_moves import RenamedHistory, find_owner_moves
from lake.storage.files import FileEntry
from lake.storage.filesystems import file_io_of
from lake.storage.locations import resolve_path


def find_unrecorded_relocations(
    metastore: MetastoreClient, table: MetastoreTable, ref: TableRef, known: Collection[str]
) -> Sequence[FoundRelocations]:
    """See ``RecordsRelocations``. Costs two listings if there is nothing to find."""
    records = list(_unknown_records(ref, known))
    if not records:
        return ()
    partitions = list(list_partitions(metastore, table))
    named = {token for one in partitions if (token := version_names.relocation_token(one.parameters)) is not None}
    these = [one for one in records if _is_of_table(one, table, named)]
    made = _oldest_first([one for one in these if _is_applied(ref, one, named, these)])
    if not made:
        return ()
    # A restored database may have a relocation, but not the late files that were copied from its previous location.
    before = [
        one for one in _unknown_records(ref, ()) if one.commit.instant in known and _is_of_table(one, table, named)
    ]
    made = _with_undone_relocations(ref, before, made)
    every = _oldest_first([*before, *made])
    names = {path for one in every for path in _recorded_paths(one)}
    listings = {
        move.previous_location: _with_recorded_arrivals(
            ref, move.previous_location, _list_files(ref, move.previous_location)
        )
        for one in every
        for move in one.commit.relocations
    }
    for location in {move.location for one in every for move in one.commit.relocations} - listings.keys():
        names |= {entry.path for entry in _list_files(ref, location)}
    copies = defaultdict[str, list[str]](list)
    for name in sorted(names):
        if (digest := digest_in_copy_name(basename(name))) is not None:
            copies[digest].append(name)
    late_copies = _late_copies(ref, every, listings, copies)
    cleaned = cache(partial(commit_record.cleaned_partitions, ref))
    removed = _removed_paths(ref, every, listings, cleaned)
    return [
        *(
            FoundRelocations(
                commit=one.commit,
                deleted_paths=_deleted_paths(ref, one, listings, cleaned),
                removed_paths=removed[one.commit.instant],
                late_copies=late_copies[one.commit.instant],
            )
            for one in made
        ),
        *(
            FoundRelocations(
                commit=one.commit,
                is_recorded=True,
                removed_paths=removed[one.commit.instant],
                late_copies=late_copies[one.commit.instant],
            )
            for one in before
            if late_copies[one.commit.instant] or removed[one.commit.instant]
        ),
    ]


def _unknown_records(ref: TableRef, known: Collection[str]) -> Iterator[CommitRecord]:
    versions, stems = commit_record.list_records(ref)
    plans = {version_names.plan_id_of(token) for token in known if version_names.version_started_ns(token) is not None}
    seen = set(known)
    for token in sorted(versions - seen):
        record = commit_record.read_record(ref, token)
        if record is not None:
            seen.add(token)
            yield record
    for stem in sorted(stems - plans - seen):
        record = commit_record.archived_record(ref, stem)
        if record is not None and record.commit.instant not in seen:
            yield record


def _is_of_table(record: CommitRecord, table: MetastoreTable, catalog_tokens: Collection[str]) -> bool:
    """True if a commit was made on this table, not on an earlier one of the same name.

    Records of earlier releases do not identify the table; then a partition must name the commit.
    """
    if record.table_created_at is None:
        return record.commit.instant in catalog_tokens
    return record.table_created_at == table.created_at


def _is_applied(
    ref: TableRef, record: CommitRecord, catalog_tokens: Collection[str], others: Sequence[CommitRecord]
) -> bool:
    token = record.commit.instant
    is_version = version_names.version_started_ns(token) is not None
    if token in catalog_tokens:
        if is_version:  # its partitions may be dropped before the next search
            commit_record.mark_committed(ref, token)
        return True
    if is_version:
        # The executor may have been killed before it marked the commit, and a writer may have undone the call since.
        return commit_record.is_marked_committed(ref, token) or has_foreign_files(ref, record)
    # The partition may have been renamed since; then its creation time is the same.
    new_locations = {
        (key, move.location)
        for move in record.commit.relocations
        for key in (move.partition, move.partition_created_at)
        if key
    }
    return any(
        (move.partition, move.previous_location) in new_locations
        or (move.partition_created_at, move.previous_location) in new_locations
        for other in others
        if other.written_ns > record.written_ns
        for move in other.commit.relocations
    )


def _oldest_first(records: Sequence[CommitRecord]) -> Sequence[CommitRecord]:
    """Sort records from the oldest to the newest by the storage's clock.

    The times in the names of versions are of the executors' clocks, which differ.
    """
    return sorted(records, key=lambda one: one.written_ns)


def _with_undone_relocations(
    ref: TableRef, before: Sequence[CommitRecord], made: Sequence[CommitRecord]
) -> Sequence[CommitRecord]:
    """Return ``made`` with a record for each commit that a writer has undone: a relocation back from its version.

    The partition's next commit left the same location as the undone one, and the version is still there: a writer that
    had read the partition before it was undone may write late files there. If the partition was dropped and added
    again, its next commit left the same location too. But no commit was undone: the owner dropped the version's rows.
    """
    moves = defaultdict[str, list[tuple[CommitRecord, Relocation]]](list)
    for one in _oldest_first([*before, *made]):
        for move in one.commit.relocations:
            moves[move.partition].append((one, move))
    unknown, found = {one.commit.instant for one in made}, list[CommitRecord]()
    neighbours = (pair for these in moves.values() for pair in pairwise(these))
    for (one, move), (_, after) in neighbours:
        is_undone = move.location != after.previous_location == move.previous_location
        # A creation time of 0 only shows that another program has written the partition anew.
        created_at = {move.partition_created_at, after.partition_created_at} - {0}
        is_undone = is_undone and len(created_at) < 2
        if not is_undone or version_names.version_started_ns(move.token) is None or move.token not in unknown:
            continue
        if entries := _list_files(ref, move.location):
            found.append(_undone_record(ref, one, move, entries))
    return _oldest_first([*made, *found])


def _undone_record(ref: TableRef, record: CommitRecord, move: Relocation, entries: Sequence[FileEntry]) -> CommitRecord:
    """Return the record of a relocation that undid ``move``; its commit's files in the version await their deletion."""
    undo = replace(
        move,
        token=f"{UNDONE}{move.token}",
        previous_location=move.location,
        location=move.previous_location,
        files=(),
    )
    there = {to_located_file(ref.location, one.path, one.bytes, one.modified_ns) for one in entries}
    replaced = tuple(
        SupersededVersion(
            partition=move.partition,
            path=file.path,
            bytes=file.bytes,
            instant=undo.token,
            modified_at=datetime.fromtimestamp(file.modified_ms / 1000, UTC),
        )
        for file in move.files
        if file in there
    )
    commit = Commit(
        plan_id=record.commit.plan_id, instant=undo.token, outputs=(), superseded=replaced, relocations=(undo,)
    )
    return replace(record, commit=commit, partitions=(move.partition,))


def _recorded_paths(record: CommitRecord) -> Iterator[str]:
    yield from (one.path for one in record.commit.superseded)
    yield from (file.path for move in record.commit.relocations for file in move.files)


def _moves_with_files(
    ref: TableRef, record: CommitRecord, listings: Mapping[str, Sequence[FileEntry]]
) -> Iterator[tuple[Relocation, Sequence[str], Sequence[str]]]:
    """Yield the moves of a commit, each with the files that it replaced and those of them that are gone."""
    replaced: dict[str, list[str]] = defaultdict(list)
    for file in record.commit.superseded:
        replaced[file.partition].append(file.path)
    for move in record.commit.relocations:
        there = {entry.path for entry in listings[move.previous_location]}
        paths = replaced[move.partition]
        yield move, paths, [path for path in paths if resolve_path(ref.location, path) not in there]


def _deleted_paths(
    ref: TableRef,
    record: CommitRecord,
    listings: Mapping[str, Sequence[FileEntry]],
    cleaned: Callable[[str], Collection[str]],
) -> frozenset[str]:
    """Return the paths of replaced files that lakefold deleted; files that an overwrite removed are not among them."""
    gone = set[str]()
    for move, replaced, missing in _moves_with_files(ref, record, listings):
        there = listings[move.previous_location]
        # Earlier releases marked nothing: files that are gone with nothing in their place count as deleted.
        is_told = record.table_created_at is not None
        if move.partition in cleaned(record.commit.instant) or not (is_told or there or len(missing) < len(replaced)):
            gone.update(missing)
    return frozenset(gone)


def _removed_paths(
    ref: TableRef,
    records: Sequence[CommitRecord],
    listings: Mapping[str, Sequence[FileEntry]],
    cleaned: Callable[[str], Collection[str]],
) -> Mapping[str, frozenset[str]]:
    """Return by commit the replaced files that a writer removed before the partition's last commit; oldest first.

    A commit is made only after the sweep has handled the removal of replaced files. A directory's time shows that no
    file was added or removed there since.
    """
    last = {move.partition: one for one in records for move in one.commit.relocations}
    found = {}
    for one in records:
        gone = set[str]()
        for move, _, missing in _moves_with_files(ref, one, listings):
            checked_ms = _last_check_ms(last[move.partition], move.partition)
            if not missing or checked_ms is None or last[move.partition] is one:
                continue
            if move.partition in cleaned(one.commit.instant):
                continue  # lakefold may have deleted them
            with suppress(FileNotFoundError):
                directory = resolve_path(ref.location, move.previous_location)
                if file_io_of(ref.location).status(directory).modified_ns / 1e6 < checked_ms:
                    gone.update(missing)
        found[one.commit.instant] = frozenset(gone)
    return found


def _late_copies(
    ref: TableRef,
    records: Sequence[CommitRecord],
    listings: Mapping[str, Sequence[FileEntry]],
    copies: Mapping[str, Sequence[str]],
) -> Mapping[str, tuple[UnrecordedLateCopy, ...]]:
    """Return by commit the late files in its previous locations that are handled already; ``records`` oldest first.

    A commit is made only if no late file waits. So each file that arrived before a partition's last commit was copied,
    or was kept aside since an overwrite followed it. Files that arrived shortly before that commit are kept aside only
    if the commits show such an overwrite. Neither holds for locations that the owner moved the partition away from: the
    files there may be those of another partition or table. If several commits left a location, its late files belong to
    the last one, as the sweep records them.
    """
    every = [move for one in records for move in one.commit.relocations]
    moves = defaultdict[str, list[Relocation]](list)
    for move in every:
        moves[move.partition].append(move)
    history = RenamedHistory(every)
    given_up = set[tuple[str, str]]()
    for partition in moves:
        these = history.of_partition(partition)
        before = find_owner_moves([(move.previous_location, move.location) for move in these]).moved_before
        given_up |= {(partition, these[index].token) for index in before if these[index].partition == partition}
    evidence = _HandledEvidence(
        last_records={move.partition: one for one in records for move in one.commit.relocations},
        replaced=frozenset(
            (
                file.partition,
                LocatedFile(path=file.path, bytes=file.bytes, modified_ms=milliseconds_of(file.modified_at)),
            )
            for one in records
            for file in one.commit.superseded
            if file.modified_at is not None
        ),
        given_up=given_up,
        overwrites=_find_overwrites(records),
        locations={
            partition: {location for move in these for location in (move.previous_location, move.location)}
            for partition, these in moves.items()
        },
    )
    last_moves = {
        (move.partition, move.previous_location): (one.commit.instant, move.token)
        for one in records
        for move in one.commit.relocations
    }
    found = defaultdict[str, dict[tuple[str, LocatedFile], UnrecordedLateCopy]](dict)
    for one in records:
        for copy in _find_late_copies(ref, one, listings, copies, evidence):
            own = one.commit.instant, copy.token
            instant, token = last_moves.get((copy.partition, copy.source.directory), own)
            found[instant].setdefault((copy.partition, copy.source), replace(copy, token=token))
    return {one.commit.instant: tuple(found[one.commit.instant].values()) for one in records}


@dataclass(frozen=True, slots=True, kw_only=True)
class _HandledEvidence:
    """The evidence that a late file is handled: the last commit of each partition, and its ``overwrites``.

    ``overwrites`` is the result of ``_find_overwrites``. ``replaced`` are the files that a commit replaced, each with
    its partition: a late file of one partition may have been a file of another one that was read from the same
    directory. ``given_up`` has partitions, each with the token of a relocation: the owner had moved the partition away
    from the location that this relocation left, and only files with a copy are handled there. ``locations`` has all
    locations of each partition. If several partitions left a directory, the location of a copy shows its partition.
    """

    last_records: Mapping[str, CommitRecord]
    replaced: Set[tuple[str, LocatedFile]]
    given_up: Set[tuple[str, str]]
    overwrites: Mapping[str, Sequence[int]]
    locations: Mapping[str, Set[str]]


def _find_overwrites(records: Sequence[CommitRecord]) -> Mapping[str, Sequence[int]]:
    """Return by partition the times, in ms, at which overwrites wrote their first files; ``records`` oldest first.

    They are the overwrites of locations that a later commit left: it replaced none of the files that the commit before
    had published there. Copies of late files are not files of the overwrite, and may be older than it.
    """
    published: dict[tuple[str, str], frozenset[str]] = {}
    found = defaultdict[str, list[int]](list)
    for one in records:
        replaced = defaultdict[str, list[SupersededVersion]](list)
        for file in one.commit.superseded:
            replaced[file.partition].append(file)
        for move in one.commit.relocations:
            before = published.get((move.partition, move.previous_location))
            files = replaced[move.partition]
            written = [file.modified_at for file in files if digest_in_copy_name(basename(file.path)) is None]
            times = [milliseconds_of(at) for at in written if at is not None]
            if before and times and len(times) == len(written) and before.isdisjoint(file.path for file in files):
                found[move.partition].append(min(times))
            published[move.partition, move.location] = frozenset(file.path for file in move.files)
    return found


def _find_late_copies(
    ref: TableRef,
    record: CommitRecord,
    listings: Mapping[str, Sequence[FileEntry]],
    copies: Mapping[str, Sequence[str]],
    evidence: _HandledEvidence,
) -> Iterator[UnrecordedLateCopy]:
    """Yield the handled late files in the commit's previous locations, without files that a commit replaced.

    The name of a copy holds the digest of its source. ``copies`` are the paths of all copies by this digest: if several
    partitions left the source's directory, each may have one.
    """
    recorded = {one.path for one in record.commit.superseded}
    for move in record.commit.relocations:
        final = evidence.last_records.get(move.partition, record)
        locations = evidence.locations[move.partition]
        for entry in listings[move.previous_location]:
            file = to_located_file(ref.location, entry.path, entry.bytes, entry.modified_ns)
            if file.path in recorded:
                continue
            own = [path for path in copies.get(source_digest(file), ()) if path.rpartition("/")[0] in locations]
            target = own[-1] if own else None
            is_late = target is None and final is not record and (move.partition, file) not in evidence.replaced
            is_late = is_late and (move.partition, move.token) not in evidence.given_up
            if is_late and (
                _has_arrived_before(ref, entry, move, final)
                or _is_overwritten(ref, entry, record, evidence.overwrites.get(move.partition, ()))
            ):
                target = f"{move.location}/{basename(file.path)}"
            if target is not None:
                yield UnrecordedLateCopy(partition=move.partition, source=file, target=target, token=move.token)


def _has_arrived_before(ref: TableRef, entry: FileEntry, move: Relocation, last_record: CommitRecord) -> bool:
    """True if a file arrived in a previous location so long before the last commit that the commit's check saw it.

    The check was made after the rewrite had ended. The files that the rewrite wrote show that time by the storage's
    clock.
    """
    checked_ms = _last_check_ms(last_record, move.partition)
    if checked_ms is None:
        return False
    came_ns = entry.arrived_ns
    files = file_io_of(ref.location)
    if not files.has_arrival_times:
        came_ns = files.status(resolve_path(ref.location, move.previous_location)).modified_ns
    return came_ns / 1e6 < checked_ms


def _is_overwritten(ref: TableRef, entry: FileEntry, record: CommitRecord, overwrites: Sequence[int]) -> bool:
    """True if one of the ``overwrites`` since ``record`` began after a file had arrived in its previous location."""
    if not file_io_of(ref.location).has_arrival_times:
        return False
    complete_ms = max(entry.arrived_ns, entry.modified_ns) // 1_000_000
    return any(max(complete_ms, record.written_ns // 1_000_000) < began_ms for began_ms in overwrites)


def _last_check_ms(record: CommitRecord, partition: str) -> float | None:
    """Return a time before the check of a commit, in milliseconds by the storage's clock. None if it is unknown."""
    version = record.commit.instant
    there = (file for one in record.commit.relocations if one.partition == partition for file in one.files)
    written = [file.modified_ms for file in there if version_names.version_of_output(file.name) == version]
    return min(written) - MAX_CHECK_AGE.total_seconds() * 1000 if written else None


def _list_files(ref: TableRef, location: str) -> Sequence[FileEntry]:
    try:
        entries = list(file_io_of(ref.location).list(resolve_path(ref.location, location)))
    except FileNotFoundError:
        return ()
    return [entry for entry in entries if not (entry.is_directory or is_hidden(entry.name))]


def _with_recorded_arrivals(ref: TableRef, location: str, entries: Sequence[FileEntry]) -> Sequence[FileEntry]:
    """Return the files of a location with their recorded arrival times, if these are earlier."""
    times = recorded_arrivals(ref, location) if entries else {}
    if not times:
        return entries
    found = []
    for entry in entries:
        file = to_located_file(ref.location, entry.path, entry.bytes, entry.modified_ns)
        arrived_ms = times.get(source_digest(file))
        arrived_ns = entry.arrived_ns if arrived_ms is None else min(entry.arrived_ns, arrived_ms * 1_000_000)
        found.append(replace(entry, arrived_ns=arrived_ns))
    return found
