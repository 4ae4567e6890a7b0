# SPDX-License-Identifier: Apache-2.0
"""Files that writers left in former places: brought to where the partition is, and told to the metastore."""

import os
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

from lake.errors import CommitUnknown, Conflict, Transient
from lake.formats.hive import commits
from lake.formats.hive.catalog import Place, places_of
from lake.formats.hive.owners import take_after
from lake.formats.hive.slices import list_places, placed
from lake.locations import canonical_location, file_at
from lake.metastore import Metastore, Table
from lake.model import TableRef
from lake.plan import Move, PlacedFile

_ASIDE = "_aside"
"""Where replaced files wait for their deletion that would be read again at their own place."""


def target_of(source: PlacedFile, place: str) -> str:
    """Where a file is copied to: a name that follows from what tells it from all others."""
    digest = sha256(f"{source.path}\n{source.bytes}\n{source.modified_ms}".encode()).hexdigest()[:32]
    stem, dot, suffix = source.name.partition(".")
    return f"{place}/carried-{digest}{dot}{suffix}" if stem else f"{place}/carried-{digest}"


def copy(ref: TableRef, pairs: Sequence[tuple[PlacedFile, str]], fence: Callable[[], None]) -> Collection[PlacedFile]:
    """Bring each file to its target by a second name, or a copy where the file system can't; those that are gone."""
    gone = set()
    for source, name in pairs:
        target = Path(file_at(ref.location, name))
        if target.exists():
            continue
        path = Path(file_at(ref.location, source.path))
        scratch = target.with_name(f".{target.name}")
        scratch.unlink(missing_ok=True)
        try:
            if _placed(ref, path) != source:
                gone.add(source)
                continue
            _second_name(path, scratch)
            if _placed(ref, path) != source:
                raise FileNotFoundError(path)
        except FileNotFoundError:
            scratch.unlink(missing_ok=True)
            if not target.parent.is_dir():
                raise Conflict(f"{target.parent} is gone") from None
            gone.add(source)
            continue
        except OSError as error:
            raise Transient(f"{path} can't be copied to {target.parent}: {error.strerror}") from error
        fence()
        scratch.rename(target)
        commits.sync_directory(target.parent)
    return gone


def move_aside(ref: TableRef, files: Sequence[PlacedFile], fence: Callable[[], None]) -> Mapping[PlacedFile, str]:
    """Take files out of the sight of readers, each to a place that follows from its name; where those are now."""
    moved = {}
    for file in files:
        source, name = Path(file_at(ref.location, file.path)), f"{commits.HOME}/{_ASIDE}/{file.modified_ms}/{file.path}"
        if not source.is_relative_to(ref.location):
            continue  # in a directory that is nobody's default: nothing comes back to life there
        target = Path(file_at(ref.location, name))
        try:
            if _placed(ref, source) == file:
                target.parent.mkdir(parents=True, exist_ok=True)
                fence()
                source.rename(target)
        except FileNotFoundError:
            pass
        if target.exists():
            moved[file] = name
    return moved


def tell(
    metastore: Metastore, table: Table, ref: TableRef, last: Move, move: Move | None, fence: Callable[[], None]
) -> None:
    """The one call of the metastore, with counts that are true: ``move``'s place, or where ``last`` has moved it."""
    looked = time.monotonic()
    fence()
    place = next(places_of(metastore, table, [last.partition]), None)
    if place is None or _left_as(ref, place) != (last.place, last.token):
        raise Conflict(f"partition {last.partition} is not where its last move left it")
    if move is None:
        location, parameters = place.storage.location, dict(place.parameters)
    else:
        directory = Path(file_at(ref.location, move.place))
        if not directory.exists():  # a writer's overwrite by nothing
            directory.mkdir(parents=True)
            take_after(directory, place.location)
        location = f"file:{directory}"
        if commits.VERSION in place.parameters:
            commits.file_away(ref, place.parameters[commits.VERSION])
        named = {commits.PLAN, commits.EPOCH, commits.VERSION}
        parameters = {name: value for name, value in place.parameters.items() if name not in named}
        parameters[commits.MOVED] = move.token
    (listing,) = list_places(ref.name, [Place(
        name=place.name, storage=place.storage.moved(location), parameters=parameters, made_at=place.made_at,
    )])  # fmt: skip
    parameters = {name: value for name, value in parameters.items() if name not in commits.UNKNOWN_NOW}
    parameters["numFiles"] = str(len(listing.files))
    parameters["totalSize"] = str(sum(file.bytes for file in listing.files))
    if move is None and parameters == dict(place.parameters):
        return
    assert place.partition is not None, "tables without partitions are refused"
    changed = place.partition.changed(place.storage.moved(location), parameters)
    if time.monotonic() - looked > commits.LOOK.total_seconds():
        raise Transient("looking at the partition took too long for a safe call")
    try:
        metastore.alter_partitions(table.database, table.name, [changed])
    except CommitUnknown:
        raise
    except Transient as error:
        # Listeners of the metastore are told afterwards, and may fail: then it was done all the same.
        now = next(places_of(metastore, table, [last.partition]), None)
        told = (commits.MOVED, "numFiles", "totalSize")
        if (
            now is None
            or now.location != canonical_location(location)
            or any(now.parameters.get(name) != parameters.get(name) for name in told)
        ):
            raise Conflict(f"the metastore refused the call: {error}") from error


def _left_as(ref: TableRef, place: Place) -> tuple[str, str | None]:
    return place.location.removeprefix(f"{ref.location}/"), commits.token_of(place.parameters)


def _placed(ref: TableRef, path: Path) -> PlacedFile:
    status = path.stat()
    return placed(ref.location, str(path), status.st_size, status.st_mtime_ns)


def _second_name(path: Path, target: Path) -> None:
    try:
        os.link(path, target)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copy2(path, target)
        with target.open("rb") as file:
            os.fsync(file.fileno())
