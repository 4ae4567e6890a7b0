# SPDX-License-Identifier: Apache-2.0
"""Finds the tables of a catalog and loads the present metadata of one."""

import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from lake.capabilities import recreated_reason
from lake.errors import LakefoldError, Rejected, TableGone, Transient, first_line
from lake.formats.iceberg.catalog import hadoop, hive, jdbc, rest
from lake.formats.iceberg.catalog.settings import CatalogKind, CatalogSettings, read_settings, unsafe_table_reason
from lake.model import CatalogRef, SearchFailure, TableRef
from lake.storage.locations import canonical_location, is_local

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

# For each opened table, PyIceberg logs twice which library reads the table's files.
logging.getLogger("pyiceberg.io").setLevel(logging.WARNING)

KIND = "iceberg"
"""The ``CatalogRef.kind`` of Iceberg tables."""

_TRIES = 3
"""Maximum number of attempts to load metadata: an expiry may remove a file after its name was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTable:
    """A table's metadata at one moment, with the file that it was read from and PyIceberg's access to its files.

    ``unsafe_reason`` is the result of ``unsafe_table_reason``.
    """

    ref: TableRef
    metadata: "TableMetadata"
    metadata_location: str
    io: Any = field(repr=False)
    unsafe_reason: str | None = None

    def whole_number(self, key: str, default: int) -> int:
        """Return the table property ``key``, ``default`` if it is not set. Raises Rejected if it is no whole number."""
        text = self.metadata.properties.get(key, str(default))
        try:
            return int(text)
        except ValueError:
            raise Rejected(f"{self.ref.name}: the table property {key} = {text!r} is not a whole number") from None


class _MetadataNotLocal(Rejected):
    """The table is not on a local or mounted file system, or its metadata file is missing."""


def find_tables(
    settings: Mapping[str, str], catalog: str, database_pattern: str, table_pattern: str
) -> Iterator[TableRef | SearchFailure]:
    """Yield the tables of ``catalog`` whose namespace and name match, each named ``namespace.table``.

    A table whose metadata can't be read is yielded as SearchFailure. Raises Rejected for wrong settings, Transient if
    the catalog can't be read.
    """
    opened = read_settings(settings, catalog)
    for name in _table_names(opened, database_pattern):
        namespace, _, table = name.rpartition(".")
        if not (fnmatchcase(namespace, database_pattern) and fnmatchcase(table, table_pattern)):
            continue
        try:
            loaded = _load_once(opened, CatalogRef(kind=KIND, name=catalog, table=name), name)
        except (Rejected, Transient) as error:
            yield SearchFailure(location=f"{catalog}.{name}", reason=str(error))
        else:
            yield loaded.ref


def _table_names(settings: CatalogSettings, database_pattern: str) -> Iterator[str]:
    if settings.kind is CatalogKind.HIVE:
        yield from hive.find_table_names(settings, database_pattern)
        return
    if settings.kind is not CatalogKind.HADOOP:
        yield from (jdbc if settings.kind is CatalogKind.JDBC else rest).find_table_names(settings)
        return
    try:
        yield from hadoop.find_table_names(settings.warehouse)
    except FileNotFoundError as error:
        raise Rejected(f"catalog {settings.name!r}: its warehouse {settings.warehouse} does not exist") from error


def other_locations(settings: Mapping[str, str], ref: TableRef) -> Iterator[tuple[str, str]]:
    """Yield the locations of the other tables of the catalog of ``ref``, each with the table's name.

    They are the locations, and the directories of data and metadata, of Iceberg tables on local file systems. A Hive
    metastore also has tables of other formats. Raises Rejected for wrong settings or unreadable metadata, Transient if
    the catalog or a table can't be reached.
    """
    if ref.catalog is None:
        return
    opened = read_settings(settings, ref.catalog.name)
    if opened.kind is CatalogKind.HIVE:
        yield from hive.find_other_locations(opened)
    for name in _table_names(opened, "*"):
        if name == ref.catalog.table:
            continue
        try:
            found = _load_once(opened, replace(ref.catalog, table=name), name)
        except (TableGone, _MetadataNotLocal):
            continue
        except Rejected as error:
            raise Rejected(
                f"{ref.name}: it is not known where the files of table {name} are ({error}); repair or drop that table"
            ) from error
        yield name, found.metadata.location
        yield name, data_location(found)
        yield name, os.path.dirname(found.metadata_location)


def other_table_reason(ref: TableRef, identity: str | None) -> str | None:
    """Return why the table with UUID ``identity`` is not the one that ``ref`` names; None if it may be that table."""
    return recreated_reason(replace(ref, identity=identity), ref.identity)


def load_table(settings: Mapping[str, str], ref: TableRef) -> LoadedTable:
    """Return the present metadata of ``ref``. A table with the identity of ``ref`` may have another location now.

    Raises TableGone if the catalog no longer has it, or has another table at another location under its name, Rejected
    if it can't be read, or if its location differs and ``ref`` has no identity, Transient if it can't be reached.
    """
    if ref.catalog is None:
        raise Rejected(f"{ref.name}: Iceberg tables are served through their catalog; use [[sources]] with catalog")
    opened = read_settings(settings, ref.catalog.name)
    found = _load_once(opened, ref.catalog, ref.name)
    if found.ref.location != ref.location:
        if (reason := other_table_reason(ref, table_identity(found))) is not None:
            raise TableGone(reason)
        if ref.identity is not None:
            return replace(found, ref=ref)  # metadata names all files by whole paths
        raise Rejected(f"{ref.name}: its location is {found.ref.location} now, and was {ref.location}; scan it again")
    return replace(found, ref=ref)


def _load_once(settings: CatalogSettings, catalog: CatalogRef, name: str) -> LoadedTable:
    # Importing PyIceberg takes most of a second, which commands without Iceberg tables must not wait for.
    from pyiceberg.io.pyarrow import PyArrowFileIO

    for attempt in range(_TRIES):
        try:
            found = _read_metadata(settings, catalog.table)
        except LakefoldError:
            raise
        except FileNotFoundError as error:
            if attempt + 1 < _TRIES:
                continue  # the owner's writer removes old metadata files
            raise _MetadataNotLocal(f"{name}: a metadata file is missing: {first_line(error)}") from error
        except OSError as error:
            raise Transient(f"{name}: its metadata can't be read: {first_line(error)}") from error
        except Exception as error:  # of PyIceberg and pydantic: unknown versions, torn files
            raise Rejected(f"{name}: its metadata can't be read: {first_line(error)}") from error
        if found is None:
            raise TableGone(f"{name}: catalog {catalog.name!r} has no table {catalog.table}")
        location, metadata = found
        if not is_local(metadata.location):
            raise _MetadataNotLocal(
                f"{name}: it is at {metadata.location}; Iceberg tables are served on local file systems only"
            )
        ref = TableRef(name=catalog.table, format=KIND, location=canonical_location(metadata.location), catalog=catalog)
        return LoadedTable(
            ref=ref,
            metadata=metadata,
            metadata_location=location,
            io=PyArrowFileIO(),
            unsafe_reason=unsafe_table_reason(settings, metadata.format_version, metadata.properties),
        )
    raise AssertionError("unreachable")


def _read_metadata(settings: CatalogSettings, table: str) -> "tuple[str, TableMetadata] | None":
    from pyiceberg.io.pyarrow import PyArrowFileIO
    from pyiceberg.serializers import FromInputFile

    if settings.kind is CatalogKind.JDBC:
        return jdbc.load_metadata(settings, table)
    if settings.kind is CatalogKind.REST:
        return rest.load_metadata(settings, table)
    if settings.kind is CatalogKind.HIVE:
        location = hive.metadata_location(settings, table)
    else:
        location = hadoop.metadata_location(settings.warehouse, table)
    return None if location is None else (location, FromInputFile.table_metadata(PyArrowFileIO().new_input(location)))


def data_location(table: LoadedTable) -> str:
    """Return the directory of the table's data files, as its metadata names files, without trailing slash."""
    properties = table.metadata.properties
    # The first one decides; the others are its former names.
    names = ("write.data.path", "write.object-storage.path", "write.folder-storage.path")
    found = next((properties[name] for name in names if properties.get(name)), f"{table.metadata.location}/data")
    return found.rstrip("/")


def table_identity(table: LoadedTable) -> str:
    """Return the table's UUID. A table that is dropped and created again gets another UUID."""
    return str(table.metadata.table_uuid)
