# SPDX-License-Identifier: Apache-2.0
"""The moves of a table as its own documents tell them, for a database that does not know them.

A database goes by a table's name. It knows nothing where the table was renamed, where its source has another prefix by
now, where the database was lost or set back, or where another lakefold was there before.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from posixpath import basename

from lake.files import Entry
from lake.filesystems import files_of
from lake.formats.hive import commits
from lake.formats.hive.catalog import places_of
from lake.formats.hive.commits import LOOK, Record
from lake.formats.hive.late import carried_from, digest_of
from lake.formats.hive.slices import is_hidden, placed
from lake.locations import file_at
from lake.metastore import Metastore, Table
from lake.model import TableRef
from lake.moved import Carried, FoundMoves
from lake.plan import Move


def found(metastore: Metastore, table: Table, ref: TableRef, known: Collection[str]) -> Sequence[FoundMoves]:
    """See ``TellsMoves``. Two listings where there is nothing to be found."""
    records = list(_unknown(ref, known))
    if not records:
        return ()
    places = list(places_of(metastore, table))
    named = {token for place in places if (token := commits.token_of(place.parameters)) is not None}
    these = [one for one in records if _is_of(one, table, named)]
    made = _in_order([one for one in these if _was_made(ref, one, named, these)])
    if not made:
        return ()
    # A database that was set back does not know what was brought in from places that moves left which it knows.
    before = [one for one in _unknown(ref, ()) if one.commit.instant in known and _is_of(one, table, named)]
    every = _in_order([*before, *made])
    names = {path for one in every for path in _names(one)}
    listings = {move.left: _listed(ref, move.left) for one in every for move in one.commit.moves}
    for place in {move.place for one in every for move in one.commit.moves} - listings.keys():
        names |= {entry.path for entry in _listed(ref, place)}
    digests = {digest: name for name in sorted(names) if (digest := carried_from(basename(name))) is not None}
    last = {move.partition: one for one in every for move in one.commit.moves}
    told = [
        FoundMoves(commit=one.commit, is_known=True, carried=tuple(_carried(ref, one, listings, digests, {})))
        for one in before
    ]
    return [
        *(
            FoundMoves(
                commit=one.commit,
                deleted=_deleted(ref, one, listings),
                carried=tuple(_carried(ref, one, listings, digests, last)),
            )
            for one in made
        ),
        *(one for one in told if one.carried),
    ]


def _unknown(ref: TableRef, known: Collection[str]) -> Iterator[Record]:
    versions, stems = commits.documents(ref)
    plans = {commits.plan_of(token) for token in known if commits.made_ns(token) is not None}
    seen = set(known)
    for token in sorted(versions - seen):
        record = commits.read(ref, token)
        if record is not None:
            seen.add(token)
            yield record
    for stem in sorted(stems - plans - seen):
        record = commits.filed(ref, stem)
        if record is not None and record.commit.instant not in seen:
            yield record


def _is_of(record: Record, table: Table, named: Collection[str]) -> bool:
    """Whether a commit was of this very table. Earlier releases did not say; then a partition has to name it."""
    if record.table_made_at is None:
        return record.commit.instant in named
    return record.table_made_at == table.made_at


def _was_made(ref: TableRef, record: Record, named: Collection[str], others: Sequence[Record]) -> bool:
    token = record.commit.instant
    if token in named:
        return True
    if commits.made_ns(token) is not None:
        return commits.is_noted(ref, token)
    went = {(move.partition, move.place) for move in record.commit.moves}
    return any((move.partition, move.left) in went for other in others for move in other.commit.moves)


def _in_order(records: Sequence[Record]) -> Sequence[Record]:
    """From the oldest to the newest, by the storage's clock: those that name versions are executors', and differ."""
    return sorted(records, key=lambda one: one.written_ns)


def _names(record: Record) -> Iterator[str]:
    yield from (one.path for one in record.commit.superseded)
    yield from (file.path for move in record.commit.moves for file in move.files)


def _deleted(ref: TableRef, record: Record, listings: Mapping[str, Sequence[Entry]]) -> frozenset[str]:
    """What of the replaced files lakefold has deleted, and not an overwrite."""
    cleaned, gone = commits.cleaned(ref, record.commit.instant), set[str]()
    for move in record.commit.moves:
        there = {entry.path for entry in listings[move.left]}
        replaced = [one.path for one in record.commit.superseded if one.partition == move.partition]
        missing = [path for path in replaced if file_at(ref.location, path) not in there]
        # Earlier releases noted nothing: what is gone with nothing in its place is taken for deleted.
        is_told = record.table_made_at is not None
        if move.partition in cleaned or not (is_told or there or len(missing) < len(replaced)):
            gone.update(missing)
    return frozenset(gone)


def _carried(
    ref: TableRef,
    record: Record,
    listings: Mapping[str, Sequence[Entry]],
    digests: Mapping[str, str],
    last: Mapping[str, Record],
) -> Iterator[Carried]:
    """Writers' files in places that the commit left which were brought in before.

    Their copies are named after them. And a commit was made only when nothing waited to be brought in: those that are
    ``last`` tell of files that came before them.
    """
    recorded = {one.path for one in record.commit.superseded}
    for move in record.commit.moves:
        final = last.get(move.partition, record)
        for entry in listings[move.left]:
            file = placed(ref.location, entry.path, entry.bytes, entry.modified_ns)
            if file.path in recorded:
                continue
            target = digests.get(digest_of(file))
            if target is None and final is not record and _came_before(ref, entry, move, final):
                target = f"{move.place}/{basename(file.path)}"
            if target is not None:
                yield Carried(partition=move.partition, source=file, target=target, token=move.token)


def _came_before(ref: TableRef, entry: Entry, move: Move, final: Record) -> bool:
    """Whether a file was in a former place so long before the last commit that this had looked at it.

    It looked when its rewrite had ended, which the files that this made tell by the storage's clock.
    """
    version = final.commit.instant
    there = (file for one in final.commit.moves if one.partition == move.partition for file in one.files)
    ended_ms = min((file.modified_ms for file in there if commits.version_of(file.name) == version), default=None)
    if ended_ms is None:
        return False
    came_ns = entry.came_ns
    files = files_of(ref.location)
    if not files.tells_arrivals:
        came_ns = files.status(file_at(ref.location, move.left)).modified_ns
    return came_ns / 1e6 < ended_ms - LOOK.total_seconds() * 1000


def _listed(ref: TableRef, place: str) -> Sequence[Entry]:
    try:
        entries = list(files_of(ref.location).list(file_at(ref.location, place)))
    except FileNotFoundError:
        return ()
    return [entry for entry in entries if not (entry.is_directory or is_hidden(entry.name))]
