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
from datetime import datetime, timedelta
from typing import Any

from lake.errors import CommitLost, Integrity, Transient
from lake.filesystems import files_of
from lake.formats.hive.catalog import HOME, WHOLE, Place, places_of, table_of
from lake.formats.hive.slices import File, is_hidden, placed
from lake.locations import file_at
from lake.metastore import Metastore, Table
from lake.model import TableRef, words_of
from lake.plan import WATCHED_FOR, Commit, Move, OutputFile, PlacedFile, SupersededVersion

log = logging.getLogger(__name__)

_OUTPUT = re.compile(r"part-(?P<version>.+-e\d+-\d+)-\d+-\d+\.\w+")

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


def home_of(ref: TableRef) -> str:
    """Where the versions of a table are."""
    return f"{ref.location}/{HOME}"


def place_in(version: str, partition: str) -> str:
    """Where a partition, or '' a table without any, is in a version; relative to the table's own directory."""
    return f"{HOME}/{version}/{partition or WHOLE}"


def document_of(place: str) -> str:
    """What says beside a place in a version what its commit did; relative as the place is."""
    return "/".join([*place.split("/")[:2], _DOCUMENT])


def versions_of(ref: TableRef, plan_id: str) -> Iterator[str]:
    """The versions in storage that attempts at a plan have made."""
    try:
        names = sorted(entry.name for entry in files_of(ref.location).list(home_of(ref)))
    except FileNotFoundError:
        return
    yield from (name for name in names if plan_of(name) == plan_id)


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
    }
    files_of(ref.location).write(_document(ref, commit.instant), json.dumps(document).encode())


def read(ref: TableRef, version: str) -> Record | None:
    """What is kept in a version's directory; None where nothing is."""
    return _read(ref, _document(ref, version))


def filed(ref: TableRef, plan_id: str) -> Record | None:
    """The commit that was filed under a plan's id; None where none was."""
    return _read(ref, _filed_at(ref, plan_id))


def file_away(ref: TableRef, version: str) -> None:
    """Keep the commit of a version, which a partition names, under its plan's id."""
    files, document = files_of(ref.location), _document(ref, version)
    directory = f"{home_of(ref)}/{_FILED}"
    try:
        with suppress(FileExistsError):
            files.make_directory(directory)
            files.take_after(directory, ref.location)
        files.second_name(document, _filed_at(ref, plan_of(version)))
    except FileExistsError:
        return
    except FileNotFoundError:
        # An INSERT OVERWRITE of the whole table removed it with all that the commit was about.
        log.warning("%s: a partition names version %s, but %s is gone", ref.name, version, document)
        return
    files.sync(f"{home_of(ref)}/{_FILED}")


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
        raise CommitLost(_lost(table, ref, plan_id, lost))
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

    None that a partition is read from, either: an ``INSERT OVERWRITE`` of the whole table removes what says whose they
    are, and its rows are in them. What is under such a name without anything of ours stays, too: a writer has made it.
    """
    files = files_of(ref.location)
    there = {one for one in versions if files.exists(f"{home_of(ref)}/{one}") and not begun(ref, one, now)}
    if not there:
        return set()
    table, below = table_of(metastore, ref), f"{home_of(ref)}/"
    read_from = {
        place.location.removeprefix(below).partition("/")[0]
        for place in places_of(metastore, table)
        if place.location.startswith(below)
    }
    strangers = {one for one in there if not _is_ours(ref, one)}
    return there - read_from - strangers - landed(metastore, table, ref, there)


def discard(ref: TableRef, version: str) -> None:
    """Remove a version; what says whose it is goes last."""
    files, directory = files_of(ref.location), f"{home_of(ref)}/{version}"
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
    directory, old = f"{home_of(ref)}/{version}", filed(ref, plan_of(version))
    if old is None or old.commit.instant != version:
        return
    files = files_of(ref.location)
    with suppress(OSError):
        if {entry.name for entry in files.list(directory)} <= {ATTEMPTS, _DOCUMENT}:
            files.remove_tree(f"{directory}/{ATTEMPTS}")
            files.remove(_document(ref, version))
            files.remove_empty(directory)


def _document(ref: TableRef, version: str) -> str:
    return f"{home_of(ref)}/{version}/{_DOCUMENT}"


def _filed_at(ref: TableRef, plan_id: str) -> str:
    return f"{home_of(ref)}/{_FILED}/{plan_id}.json"


def _is_named(metastore: Metastore, table: Table, record: Record) -> bool:
    places = places_of(metastore, table, record.partitions)
    return any(place.parameters.get(VERSION) == record.commit.instant for place in places)


def _is_read_from(ref: TableRef, place: Place, plan_id: str) -> bool:
    """Whether a partition names a plan as its last, and is where that has put it: its owner has not moved it since."""
    below = f"{home_of(ref)}/"
    return (
        place.parameters.get(PLAN) == plan_id
        and place.location.startswith(below)
        and plan_of(place.location.removeprefix(below).partition("/")[0]) == plan_id
    )


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
        names = {entry.name for entry in files_of(ref.location).list(f"{home_of(ref)}/{version}")}
    except FileNotFoundError:
        return True
    except OSError as error:
        raise Transient(f"version {version} can't be listed: {error.strerror}") from error
    return not names or bool(names & {ATTEMPTS, _DOCUMENT})


def _read(ref: TableRef, path: str) -> Record | None:
    try:
        document: Mapping[str, Any] = json.loads(files_of(ref.location).read(path))
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
        )
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Transient(f"{path} can't be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise Integrity(f"{path} can't be understood: {error}") from error
