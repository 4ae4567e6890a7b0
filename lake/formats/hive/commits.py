# SPDX-License-Identifier: Apache-2.0
"""What commits did, kept beside the versions that they made, and whether they are the table's.

A commit is one call of the metastore: it gives partitions their new places and, in the same call, properties that
name plan, epoch and version. What the plan wrote and replaced is more than a property holds. It is written into the
version's directory before the call, and is a commit only where a partition names the version. The next commit of a
partition takes that name away; before it does, it files what it finds there under the plan's id, where it stays.
"""

import json
import logging
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from lake.errors import CommitLost, Integrity, Transient
from lake.filesystems import files_of
from lake.formats.hive.catalog import FORMER_HOME, HOME, HOMES, WHOLE, Place, places_of, table_of
from lake.formats.hive.neighbours import readers
from lake.formats.hive.slices import File, is_hidden, placed
from lake.locations import file_at
from lake.metastore import Metastore, Table
from lake.model import TableRef, words_of
from lake.plan import WATCHED_FOR, Commit, Move, OutputFile, PlacedFile, SupersededVersion

log = logging.getLogger(__name__)

MADE = r"part-(?P<version>.+-e\d+-\d+)-\d+-\d+\.\w+"
"""The names of files that rewrites make, as ``re`` and RE2 read it."""

_OUTPUT = re.compile(MADE)

ATTEMPTS = "_attempts"
"""Where in a version engines write: a task that outlives its attempt never reaches what readers read."""

PLAN, EPOCH, VERSION = "lakefold.plan", "lakefold.epoch", "lakefold.version"
"""Properties of a partition that a commit has moved."""

MOVED = "lakefold.moved"
"""The property, in place of those, of a partition that was moved since by no plan: back to where a writer was."""

_NAMES = frozenset({PLAN, EPOCH, VERSION, MOVED})
#: what is called by ``new_version``
_VERSION = re.compile(r"(?P<plan>.+)-e(?P<epoch>\d+)-\d+")

#: properties that are wrong once files were added or replaced: readers answer counts from them
_UNKNOWN_NOW = frozenset({"COLUMN_STATS_ACCURATE", "numRows", "rawDataSize"})

LOOK = timedelta(seconds=30)
"""How long after the last look at partitions the call that changes them may begin."""

#: a day less than what is staged is looked for, so that the sweep still finds it afterwards
_KEPT = WATCHED_FOR - timedelta(days=1)
_DOCUMENT = "commit.json"
_FILED = "_commits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A commit, made or not, and the partitions that it moves."""

    commit: Commit
    partitions: tuple[str, ...]
    #: when the table was made that the commit was of, in seconds; None of a commit of an earlier release
    table_made_at: int | None = None
    #: when this was written, right before the call, by the storage's clock; 0 of one that was not read from there
    written_ns: int = 0


def home_of(ref: TableRef) -> str:
    """Where the versions of a table are made."""
    return f"{ref.location}/{HOME}"


def homes_of(ref: TableRef) -> tuple[str, ...]:
    """Where the versions of a table may be: those of earlier releases have another directory."""
    return tuple(f"{ref.location}/{home}" for home in HOMES)


def directory_of(ref: TableRef, version: str) -> str:
    """Where a version is; where it would be made if it is nowhere."""
    files = files_of(ref.location)
    here, before = (f"{home}/{version}" for home in homes_of(ref))
    return before if not files.exists(here) and files.exists(before) else here


def version_at(ref: TableRef, directory: str) -> str | None:
    """The version that a directory is in; None for one that is in none."""
    for home in homes_of(ref):
        if directory.startswith(f"{home}/"):
            return directory.removeprefix(f"{home}/").partition("/")[0]
    return None


def leave_former_home(ref: TableRef) -> None:
    """Take the filed commits out of the directory that earlier releases used, and remove it once it is empty.

    Impala reads what is in there as files of a table without partitions.
    """
    files, before = files_of(ref.location), f"{ref.location}/{FORMER_HOME}"
    if not files.exists(before):
        return
    with suppress(FileNotFoundError):
        entries = list(files.list(f"{before}/{_FILED}"))
        _make_filed(ref)
        for entry in entries:
            with suppress(FileNotFoundError):
                files.rename(entry.path, f"{home_of(ref)}/{_FILED}/{entry.name}")
        files.sync(f"{home_of(ref)}/{_FILED}")
    for directory in (f"{before}/{_FILED}", before):
        with suppress(OSError):
            files.remove_empty(directory)


def place_in(version: str, partition: str) -> str:
    """Where a partition, or '' a table without any, is in a new version; relative to the table's own directory."""
    return f"{HOME}/{version}/{partition or WHOLE}"


def document_of(place: str) -> str:
    """What says beside a place in a version what its commit did; relative as the place is."""
    return "/".join([*place.split("/")[:2], _DOCUMENT])


def versions_of(ref: TableRef, plan_id: str) -> Iterator[str]:
    """The versions in storage that attempts at a plan have made."""
    names: set[str] = set()
    for home in homes_of(ref):
        with suppress(FileNotFoundError):
            names |= {entry.name for entry in files_of(ref.location).list(home)}
    yield from (name for name in sorted(names) if plan_of(name) == plan_id)


def new_version(plan_id: str, epoch: int, nanoseconds: int) -> str:
    """The name of a version, which no other attempt has."""
    return f"{plan_id}-e{epoch}-{nanoseconds}"


def naming(token: str) -> dict[str, str]:
    """The properties by which a partition names a move as its last."""
    version = _VERSION.fullmatch(token)
    return {PLAN: version["plan"], EPOCH: version["epoch"], VERSION: token} if version else {MOVED: token}


def counted(parameters: Mapping[str, str], token: str, files: Collection[File]) -> dict[str, str]:
    """The properties of a partition after the move ``token``: that name, and the counts of its ``files``.

    ``parameters`` are those before the move. Names of earlier moves are dropped, and counts that may not hold any more.
    """
    kept = {name: value for name, value in parameters.items() if name not in _UNKNOWN_NOW | _NAMES}
    return {
        **kept,
        **naming(token),
        "numFiles": str(len(files)),
        "totalSize": str(sum(file.bytes for file in files)),
    }


def output_name(version: str, group: int, number: int, suffix: str) -> str:
    """The name of a file that a rewrite makes, which no writer's file has."""
    return f"part-{version}-{group}-{number}.{suffix}"


def version_of(name: str) -> str | None:
    """The version whose rewrite made the file of this name; None for a writer's."""
    found = _OUTPUT.fullmatch(name)
    return found["version"] if found else None


def plan_of(version: str) -> str:
    """The plan that made a version."""
    return version.rsplit("-", 2)[0]


def write(ref: TableRef, record: Record) -> None:
    """Keep what a commit is going to do; it is on disk afterwards."""
    commit = record.commit
    document = {
        "plan": commit.plan_id,
        "epoch": commit.epoch,
        "version": commit.instant,
        "partitions": record.partitions,
        "outputs": [asdict(output) for output in commit.outputs],
        "superseded": [
            {**asdict(one), "modified_at": one.modified_at and one.modified_at.isoformat()} for one in commit.superseded
        ],
        "moves": [asdict(move) for move in commit.moves],
        "table_made_at": record.table_made_at,
    }
    is_version = _VERSION.fullmatch(commit.instant) is not None
    path = f"{home_of(ref)}/{commit.instant}/{_DOCUMENT}" if is_version else _filed_at(ref, commit.instant)
    files_of(ref.location).write(path, json.dumps(document).encode())


def read(ref: TableRef, version: str) -> Record | None:
    """What is kept in a version's directory; None where nothing is."""
    found = (_read(ref, f"{home}/{version}/{_DOCUMENT}") for home in homes_of(ref))
    return next((record for record in found if record is not None), None)


def write_move(ref: TableRef, move: Move, plan_id: str, left: Sequence[PlacedFile], table: Table) -> None:
    """Keep what a move that no plan makes is going to do; it is on disk afterwards."""
    replaced = tuple(
        SupersededVersion(
            partition=move.partition,
            path=file.path,
            bytes=file.bytes,
            instant=move.token,
            modified_at=datetime.fromtimestamp(file.modified_ms / 1000, UTC),
        )
        for file in left
    )
    _make_filed(ref)
    commit = Commit(plan_id=plan_id, instant=move.token, outputs=(), superseded=replaced, moves=(move,))
    write(ref, Record(commit=commit, partitions=(move.partition,), table_made_at=table.made_at))


def documents(ref: TableRef) -> tuple[set[str], set[str]]:
    """The versions there are, and under which ids of plans, or tokens of moves, something is filed."""
    files, versions, stems = files_of(ref.location), set[str](), set[str]()
    for home in homes_of(ref):
        with suppress(FileNotFoundError):
            versions |= {entry.name for entry in files.list(home) if _VERSION.fullmatch(entry.name)}
        with suppress(FileNotFoundError):
            names = {entry.name for entry in files.list(f"{home}/{_FILED}")}
            stems |= {name.removesuffix(".json") for name in names if name.endswith(".json")}
    return versions, stems


def made_ns(token: str) -> int | None:
    """When the version of that name was begun, in nanoseconds since 1970; None of a move that no plan made."""
    return int(token.rpartition("-")[2]) if _VERSION.fullmatch(token) else None


def note_made(ref: TableRef, version: str) -> None:
    """Note that the call of a commit was made: its partitions may be dropped before another database hears of it."""
    with suppress(OSError):
        _make_filed(ref)
        files_of(ref.location).write(_made_at(ref, version), b"")


def is_noted(ref: TableRef, version: str) -> bool:
    """Whether it is noted that the call of a version's commit was made."""
    old = filed(ref, plan_of(version))
    return (old is not None and old.commit.instant == version) or files_of(ref.location).exists(_made_at(ref, version))


def note_cleaning(ref: TableRef, partitions: Mapping[str, Collection[str]]) -> None:
    """Note, by the token of a move, in which of its partitions what it replaced is about to be deleted.

    Else a database that learns of the move later would take what is gone for removed by an overwrite.
    """
    files = files_of(ref.location)
    _make_filed(ref)
    for token, names in partitions.items():
        before = cleaned(ref, token)
        if not before.issuperset(names):
            files.write(_cleaned_at(ref, token), json.dumps(sorted(before.union(names))).encode())


def cleaned(ref: TableRef, token: str) -> frozenset[str]:
    """The partitions in which the deletion of what a move replaced has begun."""
    with suppress(FileNotFoundError):
        return frozenset(json.loads(files_of(ref.location).read(_cleaned_at(ref, token))))
    return frozenset()


def filed(ref: TableRef, plan_id: str) -> Record | None:
    """The commit that was filed under a plan's id; None where none was."""
    here, before = (f"{home}/{_FILED}/{plan_id}.json" for home in homes_of(ref))
    # It may be on its way from the former directory to the other one, and is in one of them at any time.
    return _read(ref, here) or _read(ref, before) or (_read(ref, here) if _has_former_home(ref) else None)


def is_cleaned(ref: TableRef, token: str, partition: str) -> bool:
    """Whether the deletion of what a move replaced in a partition has begun, or ended before the move was forgotten."""
    return partition in cleaned(ref, token) or token in forgotten(ref)


def forgotten(ref: TableRef) -> frozenset[str]:
    """The tokens of moves of which nothing is filed any more, since all that they replaced was deleted long ago."""
    with suppress(FileNotFoundError):
        return frozenset(json.loads(files_of(ref.location).read(_forgotten_at(ref))))
    return frozenset()


def note_forgotten(ref: TableRef, tokens: Collection[str]) -> None:
    """Note which moves are about to be forgotten: a database that is set back to before that still knows them.

    Else it would take what late writers add to their places for an overwrite of what it expects there.
    """
    before = forgotten(ref)
    if not before.issuperset(tokens):
        files_of(ref.location).write(_forgotten_at(ref), json.dumps(sorted(before.union(tokens))).encode())


def unfile(ref: TableRef, token: str) -> None:
    """Remove what is filed of a move, and the notes about it."""
    files = files_of(ref.location)
    stem = plan_of(token) if made_ns(token) is not None else token
    for home in homes_of(ref):
        for name in (f"{token}.made", f"{token}.cleaned", f"{stem}.json"):
            files.remove(f"{home}/{_FILED}/{name}")


def filed_of(ref: TableRef, token: str) -> Record | None:
    """What is filed under the name that a move's commit has; it may be another attempt's at its plan."""
    return filed(ref, plan_of(token) if made_ns(token) is not None else token)


def is_anything_ours(ref: TableRef, version: str) -> bool:
    """Whether a version that is there has what an attempt or its commit puts into it."""
    files = files_of(ref.location)
    return any(files.exists(f"{home}/{version}/{name}") for home in homes_of(ref) for name in (_DOCUMENT, ATTEMPTS))


def is_version(name: str) -> bool:
    """Whether a directory has the name of a version."""
    return _VERSION.fullmatch(name) is not None


def has_filed(ref: TableRef) -> bool:
    """Whether the directory of filed commits is there: else nothing tells that storage is."""
    return files_of(ref.location).exists(f"{home_of(ref)}/{_FILED}")


def file_away(ref: TableRef, version: str) -> None:
    """Keep the commit of a version, which a partition names, under its plan's id."""
    files, document = files_of(ref.location), _document(ref, version)
    try:
        _make_filed(ref)
        files.second_name(document, _filed_at(ref, plan_of(version)))
    except FileExistsError:
        return
    except FileNotFoundError:
        # An INSERT OVERWRITE of the whole table removed it with all that the commit was about.
        log.warning("%s: a partition names version %s, but %s is gone", ref.name, version, document)
        return
    files.sync(f"{home_of(ref)}/{_FILED}")
    files.remove(_made_at(ref, version))


def find(
    metastore: Metastore, table: Table, ref: TableRef, plan_id: str, every: Callable[[], Sequence[Place]]
) -> Commit | None:
    """The commit that names a plan; None where there is none. Raises CommitLost where what it did is gone.

    ``every`` lists the table's partitions, which is asked for only where no commit is found.
    """
    found = filed(ref, plan_id)
    if found is not None:
        return found.commit
    for version in versions_of(ref, plan_id):
        record = read(ref, version)
        if record is not None and _was_made(metastore, table, ref, record):
            return record.commit
    lost = [place.name for place in every() if _is_read_from(ref, place, plan_id)]
    if lost:
        raise CommitLost(_lost(table, ref, plan_id, lost), plan_id, lost)
    return None


def _lost(table: Table, ref: TableRef, plan_id: str, partitions: Sequence[str]) -> str:
    what, how = (
        (
            f"{words_of(partitions[0])} of {ref.name}{f' (and {len(partitions) - 1} more)' * (len(partitions) > 1)}",
            "drop such partitions and add them with their own directories as LOCATION",
        )
        if table.partition_columns
        else (ref.name, f"SET LOCATION to there, UNSET TBLPROPERTIES ('{PLAN}', '{EPOCH}', '{VERSION}')")
    )
    return (
        f"{what} is read from what plan {plan_id} made, and that is gone: an overwrite of all of {ref.location}, where "
        f"its rows were before, removed it; if so, {how}, then lakefold resume {ref.name}"
    )


def withdrawable(metastore: Metastore, ref: TableRef, versions: Collection[str], now: float) -> set[str]:
    """Those of ``versions`` that are in storage, of no commit, and of none that may be under way.

    None that a partition or another table is read from, either: an ``INSERT OVERWRITE`` of the whole table removes what
    says whose they are, and its rows are in them. What is under such a name without anything of ours stays, too: a
    writer has made it.
    """
    files = files_of(ref.location)
    there = {one for one in versions if files.exists(directory_of(ref, one)) and not begun(ref, one, now)}
    if not there:
        return set()
    table = table_of(metastore, ref)
    read_from = {version_at(ref, place.location) for place in places_of(metastore, table)}
    strangers = {one for one in there if not _is_ours(ref, one)}
    by_others = readers(metastore, table, {directory_of(ref, one) for one in there})
    read_from |= {version_at(ref, f"{directory}/") for directory in by_others}
    return there - read_from - strangers - landed(metastore, table, ref, there)


def discard(ref: TableRef, version: str) -> None:
    """Remove a version; what says whose it is goes last."""
    files, directory = files_of(ref.location), directory_of(ref, version)
    with suppress(FileNotFoundError):
        for entry in files.list(directory):
            if entry.name != ATTEMPTS:
                files.remove_tree(entry.path) if entry.is_directory else files.remove(entry.path)
    files.remove_tree(directory)


def landed(metastore: Metastore, table: Table, ref: TableRef, versions: Collection[str]) -> set[str]:
    """Those of ``versions`` that a commit made the table's, now or once."""
    found = set()
    for version in versions:
        old = filed(ref, plan_of(version))
        if old is not None and old.commit.instant == version:
            found.add(version)
            continue
        record = read(ref, version)
        if record is not None and _was_made(metastore, table, ref, record):
            found.add(version)
    return found


def made(metastore: Metastore, table: Table, ref: TableRef, versions: Collection[str]) -> Sequence[Commit]:
    """The commits of those of ``versions`` whose call was made, as far as anybody can tell."""
    records = [record for record in (read(ref, version) for version in versions) if record is not None]
    return [one.commit for one in records if _was_made(metastore, table, ref, one)]


def token_of(parameters: Mapping[str, str]) -> str | None:
    """The move that a partition names as its last; None where it names none."""
    return parameters.get(MOVED) or parameters.get(VERSION)


def begun(ref: TableRef, version: str, now: float) -> bool:
    """Whether the call that commits a version may be under way, of an executor that slept before it for however long.

    Nothing can stop that call. What it makes the table's has to be there then; so such a version stays for days.
    """
    try:
        written = files_of(ref.location).status(_document(ref, version)).modified_ns
        return now - written / 1e9 < _KEPT.total_seconds()
    except FileNotFoundError:
        return False


def take_back(ref: TableRef, version: str) -> None:
    """Note that the call that commits a version has not been made, or was refused."""
    files_of(ref.location).remove(_document(ref, version))


def forget(ref: TableRef, version: str) -> None:
    """Remove a version that no partition is left of; its commit is filed, and found there as long as it is asked for.

    A version with anything else in it than what tasks wrote into stays.
    """
    directory, old = directory_of(ref, version), filed(ref, plan_of(version))
    if old is None or old.commit.instant != version:
        return
    files = files_of(ref.location)
    with suppress(OSError):
        if {entry.name for entry in files.list(directory)} <= {ATTEMPTS, _DOCUMENT}:
            files.remove_tree(f"{directory}/{ATTEMPTS}")
            files.remove(_document(ref, version))
            files.remove_empty(directory)


def _document(ref: TableRef, version: str) -> str:
    return f"{directory_of(ref, version)}/{_DOCUMENT}"


def _filed_at(ref: TableRef, plan_id: str) -> str:
    return f"{home_of(ref)}/{_FILED}/{plan_id}.json"


def _made_at(ref: TableRef, version: str) -> str:
    return f"{home_of(ref)}/{_FILED}/{version}.made"


def _cleaned_at(ref: TableRef, token: str) -> str:
    return f"{home_of(ref)}/{_FILED}/{token}.cleaned"


def _forgotten_at(ref: TableRef) -> str:
    return f"{home_of(ref)}/{_FILED}/forgotten"


def _make_filed(ref: TableRef) -> None:
    """Make the directory of filed commits, which belongs to whom the table's belongs to."""
    files = files_of(ref.location)
    for directory in (home_of(ref), f"{home_of(ref)}/{_FILED}"):
        with suppress(FileExistsError):
            files.make_directory(directory)
            files.take_after(directory, ref.location)


def _has_former_home(ref: TableRef) -> bool:
    return files_of(ref.location).exists(f"{ref.location}/{FORMER_HOME}")


def _is_named(metastore: Metastore, table: Table, record: Record) -> bool:
    places = places_of(metastore, table, record.partitions)
    return any(place.parameters.get(VERSION) == record.commit.instant for place in places)


def _is_read_from(ref: TableRef, place: Place, plan_id: str) -> bool:
    """Whether a partition names a plan as its last, and is where that has put it: its owner has not moved it since."""
    version = version_at(ref, place.location)
    return place.parameters.get(PLAN) == plan_id and version is not None and plan_of(version) == plan_id


def _was_made(metastore: Metastore, table: Table, ref: TableRef, record: Record) -> bool:
    """Whether the call of a commit was made: a partition names it, or did until somebody put back what he had read.

    Hive does so at the end of an INSERT. Who was told of the version before that writes there, and nobody else.
    """
    return _is_named(metastore, table, record) or _is_written_to(ref, record)


def _is_written_to(ref: TableRef, record: Record) -> bool:
    files = files_of(ref.location)
    for move in record.commit.moves:
        try:
            entries = files.list(file_at(ref.location, move.place))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise Transient(f"{move.place} can't be listed: {error.strerror}") from error
        there = {
            placed(ref.location, entry.path, entry.bytes, entry.modified_ns)
            for entry in entries
            if not is_hidden(entry.name)
        }
        if not there <= set(move.files):
            return True
    return False


def _is_ours(ref: TableRef, version: str) -> bool:
    """Whether a version is as an attempt has made it, and not what a writer made anew when all had been removed."""
    try:
        names = {entry.name for entry in files_of(ref.location).list(directory_of(ref, version))}
    except FileNotFoundError:
        return True
    except OSError as error:
        raise Transient(f"version {version} can't be listed: {error.strerror}") from error
    return not names or bool(names & {ATTEMPTS, _DOCUMENT})


def _read(ref: TableRef, path: str) -> Record | None:
    files = files_of(ref.location)
    try:
        document: Mapping[str, Any] = json.loads(files.read(path))
        return Record(
            commit=Commit(
                plan_id=document["plan"],
                instant=document["version"],
                outputs=tuple(OutputFile(**one) for one in document["outputs"]),
                superseded=tuple(
                    SupersededVersion(**{**one, "modified_at": datetime.fromisoformat(one["modified_at"])})
                    for one in document["superseded"]
                ),
                epoch=document["epoch"],
                moves=tuple(
                    Move(**{**one, "files": tuple(PlacedFile(**file) for file in one["files"])})
                    for one in document["moves"]
                ),
            ),
            partitions=tuple(document["partitions"]),
            table_made_at=document.get("table_made_at"),
            written_ns=files.status(path).modified_ns,
        )
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Transient(f"{path} can't be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise Integrity(f"{path} can't be understood: {error}") from error
