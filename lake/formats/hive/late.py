# SPDX-License-Identifier: Apache-2.0
"""Files that writers left in former places: brought to where the partition is, and told to the metastore."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from posixpath import basename, dirname

from lake.elapsed import Since
from lake.errors import CommitUnknown, Conflict, Integrity, Transient
from lake.failpoints import failpoint
from lake.filesystems import files_of
from lake.formats.hive import commits
from lake.formats.hive.catalog import HOMES, Place, alter, places_of, table_of, undone
from lake.formats.hive.slices import list_places, placed
from lake.locations import file_at, path_in, uri_of
from lake.metastore import Metastore, Table
from lake.model import TableRef, words_of
from lake.plan import Move, PlacedFile

_CARRIED = re.compile(r"carried-(?P<digest>[0-9a-f]{32})-")
_ASIDE = "_aside"
"""Where replaced files wait for their deletion that would be read again at their own place."""


def target_of(source: PlacedFile, place: str, nonce: str) -> str:
    """Where a file is copied to: a name that follows from what tells it from all others, and from who copies it."""
    digest = digest_of(source)
    stem, dot, suffix = source.name.partition(".")
    name = f"carried-{digest}-{nonce}{dot}{suffix}" if stem else f"carried-{digest}-{nonce}"
    return f"{place}/{name}" if place else name


def digest_of(source: PlacedFile) -> str:
    """What names the copies of a file: it follows from what tells the file from all others."""
    return sha256(f"{source.path}\n{source.bytes}\n{source.modified_ms}".encode()).hexdigest()[:32]


def carried_from(name: str) -> str | None:
    """``digest_of`` the file that the one of this name is a copy of; None for one that is none."""
    found = _CARRIED.match(name)
    return found["digest"] if found else None


def copy(ref: TableRef, pairs: Sequence[tuple[PlacedFile, str]]) -> Collection[PlacedFile]:
    """Bring each file beside its target, by a second name or as a copy; those of them that are gone."""
    gone, files = set(), files_of(ref.location)
    for source, name in pairs:
        target = file_at(ref.location, name)
        path, directory, scratch = file_at(ref.location, source.path), dirname(target), _hidden(target)
        try:
            if _placed(ref, path) != source:
                gone.add(source)
                continue
            files.second_name(path, scratch)
            if _placed(ref, path) != source:
                raise FileNotFoundError(path)
        except FileNotFoundError:
            files.remove(scratch)
            if not files.exists(directory):
                raise Conflict(f"{directory} is gone") from None
            gone.add(source)
            continue
        except OSError as error:
            raise Transient(f"{path} can't be copied to {directory}: {error.strerror}") from error
    return gone


def show(ref: TableRef, pairs: Sequence[tuple[PlacedFile, str]], fence: Callable[[], None]) -> None:
    """Give copies their names; whoever has emptied the directory meanwhile has removed them."""
    files = files_of(ref.location)
    for _, name in pairs:
        target = file_at(ref.location, name)
        fence()
        try:
            files.rename(_hidden(target), target)
            files.sync(dirname(target))
        except FileNotFoundError:
            raise Conflict(f"the copy at {target} is gone") from None
        except OSError as error:
            raise Transient(f"{target} can't be made: {error.strerror}") from error


def replace(ref: TableRef, source: PlacedFile, copy: str, old: PlacedFile, fence: Callable[[], None]) -> PlacedFile:
    """Put a file in the place of the shorter copy that was made of it; what is there then."""
    path, target, files = file_at(ref.location, source.path), file_at(ref.location, copy), files_of(ref.location)
    scratch = f"{dirname(target)}/.replacing-{basename(target)}"
    wanted = {(one.bytes, one.modified_ms) for one in (old, source)}
    try:
        if _placed(ref, path) != source or _told_by(_placed(ref, target)) not in wanted:
            raise Conflict(f"{target} or {path} changed meanwhile")
        # Where it is a second name of the file, it grew with it.
        if _told_by(_placed(ref, target)) != _told_by(source):
            files.remove(scratch)
            files.second_name(path, scratch)
            if _placed(ref, path) != source or _told_by(_placed(ref, scratch)) != _told_by(source):
                files.remove(scratch)
                raise Conflict(f"{path} changed while it was copied")
            fence()
            files.rename(scratch, target)
        files.sync(target)
        files.sync(dirname(target))
        return _placed(ref, target)
    except FileNotFoundError as error:
        raise Conflict(f"{error.filename or target} is gone") from error
    except OSError as error:
        raise Transient(f"{path} can't be copied to {target}: {error.strerror}") from error


def take_back(ref: TableRef, targets: Collection[str], shown: Collection[str], fence: Callable[[], None]) -> None:
    """Remove copies that nobody is to read, of those under their names only ``shown``.

    Raises Conflict where another one is under its name by now: whoever copied it was stopped right before he gave it
    that name, and it may have been taken for one of the partition's since. Without what it was copied to it gets none.
    """
    files = files_of(ref.location)
    for name in targets:
        target = file_at(ref.location, name)
        fence()
        files.remove(_hidden(target))
        if name in shown:
            files.remove(target)
        elif files.exists(target):
            raise Conflict(f"{target} was shown meanwhile")


def move_aside(ref: TableRef, files: Sequence[PlacedFile], fence: Callable[[], None]) -> Mapping[PlacedFile, str]:
    """Take files out of the sight of readers, each to a place that follows from its name; where those are now.

    A writer may have given another file that name meanwhile: it is put back.
    """
    moved, storage = {}, files_of(ref.location)
    for file in files:
        source = file_at(ref.location, file.path)
        if not source.startswith(f"{ref.location}/"):
            continue  # in a directory that is nobody's default: nothing comes back to life there
        names = [f"{home}/{_ASIDE}/{file.modified_ms}/{file.path}" for home in HOMES]
        target = file_at(ref.location, names[0])
        with suppress(FileNotFoundError):
            if _placed(ref, source) == file:
                storage.make_directories(dirname(target))
                fence()
                storage.rename(source, _hidden(target))
        # Also of a round that was killed between these two, and may have been of an earlier release.
        for name in names:
            target = file_at(ref.location, name)
            with suppress(FileNotFoundError):
                _keep_aside(ref, file, source, target, fence)
            if storage.exists(target):
                moved[file] = name
                break
    return moved


def _keep_aside(ref: TableRef, file: PlacedFile, source: str, target: str, fence: Callable[[], None]) -> None:
    """Have what was taken out of sight stay there if it is ``file``, and this round's to take; else put it back."""
    storage, scratch = files_of(ref.location), _hidden(target)
    there = _placed(ref, scratch)
    try:
        fence()
        is_it = (there.bytes, there.modified_ms) == (file.bytes, file.modified_ms)
    except BaseException:
        _put_back(ref, scratch, source)
        raise
    if is_it:
        storage.rename(scratch, target)
    else:
        _put_back(ref, scratch, source)


def _put_back(ref: TableRef, scratch: str, source: str) -> None:
    storage = files_of(ref.location)
    try:
        storage.second_name(scratch, source)
    except FileExistsError as error:
        raise Integrity(
            f"{scratch} was written to {source}, where another file is by now: put it where it is to be read, then "
            "lakefold resume"
        ) from error
    storage.remove(scratch)


def tell(
    metastore: Metastore,
    table: Table,
    ref: TableRef,
    last: Move,
    move: Move | None,
    before: tuple[str, str | None],
    fence: Callable[[], None],
) -> None:
    """The one call of the metastore, with counts that are true: ``move``'s place, or where ``last`` has moved it.

    ``before`` are the place and the token that it has to have until then.
    """
    looked = Since()
    fence()
    place = next(places_of(metastore, table, [last.partition]), None)
    if place is None or _left_as(ref, place) != before:
        raise Conflict(f"{words_of(last.partition)} is not where its last move left it")
    to, files = move or last, files_of(ref.location)
    directory = file_at(ref.location, to.place)
    if move is not None and not files.exists(directory):  # a writer's overwrite by nothing
        files.make_directories(directory)
        files.take_after(directory, place.location)
    there = place if place.location == directory else place.moved(uri_of(directory))
    if move is not None and commits.VERSION in commits.naming(last.token):
        commits.file_away(ref, last.token)
    if move is not None and (plan_id := _plan_of(ref, last.token)) is not None:
        (left,) = list_places(ref.name, [place])
        replaced = [placed(ref.location, file.path, file.bytes, file.modified_ns) for file in left.files]
        commits.write_move(ref, move, plan_id, replaced, table)
    (listing,) = list_places(ref.name, [there])
    parameters = commits.counted(place.parameters, to.token, listing.files)
    if there is place and parameters == dict(place.parameters):
        return
    changed = there.changed(parameters)
    if looked.seconds > commits.LOOK.total_seconds():
        raise Transient("looking at the partition took too long for a safe call")
    failpoint("in_tell")
    fence()
    if next(places_of(metastore, table_of(metastore, ref), [last.partition]), None) != place:
        raise Conflict(f"{words_of(last.partition)} was changed right before the call")
    try:
        alter(metastore, table, [changed])
    except CommitUnknown:
        raise
    except Transient as error:
        # Listeners of the metastore are told afterwards, and may fail: then it was done all the same.
        now = next(places_of(metastore, table_of(metastore, ref), [last.partition]), None)
        told = (commits.MOVED, "numFiles", "totalSize")
        if (
            now is None
            or now.location != there.location
            or any(now.parameters.get(name) != parameters.get(name) for name in told)
        ):
            raise Conflict(f"the metastore refused the call: {error}") from error
    if (difference := undone(metastore, table_of(metastore, ref), {last.partition: changed})) is not None:
        raise Integrity(
            f"somebody changed {ref.name} in the metastore while the sweep did, and one of the two may have undone the "
            f"other: {difference}; compare with what was intended, then lakefold resume"
        )


def _plan_of(ref: TableRef, token: str) -> str | None:
    """The plan under which what the move ``token`` left waits for its deletion; None where nothing tells."""
    if commits.made_ns(token) is not None:
        return commits.plan_of(token)
    record = commits.filed(ref, token)
    return None if record is None else record.commit.plan_id


def _hidden(target: str) -> str:
    return f"{dirname(target)}/.{basename(target)}"


def _left_as(ref: TableRef, place: Place) -> tuple[str, str | None]:
    return path_in(ref.location, place.location), commits.token_of(place.parameters)


def _told_by(file: PlacedFile) -> tuple[int, int]:
    """What a copy shares with its source."""
    return file.bytes, file.modified_ms


def _placed(ref: TableRef, path: str) -> PlacedFile:
    found = files_of(ref.location).status(path)
    return placed(ref.location, path, found.bytes, found.modified_ns)
