# SPDX-License-Identifier: Apache-2.0
"""Hive catalogs: a Hive metastore lists the tables, and a parameter of each table names its metadata file."""

from collections.abc import Iterator
from fnmatch import fnmatchcase

from lake.errors import Rejected
from lake.formats.iceberg.catalog.settings import CatalogSettings
from lake.metastore import MetastoreTable, pooled_connection

_TYPE, _METADATA = "table_type", "metadata_location"


def find_table_names(settings: CatalogSettings, database_pattern: str) -> Iterator[str]:
    """Yield the Iceberg tables of the databases that match, each as ``database.table``.

    Raises Transient if the metastore does not answer.
    """
    with pooled_connection(settings.uri) as metastore:
        for database in metastore.databases():
            if not fnmatchcase(database, database_pattern):
                continue  # a metastore may have thousands of other tables
            found = metastore.tables(database, metastore.table_names(database))
            yield from sorted(f"{database}.{table.name}" for table in found if _is_iceberg(table))


def find_other_locations(settings: CatalogSettings) -> Iterator[tuple[str, str]]:
    """Yield name and location of each table of the metastore that is not an Iceberg table; views have no location.

    Raises Transient if the metastore does not answer.
    """
    with pooled_connection(settings.uri) as metastore:
        for database in metastore.databases():
            for table in metastore.tables(database, metastore.table_names(database)):
                if not _is_iceberg(table) and table.storage.location:
                    yield f"{database}.{table.name}", table.storage.location


def metadata_location(settings: CatalogSettings, table: str) -> str | None:
    """Return the present metadata file of ``table`` (``database.table``); None if the metastore has no such table.

    Raises Transient if the metastore does not answer, Rejected if the table is not an Iceberg table.
    """
    database, _, name = table.rpartition(".")
    with pooled_connection(settings.uri) as metastore:
        found = metastore.table(database, name)
    if found is None:
        return None
    location = found.parameters.get(_METADATA)
    if location is None or not _is_iceberg(found):
        raise Rejected(f"{table}: it is a table of the metastore {settings.uri}, but not an Iceberg table")
    return location


def _is_iceberg(table: MetastoreTable) -> bool:
    return table.parameters.get(_TYPE, "").lower() == "iceberg"
