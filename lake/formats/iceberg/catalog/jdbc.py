# SPDX-License-Identifier: Apache-2.0
"""JDBC catalogs on SQLite and PostgreSQL. PyIceberg reads the same database tables as Iceberg's Java client."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from lake.errors import Rejected, Transient, first_line
from lake.formats.iceberg.catalog.namespaces import table_names
from lake.formats.iceberg.catalog.settings import POSTGRESQL, PREFIX, CatalogSettings

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

_CONNECT_SECONDS = 10
#: the tables of every JDBC catalog
_TABLES = ("iceberg_tables", "iceberg_namespace_properties")


class _OtherMessages(logging.Filter):
    """Drops PyIceberg's advice to migrate a catalog with the older schema: lakefold only reads catalogs."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "detected a v0 schema" not in record.getMessage()


logging.getLogger("pyiceberg.catalog.sql").addFilter(_OtherMessages())


@contextmanager
def open_catalog(settings: CatalogSettings) -> Iterator[Any]:
    """Yield PyIceberg's client of the catalog, used for reading only. Raises Rejected if there is no SQLite file.

    Raises Transient if the database can't be read.
    """
    # Importing the client takes most of a second, which commands without Iceberg tables must not wait for.
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    catalog = None
    try:
        catalog = SqlCatalog(
            settings.name, uri=_url(settings), init_catalog_tables="false", warehouse=settings.warehouse
        )
        yield catalog
    except (NoSuchNamespaceError, NoSuchTableError):
        raise
    except Exception as error:
        if not type(error).__module__.startswith("sqlalchemy"):
            raise
        # SQLAlchemy's own text begins with the class of the driver's error.
        reason = first_line(getattr(error, "orig", None) or error)
        if any(table in reason for table in _TABLES):
            reason += "; no Iceberg client has created a catalog in this database"
        raise Transient(f"catalog {settings.name!r} ({_address(settings)}): {reason}") from error
    finally:
        if catalog is not None:
            catalog.engine.dispose()


def _address(settings: CatalogSettings) -> str:
    """Return the database of a catalog for a message, without user and password."""
    if settings.database:
        return settings.database
    parts = urlsplit(settings.uri)
    return f"{POSTGRESQL}//{parts.netloc.rpartition('@')[2]}{parts.path}"


def _url(settings: CatalogSettings) -> str:
    if settings.uri:
        return f"{settings.uri}{'&' if '?' in settings.uri else '?'}connect_timeout={_CONNECT_SECONDS}"
    if not Path(settings.database).exists():
        raise Rejected(f"{PREFIX}{settings.name}.uri: there is no SQLite file at {settings.database}")
    return f"sqlite:///file:{quote(settings.database)}?mode=ro&uri=true"


def find_table_names(settings: CatalogSettings) -> Iterator[str]:
    """Yield the tables of the catalog, each as ``namespace.table``; a nested namespace has dots in its name."""
    with open_catalog(settings) as catalog:
        names = table_names(catalog)
    yield from names


def load_metadata(settings: CatalogSettings, table: str) -> "tuple[str, TableMetadata] | None":
    """Return the newest metadata file of ``table`` (``namespace.table``) and its content.

    Returns None if there is no such table. Errors of storage, and of a file that can't be parsed, pass through.
    """
    from pyiceberg.exceptions import NoSuchTableError

    with open_catalog(settings) as catalog:
        try:
            found = catalog.load_table(tuple(table.split(".")))
        except NoSuchTableError:
            return None
    return found.metadata_location, found.metadata
