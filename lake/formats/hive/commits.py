# SPDX-License-Identifier: Apache-2.0
"""What commits did, kept beside the versions that they made, and whether they are the table's.

A commit is one call of the metastore: it gives partitions their new places and, in the same call, properties that
name plan, epoch and version. What the plan wrote and replaced is more than a property holds. It is written into the
version's directory before the call, and is a commit only where a partition names the version. The next commit of a
partition takes that name away; before it does, it files what it finds there under the plan's id, where it stays.
"""

import json
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from lake.errors import Integrity, Transient
from lake.formats.hive.catalog import table_of
from lake.metastore import Metastore, Table
from lake.model import TableRef
from lake.plan import WATCHED_FOR, Commit, Move, OutputFile, PlacedFile, SupersededVersion

HOME = "_lakefold"
"""The directory in a table's own that holds versions; readers and ``MSCK REPAIR`` pass over its name."""

PLAN, EPOCH, VERSION = "lakefold.plan", "lakefold.epoch", "lakefold.version"
"""Properties of a partition that a commit has moved."""

MOVED = "lakefold.moved"
"""The property, in place of those, of a partition that was moved since by no plan: back to where a writer was."""

#: properties that are wrong once files were added or replaced: readers answer counts from them
UNKNOWN_NOW = frozenset({"COLUMN_STATS_ACCURATE", "numRows", "rawDataSize"})

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


def home_of(ref: TableRef) -> Path:
    """Where the versions of a table are."""
    return Path(ref.location) / HOME


def versions_of(ref: TableRef, plan_id: str) -> Iterator[str]:
    """The versions in storage that attempts at a plan have made."""
    try:
        names = sorted(os.listdir(home_of(ref)))
    except FileNotFoundError:
        return
    yield from (name for name in names if plan_of(name) == plan_id)


def new_version(plan_id: str, epoch: int, nanoseconds: int) -> str:
    """The name of a version, which no other attempt has."""
    return f"{plan_id}-e{epoch}-{nanoseconds}"


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
    path = home_of(ref) / commit.instant / _DOCUMENT
    scratch = path.with_name(f".{_DOCUMENT}")
    with scratch.open("w", encoding="utf-8") as file:
        json.dump(document, file)
        file.flush()
        os.fsync(file.fileno())
    scratch.rename(path)
    sync_directory(path.parent)


def read(ref: TableRef, version: str) -> Record | None:
    """What is kept in a version's directory; None where nothing is."""
    return _read(home_of(ref) / version / _DOCUMENT)


def filed(ref: TableRef, plan_id: str) -> Record | None:
    """The commit that was filed under a plan's id; None where none was."""
    return _read(home_of(ref) / _FILED / f"{plan_id}.json")


def file_away(ref: TableRef, version: str) -> None:
    """Keep the commit of a version, which a partition names, under its plan's id."""
    document = home_of(ref) / version / _DOCUMENT
    target = home_of(ref) / _FILED / f"{plan_of(version)}.json"
    target.parent.mkdir(exist_ok=True)
    try:
        os.link(document, target)
    except FileExistsError:
        return
    except FileNotFoundError as error:
        raise Integrity(f"{ref.name}: a partition names version {version}, but {document} is gone") from error
    sync_directory(target.parent)


def find(metastore: Metastore, table: Table, ref: TableRef, plan_id: str) -> Commit | None:
    """The commit that names a plan; None where there is none."""
    found = filed(ref, plan_id)
    if found is not None:
        return found.commit
    for version in versions_of(ref, plan_id):
        record = read(ref, version)
        if record is not None and _is_named(metastore, table, record):
            return record.commit
    return None


def withdrawable(metastore: Metastore, ref: TableRef, versions: Collection[str], now: float) -> set[str]:
    """Those of ``versions`` that are in storage, of no commit, and of none that may be under way."""
    there = {one for one in versions if (home_of(ref) / one).exists() and not begun(ref, one, now)}
    return there - landed(metastore, table_of(metastore, ref), ref, there) if there else set()


def landed(metastore: Metastore, table: Table, ref: TableRef, versions: Collection[str]) -> set[str]:
    """Those of ``versions`` that a commit made the table's, now or once."""
    found = set()
    for version in versions:
        old = filed(ref, plan_of(version))
        if old is not None and old.commit.instant == version:
            found.add(version)
            continue
        record = read(ref, version)
        if record is not None and _is_named(metastore, table, record):
            found.add(version)
    return found


def token_of(parameters: Mapping[str, str]) -> str | None:
    """The move that a partition names as its last; None where it names none."""
    return parameters.get(MOVED) or parameters.get(VERSION)


def begun(ref: TableRef, version: str, now: float) -> bool:
    """Whether the call that commits a version may be under way, of an executor that slept before it for however long.

    Nothing can stop that call. What it makes the table's has to be there then; so such a version stays for days.
    """
    try:
        return now - (home_of(ref) / version / _DOCUMENT).stat().st_mtime < _KEPT.total_seconds()
    except FileNotFoundError:
        return False


def take_back(ref: TableRef, version: str) -> None:
    """Note that the call that commits a version has not been made, or was refused."""
    (home_of(ref) / version / _DOCUMENT).unlink(missing_ok=True)


def forget(ref: TableRef, version: str, attempts: str) -> None:
    """Remove a version that no partition is left of; its commit is filed, and found there as long as it is asked for.

    ``attempts`` is the name of what tasks wrote into. A version with anything else in it stays.
    """
    directory, old = home_of(ref) / version, filed(ref, plan_of(version))
    if old is None or old.commit.instant != version:
        return
    with suppress(OSError):
        if {one.name for one in directory.iterdir()} <= {attempts, _DOCUMENT}:
            shutil.rmtree(directory / attempts, ignore_errors=True)
            (directory / _DOCUMENT).unlink(missing_ok=True)
            directory.rmdir()


def sync_directory(path: Path) -> None:
    """Have the names in a directory on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _is_named(metastore: Metastore, table: Table, record: Record) -> bool:
    partitions = metastore.partitions(table.database, table.name, record.partitions)
    return any(one.parameters.get(VERSION) == record.commit.instant for _, one in partitions)


def _read(path: Path) -> Record | None:
    try:
        document: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
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
