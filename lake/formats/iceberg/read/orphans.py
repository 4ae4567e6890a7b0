# SPDX-License-Identifier: Apache-2.0
"""Finds orphan files: files below a table's location that neither a snapshot nor the table's metadata lists.

Iceberg's own search (``DeleteOrphanFiles``) knows neither lakefold's staged work and superseded versions nor other
tables, starts a JVM, and also names files that are not Iceberg's. So lakefold searches by itself, and lets Iceberg
check and delete the result (``jvm/orphan_removal.py``).
"""

import gzip
import json
import os
import re
import stat
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from lake.capabilities import MIN_ORPHAN_AGE, OrphanFile, OrphanSearch
from lake.errors import Conflict, Rejected, Transient
from lake.formats.iceberg.catalog.tables import LoadedTable, other_table_reason, table_identity
from lake.formats.iceberg.read import refusals
from lake.formats.iceberg.read.deletion_blockers import GC_ENABLED, disabled_gc
from lake.formats.iceberg.read.live_files import all_manifests, entries_of
from lake.formats.iceberg.read.storage_clock import require_storage_clock
from lake.model import TableRef
from lake.storage.locations import canonical_location, is_local, location_identity, resolve_path
from lake.units import format_duration

_METADATA_SUFFIXES = (".metadata.json", ".metadata.json.gz")
_SUFFIXES = (".parquet", ".orc", ".avro", ".puffin", ".stats", *_METADATA_SUFFIXES)
"""Iceberg's own files. Files of other kinds, which an owner may have put beside them, are never orphans."""

_HADOOP_VERSION = re.compile(r"v\d+\..*")
"""A metadata file of a Hadoop catalog, whose clients find the newest version by its name: never an orphan."""

_GZIP = b"\x1f\x8b"

_OTHER_FORMATS = ("_delta_log", ".hoodie", "_spark_metadata")
"""Directories that show that their parent is also a table of Delta, Hudi or Spark's streaming writer.

Such a table may use files that Iceberg's metadata does not list, for example if Delta's UniForm or Apache XTable wrote
this metadata.
"""

_MAX_COMMIT_DURATION = timedelta(minutes=10)
"""How long a writer may take from the write of a metadata file until the catalog names it."""


def find_orphans(
    load: Callable[[], LoadedTable], others: Callable[[], Iterable[tuple[str, str]]], search: OrphanSearch
) -> list[OrphanFile]:
    """See ``FindsOrphans``. ``others`` are names and locations of the catalog's other tables."""
    table = load()
    _require_removal_allowed(table, search.older_than)
    now_ms = require_storage_clock(table, "the search for orphan files")
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    _require_own_location(table, others(), search.other_tables)
    # A file may become staged, listed or superseded meanwhile. By this order each change is seen: the database, which
    # clears staged work after its commit, is read first, then the directories, then the snapshots.
    real = _real_paths()
    tracked = {real(resolve_path(table.ref.location, path)) for path in search.tracked()}
    stored = list(_stored_files(table))
    latest = load()
    if (reason := other_table_reason(latest.ref, table_identity(latest))) is not None:
        raise Conflict(reason)
    if (table_identity(latest), latest.metadata.location) != (table_identity(table), table.metadata.location):
        raise Conflict(f"{table.ref.name}: the table was created again or moved during the search for orphan files")
    _require_removal_allowed(latest, search.older_than)
    listed = {real(location) for location in _listed_locations(latest)}
    unlisted = [one for one in stored if real(one.path) not in listed]
    unreadable = _check_metadata_files(latest, [one for one in unlisted if _is_metadata(one.path)], now)
    # Iceberg's names are unique. So a listed file of the same name may be the same file: paths do not show a bind
    # mount, a second mount of a file server, or a mounted bucket.
    found = {os.path.basename(one.path) for one in unlisted}
    elsewhere = {name for path in listed if (name := os.path.basename(path)) in found}
    return [
        one
        for one in sorted(unlisted, key=lambda one: one.path)
        if now - one.modified_at > search.older_than
        and one.path not in unreadable
        and os.path.basename(one.path) not in elsewhere
        and not _HADOOP_VERSION.fullmatch(os.path.basename(one.path))
        and not _is_tracked(real(one.path), tracked)
    ]


def _require_removal_allowed(table: LoadedTable, older_than: timedelta) -> None:
    name = table.ref.name
    if older_than < MIN_ORPHAN_AGE:
        raise Rejected(
            f"{name}: orphan files must be older than {format_duration(MIN_ORPHAN_AGE)}, not only "
            f"{format_duration(older_than)}: no snapshot lists the files of a write that has not committed yet"
        )
    refusals.check_table(table)
    if (value := disabled_gc(table)) is not None:
        raise Rejected(
            f"{name}: its property {GC_ENABLED} is {value}, so no file may be deleted: other tables may use its files"
        )


def _require_own_location(table: LoadedTable, others: Iterable[tuple[str, str]], known: Collection[TableRef]) -> None:
    """Raise Rejected if another table is at the table's location or below it."""
    root = table.metadata.location
    used = [(other.name, other.location) for other in known if not _is_same_table(other, table.ref)]
    for name, location in (*used, *others):
        if is_local(location) and _is_within(location, root):
            raise Rejected(
                f"{table.ref.name}: table {name} has files in {canonical_location(location)}, which is not outside of "
                f"{table.ref.location}: they look like orphan files there"
            )


def _is_same_table(other: TableRef, ref: TableRef) -> bool:
    return other.catalog is not None and other.catalog == ref.catalog


def _is_within(location: str, root: str) -> bool:
    inner, outer = os.path.realpath(canonical_location(location)), os.path.realpath(canonical_location(root))
    return f"{inner}/".startswith(f"{outer}/") or location_identity(inner) == location_identity(outer)


def _stored_files(table: LoadedTable) -> Iterator[OrphanFile]:
    """Yield the files of Iceberg's kinds below the table's location. Hidden directories and files are left out."""

    def fail(error: OSError) -> None:
        raise Transient(f"{table.ref.name}: {error.filename} can't be searched: {error.strerror}") from error

    for parent, directories, names in os.walk(canonical_location(table.metadata.location), onerror=fail):
        if marker := next((one for one in _OTHER_FORMATS if one in directories), None):
            raise Rejected(
                f"{table.ref.name}: {os.path.join(parent, marker)} is of a table of another format, whose files look "
                "like orphan files here; if that table no longer exists, remove this directory"
            )
        directories[:] = [one for one in directories if not one.startswith((".", "_"))]
        for name in names:
            if not name.endswith(_SUFFIXES) or name.startswith((".", "_")):
                continue
            path = os.path.join(parent, name)
            try:
                # Strictly encoded: Java reads a name that is not UTF-8 as another name.
                os.fsencode(path).decode("utf-8")
                found = os.lstat(path)
            except (FileNotFoundError, UnicodeDecodeError):
                continue
            except OSError as error:
                fail(error)
            if stat.S_ISREG(found.st_mode):
                at = datetime.fromtimestamp(found.st_mtime_ns // 1000 / 1_000_000, UTC)
                yield OrphanFile(path=path, bytes=found.st_size, modified_at=at)


def _listed_locations(table: LoadedTable) -> Iterator[str]:
    """Yield the names of all files that the metadata and any of its snapshots list, some of them several times."""
    metadata = table.metadata
    yield table.metadata_location
    yield from (entry.metadata_file for entry in metadata.metadata_log)
    yield from (one.statistics_path for one in (*metadata.statistics, *metadata.partition_statistics))
    yield from (snapshot.manifest_list for snapshot in metadata.snapshots)
    for manifest in all_manifests(table):
        yield manifest.manifest_path
        yield from (entry.data_file.file_path for entry in entries_of(table, manifest))


def _check_metadata_files(table: LoadedTable, files: Collection[OrphanFile], now: datetime) -> Collection[str]:
    """Return the paths of those metadata ``files`` that can't be parsed. Raises Rejected if one is of another table.

    A table that was renamed keeps its location, and a new table of the earlier name gets the same one. A table may
    also be in no catalog that lakefold knows. If it was moved to another catalog, both catalogs have it with one UUID,
    but only the other one knows the newer metadata.
    """
    unreadable = set()
    for file in files:
        try:
            content = _read_metadata(file.path)
            identity, updated_ms = str(content["table-uuid"]), int(content["last-updated-ms"])
        except FileNotFoundError:
            continue
        except (ValueError, KeyError, TypeError, EOFError, gzip.BadGzipFile, zlib.error):
            unreadable.add(file.path)  # cut off, or of a version 1 that has no UUID
            continue
        except OSError as error:
            raise Transient(f"{table.ref.name}: {file.path} can't be read: {error.strerror}") from error
        if identity.lower() != table_identity(table).lower():
            raise Rejected(
                f"{table.ref.name}: {file.path} is the metadata of another table (UUID {identity}), whose files look "
                "like orphan files here; if that table no longer exists, remove this metadata file"
            )
        if updated_ms > table.metadata.last_updated_ms and now - file.modified_at > _MAX_COMMIT_DURATION:
            raise Rejected(
                f"{table.ref.name}: {file.path} is newer than the metadata in the catalog: if the table is also "
                "in another catalog, or the catalog was restored from a backup, files that look like orphan files are "
                "needed; otherwise a commit has failed: remove this metadata file"
            )
    return unreadable


def _read_metadata(path: str) -> Any:
    with open(path, "rb") as file:
        content = file.read()
    return json.loads(gzip.decompress(content) if content.startswith(_GZIP) else content)


def _is_metadata(path: str) -> bool:
    return path.endswith(_METADATA_SUFFIXES)


def _is_tracked(path: str, tracked: Collection[str]) -> bool:
    """Return True if ``path`` or a directory above it is among ``tracked``."""
    while path:
        if path in tracked:
            return True
        path = path.rpartition("/")[0]
    return False


def _real_paths() -> Callable[[str], str]:
    """Return a function that returns a file's path without the symbolic links of its directory."""

    @cache
    def real_directory(directory: str) -> str:
        return os.path.realpath(directory)

    def real(location: str) -> str:
        directory, name = os.path.split(canonical_location(location))
        return os.path.join(real_directory(directory), name)

    return real
