# SPDX-License-Identifier: Apache-2.0
"""REST catalogs: servers with Iceberg's REST interface, read through PyIceberg."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from lake.errors import Rejected, Transient, first_line
from lake.formats.iceberg.catalog.namespaces import table_names
from lake.formats.iceberg.catalog.settings import PREFIX, CatalogSettings
from lake.redaction import redact

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

_TIMEOUT_SECONDS = 60.0
"""The maximum time that the server may take for one answer."""


@contextmanager
def open_catalog(settings: CatalogSettings) -> Iterator[Any]:
    """Yield PyIceberg's client of the catalog. Raises Rejected if the server refuses the login.

    Raises Transient if the server does not answer. PyIceberg's errors for missing tables and namespaces pass through.
    """
    # Importing the client takes most of a second, which commands without Iceberg tables must not wait for.
    from pyiceberg.catalog.rest import RestCatalog
    from pyiceberg.exceptions import (
        ForbiddenError,
        NoSuchNamespaceError,
        NoSuchTableError,
        OAuthError,
        RESTError,
        UnauthorizedError,
    )
    from requests import RequestException
    from requests.adapters import HTTPAdapter

    class _AdapterWithTimeout(HTTPAdapter):
        """Sets a timeout for each request: PyIceberg sets none, and a stalled server would block lakefold for ever."""

        def send(self, *arguments: Any, **options: Any) -> Any:
            return super().send(*arguments, **(options | {"timeout": options.get("timeout") or _TIMEOUT_SECONDS}))

    class _Catalog(RestCatalog):  # type: ignore[misc]
        def _create_session(self) -> Any:
            session = super()._create_session()
            for scheme in ("http://", "https://"):
                session.mount(scheme, _AdapterWithTimeout())
            return session

    catalog = None
    where = f"catalog {settings.name!r} ({redact(settings.uri)})"
    try:
        catalog = _Catalog(settings.name, **settings.properties)
        # The server's settings override those of the client. With the mode "refs" PyIceberg would load the newest
        # snapshots of branches and tags only, and an expiry would delete files that earlier snapshots list.
        catalog.properties["snapshot-loading-mode"] = "all"
        yield catalog
    except (NoSuchNamespaceError, NoSuchTableError):
        raise
    except (ForbiddenError, OAuthError, UnauthorizedError) as error:
        raise Rejected(
            f"{where} refuses the login of {PREFIX}{settings.name}.token or .credential: {redact(first_line(error))}"
        ) from error
    except (RESTError, RequestException) as error:
        raise Transient(f"{where}: {redact(first_line(error))}") from error
    finally:
        if catalog is not None:
            catalog.close()


def find_table_names(settings: CatalogSettings) -> Iterator[str]:
    """Yield the tables of the catalog, each as ``namespace.table``; a nested namespace has dots in its name."""
    with open_catalog(settings) as catalog:
        names = table_names(catalog)
    yield from names


def load_metadata(settings: CatalogSettings, table: str) -> "tuple[str, TableMetadata] | None":
    """Return the present metadata file of ``table`` (``namespace.table``) and its content.

    Returns None if there is no such table. Raises the errors of ``open_catalog``.
    """
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    with open_catalog(settings) as catalog:
        try:
            found = catalog.load_table(tuple(table.split(".")))
        except (NoSuchNamespaceError, NoSuchTableError):
            return None
    return found.metadata_location, found.metadata


def replace_metadata(
    settings: CatalogSettings, table: str, base: "TableMetadata", changes: Sequence[str]
) -> str | None:
    """Apply ``changes``, in Iceberg's JSON, to the metadata ``base`` of ``table``. Returns None if the server refuses.

    Otherwise returns the metadata file that the server has replaced, '' if it does not tell. The server compares all
    branches and tags of ``base`` by their names and snapshots. It can't compare anything else. So the replaced metadata
    may have new branches and tags, and other properties. Iceberg's Java client does not let it compare branches and
    tags in an expiry, and then the server removes those that were moved to an expiring snapshot meanwhile.

    Raises Transient if the result is unknown, and the errors of ``open_catalog``.
    """
    from pydantic import TypeAdapter
    from pyiceberg.exceptions import CommitFailedException
    from pyiceberg.table.update import AssertRefSnapshotId, AssertTableUUID, TableRequirement, TableUpdate

    updates = TypeAdapter(tuple[TableUpdate, ...]).validate_json(f"[{','.join(changes)}]")
    requirements: tuple[TableRequirement, ...] = (
        AssertTableUUID(uuid=base.table_uuid),
        *(AssertRefSnapshotId(ref=name, snapshot_id=ref.snapshot_id) for name, ref in base.refs.items()),
    )
    with open_catalog(settings) as catalog:
        opened = catalog.load_table(tuple(table.split(".")))
        try:
            response = catalog.commit_table(opened, requirements, updates)
        except CommitFailedException:
            return None
    log = response.metadata.metadata_log
    return str(log[-1].metadata_file) if log else ""
