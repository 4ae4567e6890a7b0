# SPDX-License-Identifier: Apache-2.0
"""Late files: copies them from previous locations to the partition's location, and adds them to its counts."""

import re
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from posixpath import basename, dirname

from lake.errors import CommitUnknown, Conflict, Integrity, Transient
from lake.failpoints import failpoint
from lake.formats.hive.catalog.tables import (
    CatalogPartition,
    find_lost_updates,
    list_partitions,
    load_table,
    put_partitions,
)
from lake.formats.hive.commit import commit_record, preconditions, version_names
from lake.formats.hive.files.listing import list_partition_files, to_located_file
from lake.formats.hive.relocation.arrival_times import record_arrivals, source_digest
from lake.metastore import MetastoreClient, MetastoreTable
from lake.model import TableRef, partition_label
from lake.plan import LocatedFile, Relocation
from lake.stopwatch import Stopwatch
from lake.storage.filesystems import file_io_of
from lake.storage.locations import hadoop_uri, is_below_table, relative_path, resolve_path

_MAX_SUFFIX_BYTES = 170
"""The longest end of a file's name that the names of its copies keep. They add up to 79 bytes to it, and file systems
allow 255."""

_COPY_NAME = re.compile(r"carried-(?P<digest>[0-9a-f]{32})-")

_HIDDEN_COPY_NAME = re.compile(r"\.{1,2}(?:replacing-[0-9a-f]{12}|carried-[0-9a-f]{32})-(?P<target>.+)")
"""The names of copies before readers see them. A file that is being copied has a second dot before it."""


def target_path(source: LocatedFile, location: str, nonce: str) -> str:
    """Return the path to which a file is copied.

    The name holds the digest that identifies the source, and the ``nonce`` of the sweep that copies it.
    """
    digest = source_digest(source)
    stem, dot, suffix = source.name.partition(".")
    suffix = suffix.encode()[-_MAX_SUFFIX_BYTES:].decode(errors="ignore")
    name = f"carried-{digest}-{nonce}{dot}{suffix}" if stem else f"carried-{digest}-{nonce}"
    return f"{location}/{name}" if location else name


def digest_in_copy_name(name: str) -> str | None:
    """Return the ``source_digest`` in the name of a copy. None if the name is not that of a copy."""
    found = _COPY_NAME.match(name)
    return found["digest"] if found else None


def is_hidden_copy(name: str) -> bool:
    """True if a name is that of a copy which readers do not see yet, or no longer."""
    return _HIDDEN_COPY_NAME.fullmatch(name) is not None


def create_location(ref: TableRef, location: str, like: str) -> None:
    """See ``CopiesLateFiles``. Raises the errors of storage."""
    files, directory = file_io_of(ref.location), resolve_path(ref.location, location)
    if not files.exists(directory):
        files.make_directories(directory)
        files.copy_permissions(directory, resolve_path(ref.location, like))


def copy_hidden(ref: TableRef, pairs: Sequence[tuple[LocatedFile, str]]) -> Collection[LocatedFile]:
    """Link or copy each file to a hidden name beside its target. Returns the files that are gone."""
    gone, files = set(), file_io_of(ref.location)
    _record_arrivals(ref, [source for source, _ in pairs])
    for source, name in pairs:
        target = resolve_path(ref.location, name)
        path, directory, scratch = resolve_path(ref.location, source.path), dirname(target), _hidden_path(target)
        try:
            if _stat_file(ref, path) != source:
                gone.add(source)
                continue
            files.link_or_copy(path, scratch)
            if _stat_file(ref, path) != source:
                raise FileNotFoundError(path)
        except FileNotFoundError:
            files.remove_own_file(scratch)
            if not files.exists(directory):
                raise Conflict(f"{directory} is gone") from None
            gone.add(source)
            continue
        except OSError as error:
            raise Transient(f"{path} can't be copied to {directory}: {error.strerror}") from error
    return gone


def publish_copies(ref: TableRef, pairs: Sequence[tuple[LocatedFile, str]], fence: Callable[[], None]) -> None:
    """Rename copies to their target names. Raises Conflict if a copy is gone because its directory was emptied."""
    files = file_io_of(ref.location)
    for _, name in pairs:
        target = resolve_path(ref.location, name)
        fence()
        try:
            files.rename(_hidden_path(target), target)
            files.sync(dirname(target))
        except FileNotFoundError:
            raise Conflict(f"the copy at {target} is gone") from None
        except OSError as error:
            raise Transient(f"{target} can't be made: {error.strerror}") from error


def replace_copy(
    ref: TableRef, source: LocatedFile, copy_path: str, previous: LocatedFile, fence: Callable[[], None]
) -> LocatedFile:
    """Replace the copy of a changed file by the file's present content. Returns the file at ``copy_path``.

    A kill before or after ``replacement_ready`` or ``names_exchanged`` leaves a hidden file, which
    ``remove_hidden_copies`` removes.
    """
    path, target, files = (
        resolve_path(ref.location, source.path),
        resolve_path(ref.location, copy_path),
        file_io_of(ref.location),
    )
    # Another round, which is suspended, must not exchange the name of this round's file.
    scratch = f"{dirname(target)}/.replacing-{uuid.uuid4().hex[:12]}-{basename(target)}"
    wanted = {(one.bytes, one.modified_ms) for one in (previous, source)}
    try:
        if _stat_file(ref, path) != source or _size_and_mtime(_stat_file(ref, target)) not in wanted:
            raise Conflict(f"{target} or {path} changed meanwhile")
        # A copy that is a link to the file has grown with the file.
        if _size_and_mtime(_stat_file(ref, target)) != _size_and_mtime(source):
            _record_arrivals(ref, [source])
            files.link_or_copy(path, scratch)
            if _stat_file(ref, path) != source or _size_and_mtime(_stat_file(ref, scratch)) != _size_and_mtime(source):
                files.remove_own_file(scratch)
                raise Conflict(f"{path} changed while it was copied")
            fence()
            failpoint("replacement_ready")
            # An overwrite that has removed the copy must not see it again.
            files.replace(scratch, target)
            failpoint("names_exchanged")
            _remove_replaced(ref, scratch, target, wanted, fence)
        files.sync(target)
        files.sync(dirname(target))
        return _stat_file(ref, target)
    except FileNotFoundError as error:
        raise Conflict(f"{error.filename or target} is gone") from error
    except OSError as error:
        raise Transient(f"{path} can't be copied to {target}: {error.strerror}") from error


def _remove_replaced(
    ref: TableRef, scratch: str, target: str, expected: Collection[tuple[int, int]], fence: Callable[[], None]
) -> None:
    """Remove the file that was replaced at ``target``. If a writer had just put another file there, it is put back."""
    files = file_io_of(ref.location)
    try:
        replaced = _stat_file(ref, scratch)
    except FileNotFoundError:  # storage without an exchange of names
        return
    if _size_and_mtime(replaced) not in expected:
        fence()
        files.replace(scratch, target)
    files.remove_own_file(scratch)
    if _size_and_mtime(replaced) not in expected:
        raise Conflict(f"{target} changed meanwhile")


def remove_hidden_copies(
    ref: TableRef,
    paths: Collection[str],
    recorded: Collection[LocatedFile],
    present: Collection[LocatedFile],
    fence: Callable[[], None],
) -> None:
    """Remove hidden copies that killed or suspended rounds have left. See ``CopiesLateFiles.remove_hidden_copies``.

    A suspended round that continues can't give a removed copy a name. If a round was killed before an exchange of
    names, readers still read the former copy, which is recorded. After the exchange, the hidden file is the former
    copy, unless a writer had put another file in its place right before the exchange.
    """
    files = file_io_of(ref.location)
    former = {_size_and_mtime(file) for file in recorded}
    known = former.union(map(_size_and_mtime, present))
    for name in paths:
        path = resolve_path(ref.location, name)
        found = _HIDDEN_COPY_NAME.fullmatch(basename(path))
        assert found is not None
        if basename(path).startswith(".replacing-"):
            target = f"{dirname(path)}/{found['target']}"
            with suppress(FileNotFoundError):
                read, hidden = (_size_and_mtime(_stat_file(ref, one)) for one in (target, path))
                if read not in former and hidden not in known:
                    raise Integrity(
                        f"{path} has another size or time than the copy that {target} replaces: a writer may have "
                        f"written it. Rename it to {target} if its rows should be read, or else remove it, then "
                        "lakefold resume"
                    )
        fence()
        files.remove_own_file(path)


def remove_copies(
    ref: TableRef, targets: Collection[str], published: Collection[str], fence: Callable[[], None]
) -> None:
    """Remove copies that must not be read. Copies under their target names are removed only if ``published`` has them.

    Raises Conflict if another copy has its target name now: a suspended sweep continued and renamed the copy, which may
    already count as one of the partition's files. A copy whose hidden file was removed can't be renamed later.
    """
    files = file_io_of(ref.location)
    for name in targets:
        target = resolve_path(ref.location, name)
        fence()
        files.remove_own_file(_hidden_path(target))
        if name in published:
            files.remove_own_file(target)
        elif files.exists(target):
            raise Conflict(f"{target} was published meanwhile")


def archive_files(ref: TableRef, files: Sequence[LocatedFile], fence: Callable[[], None]) -> Mapping[LocatedFile, str]:
    """Move files out of readers' sight, each to a path that follows from its name. Returns the new paths.

    If a writer has meanwhile put another file at a path, that file is put back.
    """
    moved, storage = {}, file_io_of(ref.location)
    for file in files:
        source, names = resolve_path(ref.location, file.path), version_names.archived_paths(file)
        target = resolve_path(ref.location, names[0])
        with suppress(FileNotFoundError):
            if _stat_file(ref, source) == file:
                _make_archive_directory(ref, file, dirname(target))
                fence()
                storage.rename(source, _hidden_path(target))
        # This also completes the work of a sweep, maybe of an earlier release, that was killed between the two renames.
        for name in names:
            target = resolve_path(ref.location, name)
            with suppress(FileNotFoundError):
                _finish_archiving(ref, file, source, target, fence)
            if storage.exists(target):
                moved[file] = name
                break
    return moved


def _make_archive_directory(ref: TableRef, file: LocatedFile, directory: str) -> None:
    """Create the directory for archived files, and its parents, with owner and permissions of the readers' directory.

    Otherwise a later overwrite by the table's owner could not remove it.
    """
    storage = file_io_of(ref.location)
    base = ref.location if is_below_table(file.path) else file.directory
    above = base
    for part in directory.removeprefix(f"{base}/").split("/"):
        above = f"{above}/{part}"
        with suppress(FileExistsError):
            storage.make_directory(above)
            storage.copy_permissions(above, base)


def _finish_archiving(ref: TableRef, file: LocatedFile, source: str, target: str, fence: Callable[[], None]) -> None:
    """Rename a hidden file to ``target`` if it is ``file`` and the fence allows it; else put it back."""
    storage, scratch = file_io_of(ref.location), _hidden_path(target)
    there = _stat_file(ref, scratch)
    try:
        fence()
        is_it = (there.bytes, there.modified_ms) == (file.bytes, file.modified_ms)
    except BaseException:
        _restore_source(ref, scratch, source)
        raise
    if is_it:
        storage.rename(scratch, target)
    else:
        _restore_source(ref, scratch, source)


def _restore_source(ref: TableRef, scratch: str, source: str) -> None:
    storage = file_io_of(ref.location)
    try:
        storage.link_or_copy(scratch, source)
    except FileExistsError as error:
        raise Integrity(
            f"{scratch} was written to {source}, where another file is now: move it to the directory in which it "
            "should be read, then "
            "lakefold resume"
        ) from error
    storage.remove_own_file(scratch)


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """A partition's entry in the metastore: its name, location and token."""

    name: str
    location: str
    token: str | None


def update_catalog(
    metastore: MetastoreClient,
    table: MetastoreTable,
    ref: TableRef,
    last: Relocation,
    move: Relocation | None,
    expected: CatalogEntry,
    fence: Callable[[], None],
) -> None:
    """Set the partition's location and counts in the metastore by one call: the location of ``move``, or of ``last``.

    The partition must be as ``expected`` until the call.
    """
    since_check, label = Stopwatch(), partition_label(expected.name)
    fence()
    partition = next(list_partitions(metastore, table, [expected.name]), None)
    if partition is None or _location_and_token(ref, partition) != (expected.location, expected.token):
        raise Conflict(f"{label} is not at the location of its last relocation")
    to, files = move or last, file_io_of(ref.location)
    directory = resolve_path(ref.location, to.location)
    if move is not None and not files.exists(directory):  # an overwrite without rows removed it
        files.make_directories(directory)
        files.copy_permissions(directory, partition.location)
    there = partition if partition.location == directory else partition.with_location(hadoop_uri(directory))
    if move is not None and version_names.VERSION_KEY in version_names.token_parameters(last.token):
        commit_record.archive_record(ref, last.token)
    if move is not None and (plan_id := _plan_id_of_token(ref, last.token)) is not None:
        (left,) = list_partition_files(ref.name, [partition])
        replaced = [to_located_file(ref.location, file.path, file.bytes, file.modified_ns) for file in left.files]
        commit_record.write_relocation_record(ref, move, plan_id, replaced, table)
    (listing,) = list_partition_files(ref.name, [there])
    parameters = version_names.relocated_parameters(partition.parameters, to.token, listing.files)
    if there is partition and parameters == dict(partition.parameters):
        return
    changed = there.updated_object(parameters)
    if since_check.elapsed_seconds > preconditions.MAX_CHECK_AGE.total_seconds():
        raise Transient("checking the partition took too long for a safe call")
    failpoint("in_tell")
    fence()
    if next(list_partitions(metastore, load_table(metastore, ref), [expected.name]), None) != partition:
        raise Conflict(f"{label} was changed right before the call")
    try:
        put_partitions(metastore, table, [changed])
    except CommitUnknown:
        raise
    except Transient as error:
        # Listeners of the metastore run after the change: if one fails, the change was still made.
        now = next(list_partitions(metastore, load_table(metastore, ref), [expected.name]), None)
        written_keys = (version_names.RELOCATION_KEY, "numFiles", "totalSize")
        if (
            now is None
            or now.location != there.location
            or any(now.parameters.get(name) != parameters.get(name) for name in written_keys)
        ):
            raise Conflict(f"the metastore refused the call: {error}") from error
    found = {one.name: one for one in list_partitions(metastore, load_table(metastore, ref), [expected.name])}
    if move is None and version_names.VERSION_KEY in version_names.token_parameters(to.token):
        commit_record.mark_committed(ref, to.token)  # an undone commit has no mark; its partitions may be dropped now
    if lost := find_lost_updates({expected.name: partition}, {expected.name: changed}, found):
        raise Integrity(
            f"another program changed {ref.name} in the metastore during a sweep; one of the two may have undone the "
            f"other: {lost[expected.name]}; compare with the intended change, then lakefold resume {ref.name}",
            partitions=lost,
        )
    preconditions.verify_call_in_time(ref, since_check)


def _plan_id_of_token(ref: TableRef, token: str) -> str | None:
    """Return the plan under which the files that the relocation ``token`` replaced await deletion. None if unknown."""
    if version_names.version_started_ns(token) is not None:
        return version_names.plan_id_of(token)
    record = commit_record.archived_record(ref, token)
    return None if record is None else record.commit.plan_id


def _record_arrivals(ref: TableRef, files: Sequence[LocatedFile]) -> None:
    try:
        record_arrivals(ref, files)
    except OSError as error:
        raise Transient(f"the arrival times of late files of {ref.name} can't be recorded: {error.strerror}") from error


def _hidden_path(target: str) -> str:
    return f"{dirname(target)}/.{basename(target)}"


def _location_and_token(ref: TableRef, partition: CatalogPartition) -> tuple[str, str | None]:
    return relative_path(ref.location, partition.location), version_names.relocation_token(partition.parameters)


def _size_and_mtime(file: LocatedFile) -> tuple[int, int]:
    """Return the bytes and modification time, which a copy shares with its source."""
    return file.bytes, file.modified_ms


def _stat_file(ref: TableRef, path: str) -> LocatedFile:
    found = file_io_of(ref.location).status(path)
    return to_located_file(ref.location, path, found.bytes, found.modified_ns)
